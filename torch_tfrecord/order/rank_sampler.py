"""What a trainer sees of our samplers: they have dealt the positions out over the ranks, it must not do so again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from torch.utils.data import DistributedSampler

from torch_tfrecord.order.ranks import Rank, resolve_rank

__all__ = ["BatchedPositions", "RankSampler", "keeps_its_order"]


class RankSampler(DistributedSampler[int]):
    """A sampler of one rank's positions. Lightning leaves a DistributedSampler alone, and calls its `set_epoch`.

    torch's own ``__init__`` is not called: it needs a process group, which may come after the sampler.
    """

    _rank: int | None
    _world_size: int | None

    def _here(self) -> Rank:
        return resolve_rank(self._rank, self._world_size)

    @property
    def rank(self) -> int:  # type: ignore[override]
        """The rank whose positions these are; that of now, where none was given."""
        return self._here().rank

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """The world size."""
        return self._here().world_size

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Samples that the next iteration gives this rank."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Samples that the next iteration gives all ranks."""
        return len(self) * self.num_replicas


class _Batches(Protocol):
    """A `RecordBatchSampler`."""

    _rank: int | None
    _world_size: int | None

    def __iter__(self) -> Iterator[list[int]]: ...

    def _num_positions(self) -> int: ...

    def _set_iteration(self, number: int) -> None: ...


class BatchedPositions(RankSampler):
    """The positions of a batch sampler one by one: the `sampler` of a loader whose batches it makes.

    Args:
        batches: The batch sampler.
    """

    def __init__(self, batches: _Batches) -> None:
        self.batches = batches

    @property
    def _rank(self) -> int | None:  # type: ignore[override]
        return self.batches._rank

    @property
    def _world_size(self) -> int | None:  # type: ignore[override]
        return self.batches._world_size

    def __len__(self) -> int:
        return self.batches._num_positions()

    def __iter__(self) -> Iterator[int]:
        for batch in self.batches:
            yield from batch

    def set_epoch(self, epoch: int) -> None:
        """Say which of the trainer's epochs, from 0, begins: iteration number `epoch` of the batch sampler.

        Where a state was loaded, the next iteration goes on from it: with the number that it has (as Lightning's
        Trainer counts), or with a smaller one, from which the trainer then counts on (as Fabric does). What a loader
        that Accelerate prepared says by itself, always from 0, does nothing; its own `set_epoch` calls this, too.
        """
        self.batches._set_iteration(epoch)


_T = TypeVar("_T", bound=type)


def keeps_its_order(batch_sampler: _T) -> _T:
    """Let Lightning keep a batch sampler where it puts a sampler of its own into a DataLoader.

    It makes the batch sampler anew then, by the arguments that it keeps under these names, with its sampler among them;
    ours decides itself what becomes of it, in its method `_for_sampler`.
    """

    def arguments(batches: Any) -> dict[str, Any]:
        return {"sampler": None, "drop_last": None, "explicit_cls": batches._for_sampler}

    for name, value in {"args": (), "arg_names": (), "default_kwargs": {}, "kwargs": property(arguments)}.items():
        setattr(batch_sampler, f"__pl_saved_{name}", value)
    return batch_sampler
