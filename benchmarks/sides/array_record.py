"""ArrayRecord: the same records in a file of its own format, in groups of one, uncompressed, its
fastest for this.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from array_record.python.array_record_data_source import ArrayRecordDataSource
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from side import Job, Side

from sides.at_random import positions_of, side_at_random

__all__ = ["open_side"]


def open_side(job: Job) -> Side:
    """Raw records, one by one and by its batched reads."""
    path = Path(job.path).with_suffix(".array_record")
    if not path.exists():
        _write(path, _records(job.path))
    # One record by a seek: its `read([position])` takes a hundred times as long, and so does the
    # data source's [i].
    reader = ArrayRecordReader(
        str(path), "readahead_buffer_size:0,max_parallelism:0", file_reader_buffer_size=1 << 15
    )

    def one(position: int) -> bytes:
        reader.seek(position)
        return reader.read()

    return side_at_random(
        job, one, ArrayRecordDataSource([str(path)]).__getitems__, positions_of(job)
    )


def _records(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while header := file.read(12):
            yield file.read(struct.unpack("<Q", header[:8])[0])
            file.read(4)


def _write(path: Path, records: Iterator[bytes]) -> None:
    part = path.with_suffix(".part")
    writer = ArrayRecordWriter(str(part), "group_size:1,uncompressed")
    for record in records:
        writer.write(record)
    writer.close()
    part.rename(path)
