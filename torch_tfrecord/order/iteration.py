"""The base of all samplers: iteration by iteration from a place, for trainers of all kinds, with a state."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sized
from itertools import count
from typing import Any, ClassVar, Generic, Literal, TypeVar

from torch_tfrecord.arguments import at_least
from torch_tfrecord.order.leaves import EpochPosition, Leaves, PositionBatch
from torch_tfrecord.order.ranks import Prepared, Rank, other_epoch
from torch_tfrecord.order.steps import Job, Place, Plan, StepOrder
from torch_tfrecord.shown import shown_value

__all__ = ["EpochSampler", "Iteration", "StateForm"]

_MOST = 1 << 62  # limit on the numbers in a state, so that sums stay below 2^63

_Unit_co = TypeVar("_Unit_co", bound="int | PositionBatch", covariant=True)


class EpochSampler(Generic[_Unit_co]):
    """The base of both samplers: they yield units, positions or batches of these, iteration by
    iteration, and resume from a place.

    Args:
        dataset: Its positions are sampled.
        order: The steps of each epoch.
        num_epochs: Epochs in an iteration; None if it never ends.
        rank, world_size: As given by the user.

    Attributes:
        given_ranks: (rank, world_size), each None where it was not given.
        drop_last: That of the order.
    """

    # Whether the iteration after one that has begun has the epochs after it, or the same.
    _continues: ClassVar[bool]
    _unit: ClassVar[Literal["samples", "batches"]]
    # The parts of a `Place` in a state.
    _keys: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        dataset: Sized,
        order: StepOrder,
        num_epochs: int | None = 1,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        Rank.check(rank, world_size)
        self.given_ranks = rank, world_size
        self._order, self.drop_last = order, order.drop_last
        self._num_epochs = num_epochs
        # Whether each position must know its epoch where a batch does not.
        self._tells_epoch = Leaves(dataset).draw_at_random
        self._seed = int(order.identity()["seed"])
        self._restart()

    def _restart(self) -> None:
        self._next = Place.at(0)
        self._running: Iteration[_Unit_co] | None = None
        # First epoch of a loaded iteration, until it begins or a trainer gives its number.
        self._loaded_epoch: int | None = None
        self._count_from = 0  # first epoch of the trainer's iteration 0

    def __len__(self) -> int:
        """Return this rank's number of samples, or batches, in the next iteration: after
        `load_state_dict`, in the rest of the interrupted one.

        Raises:
            TypeError: The iteration never ends.
        """
        return self._plan(self._next).num_batches(self._finite_epochs())

    def __iter__(self) -> Iteration[_Unit_co]:
        return Iteration(self)

    def _finite_epochs(self) -> int:
        if self._num_epochs is None:
            raise TypeError("a sampler with num_epochs=None has no length: it never ends")
        return self._num_epochs

    @property
    def epoch(self) -> int:
        """The epoch in which the next iteration begins, or resumes after `load_state_dict`."""
        return self._coming.epoch

    @property
    def _epochs_an_iteration(self) -> int:
        return 1 if self._num_epochs is None else self._num_epochs

    @property
    def _coming(self) -> Place:
        """The place where the next iteration begins; an existing one counts as next if nothing was
        received of it.
        """
        running = self._running
        return running.place if running is not None and running.is_waiting else self._next

    def _place_after(self, place: Place) -> Place:
        """Where the iteration after one that began at a place begins."""
        epoch = place.first_epoch + self._epochs_an_iteration * self._continues
        return Place.at(epoch)

    def state_dict(self, num_received: int | None = None) -> dict[str, object]:
        """Return the state of the latest iteration: a few JSON numbers and strings.

        Args:
            num_received: Samples (of a batch sampler: batches) of that iteration that your training
                loop has received on this rank. None counts those that the sampler has yielded.

        Raises:
            ValueError: `num_received` is more than the sampler has yielded, or is None with a
                loader that Accelerate prepared.
        """
        running = self._running
        if running is None and num_received:
            raise ValueError(
                f"num_received must be 0 before an iteration has begun, got {num_received}"
            )
        if running is None:
            return self._state(self._next)
        # Accelerate itself may ask without a number: StatefulDataLoader keeps a state with each batch.
        if num_received is None and running.prepared is not None and Prepared.loader() is None:
            raise ValueError(
                f"Accelerate's loader prefetches: expected num_received, the {self._unit} that this rank has received "
                "(make_dataloader's loader.batch_sampler.state_dict takes it, too), got None"
            )
        if num_received is None and self._continues and running.has_ended:
            return self._state(self._next)
        return running.state_dict(num_received)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state: the next iteration yields the rest of the interrupted one.

        Raises:
            ValueError: The state has another version or order (number of records, seed, shuffle,
                weights, ...); the message gives both values.
        """
        self.begin_at(self.checked_place(state_dict))

    def begin_at(self, place: Place, *, is_loaded: bool = True) -> None:
        """Begin the next iteration at a place, of a state or that a trainer chose."""
        if self._running is not None and self._running.is_waiting:
            self._running.replace()
        self._next, self._running = place, None
        self._loaded_epoch = place.first_epoch if is_loaded else None

    def checked_place(self, state: Mapping[str, Any]) -> Place:
        """The place of a state; see `load_state_dict`, which begins there."""
        StateForm.check(state, self._identity(), self._keys)
        epoch, consumed, jobs = state["epoch"], state["consumed"], state.get("jobs", [])
        first = state.get("first_epoch", epoch)
        if not isinstance(jobs, list) or not all(
            isinstance(job, list) and len(job) == len(Job._fields) for job in jobs
        ):
            raise ValueError(
                f"jobs must hold lists of 4 numbers in the state, got {shown_value(jobs)}"
            )
        numbers = [("epoch", epoch), ("first_epoch", first)]
        for name, number in [*numbers, *(("jobs", each) for job in jobs for each in job)]:
            StateForm.check_number(name, number)
        StateForm.check_number("consumed", consumed, self._order.num_records)
        if first > epoch:
            raise ValueError(f"first_epoch={first} is after epoch={epoch} in the state")
        place = Place(first, epoch, consumed, tuple(Job(*job) for job in jobs))
        self._order.check(place)
        return place

    def _state(self, place: Place) -> dict[str, object]:
        # The last round may have repeated the beginning.
        found = place._asdict() | {
            "consumed": min(place.consumed, self._order.num_records),
            "jobs": [*map(list, place.jobs)],
        }
        kept = {name: found[name] for name in self._keys}
        return {"version": StateForm.VERSION, **kept, **self._identity()}

    def _identity(self) -> dict[str, object]:
        return {**self._order.identity(), "drop_last": self.drop_last}

    def _check_prepared(self, prepared: Prepared) -> None:
        """ValueError if Accelerate would lose records after a short batch between two epochs."""
        if prepared.num_processes == 1 or self._num_epochs == 1 or self.drop_last:
            return
        if self._order.is_sized and self._order.num_records % self._order.batch_size:
            raise ValueError(
                f"num_epochs={self._num_epochs}: Accelerate takes a batch that is not full to be the last, and loses "
                "records; expected num_epochs=1 or drop_last=True in a loader that it prepared"
            )

    def _place_for(self, prepared: Prepared, place: Place) -> Place:
        """The place where an iteration through Accelerate begins; if Accelerate counts epochs, at
        its epoch.
        """
        self._check_prepared(prepared)
        if prepared.epoch is None:
            return place
        first = self._count_from + prepared.epoch * self._epochs_an_iteration
        if place.first_epoch == first:
            return place
        if self._loaded_epoch == place.first_epoch:
            raise other_epoch(
                place.first_epoch // max(self._epochs_an_iteration, 1), prepared.epoch
            )
        return Place.at(first)

    def _plan(self, place: Place) -> Plan:
        here, prepared = Rank.here(*self.given_ranks), Prepared.loader()
        if prepared is None or self._order.is_sized:
            return Plan(place, self._order, here.world_size, here.rank)
        # Accelerate deals out the batches: those of a step must follow each other.
        return Plan(place, self._order, prepared.num_processes * here.world_size)

    def _told(self, batch: list[int], epoch: int) -> list[int]:
        """The positions of a batch, with their epoch where draws depend on it."""
        if not self._tells_epoch:
            return batch
        return [EpochPosition(position, epoch, self._seed) for position in batch]

    def _units(self, plan: Plan, epoch: int, prepared: Prepared | None) -> Iterator[_Unit_co]:
        """The units of an epoch of an iteration."""
        raise NotImplementedError


class Iteration(Iterator[_Unit_co]):
    """One iteration of a sampler. It begins with its first unit, since loaders make iterators that
    they never use.
    """

    def __init__(self, sampler: EpochSampler[_Unit_co]) -> None:
        self._sampler = sampler
        self._go_to(None)

    def _go_to(self, begin: Place | None) -> None:
        self._begin_at = begin  # None until it begins: then the sampler's place at that time
        self._num_yielded = 0
        self.has_ended = False  # everything was yielded
        self.num_received: int | None = None  # set by a loader that counts
        self.is_over = False  # everything was received
        self.is_replaced = False  # by one that begins elsewhere, before anything was received
        self._plan: Plan | None = None
        self.prepared: Prepared | None = None  # Accelerate's loader, which splits the batches
        self._units: Iterator[_Unit_co] = iter(())

    @property
    def place(self) -> Place:
        """The place where it begins."""
        return self._begin_at or self._sampler._next

    @property
    def is_waiting(self) -> bool:
        """Whether it may still begin elsewhere: nothing was received, or, if nobody counts that,
        yielded.
        """
        return (
            self._plan is None
            if self.num_received is None
            else not self.num_received and not self.is_over
        )

    def __len__(self) -> int:
        """Units of the whole iteration; TypeError if it never ends."""
        num_epochs = self._sampler._finite_epochs()
        return (self._plan or self._sampler._plan(self.place)).num_batches(num_epochs)

    def __next__(self) -> _Unit_co:
        if self._plan is None:
            self.begin()
        for unit in self._units:
            self._num_yielded += 1
            return unit
        self.has_ended = True
        raise StopIteration

    def begin(self) -> None:
        """Begin this iteration: the sampler's next one is then the one after it."""
        sampler = self._sampler
        if self._plan is None:
            self.prepared, place = Prepared.loader(), self.place
            self._begin_at = (
                place if self.prepared is None else sampler._place_for(self.prepared, place)
            )
            self._plan = sampler._plan(self._begin_at)
            if sampler._num_epochs is None:
                self._plan.check_endless()
            self._units = self._each_unit(self._plan)
        sampler._running, sampler._next = self, sampler._place_after(self.place)
        if not sampler._continues:
            sampler._loaded_epoch = None  # the loaded state is used only once

    def __getstate__(self) -> dict[str, object]:
        """A copy has the state, and yields no more: a generator cannot be copied."""
        return {**vars(self), "_units": iter(())}

    def put_back(self) -> None:
        """Make this iteration the sampler's next one again, since no batch of it was received."""
        self._sampler._running, self._sampler._next = None, self.place

    def replace(self) -> None:
        """Begin at the sampler's new place: this iteration, or if it has yielded batches, its
        replacement.
        """
        self._begin_at, self.is_replaced = None, self._plan is not None

    def _each_unit(self, plan: Plan) -> Iterator[_Unit_co]:
        begin, num_epochs = plan.begin, self._sampler._num_epochs
        epochs: Iterator[int] = count(begin.epoch)
        if num_epochs is not None:
            epochs = iter(range(begin.epoch, begin.first_epoch + num_epochs))
        # Without a batch in an epoch it would look for one forever.
        for epoch in epochs if plan.batches_an_epoch else [begin.epoch]:
            yield from self._sampler._units(plan, epoch, self.prepared)

    def state_dict(self, num_received: int | None = None) -> dict[str, object]:
        """The state of this iteration."""
        return self._sampler._state(self.place_after(num_received))

    def place_after(self, num_received: int | None) -> Place:
        """The place after so many units, or (None) after those that were yielded."""
        received = (
            self._num_yielded if num_received is None else at_least(0, "num_received", num_received)
        )
        if self.prepared is not None and num_received is not None:
            is_part = self.prepared.splits_batches and self._sampler._unit == "batches"
            each = 1 if is_part else self.prepared.num_processes
            received = min(received * each, self._num_yielded)  # Accelerate filled up the rest
        if received > self._num_yielded:
            raise ValueError(
                f"num_received={received}, but the sampler has yielded only {self._num_yielded} {self._sampler._unit}"
            )
        return self.place if self._plan is None else self._plan.place_after(received)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from another iteration's state; StatefulDataLoader calls this."""
        sampler = self._sampler
        self._go_to(sampler.checked_place(state_dict))
        # Only this iteration resumes: the next one begins after it, even if this one is at its end
        # and never used.
        sampler._loaded_epoch = self.place.first_epoch if sampler._continues else None
        sampler._next, sampler._running = sampler._place_after(self.place), self


# States.


class StateForm:
    """The form of a state: JSON values by name, from which a run resumes."""

    VERSION = 1
    """The version of what `state_dict` returns; raised when its keys or their meaning change."""

    @classmethod
    def check(cls, state: object, identity: Mapping[str, Any], others: Collection[str]) -> None:
        """ValueError, naming the key, unless a state has this version and this identity.

        Args:
            state: That of a run that was interrupted.
            identity: All that decides the order; it must be the same here.
            others: Further keys that it must have; the caller checks their values.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"expected a state_dict, got {type(state).__name__}")
        version = state.get("version")
        if type(version) is not int or version != cls.VERSION:
            raise ValueError(
                f"expected a state of version {cls.VERSION}, got version {shown_value(version)}"
            )
        expected = {"version", *identity, *others}
        found = [key for key in state if key != "run"]  # what a loader adds for `tfrecord replay`
        if {*found} != expected:
            missing = sorted(expected - set(found))
            further = [key for key in found if key not in expected]
            raise ValueError(
                f"expected a state with the keys {sorted(expected)}, got {shown_value(sorted(found, key=str))} "
                f"({len(missing)} missing: {shown_value(missing)}, {len(further)} unknown: {shown_value(further)})"
            )
        for key, here in identity.items():
            found_here = state[key]
            # 1, 1.0 and True are equal, but are not written alike.
            if type(found_here) is not type(here) or repr(found_here) != repr(here):
                raise ValueError(
                    f"the state is of another order: {key} is {shown_value(state[key])} in the state, "
                    f"{shown_value(here)} here"
                )

    @staticmethod
    def check_number(name: str, number: object, limit: int | None = None) -> None:
        """ValueError unless a number of a state is an integer from 0 to a limit."""
        if type(number) is not int or not 0 <= number <= (_MOST if limit is None else limit):
            allowed = "at least 0" if limit is None else f"from 0 to {limit}"
            allowed += (
                ", below 2^62" if limit is None and type(number) is int and number > 0 else ""
            )
            raise ValueError(
                f"{name} must be an integer {allowed} in the state, got {shown_value(number)}"
            )
