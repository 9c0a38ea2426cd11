"""Whether the records of a file are what their features say: they parse, and their pictures and
sounds decode.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from index_tools._features import load_features
from torch_tfrecord import Audio, TFRecordError, decode_image
from torch_tfrecord.columns import make_parser
from torch_tfrecord.files import FileSource
from torch_tfrecord.media import image_format
from torch_tfrecord.tables import FoundRecord

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
    parse = None if source is None else make_parser(load_features(source, [])).single
    # damage is found by others
    for record in FoundRecord.all_of(file.path, on_error="skip", report=lambda *_: None):
        try:
            if parse is None:
                _decode(record)
            else:
                parse(record.payload)
        except TFRecordError as error:
            path, position, offset, _ = record
            yield error.locate(path=path, position=position, offset=offset)


def _decode(record: FoundRecord) -> None:
    context, lists = record.decode()
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
