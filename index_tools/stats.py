"""``tfrecord stats``: count and measure the features of records, as a table, JSON, and a plot."""

from __future__ import annotations

import io
import json
import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from crc32c import crc32c

from index_tools._features import load_features, open_dataset
from index_tools._outputs import check_outputs
from index_tools._terminal import (
    Verb,
    align,
    data_files,
    escape,
    pluralize,
)
from index_tools._workers import Advance, open_executor, work
from torch_tfrecord import (
    Image,
    ImageDecodeError,
    ParseError,
    ScanTask,
    SequenceFeatures,
    Text,
    TFRecordDataset,
    TFRecordError,
    VarLenFeature,
    read_records,
)
from torch_tfrecord.columns import Feature, RecordFeatures
from torch_tfrecord.errors import needs_extra
from torch_tfrecord.files import AtomicFile
from torch_tfrecord.media import image_format, image_size
from torch_tfrecord.per_process import num_processors
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.tables import Survey

with needs_extra("tfrecord stats", "tools"):
    import pyarrow as pa
    import pyarrow.compute as pc

__all__ = ["STATS", "Distribution"]

_MOST_DISTINCT = 2_000
"""If more values differ, it is not known how often each is there."""

_ROWS = "", "rows"
"""Where `Statistics` count the records that were read."""

_SAMPLE = 1 << 12
_MOST_BYTES = 256  # two values that begin with the same ones count as one
_SLICE = 1 << 15  # values at once: they stay in the processor's cache
_BATCHES = 8  # put together, as each column of each has a price

_KINDS = {
    "Image": "image",
    "RawTensor": "tensor",
    "SerializedTensor": "tensor",
    "Text": "text",
    "str": "text",
}

_INFER_RECORDS = 1000
_TASK_BYTES, _MOST_TASKS, _FEW_TASKS = 1 << 27, 32, 8  # the result of a task has some MB
_NUMBERS = ["min", "25%", "median", "75%", "max", "mean", "std", "quartiles"]
_COLUMNS = [
    "feature",
    "kind",
    "records",
    "missing",
    "values",
    "nan",
    "zeros",
    *_NUMBERS,
    "distinct",
]
_TEXTS = ("feature", "kind", "quartiles", "most frequent")
_TOP, _SHOWN, _LINES, _CHARACTERS = 20, 3, 10, 24
_PANELS, _MOST_PANELS = 4, 40  # in a row, and in all

_DESCRIPTION = f"""\
Prints a line for each feature: how many records have it, how many values they have in it, the range of
these, their mean, standard deviation and quartiles, and the most frequent ones. For text and other bytes
the numbers are those of their lengths; of pictures, too, and there are their formats and sizes, by the
headers (nothing is decoded). All is exact, but quartiles of more than 4,096 numbers are those of a random
sample, the same in each run, and the column says so; and values are not counted one by one where more
than {_MOST_DISTINCT:,} differ. Memory does not grow with the data.

Features are inferred from up to {_INFER_RECORDS:,} records: what only other records have is not measured,
unless --features names it. A record where a feature has another kind than in most others, and a damaged
one, is named and left out (exit status 1); a missing feature or another number of values is no error.

examples:
  tfrecord stats 'data/train-*'
  tfrecord stats data/ --json --duplicates
  tfrecord stats data/ --plot features.png"""


def _run(
    paths: Sequence[str],
    features: str | None,
    as_json: bool,
    plot: str | None,
    force: bool,
    duplicates: bool,
    jobs: int | None,
    executor: str,
) -> int:
    """Write no file but the plot that is asked for, and indexes as a dataset does."""
    check_outputs([plot] if plot else [], force)
    found: Statistics = defaultdict(Distribution)
    files = data_files(paths)
    specs, looked = (load_features(features, files), None) if features else _usual_features(files)
    stored, kinds = _stored_features(specs)
    dataset = open_dataset(files, stored, on_error="skip")
    _measure(dataset, kinds, jobs, executor, found)
    facts = {
        "files": len(files),
        "records": len(dataset),
        "inferred_from": looked,
        "features": [_describe(name, kind, found) for name, kind in kinds.items()],
        "left_out": len(dataset) - found[_ROWS].count,
        "bad": dataset.report.errors,  # those of other machines are not known here
        "duplicates": _duplicates(files) if duplicates else None,
    }
    # bytes as text; what is no number is null
    text = json.dumps(facts, default=partial(bytes.decode, errors="backslashreplace"))
    facts = json.loads(text, parse_constant=lambda _: None)
    if plot:
        AtomicFile.save(plot, _draw(found))
    if as_json:
        print(json.dumps(facts))
    else:
        _print(facts)
    return int(bool(facts["bad"] or facts["left_out"]))


STATS = Verb(
    _DESCRIPTION,
    _run,
    "paths --features --json --force --jobs --executor",
    {
        "--plot": {"metavar": "OUT.png", "help": "draw what is measured, up to 40 panels"},
        "--duplicates": {
            "action": "store_true",
            "help": "also name records whose bytes are the same",
        },
    },
)


def _usual_features(files: Sequence[str]) -> tuple[Any, int]:
    """The features of most of some records, and the number of these; damage ends the search, and is reported later."""
    survey = Survey(files, num_records=_INFER_RECORDS, until_damage=True)
    records, samples = survey.records, []
    for record in records[:: 1 + len(records) // (_INFER_RECORDS + 1)]:
        with suppress(ParseError):
            samples.append((record, _kinds(*record.decode())))
    pairs = Counter(pair for _, kinds in samples for pair in kinds)
    usual = dict(pair for pair, _ in reversed(pairs.most_common()))
    if usual:
        survey.records = [record for record, kinds in samples if kinds <= usual.items()]
        return survey.features(), len(survey.records)
    looks = records[0].looks_like()[1] if records else ""
    return {"Image()": Image(), "Text()": Text()}.get(looks), len(records)


def _kinds(
    context: Mapping[str, Any], lists: Mapping[str, Sequence[Any]]
) -> set[tuple[str, object]]:
    values = [*context.items(), *((key, step) for key, steps in lists.items() for step in steps)]
    return {(key, getattr(one, "dtype", bytes)) for key, one in values if len(one)}


def _measure(
    dataset: TFRecordDataset,
    kinds: Mapping[str, str],
    jobs: int | None,
    executor: str,
    found: Statistics,
) -> None:
    size = _TASK_BYTES * (1 + len(dataset.scan_tasks(_TASK_BYTES)) // _MOST_TASKS)
    items = [(item, item[1].num_rows) for item in enumerate(dataset.scan_tasks(size))]
    bar = ProgressBar(total=len(dataset), desc="measuring", unit="record", unit_scale=True)
    with bar, open_executor(executor) as workers:
        results = work(
            partial(_measure_task, kinds),
            items,
            bar,
            num_jobs=min(jobs or (num_processors() if len(items) > _FEW_TASKS else 1), len(items)),
            executor=workers,
            module=__name__,
            advice="try --jobs 1",
        )
        for result in results:
            for key, values in result.items():
                found[key].merge(values)


def _describe(name: str, kind: str, found: Statistics) -> dict[str, object]:
    parts = {part: values for (key, part), values in found.items() if key == name}
    values = parts.get("values") or parts.get("format") or Distribution()
    lengths, numbers = parts.get("length", values), parts.get("bytes", values)
    top = sorted(values.frequencies.items(), key=lambda item: (-item[1], item[0]))
    is_known = len(top) <= _MOST_DISTINCT
    row = {
        "feature": name,
        "kind": kind,
        "records": lengths.count,
        "missing": lengths.missing,
        "shortest": lengths.low,
        "longest": lengths.high,
        "values": values.count,
        "nan": values.missing,
        "zeros": values.zeros,
        "distinct": len(top) if is_known else None,
        "top": top[: _TOP * is_known],
        **_numbers(numbers),
    }
    return row | {side: _numbers(parts[side]) for side in ("height", "width") if side in parts}


def _numbers(values: Distribution) -> dict[str, object]:
    sample = values.sample[1]
    if not len(sample):
        return {}
    std = math.sqrt(values.squares / values.count)
    with np.errstate(invalid="ignore"):  # between infinite ones
        quartiles = np.quantile(sample, (0.25, 0.5, 0.75)).tolist()
    numbers = values.low, *quartiles, values.high, values.mean, std
    kind = "exact" if values.count == len(sample) else "sample"
    return dict(zip(_NUMBERS, (*numbers, kind), strict=True))


def _duplicates(files: Sequence[str]) -> list[list[str]]:
    """The records whose bytes are the same, by their file and number."""
    marks = np.fromiter((mark for mark, _ in _marked(files)), np.uint64)
    marks, counts = np.unique(marks, return_counts=True)
    several = {*marks[counts > 1].tolist()}
    groups = defaultdict(list)
    for mark, record in _marked(files) if several else ():
        if mark in several:
            path, number, payload = record
            groups[payload].append(f"{path}: record {number}")
    return [group for group in groups.values() if len(group) > 1]


def _marked(files: Sequence[str]) -> Iterator[tuple[int, tuple[str, int, bytes]]]:
    for path in ProgressBar(files, "looking for duplicates", unit="file"):
        with suppress(TFRecordError):  # reported before
            for number, payload in enumerate(read_records(path)):
                yield crc32c(payload) << 32 | len(payload), (path, number, payload)


def _draw(found: Statistics) -> bytes:
    """A panel for each of what differs, as PNG."""
    from matplotlib.figure import Figure

    shown = [
        (*key, values)
        for key, values in found.items()
        if key[1] != "width" and (1 < len(values.frequencies) <= _TOP or values.low < values.high)
    ][:_MOST_PANELS]
    num_rows = -(-len(shown) // _PANELS) or 1
    figure = Figure((4 * _PANELS, 3 * num_rows), layout="constrained")
    for number, (name, part, values) in enumerate(shown, 1):
        axes = figure.add_subplot(num_rows, _PANELS, number)
        axes.set_title(_label(f"{name} {part}"))
        if part == "height":
            axes.set_xlabel("width")
            axes.scatter(found[name, "width"].sample[1], values.sample[1], s=4)
        elif len(values.frequencies) <= _TOP:
            labels, counts = zip(*sorted(values.frequencies.items(), reverse=True), strict=True)
            axes.barh(range(len(labels)), counts, tick_label=[*map(_label, labels)])
        else:
            axes.hist(values.sample[1][np.isfinite(values.sample[1])], 50)
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no font has all characters
        figure.savefig(content, format="png")
    return content.getvalue()


def _label(value: object) -> str:
    # within $ it would be mathematics
    return _cell(value)[:_CHARACTERS].replace("$", r"\$")


def _print(facts: Mapping[str, Any]) -> None:
    rows = [[*_COLUMNS, "most frequent"]]
    for row in facts["features"]:
        cells = [row.get(column) for column in _COLUMNS]
        top = [
            f"{_cell(value)[:_CHARACTERS]} ({number:.10g})" for value, number in row["top"][:_SHOWN]
        ]
        if row["distinct"] is None:
            top = [f"more than {_MOST_DISTINCT:,} distinct values"]
        top += [
            f"{side} {row[side]['min']} to {row[side]['max']}"
            for side in ("height", "width")
            if side in row
        ]
        rows.append([*map(_cell, cells), ", ".join(top)])
    shown = [column for column in zip(*rows, strict=True) if {*column[1:]} - {"", "0"}]
    sides = "".join("<" if column[0] in _TEXTS else ">" for column in shown)
    print(*align([*zip(*shown, strict=True)], sides), sep="\n")
    same, bad = facts["duplicates"], facts["bad"]
    lines = [f"bad: {text}" for text in bad[:_LINES]]
    if same is not None:
        lines += [f"the same: {', '.join(group[:_LINES])}" for group in same[:_LINES]]
        lines.append(f"{pluralize(len(same), 'group')} of records that are the same")
    num_bad = max(facts["left_out"], len(bad))
    lines.append(f"{pluralize(facts['records'], 'record')}, {num_bad} bad")
    if facts["inferred_from"]:
        records = pluralize(facts["inferred_from"], "record")
        lines.append(f"features inferred from {records}: --features names others")
    print(*map(escape, lines), sep="\n")


def _cell(value: object) -> str:
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return "" if value is None else escape(text)


# The measurements. Memory does not grow with the data: each feature has moments, a sample of its values,
# and as long as few values differ, how often each is there.


@dataclass
class Distribution:
    """The measurements of some values: numbers or bytes.

    Attributes:
        count: How many there are.
        missing: NaN, and what is not there, beside these.
        zeros: How many of the numbers.
        low, high: The smallest and the largest number.
        mean: That of the numbers.
        squares: Sum of the squares of their distances from the mean.
        sample: float64 [2, N]: random keys, and the numbers that drew the smallest ones: all, or
            4,096 of them.
        frequencies: How often each value is there, by its first 256 bytes; of more than
            `_MOST_DISTINCT` not of all.
    """

    count: int = 0
    missing: int = 0
    zeros: int = 0
    low: float = math.inf
    high: float = -math.inf
    mean: float = 0.0
    squares: float = 0.0
    sample: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty((2, 0)))
    frequencies: Counter[float | bytes] = field(default_factory=Counter)

    def add(self, values: pa.Array, task: int) -> None:
        """Add values; which are drawn depends on the number of the task, and on how many it had
        before.
        """
        for start in range(0, len(values), _SLICE):
            part = values.slice(start, _SLICE)
            known = part.filter(pc.invert(pc.is_null(part, nan_is_null=True)))
            count = len(known)
            found = Distribution(count, len(part) - count)
            if pa.types.is_binary(part.type):
                known = pc.binary_slice(known, 0, _MOST_BYTES)
            elif count:
                numbers = known.to_numpy().astype(float)
                keys = np.random.default_rng((task, self.count)).random(count)
                found.zeros = count - int(np.count_nonzero(numbers))
                found.low, found.high = pc.min_max(known).as_py().values()
                found.mean = numbers.mean().item()
                found.squares = np.square(numbers - found.mean).sum().item()
                found.sample = np.stack([keys, numbers])
            if len(self.frequencies) <= _MOST_DISTINCT:
                pairs = pc.value_counts(known)[: _MOST_DISTINCT + 1].flatten()
                found.frequencies.update(dict(zip(*map(pa.Array.to_pylist, pairs), strict=True)))
            self.merge(found)

    def merge(self, other: Distribution) -> None:
        """Add what is known of other values."""
        before, shift = self.count, other.mean - self.mean
        self.count += other.count
        self.missing += other.missing
        self.zeros += other.zeros
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        share = other.count / max(self.count, 1)
        self.mean += shift * share
        self.squares += other.squares + shift**2 * before * share
        self.sample = np.hstack([self.sample, other.sample])
        if self.sample.shape[1] > _SAMPLE:
            first = np.argpartition(self.sample[0], _SAMPLE)[:_SAMPLE]
            self.sample = self.sample[:, first]
        if len(self.frequencies) <= _MOST_DISTINCT:
            self.frequencies.update(other.frequencies)


Statistics: TypeAlias = defaultdict[tuple[str, str], Distribution]
"""By the name of a feature and what is measured of it: its "values"; their number in a record as
"length", where records that lack it are missing; the length of bytes as "bytes"; and of pictures, in
place of values, "format", "height" and "width".
"""


def _parts(column: pa.Array, kind: str) -> Iterator[tuple[str, pa.Array]]:
    if pa.types.is_list(column.type):
        yield "length", pc.list_value_length(column)
    while pa.types.is_list(column.type):
        column = column.flatten()
    if kind == "image":
        headers = map(pa.array, zip(*map(_header, column.to_pylist()), strict=True))
        yield from zip(("format", "height", "width"), headers, strict=False)
    else:
        yield "values", column
    if pa.types.is_binary(column.type):
        yield "bytes", pc.binary_length(column)


def _header(picture: bytes) -> tuple[bytes, int | None, int | None]:
    try:
        return str(image_format(picture)).encode(), *image_size(picture)
    except ImageDecodeError:
        return b"unreadable", None, None


def _stored_features(
    features: RecordFeatures | None,
) -> tuple[RecordFeatures | None, dict[str, str]]:
    """Specs that read all that features want from records, as it is stored and with any number of
    values; and the kinds of values.
    """
    kinds: dict[str, str] = {}

    def stored(specs: Mapping[str, Feature] | None, reader: str = "_reader") -> dict[str, Feature]:
        readers = [getattr(spec, reader)(name) for name, spec in (specs or {}).items()]
        wants = [want for one in readers for want in one.wants]
        kinds.update((want.key, _KINDS.get(want.what, want.kind.counted)) for want in wants)
        return {want.key: VarLenFeature(want.kind.dtype) for want in wants}

    if isinstance(features, SequenceFeatures):
        steps = stored(features.sequence_features, "_step_reader")
        return SequenceFeatures(stored(features.context_features), steps), kinds
    if isinstance(features, Mapping):
        return stored(features), kinds
    return None, {"record": _KINDS.get(type(features).__name__, "bytes")}


def _measure_task(
    kinds: Mapping[str, str], item: tuple[int, ScanTask], advance: Advance
) -> Statistics:
    """Measure the records of a task.

    Args:
        kinds: Those of `_stored_features`.
        item: The number of the task, and the task, which reads these.
        advance: Called with the number of its records in the end.
    """
    number, task = item
    found: Statistics = defaultdict(Distribution)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the data set's report has what is left out
        batches = task.read()
        while held := [*islice(batches, _BATCHES)]:
            table = pa.Table.from_batches(held).combine_chunks()
            found[_ROWS].count += table.num_rows
            for name, kind in kinds.items():
                for part, values in _parts(table.column(name).chunk(0), kind):
                    found[name, part].add(values, number)
    advance(task.num_rows)
    return found
