"""Which part of the data this process reads: its rank among the training processes, its worker within the rank."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch.distributed
from torch.utils.data import get_worker_info

from torch_tfrecord.arguments import integer
from torch_tfrecord.order.prepared import prepared_loader

__all__ = ["Rank", "check_rank", "consumer", "in_process_group", "resolve_rank"]


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
