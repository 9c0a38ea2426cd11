"""Whether the records of a file are what their features say: they parse, and their pictures and
sounds decode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from index_tools._features import load_features, records_of
from torch_tfrecord import Audio, TFRecordError, decode_image
from torch_tfrecord.columns import make_parser
from torch_tfrecord.files import FileSource
from torch_tfrecord.media import image_format
from torch_tfrecord.tables import decode_record

__all__ = ["check_records"]


def check_records(file: FileSource, source: str | None) -> Iterator[TFRecordError]:
    """Read each record whose checksums match, and decode its pictures and sounds.

    Args:
        file: The file.
        source: A file of code that assigns `features`; None to read Examples and SequenceExamples
            with whatever features they have, and decode all values that begin like a picture or a
            WAV file.

    Yields:
        The error of each record that does not parse or decode.
    """
    check: Callable[[bytes], object] = _decode
    if source is not None:
        check = make_parser(load_features(source, [])).single
    # damage is found by others
    options: dict[str, Any] = {"open_source": lambda _: file, "report": lambda *_: None}
    for path, position, offset, payload in records_of(file.path, "skip", **options):
        try:
            check(payload)
        except TFRecordError as error:
            yield error.locate(path=path, position=position, offset=offset)


def _decode(record: bytes) -> None:
    context, lists = decode_record(record)
    steps = ((name, values) for name, each in lists.items() for values in each)
    for name, values in chain(context.items(), steps):
        for value in values if isinstance(values, list) else ():  # numbers are neither
            try:
                if image_format(value):
                    decode_image(value)
                elif value[8:12] == b"WAVE":
                    Audio()._decode(memoryview(value), 0)
            except TFRecordError as error:
                raise type(error)(f"feature {name!r}: {error.args[0]}") from error.__cause__
