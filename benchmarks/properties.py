"""The properties that every loader is asked for by `conformance.py`: each property is a function that runs the
loader, and says "yes" or "no" with what was seen.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from loaders import Setting, value_of

__all__ = ["PROPERTIES", "SHARDS", "Outcome", "Peer", "Result", "Trial", "judge"]

Outcome = Mapping[str, Any]

# Records of each file. 320 go into batches of 8 for two ranks of two workers; 305 leave one rank a batch more.
SHARDS = (100, 90, 70, 60)
_ODD_SHARDS = (95, 85, 65, 60)
_DAMAGED = 200
# The batches after which a run is stopped, and stopped again.
_STOPS = (8, 6)
_KILLED_AFTER = 3


@dataclass(frozen=True)
class Result:
    """A verdict, "yes", "no" or "not offered", and what was seen."""

    verdict: str
    seen: str


class Peer(Protocol):
    """A loader that can be run."""

    def write(self, folder: Path, shards: list[list[int]]) -> None:
        """The records of each shard, as files of the peer's format."""

    def play(self, settings: list[Setting]) -> list[Outcome]:
        """Run it with each setting, at the same time: one for each rank. See `play.py` for an outcome, which also is
        "silent": seconds after which a run was given up.
        """


class Trial:
    """The files of a peer, and its runs: a run that two properties ask for is made once.

    Args:
        folder: Empty; everything is written there.
        sizes: How many records each shard has, if not as in the table.
    """

    def __init__(self, peer: Peer, folder: Path, sizes: tuple[int, ...] = SHARDS) -> None:
        self._peer = peer
        self._folder = folder
        self.sizes = sizes
        self._written: dict[str, Path] = {}
        self._outcomes: dict[tuple[Setting, ...], list[Outcome]] = {}

    @property
    def count(self) -> int:
        return sum(self.sizes)

    def files(self, name: str = "even", sizes: tuple[int, ...] | None = None) -> str:
        """A folder with the records, written when it is first asked for."""
        if name not in self._written:
            path = self._folder / name
            path.mkdir()
            numbers = iter(range(sum(sizes or self.sizes)))
            self._peer.write(path, [[next(numbers) for _ in range(n)] for n in sizes or self.sizes])
            self._written[name] = path
        return str(self._written[name])

    def copy(self, name: str) -> Path:
        """The files once more, with whatever the peer keeps beside them, to be spoiled."""
        return Path(shutil.copytree(self.files(), self._folder / name))

    def state(self, name: str) -> str:
        """Where a run saves its state."""
        return str(self._folder / f"{name}.state")

    def ranks(self, setting: Setting, world_size: int) -> list[Outcome]:
        """The outcome of each rank."""
        settings = tuple(
            replace(setting, rank=rank, world_size=world_size) for rank in range(world_size)
        )
        if settings not in self._outcomes:
            self._outcomes[settings] = self._peer.play([*settings])
        return self._outcomes[settings]

    def run(self, **changes: Any) -> Outcome:
        """The outcome of one process; a setting's defaults but for the changes."""
        return self.ranks(Setting(**{"folder": self.files(), **changes}), 1)[0]


class _FailedError(Exception):
    """A run that a property needs went wrong, so that the answer is "no"; the text says how."""


class _LacksError(Exception):
    """The peer has nothing of the kind; the text says what is missing."""


def judge(trial: Trial, name: str, reasons: Mapping[str, str]) -> Result:
    """One property of one peer.

    Args:
        reasons: By property, why the peer does not claim it.
    """
    try:
        holds, seen = PROPERTIES[name][1](trial)
    except _FailedError as failed:
        holds, seen = False, str(failed)
    except _LacksError as lacks:
        return Result("not offered", str(lacks))
    if name in reasons:
        return Result("not offered", f"{reasons[name]}: {seen}")
    return Result("yes" if holds else "no", seen)


def _whole(outcome: Outcome) -> list[list[Mapping[str, Any]]]:
    """The epochs of a run that has to go well."""
    if outcome["lacks"] is not None:
        raise _LacksError(outcome["lacks"])
    if outcome.get("silent"):
        raise _FailedError(f"no answer for {outcome['silent']:g} s{outcome.get('said', '')}")
    if outcome["error"] is not None:
        raise _FailedError(outcome["error"])
    return outcome["epochs"]


def _ids(batches: list[Mapping[str, Any]]) -> list[int]:
    return [one for batch in batches for one in batch["ids"]]


def _each_once(count: int, ids: list[int]) -> tuple[bool, str]:
    """Whether the records 0 to count - 1 are there, each once; and how many are."""
    times = Counter(ids)
    present = len([one for one in times if 0 <= one < count])
    again = {number for number in times.values() if number > 1}
    text = f"{present} of {count} records"
    if again:
        repeated = sum(number > 1 for number in times.values())
        text += f", {repeated} of them {' or '.join(f'{number} times' for number in sorted(again))}"
    return present == count and not again, text


def _records(trial: Trial, workers: int, world_size: int, load: str | None = None) -> list[int]:
    """The records of an epoch of all ranks, or of what is left of it after a state."""
    setting = Setting(trial.files(), workers=workers)
    if load is not None:
        setting = replace(setting, shuffle=True, load=trial.state(load))
    outcomes = trial.ranks(setting, world_size)
    return [one for outcome in outcomes for one in _ids(_whole(outcome)[0])]


def _once(trial: Trial, workers: int, world_size: int = 1) -> tuple[bool, str]:
    return _each_once(trial.count, _records(trial, workers, world_size))


def _equal_ranks(trial: Trial) -> tuple[bool, str]:
    sizes = trial.sizes if trial.count % 2 else _ODD_SHARDS
    outcomes = trial.ranks(Setting(trial.files("odd", sizes)), 2)
    ranks = [_whole(outcome)[0] for outcome in outcomes]
    counts = [len(batches) for batches in ranks]
    ids = [one for batches in ranks for one in _ids(batches)]
    _, text = _each_once(sum(sizes), ids)
    # A batch may be repeated or left out on each rank, but both reading everything is no answer.
    is_split = abs(len(ids) - sum(sizes)) <= 2 * Setting("").batch_size
    return is_split and counts[0] == counts[1], f"{counts[0]} and {counts[1]} batches; {text}"


def _uninterrupted(trial: Trial) -> list[list[int]]:
    (batches,) = _whole(trial.run(shuffle=True))
    return [batch["ids"] for batch in batches]


def _stopped(trial: Trial) -> list[list[int]]:
    """The batches before the first stop, whose state is saved as "first"."""
    outcome = trial.run(shuffle=True, stop_after=_STOPS[0], save=trial.state("first"))
    return [batch["ids"] for batch in _whole(outcome)[0]]


def _continued(trial: Trial, before: list[list[int]], load: str) -> tuple[bool, str]:
    """Whether what follows a state is the rest of the uninterrupted epoch."""
    wanted = _uninterrupted(trial)
    after = _whole(trial.run(shuffle=True, load=trial.state(load)))[0]
    found = before + [batch["ids"] for batch in after]
    complete, text = _each_once(trial.count, [one for ids in found for one in ids])
    if found == wanted:
        return complete, f"the same {len(wanted) - len(before)} batches follow; {text}"
    pairs = zip(found, wanted, strict=False)
    first = next(
        (number for number, (one, two) in enumerate(pairs) if one != two),
        min(len(found), len(wanted)),
    )
    return False, f"batch {first + 1} differs from the uninterrupted epoch; {text}"


def _resume(trial: Trial) -> tuple[bool, str]:
    return _continued(trial, _stopped(trial), "first")


def _resume_twice(trial: Trial) -> tuple[bool, str]:
    before = _stopped(trial)
    outcome = trial.run(
        shuffle=True,
        load=trial.state("first"),
        stop_after=_STOPS[1],
        save=trial.state("second"),
    )
    before = before + [batch["ids"] for batch in _whole(outcome)[0]]
    return _continued(trial, before, "second")


def _rest(trial: Trial, workers: int, world_size: int) -> tuple[bool, str]:
    """Whether others go on with the rest of an epoch."""
    before = [one for ids in _stopped(trial) for one in ids]
    return _each_once(trial.count, before + _records(trial, workers, world_size, "first"))


def _at_same_places(first: list[int], second: list[int], when: str) -> tuple[int, str]:
    same = sum(one == two for one, two in zip(first, second, strict=False))
    return same, f"{same} of {len(first)} records at the same place in {when}"


def _epochs_differ(trial: Trial) -> tuple[bool, str]:
    first, second = map(_ids, _whole(trial.run(shuffle=True, epochs=2)))
    same, text = _at_same_places(first, second, "both epochs")
    complete, seen = _each_once(trial.count, second)
    return same < len(first) / 2, text if complete else f"{text}; second epoch: {seen}"


def _seed_decides(trial: Trial) -> tuple[bool, str]:
    first, second = (
        _ids(_whole(trial.run(shuffle=True, epochs=2, attempt=attempt))[0]) for attempt in (0, 1)
    )
    return first == second, _at_same_places(first, second, "two runs")[1]


def _spoil(folder: Path, number: int, *, cut: bool) -> None:
    """Flip a bit in the middle of a record's value, wherever that is, or cut its file off there."""
    value, hits = value_of(number), 0
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = bytearray(path.read_bytes())
        at = data.find(value)
        if at >= 0:
            middle = at + len(value) // 2
            data[middle] ^= 4
            path.write_bytes(data[:middle] if cut else data)
            hits += 1
    assert hits, f"{folder}: no file has the value of record {number} as it is"


def _noticed(
    trial: Trial, name: str, *, cut: bool = False, checked: bool = False
) -> tuple[bool, str]:
    """Whether reading spoiled files is an error."""
    if checked and (found := _noticed(trial, f"{name}_by_default"))[0]:
        return found  # nothing to turn on
    folder = trial.copy(name)
    _spoil(folder, min(_DAMAGED, trial.count - 2), cut=cut)
    outcome = trial.run(folder=str(folder), checked=checked)
    if outcome["error"] is not None and not outcome.get("silent"):
        return True, outcome["error"]
    (batches,) = _whole(outcome)
    _, text = _each_once(trial.count, _ids(batches))
    wrong = sum(len(batch["wrong"]) for batch in batches)
    return False, f"no error; {text}, {wrong} with another value than was written"


def _drawn(trial: Trial) -> list[list[Mapping[int, list[str]]]]:
    """By epoch and kind of draw: the draw of each record."""
    epochs = _whole(trial.run(draw=True, epochs=2))
    found = []
    for batches in epochs:
        pairs = [
            (one, draws)
            for batch in batches
            for one, draws in zip(batch["ids"], batch["draws"], strict=True)
        ]
        kinds = len(pairs[0][1])
        found.append([{one: draws[kind] for one, draws in pairs} for kind in range(kinds)])
    return found


def _draws_of_epochs(trial: Trial) -> tuple[bool, str]:
    first, second = _drawn(trial)
    same = max(
        sum(one[key] == two.get(key) for key in one) for one, two in zip(first, second, strict=True)
    )
    return same < trial.count / 20, f"{same} of {len(first[0])} crops the same in both epochs"


def _draws_of_workers(trial: Trial) -> tuple[bool, str]:
    first, _ = _drawn(trial)
    different = min(len({*kind.values()}) for kind in first)
    text = f"{different} different crops of {len(first[0])} records"
    return different > 0.95 * len(first[0]), text


def _killed(trial: Trial) -> tuple[bool, str]:
    outcome = trial.run(kill_after=_KILLED_AFTER)
    if outcome["error"] is not None and not outcome.get("silent"):
        return True, outcome["error"]
    (batches,) = _whole(outcome)
    _, text = _each_once(trial.count, _ids(batches))
    return False, f"no error; {text}"


# The title of each row, and how it is found out.
PROPERTIES: dict[str, tuple[str, Callable[[Trial], tuple[bool, str]]]] = {
    "once_0": (
        "every record once: no worker",
        lambda trial: _once(trial, 0),
    ),
    "once_2": (
        "every record once: two workers",
        lambda trial: _once(trial, 2),
    ),
    "once_ranks": (
        "every record once: two ranks of two workers",
        lambda trial: _once(trial, 2, 2),
    ),
    "equal_ranks": ("as many batches on each rank, if records do not divide", _equal_ranks),
    "resume": ("resumed: the same batches follow", _resume),
    "resume_twice": ("resumed twice", _resume_twice),
    "resume_workers": (
        "resumed with one worker, not two: each record once",
        lambda trial: _rest(trial, 1, 1),
    ),
    "resume_ranks": (
        "resumed on two ranks, not one: each record once",
        lambda trial: _rest(trial, 2, 2),
    ),
    "epochs_differ": ("two epochs have different orders", _epochs_differ),
    "seed": ("the same seed, the same order", _seed_decides),
    "damaged": (
        "a flipped bit in a value is an error",
        lambda trial: _noticed(trial, "damaged"),
    ),
    "damaged_checked": (
        "the same, with the checks on that are off by default",
        lambda trial: _noticed(trial, "damaged_checked", checked=True),
    ),
    "truncated": (
        "a truncated file is an error",
        lambda trial: _noticed(trial, "truncated", cut=True),
    ),
    "draws_epochs": ("random crops differ between epochs", _draws_of_epochs),
    "draws_workers": ("random crops differ between workers", _draws_of_workers),
    "killed": ("a killed worker is an error", _killed),
}
