"""``tfrecord salvage``: the good records of a damaged file."""

from __future__ import annotations

import argparse
import functools
import json
from dataclasses import asdict

from index_tools._terminal import Verb, add_json, escape, pluralize
from index_tools._workers import work_on_files
from torch_tfrecord import SalvageReport, salvage
from torch_tfrecord.shown import without_secrets

__all__ = ["SALVAGE", "extent"]

_SALVAGE = """\
Copies every record whose two checksums fit to OUT, which appears complete, with its index, or not at all.
IN is only read. A piece that is twice in it comes out twice. Behind each damage the next record is looked
for; in a gzip or zlib file the next member, or block, that decompresses.

Prints what is lost: [begin, end) in bytes of the file, or of what is decompressed from it, and what is
wrong there; for a compressed file also which of its bytes could not be decompressed. Exit status 0 if
there are good records, whatever is lost.

example:
  tfrecord salvage damaged.tfrecord.gz good.tfrecord.gz"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="IN", help="the damaged file")
    parser.add_argument("out", metavar="OUT", help="the new file; compressed if its name ends so")
    parser.add_argument(
        "--compression-type",
        default="auto",
        metavar="TYPE",
        help="GZIP, ZLIB or SNAPPY, where the first bytes of IN may be damaged (default: %(default)s)",
    )
    add_json(parser)


def _run(path: str, out: str, compression_type: str, as_json: bool) -> int:
    task = functools.partial(salvage, out=out, compression_type=compression_type)
    (outcome,) = work_on_files(task, [path], description="salvaging")
    if outcome.error is not None or outcome.value is None:
        raise outcome.error or RuntimeError("no outcome")
    report = outcome.value
    if as_json:
        print(json.dumps(asdict(report)))
        return 0
    for (begin, end), kind in zip(report.lost, report.kinds, strict=True):
        print(f"lost [{begin}, {end}): {kind}")
    for begin, end, kind in report.gaps:
        print(f"not decompressed [{begin}, {end}): {kind}")
    copied = f"{pluralize(report.num_records, 'record')} -> {escape(without_secrets(out))}"
    print(f"{copied}{extent(report)}")
    return 0


def extent(report: SalvageReport) -> str:
    """How much of a file is damaged, in words; nothing where nothing is."""
    lost = [end - begin for begin, end in report.lost if end > begin]
    places, good = pluralize(len(lost), "place"), pluralize(report.num_records, "good record")
    behind = f", {report.num_behind} behind the first damage" if report.num_behind else ""
    return f" ({pluralize(sum(lost), 'byte')} damaged in {places}, {good}{behind})" if lost else ""


SALVAGE = Verb(_SALVAGE, _add_arguments, _run)
