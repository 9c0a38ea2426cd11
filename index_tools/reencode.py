"""``tfrecord reencode``: the pictures of TFRecord files in another encoding, all else as it is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import MutableSequence, Sequence
from functools import partial
from itertools import chain
from typing import Any

from index_tools._outputs import Output, add_output, create_folders
from index_tools._terminal import Verb, data_files
from index_tools.pictures import Encoding, add_image_options, map_in_threads, print_prices
from torch_tfrecord import TFRecordError, find_files
from torch_tfrecord.arguments import Paths
from torch_tfrecord.files import open_file
from torch_tfrecord.media import image_format
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.protobuf import parse_message
from torch_tfrecord.records import open_stream
from torch_tfrecord.tables import FoundRecord, Survey

__all__ = ["REENCODE", "reencode"]

_SPREAD = 100  # records for the table

_DESCRIPTION = """\
Writes the records of PATH... with their pictures in another encoding, in the same order, and each shard with its
index. image/format is changed where it is there; all other features keep their values bit for bit, and records in
which no picture changes all their bytes. JPEG files keep their bytes unless you pass --recompress; how many others
keep theirs, and why, is said. EXIF's orientation is always kept, as boxes and masks are of the stored pixels. A
picture that does not decode is an error, and nothing is written: `tfrecord verify --decode` lists them all.
`--image-quality table` writes nothing, and shows what each choice costs for 100 pictures.

examples:
  tfrecord reencode 'png/train-*' jpeg/train --image-format jpeg --image-quality 90
  tfrecord reencode train.tfrecord small/train --image-quality 75 --recompress --feature photo"""


def reencode(
    paths: Paths,
    prefix: str,
    encoding: Encoding = Encoding(),  # noqa: B008  # it is immutable
    *,
    feature: str = "image/encoded",
    num_threads: int | None = None,
    **shards: Any,
) -> dict[str, int]:
    """Write the records of TFRecord files with their pictures in another encoding.

    Features but the pictures, and their ``.../format``, keep their values bit for bit; records in
    which no picture changes keep all their bytes, and all of them their order. EXIF's orientation
    is kept. The shards appear together, each with its index, or not at all.

    Args:
        paths: As for `TFRecordDataset`.
        prefix: Path and first part of the names of the shards.
        encoding: What the pictures become.
        feature: Name of the pictures, in Examples or in the context or a feature list of
            SequenceExamples.
        num_threads: How many pictures are encoded at once; None for one per processor.
        shards: `num_shards` or `max_shard_bytes` (default: 100 MB), `compression_type` (default:
            that of the first file) and `force`, which writes over a set of as many shards.

    Returns:
        How many "records", "pictures", their "bytes_before" and "bytes_after"; and "kept_alpha",
        "kept_16-bit" and so on, where pictures keep their bytes.

    Raises:
        ImageDecodeError: A picture is damaged; names the record.
        TFRecordError: A file or record is damaged.
        ValueError: No record has such a picture, a set of shards exists, or the orientation is
            not kept.

    Example:
        >>> reencode("png/train-*", "jpeg/train", Encoding("jpeg", 90))  # doctest: +SKIP
        {'records': 5000, 'pictures': 5000, 'bytes_before': 2181034004, 'bytes_after': 311020330}
    """
    if encoding.orientation != "kept":
        raise ValueError("expected orientation kept: boxes and masks are of the stored pixels")
    files, counts = find_files(paths), Counter[str]()
    if not shards.get("compression_type"):
        shards["compression_type"] = open_stream(open_file(files[0]), "auto")[1]
    output = Output(prefix, **shards)
    output.check()

    records = chain.from_iterable(map(FoundRecord.all_of, files))
    work = partial(_reencode_record, feature, encoding)
    done = map_in_threads(work, records, num_threads)
    with create_folders(prefix), output.writer() as writer:
        for payload, found in ProgressBar(done, desc="encoding", unit="record"):
            writer.write(payload)
            counts.update(found)
        if not counts["pictures"]:
            raise ValueError(f"expected pictures in the feature {feature!r}, got records without")
    return dict(counts)


def _reencode_record(
    feature: str, encoding: Encoding, record: FoundRecord
) -> tuple[bytes, Counter[str]]:
    path, position, offset, payload = record
    counts, is_new = Counter(records=1), False
    try:
        # An Example is a SequenceExample without steps: field 1 means the same in both.
        message = parse_message(payload, "SequenceExample")
        for values in _values(message, feature):
            for number, old in enumerate(values):
                values[number], why = new, _ = encoding.encode(old)
                counts.update(pictures=1, bytes_before=len(old), bytes_after=len(new))
                counts.update([f"kept_{why}"] if why else [])
                is_new |= new != old
    except TFRecordError as error:
        raise error.locate(path=path, position=position, offset=offset) from error.__cause__
    key, context = feature.removesuffix("encoded") + "format", message.context.feature
    if is_new and key in context:
        names = context[key].bytes_list.value
        format = (image_format(new) or "").encode()
        names[:] = [format.upper() if name.isupper() else format for name in names]
    return message.SerializeToString(deterministic=True) if is_new else payload, counts


def _values(message: Any, feature: str) -> list[MutableSequence[bytes]]:
    """The lists of bytes under a name: one, or one for each step."""
    context, lists = message.context.feature, message.feature_lists.feature_list
    holders = [context[feature]] if feature in context else []
    holders += lists[feature].feature if feature in lists else []
    return [holder.bytes_list.value for holder in holders]


def _run(
    paths: Sequence[str], prefix: str, feature: str, jobs: int | None, as_json: bool, **options: Any
) -> int:
    is_table = options["image_quality"] == "table"
    encoding, files = Encoding.take(options), data_files(paths)
    if encoding is None:
        raise ValueError("expected --image-format or --image-quality")
    if is_table:
        records = Survey(files, num_records=_SPREAD).records
        messages = (parse_message(each.payload, "SequenceExample") for each in records)
        lists = (values for message in messages for values in _values(message, feature))
        pictures = chain.from_iterable(lists)
        print_prices(pictures, encoding, jobs, as_json=as_json)
        return 0
    counts = reencode(files, prefix, encoding, feature=feature, num_threads=jobs, **options)
    lines = (f"{name.replace('_', ' ')}: {number}" for name, number in counts.items())
    print(json.dumps(counts) if as_json else "\n".join(lines))
    return 0


REENCODE = Verb(
    _DESCRIPTION,
    _run,
    "paths --jobs --json",
    {
        "prefix": {"metavar": "OUTPUT_PREFIX", "help": "path and first part of the names"},
        "--feature": {"default": "image/encoded", "help": "default: %(default)s"},
    },
    (add_output, add_image_options),
)
