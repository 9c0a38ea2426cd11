"""Which part of the data this process reads: its rank, its worker within the rank, and what trainers see of that."""

from __future__ import annotations

import os
from typing import Any, NamedTuple, TypeVar

import torch.distributed
from torch.utils.data import DistributedSampler, get_worker_info

from torch_tfrecord.arguments import integer
from torch_tfrecord.order.prepared import prepared_loader

__all__ = [
    "Rank",
    "RankSampler",
    "check_rank",
    "consumer",
    "in_process_group",
    "keeps_its_order",
    "resolve_rank",
]


class Rank(NamedTuple):
    """Number of a training process, 0 <= rank < world_size."""

    rank: int
    world_size: int


def check_rank(rank: int | None, world_size: int | None) -> None:
    """ValueError unless both or none are given, and 0 <= rank < world_size; TypeError where they are no integers."""
    if rank is None and world_size is None:
        return
    if rank is None or world_size is None:
        raise ValueError(f"rank and world_size must be given together, got rank={rank!r}, world_size={world_size!r}")
    if not 0 <= integer("rank", rank) < integer("world_size", world_size):
        raise ValueError(f"rank must be from 0 to world_size - 1, got rank={rank!r}, world_size={world_size!r}")


def resolve_rank(rank: int | None, world_size: int | None) -> Rank:
    """The rank given, else torch.distributed's where initialised, else torchrun's RANK and WORLD_SIZE, else 0 of 1.

    For a loader that Accelerate prepared, which deals out what it reads, 0 of 1.

    Raises:
        ValueError: A rank was given, and Accelerate would split this rank's records again.
    """
    prepared = prepared_loader()
    if rank is not None and world_size is not None:
        if prepared is not None and min(prepared.num_processes, world_size) > 1:
            raise ValueError(
                f"rank={rank} and world_size={world_size} were given, and Accelerate splits this rank's records again, "
                f"over {prepared.num_processes} processes: leave rank and world_size out, or do not prepare this loader"
            )
        return Rank(rank, world_size)
    # In a process group Accelerate can deal out over fewer processes than there are: some are to read the same.
    if prepared is not None and (prepared.num_processes > 1 or in_process_group()):
        return Rank(0, 1)
    if in_process_group():
        return Rank(torch.distributed.get_rank(), torch.distributed.get_world_size())
    found_rank, found_world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if found_rank is not None and found_world is not None:
        try:
            found = Rank(int(found_rank), int(found_world))
            check_rank(*found)
        except ValueError as error:
            raise ValueError(f"the environment's RANK={found_rank!r}, WORLD_SIZE={found_world!r}: {error}") from error
        return found
    return Rank(0, 1)


def in_process_group() -> bool:
    """Whether torch.distributed is initialised in this process."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def consumer(rank: Rank) -> tuple[int, int]:
    """Number of this DataLoader worker among all workers of all ranks, and how many there are.

    Workers of one rank are neighbours in no order that matters to a caller; each number appears exactly once.
    """
    worker = get_worker_info()
    number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
    # Rank first, so that the ranks get equal numbers of files, as near as files allow.
    return number * rank.world_size + rank.rank, count * rank.world_size


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
