"""Resolve split strings and objects to ranges of examples, and name and size the shards that hold
them, without touching files.

The rules and the rounding are those of TFDS (``tensorflow_datasets/core/splits.py`` and
``subsplits_utils.py``, 4.9.10)::

    train, train[:]       a split                       train[:10%]      percent, rounded as in TFDS
    train[100:200]        from 100 up to 200            train[:-5]       from the end
    train[:2shard]        whole shards                  train[-1shard]   one shard
    train[:1%]+test       one after the other           all              every split

A bound outside the split is an error (one outside its shards is not, as in TFDS), and so is an
empty slice.
"""

from __future__ import annotations

import math
import posixpath
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from torch_tfrecord.arguments import at_least, one_of
from torch_tfrecord.errors import ParseError
from torch_tfrecord.shown import show_code, shown_list, shown_value

__all__ = [
    "DEFAULT_TEMPLATE",
    "EvenSplit",
    "ReadInstruction",
    "Split",
    "SplitRange",
    "SplitSum",
    "even_splits",
    "resolve_split",
    "shard_borders",
    "shard_count",
    "shard_paths",
]

# Any name, as TFDS takes it; bounds are checked apart, for better errors.
_SPEC = re.compile(r"(?P<name>[\w-]+)(\[(?P<slice>[\d\w%:.-]+)\])?")
_BOUND = re.compile(r"((?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?")


class SplitRange(NamedTuple):
    """Examples `start` (included) to `stop` (excluded) of a split."""

    split: str
    start: int
    stop: int


class _Part:
    """The base of splits that can be added."""

    def __add__(self, other: Split) -> SplitSum:
        return SplitSum((self, other))  # type: ignore[arg-type]

    def __radd__(self, other: Split) -> SplitSum:
        return SplitSum((other, self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class ReadInstruction(_Part):
    """A slice of a split, as an object; `a + b` reads both.

    Args:
        split_name: Name of the split.
        from_: First example; negative counts from the end; None for 0.
        to: End (exclusive); None for the end of the split.
        unit: "abs" (examples), "%" (-100 to 100, may be a float) or "shard".
        rounding: How percentages are rounded: "closest", or "pct1_dropremainder": multiples of one
            percent, rounded down, so that slices of equal percentage have the same number of
            examples.

    Raises:
        TypeError: A bound is not an int.
        ValueError: `unit` or `rounding` is unknown, or a percentage is outside -100 to 100.

    Example:
        >>> ReadInstruction("train", to=10, unit="%", rounding="pct1_dropremainder") + "test"
        SplitSum(parts=(ReadInstruction('train', to=10, unit='%', rounding='pct1_dropremainder'),
        'test'))
    """

    split_name: str
    from_: int | float | None = None
    to: int | float | None = None
    unit: str = "abs"
    rounding: str = "closest"

    def __post_init__(self) -> None:
        """Check the arguments."""
        one_of("unit", self.unit, "abs", "%", "shard")
        one_of("rounding", self.rounding, "closest", "pct1_dropremainder")
        for bound in (self.from_, self.to):
            # Written so that NaN is refused, too.
            if self.unit == "%" and bound is not None and not abs(bound) <= 100:
                raise ValueError(f"percents must be from -100 to 100, got {bound}")
            if self.unit != "%" and not isinstance(bound, (int, type(None))):
                raise TypeError(f"bounds must be int, got {bound!r}")

    def __repr__(self) -> str:
        """Show the code that builds it."""
        return show_code(self)


@dataclass(frozen=True)
class EvenSplit(_Part):
    """One of the parts from `even_splits`."""

    split: Split
    index: int
    count: int
    drop_remainder: bool = False


@dataclass(frozen=True)
class SplitSum(_Part):
    """Splits read one after the other."""

    parts: tuple[Split, ...]


Split: TypeAlias = "str | ReadInstruction | EvenSplit | SplitSum"


def even_splits(split: Split, n: int, *, drop_remainder: bool = False) -> list[EvenSplit]:
    """Cut a split into n parts of equal size; if n does not divide it, the first parts get one more
    example.

    Args:
        split: A split string or object; each summand of `a+b` is cut on its own.
        n: Number of parts, at least 1.
        drop_remainder: Drop the examples that would make the parts unequal.

    Raises:
        TypeError: n is no integer.
        ValueError: n is below 1.

    Example:
        >>> train, validation, test = even_splits("train", 3)
        >>> digits = load("mnist/3.0.1", validation)  # doctest: +SKIP
    """
    n = at_least(1, "n", n)
    return [EvenSplit(split, index, n, drop_remainder) for index in range(n)]


def resolve_split(split: Split, lengths: Mapping[str, Sequence[int]]) -> list[SplitRange]:
    """Resolve a split to ranges, in order, with duplicates and without empty ranges.

    Args:
        split: A split string or object.
        lengths: Split name -> lengths of its shards, for all splits of the dataset, in order.

    Raises:
        TypeError: `split` is neither a string nor a split object.
        ValueError: The split cannot be parsed, is unknown, exceeds its bounds, or has no example.
    """
    # Empty ranges arise from percentages of small splits.
    ranges = [part for part in _ranges(split, lengths) if part.start < part.stop]
    if not ranges:
        raise ValueError(f"split {split!r} holds no example")
    return ranges


def _ranges(split: Split, lengths: Mapping[str, Sequence[int]]) -> list[SplitRange]:
    if isinstance(split, str):
        # A split of this name would be meant.
        names = {} if "all" in lengths else {"all": [*lengths]}
        specs = [
            name
            for spec in re.split(r"\s*\+\s*", split.strip())
            for name in names.get(spec, [spec])
        ]
        return [_absolute(_instruction(spec, split), lengths) for spec in specs]
    if isinstance(split, SplitSum):
        return [part for summand in split.parts for part in _ranges(summand, lengths)]
    if isinstance(split, EvenSplit):
        return [_even_part(part, split) for part in _ranges(split.split, lengths)]
    if isinstance(split, ReadInstruction):
        return [_absolute(split, lengths)]
    raise TypeError(
        f"split must be str, ReadInstruction, or from even_splits, got {type(split).__name__}"
    )


def _instruction(spec: str, split: str) -> ReadInstruction:
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise _unreadable(spec, split)
    name, inside = match["name"], match["slice"]
    if inside is None:
        return ReadInstruction(name)
    if name == "all":
        raise ValueError(
            f"split {split!r}: 'all' cannot be sliced; slice each split, as in 'train[:10%]+test[:10%]'"
        )
    bounds = [_BOUND.fullmatch(bound) for bound in inside.split(":")]
    if len(bounds) > 2 or not all(bounds):
        raise _unreadable(spec, split)
    values = [bound["value"] if bound else None for bound in bounds]
    # One bound with a unit gives it to both: "10:20%".
    unit = next((bound["unit"] for bound in bounds if bound and bound["unit"]), "abs")
    kind = float if unit == "%" else int
    try:
        numbers = [None if value is None else kind(value) for value in values]
    except ValueError:
        raise _unreadable(spec, split) from None
    # 400 digits are inf
    if any(number is not None and not abs(number) < 1 << 63 for number in numbers):
        raise _unreadable(spec, split)
    if len(numbers) == 1:
        if unit != "shard" or numbers[0] is None:
            raise ValueError(
                f"split {split!r}: only shards take a single index ('train[3shard]'); use a slice"
            )
        # "[-1shard]" goes from -1 to 0, and 0 as an end means the last shard; see `_bounds`.
        numbers.append(numbers[0] + 1)
    return ReadInstruction(name, numbers[0], numbers[1], unit)


def _unreadable(spec: str, split: str) -> ValueError:
    return ValueError(
        f"split {shown_value(split)}: cannot read {shown_value(spec)}; expected a name such as 'train', a slice such "
        "as 'train[:10%]', 'train[100:200]' or 'train[:2shard]', or several joined by '+'"
    )


def _absolute(part: ReadInstruction, lengths: Mapping[str, Sequence[int]]) -> SplitRange:
    if part.split_name not in lengths:
        raise ValueError(
            f"unknown split {part.split_name!r}; there are {shown_list([*lengths], repr)}"
        )
    total = sum(lengths[part.split_name])
    start, stop = _bounds(part, lengths[part.split_name], total)
    # TFDS refuses this, too: a typing error would silently be a shorter split.
    if abs(start) > total or abs(stop) > total:
        raise ValueError(
            f"{part!r}: slice [{start}:{stop}] is outside the {total} examples of the split"
        )
    return SplitRange(
        part.split_name, start + total if start < 0 else start, stop + total if stop < 0 else stop
    )


def _bounds(part: ReadInstruction, lengths: Sequence[int], total: int) -> tuple[int, int]:
    from_, to = part.from_, part.to
    if part.unit == "%":
        start = 0 if from_ is None else _percent(from_, total, part.rounding)
        return start, total if to is None else _percent(to, total, part.rounding)
    if part.unit == "shard":
        # An end before the first shard is no shard, as in a slice of a list.
        last = len(lengths) if to is None else int(to) if to > 0 else max(len(lengths) + int(to), 0)
        if from_ is not None and from_ >= len(lengths):
            raise ValueError(f"{part!r}: outside the {len(lengths)} shards of the split")
        return 0 if from_ is None else sum(lengths[: int(from_)]), sum(lengths[:last])
    return 0 if from_ is None else int(from_), total if to is None else int(to)


def _percent(bound: float, total: int, rounding: str) -> int:
    # Half to even, as TFDS rounds.
    if rounding == "closest":
        return round(bound * total / 100.0)
    if total < 100:
        raise ValueError(
            f"rounding 'pct1_dropremainder' needs a split of at least 100 examples, got {total}"
        )
    return int(bound * math.trunc(total / 100.0))


def _even_part(part: SplitRange, even: EvenSplit) -> SplitRange:
    # The first parts get one more each.
    each, left = divmod(max(part.stop - part.start, 0), even.count)
    if even.drop_remainder:
        left = 0
    start = part.start + each * even.index + min(even.index, left)
    return SplitRange(part.split, start, start + each + (even.index < left))


# The shards.

DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_VARIABLES = ("DATASET", "SPLIT", "FILEFORMAT", "SHARD_INDEX", "NUM_SHARDS", "SHARD_X_OF_Y")
_MIN_DIGITS = 5
_MIN_SHARD_BYTES = 64 << 20  # TFDS writes shards of 64 MiB to 1 GiB
_MAX_SHARD_BYTES = 1 << 30


def shard_paths(
    directory: str,
    template: str,
    *,
    dataset: str,
    split: str,
    num_shards: int,
    file_format: str = "tfrecord",
) -> list[str]:
    """The files of a split, in order.

    Args:
        directory: The dataset directory.
        template: A template like ``{SPLIT}/data.{FILEFORMAT}-{SHARD_INDEX}``, "" for TFDS's
            default. Everything from the last ``%`` on is an encoding hint and ignored; ``name@N``
            means N shards, ``name@*`` any number.
        dataset: Name of the dataset.
        split: Name of the split.
        num_shards: Number of shards.
        file_format: Format of the shards.

    Raises:
        ParseError: The template has unknown variables, leads outside the dataset directory, or
            lacks the shard number although there are several shards.

    Example:
        >>> shard_paths("d", "", dataset="mnist", split="train", num_shards=1)
        ['d/mnist-train.tfrecord-00000-of-00001']
    """
    # What follows the last "%" says how the name is encoded, and is not a part of it.
    plain = re.sub(
        r"@(\d+|\*)", "-{SHARD_X_OF_Y}", (template or DEFAULT_TEMPLATE).rsplit("%", 1)[0]
    )
    try:
        # A template is no format string to be trusted: "{0.__class__}" would reach into objects.
        used = [name for _, name, _, _ in string.Formatter().parse(plain) if name is not None]
    except ValueError:
        used = ["?"]
    if any(name not in _VARIABLES for name in used):
        raise ParseError(
            f"split {split!r}: cannot read filepathTemplate {template!r}; the known variables are {_VARIABLES}"
        )
    if num_shards > 1 and not set(used) & {"SHARD_INDEX", "SHARD_X_OF_Y"}:
        raise ParseError(
            f"split {split!r}: filepathTemplate {template!r} has no number for {num_shards} shards"
        )
    names = {"DATASET": dataset, "SPLIT": split, "FILEFORMAT": file_format}
    # With more than 99,999 shards all numbers get longer.
    digits = max(_MIN_DIGITS, len(str(num_shards)))
    total, found = f"{num_shards:0{digits}d}", []
    for number in range(num_shards):
        one = f"{number:0{digits}d}"
        found.append(
            plain.format(
                **names, SHARD_INDEX=one, NUM_SHARDS=total, SHARD_X_OF_Y=f"{one}-of-{total}"
            )
        )
    # the others differ only in digits
    if found and (posixpath.isabs(found[0]) or ".." in found[0].split("/")):
        raise ParseError(
            f"split {split!r}: filepathTemplate {template!r} leads outside the dataset directory: {found[0]!r}"
        )
    return [posixpath.join(directory, name) for name in found]


def shard_count(num_bytes: int, num_examples: int) -> int:
    """The number of shards that TFDS chooses: as many as possible of at least 64 MiB, up to 1024,
    none over 1 GiB.

    Args:
        num_bytes: Total bytes of all records, including framing.
        num_examples: Number of records.

    Source: ``shard_utils.ShardConfig.calculate_number_shards``.
    """
    most, fewest = num_bytes // _MIN_SHARD_BYTES, num_bytes // _MAX_SHARD_BYTES
    # More than 1 TiB: a multiple of 1024, so that each host gets as many.
    if fewest > 1024:
        enough = -(-fewest // 1024) * 1024
        return max(2048, enough) if num_examples >= enough else max(num_examples, 1)
    candidates = (1 << power for power in range(10, 0, -1))
    return next((n for n in candidates if fewest <= n <= most and num_examples >= n), 1)


def shard_borders(num_examples: int, num_shards: int) -> list[int]:
    """The end (exclusive) of each shard's examples, rounded as in TFDS.

    Example:
        >>> shard_borders(127, 4)
        [32, 64, 95, 127]
    """
    return [round(num_examples * number / num_shards) for number in range(1, num_shards + 1)]
