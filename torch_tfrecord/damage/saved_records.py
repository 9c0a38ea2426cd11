"""Copy the good records of a damaged file."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from torch_tfrecord.arguments import PathLike, StorageOptions, check_compression_type
from torch_tfrecord.errors import CorruptRecordError
from torch_tfrecord.files import Access, is_remote, local_path, open_file
from torch_tfrecord.records import RecordScanner, SkippedBytes, TFRecordWriter, open_stream

__all__ = ["SalvageReport", "salvage"]


@dataclass(frozen=True)
class SalvageReport:
    """The good and the damaged parts of a file.

    Attributes:
        num_records: Good records.
        num_behind: Those after the first damaged record.
        lost: [begin, end) of each damaged part: bytes of the file, or of what is decompressed from
            it.
        kinds: What is wrong with each: "header CRC", "payload CRC", "cut" (the file ends inside a
            record), "trailing bytes" (no record follows).
        gaps: (begin, end, kind) of each part of a compressed file that was not decompressed:
            "gzip CRC", "gzip data", "cut", "trailing bytes"; for zlib streams "zlib CRC" and "zlib
            data". Bytes before `begin` may be wrong, too; what comes of them shows in `lost`.
        error: The text of the first error; "" for a file that is not damaged.
    """

    num_records: int
    num_behind: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    gaps: list[tuple[int, int, str]] = field(default_factory=list)
    error: str = ""

    @classmethod
    def of(cls, num_records: int, skipped: SkippedBytes) -> SalvageReport:
        """The report of a scan."""
        error = skipped.first
        at = None if error is None else error.position
        return cls(
            num_records,
            0 if at is None else num_records - at,
            list(skipped.ranges),
            list(skipped.kinds),
            [(gap.begin, gap.end, gap.kind) for gap in skipped.gaps],
            "" if error is None else str(error),
        )


def salvage(
    path: PathLike,
    out: PathLike,
    *,
    compression_type: str | None = "auto",
    storage_options: StorageOptions = None,
) -> SalvageReport:
    """Copy every record of a damaged file whose two checksums fit to a new file, in order.

    Records are looked for after each damage, also inside a damaged gzip or zlib stream: at the
    next member, or the next block that decompresses. A piece that is twice in the file comes out
    twice. Records inside the payload of a damaged record are not taken for records of the file,
    where its header shows where it ends.

    Args:
        path: The damaged file, which is only read; local, or with a ``scheme://``.
        out: The new file: it appears complete, with its index (a remote one without), or not at
            all. Its compression goes by its name, as with `TFRecordWriter`.
        compression_type: The damaged file's: "auto", None or "", "GZIP", "ZLIB" or "SNAPPY". Say
            it where the first bytes may be damaged, by which "auto" guesses it.
        storage_options: See `TFRecordDataset`.

    Raises:
        CorruptRecordError: The file has no good record.
        OSError: A file cannot be read or written.
        ValueError: `out` is the damaged file itself.

    Example:
        >>> report = salvage("damaged.tfrecord", "good.tfrecord")  # doctest: +SKIP
        >>> report.num_records, report.lost, report.kinds  # doctest: +SKIP
        (9999, [(51234, 51410)], ['payload CRC'])
    """
    file = open_file(local_path(path), Access(storage_options))
    name, kind = local_path(out), check_compression_type(compression_type)
    if os.path.realpath(name) == os.path.realpath(file.path):
        raise ValueError(f"out must be another file than the damaged one, got {name}")
    skipped, num_records = SkippedBytes(), 0
    stream, _ = open_stream(file.ahead(), kind, gaps=skipped.gaps)
    with TFRecordWriter(
        name, write_index=not is_remote(name), storage_options=storage_options
    ) as writer:
        for block in RecordScanner(stream, skipped=skipped):
            for record in block.payloads or ():
                writer.write(record)
            num_records += len(block.offsets)
        report = SalvageReport.of(num_records, skipped)
        if skipped and not num_records:
            raise CorruptRecordError(f"no good record: {report.error}", path=file.path)
    return report
