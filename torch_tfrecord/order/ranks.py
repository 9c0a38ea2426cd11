"""Which part of the data this process reads: its rank, its worker within the rank, and how trainers
see it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import torch.distributed
from torch.utils.data import DistributedSampler, get_worker_info

from torch_tfrecord.arguments import integer
from torch_tfrecord.order.trainers import prepared_loader
from torch_tfrecord.processors import num_allowed

__all__ = ["Rank", "RankSampler", "in_process_group"]


class Rank(NamedTuple):
    """Number of a training process, 0 <= rank < world_size."""

    rank: int
    world_size: int

    @staticmethod
    def check(rank: int | None, world_size: int | None) -> None:
        """ValueError unless both or neither are given and 0 <= rank < world_size; TypeError unless
        they are integers.
        """
        if rank is None and world_size is None:
            return
        if rank is None or world_size is None:
            raise ValueError(
                f"rank and world_size must be given together, got rank={rank!r}, world_size={world_size!r}"
            )
        if not 0 <= integer("rank", rank) < integer("world_size", world_size):
            raise ValueError(
                f"rank must be from 0 to world_size - 1, got rank={rank!r}, world_size={world_size!r}"
            )

    @classmethod
    def here(cls, rank: int | None, world_size: int | None) -> Rank:
        """The rank given, else torch.distributed's if initialised, else torchrun's RANK and
        WORLD_SIZE, else 0 of 1.

        For a loader that Accelerate prepared it is 0 of 1, since Accelerate splits the records.

        Raises:
            ValueError: A rank was given, and Accelerate would split this rank's records again.
        """
        prepared = prepared_loader()
        if rank is not None and world_size is not None:
            if prepared is not None and min(prepared.num_processes, world_size) > 1:
                raise ValueError(
                    f"rank={rank} and world_size={world_size} were given, but Accelerate splits this rank's records "
                    f"again, over {prepared.num_processes} processes: omit rank and world_size, or do not prepare "
                    "this loader"
                )
            return cls(rank, world_size)
        # In a process group Accelerate may split over fewer processes than there are: some must
        # read the same records.
        if prepared is not None and (prepared.num_processes > 1 or in_process_group()):
            return cls(0, 1)
        if in_process_group():
            return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())
        found_rank, found_world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
        if found_rank is not None and found_world is not None:
            try:
                found = cls(int(found_rank), int(found_world))
                cls.check(*found)
            except ValueError as error:
                raise ValueError(
                    f"the environment's RANK={found_rank!r}, WORLD_SIZE={found_world!r}: {error}"
                ) from error
            return found
        return cls(0, 1)

    @classmethod
    def to_send(cls, rank: int | None, world_size: int | None) -> tuple[int | None, int | None]:
        """The arguments to give instead of `rank` and `world_size` in a spawned worker, which is not in the
        process group and could not find out its rank.
        """
        return cls.here(rank, world_size) if in_process_group() else (rank, world_size)

    def consumer(self) -> tuple[int, int]:
        """The number of this DataLoader worker among all workers of all ranks, and how many there
        are.

        Each number appears exactly once; do not rely on the order of the numbers.
        """
        worker = get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        # Rank first, so that the ranks get numbers of files that are as equal as possible.
        return number * self.world_size + self.rank, count * self.world_size

    @staticmethod
    def num_on_host() -> int:
        """How many training processes share the processors of this one: torchrun's
        LOCAL_WORLD_SIZE, fewer where the ranks are bound to a part each; else the process group's
        ranks, but at most one for each accelerator here; 1 if there is no group, or this process is
        bound.
        """
        told = os.environ.get("LOCAL_WORLD_SIZE", "")
        if told.isdecimal():
            # Bound to a part of what the process that started it may use, as all of a job or
            # container are bound to a part of the machine. Ranks may share a part, too.
            part = min(num_allowed() / num_allowed(os.getppid()), 1)
            return max(int(int(told) * part), 1)
        if not in_process_group() or num_allowed() < (os.cpu_count() or 1):
            return 1
        world_size = torch.distributed.get_world_size()
        return min(world_size, torch.accelerator.device_count() or world_size)


def in_process_group() -> bool:
    """Whether torch.distributed is initialised in this process."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


class RankSampler(DistributedSampler[int]):
    """A sampler of one rank's positions. Lightning keeps a DistributedSampler, and calls its
    `set_epoch`.

    torch's own ``__init__`` is not called: it needs a process group, which may be initialised after
    the sampler.
    """

    given_ranks: tuple[int | None, int | None]

    def _here(self) -> Rank:
        return Rank.here(*self.given_ranks)

    @property
    def rank(self) -> int:  # type: ignore[override]
        """The rank whose positions these are; if none was given, the current one."""
        return self._here().rank

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """The world size."""
        return self._here().world_size

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Samples that this rank gets in the next iteration."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Samples that all ranks together get in the next iteration."""
        return len(self) * self.num_replicas
