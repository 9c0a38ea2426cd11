"""The steps of an epoch, and where in them a training is: which jobs took which, and what is left."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from itertools import chain
from typing import Any, NamedTuple, Protocol

from torch_tfrecord.order.ranks import Rank

__all__ = [
    "Job",
    "Place",
    "Plan",
    "StepOrder",
    "Steps",
]

# Computed at once, in whole batches: at the beginning, and later.
_FIRST_POSITIONS, _CHUNK_POSITIONS = 64, 4096


class Job(NamedTuple):
    """Steps of an epoch that one job took, one after another.

    Attributes:
        start: Places of the epoch's order that were taken before.
        world_size: Ranks of the job.
        batch_size: Samples in a batch, per rank; 0 for batches by length.
        num_steps: How many steps it took.
    """

    start: int
    world_size: int
    batch_size: int
    num_steps: int


class Place(NamedTuple):
    """A place in an iteration.

    Attributes:
        first_epoch: The iteration's first epoch.
        epoch: The epoch it is in.
        consumed: Places that were taken of that epoch's order.
        jobs: The steps that took them.
    """

    first_epoch: int
    epoch: int
    consumed: int
    jobs: tuple[Job, ...] = ()

    @property
    def step(self) -> int:
        """Steps taken of the epoch."""
        return sum(job.num_steps for job in self.jobs)

    def before_last_job(self) -> Place:
        """Where the last of the jobs began."""
        *others, last = self.jobs
        return self._replace(consumed=last.start, jobs=tuple(others))

    @classmethod
    def at(cls, epoch: int) -> Place:
        """The beginning of an epoch."""
        return cls(epoch, epoch, 0)


class Steps(Protocol):
    """One rank's batches of the rest of an epoch; each can be computed by itself."""

    rank: Rank

    def __len__(self) -> int: ...

    def batches(self, begin: int, end: int) -> list[list[int]]:
        """The positions of the steps number `begin` to `end` - 1."""

    def num_positions(self, begin: int, end: int) -> int:
        """How many positions those are."""

    def consumed(self, step: int) -> int:
        """Places of the epoch's order that all ranks have taken after so many steps."""


class StepOrder(Protocol):
    """The steps of every epoch: of records, buckets or packs."""

    batch_size: int
    is_sized: bool  # whether full batches have so many records
    num_records: int
    drop_last: bool

    def steps(self, place: Place, rank: Rank, /) -> Steps:
        """The steps of the rest of an epoch."""

    def in_order(self) -> StepOrder:
        """The same, unshuffled in every epoch."""

    def check(self, place: Place) -> None:
        """ValueError if a place of a state cannot be one of this order."""

    def identity(self) -> dict[str, Any]:
        """All that decides the order, as JSON values."""


class Plan:
    """The batches of an iteration that begins at a place: pure arithmetic, without state.

    Attributes:
        begin: The place.
        world_size: Ranks that share a step.
        batches_left: Batches of the epoch in which it begins.
        batches_an_epoch: Batches of each later one.

    Args:
        begin, order: The place, and the steps of all epochs.
        rank: Whose batches.
        of_all_ranks: The batches of all ranks, step by step.
    """

    def __init__(
        self, begin: Place, order: StepOrder, rank: Rank, *, of_all_ranks: bool = False
    ) -> None:
        self.begin, self._order, self._rank = begin, order, rank
        self.world_size = rank.world_size
        self._batches_a_step = rank.world_size if of_all_ranks else 1
        self._jobs, self._steps, self._first = self._go_on()
        self._before = begin.step - self._first  # steps of the epoch before the first of these
        self.batches_left = max(len(self._steps) - self._first, 0) * self._batches_a_step
        self._whole = order.steps(Place.at(begin.epoch + 1), rank)  # or, later, of a later epoch
        self._whole_epoch = begin.epoch + 1
        self.batches_an_epoch = len(self._whole) * self._batches_a_step

    def _go_on(self) -> tuple[tuple[Job, ...], Steps, int]:
        """The steps after those of some jobs, and the first of them that is left."""
        begin, order, rank = self.begin, self._order, self._rank
        if begin.jobs and begin.jobs[-1][1:3] == (rank.world_size, order.batch_size):
            # The same job goes on, if nobody changed the state.
            before, last = begin.before_last_job(), begin.jobs[-1]
            steps = order.steps(before, rank)
            if min(steps.consumed(last.num_steps), order.num_records) == begin.consumed:
                return before.jobs, steps, last.num_steps
        return begin.jobs, order.steps(begin, rank), 0

    def _steps_of(self, epoch: int) -> Steps:
        if epoch == self.begin.epoch:
            return self._steps
        if epoch != self._whole_epoch:
            self._whole = self._order.steps(Place.at(epoch), self._rank)
            self._whole_epoch = epoch
        return self._whole

    def num_batches(self, num_epochs: int) -> int:
        """Batches up to the iteration's end; 0 if the place is beyond it."""
        return self._sum(self.batches_left, self.batches_an_epoch, num_epochs)

    def num_positions(self, num_epochs: int) -> int:
        """Positions in those batches."""
        first = self._steps.num_positions(self._first, max(len(self._steps), self._first))
        return self._sum(first, self._whole.num_positions(0, len(self._whole)), num_epochs)

    def _sum(self, first: int, whole: int, num_epochs: int) -> int:
        epochs_left = self.begin.first_epoch + num_epochs - self.begin.epoch
        return first + (epochs_left - 1) * whole if epochs_left > 0 else 0

    def batches(self, epoch: int) -> Iterator[list[int]]:
        """The batches of an epoch, or of the rest of the epoch in which the iteration begins."""
        for steps, begin, end in self.parts(epoch):
            if self._batches_a_step > 1:
                every = [one.batches(begin, end) for one in _of_each_rank(steps)]
                yield from chain.from_iterable(zip(*every, strict=True))
            else:
                yield from steps.batches(begin, end)

    def parts(self, epoch: int) -> Iterator[tuple[Steps, int, int]]:
        """Those steps, from a first to before a last one, that are computed at once: few at first."""
        steps = self._steps_of(epoch)
        num_batches = max(len(steps) * self.world_size, 1)
        size = self._order.batch_size or self._order.num_records // num_batches + 1
        at_once = max(_FIRST_POSITIONS // size, 1)
        begin = self._first if epoch == self.begin.epoch else 0
        while begin < len(steps):
            end = min(begin + at_once, len(steps))
            yield steps, begin, end
            begin, at_once = end, max(min(2 * at_once, _CHUNK_POSITIONS // size), 1)

    def place_after(self, num_batches: int) -> Place:
        """The place after `num_batches` batches: at the end of an epoch, never at the beginning of
        the next one.
        """
        begin, each = self.begin, self._batches_a_step
        if num_batches <= self.batches_left:
            step = min(self._first + -(-num_batches // each), len(self._steps))
            return self._place(begin.epoch, self._steps, step, self._jobs)
        epochs_before, batch = divmod(num_batches - self.batches_left - 1, self.batches_an_epoch)
        epoch = begin.epoch + 1 + epochs_before
        return self._place(epoch, self._steps_of(epoch), batch // each + 1, ())

    def place_at(self, step: int) -> Place:
        """The place after so many steps of the epoch in which the iteration begins.

        Raises:
            IndexError: They are fewer than were taken before, or more than the epoch has.
        """
        number = step - self._before
        if not 0 <= number <= len(self._steps):
            raise IndexError(
                f"step {step} is out of range: expected {self._before} to {self._before + len(self._steps)}"
            )
        return self._place(self.begin.epoch, self._steps, number, self._jobs)

    def _place(self, epoch: int, steps: Steps, step: int, jobs: tuple[Job, ...]) -> Place:
        start = steps.consumed(0)
        job = Job(start, self._rank.world_size, self._order.batch_size, step)
        jobs = (*jobs, job) if step else jobs
        return Place(self.begin.first_epoch, epoch, steps.consumed(step), jobs)

    def records_of(self, step: int) -> list[int]:
        """The positions of a step of the epoch in which the iteration begins, on all ranks of the
        job that took it or will take it, rank by rank.

        Raises:
            IndexError: The epoch has fewer steps.
        """
        epoch, before = self.begin.epoch, 0
        here = (self._rank.world_size, self._order.batch_size, len(self._steps))
        jobs = (*self._jobs, Job(self._steps.consumed(0), *here))
        for number, (start, world_size, batch_size, num_steps) in enumerate(jobs):
            if before <= step < before + num_steps:
                order, at = copy(self._order), step - before
                order.batch_size = batch_size
                steps = order.steps(Place(epoch, epoch, start, jobs[:number]), Rank(0, world_size))
                batches = [one.batches(at, at + 1)[0] for one in _of_each_rank(steps)]
                return [*chain.from_iterable(batches)]
            before += num_steps
        raise IndexError(f"step {step} is out of range: epoch {epoch} has {before} steps")


def _of_each_rank(steps: Steps) -> list[Steps]:
    """The same steps for each rank."""
    steps.consumed(0)  # what they share is computed once
    every = [copy(steps) for _ in range(steps.rank.world_size)]
    for number, one in enumerate(every):
        one.rank = one.rank._replace(rank=number)
    return every
