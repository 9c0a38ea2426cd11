"""Which part of the data this process reads: its rank, its worker within the rank, and how trainers
see it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch.distributed
from torch.utils.data import DistributedSampler, get_worker_info

from torch_tfrecord.arguments import integer
from torch_tfrecord.errors import warn_once
from torch_tfrecord.per_process import num_allowed

__all__ = [
    "Prepared",
    "Rank",
    "RankSampler",
    "give_forgotten_states",
    "is_automatic",
    "other_epoch",
]


_MODULE = "accelerate.data_loader"
_FIT_LOOPS = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")
_SKIPPING = ("SkipBatchSampler", "SkipDataLoader")


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
        prepared = Prepared.loader()
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

    @property
    def rank(self) -> int:  # type: ignore[override]
        """The rank whose positions these are; if none was given, the current one."""
        return Rank.here(*self.given_ranks).rank

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """The world size."""
        return Rank.here(*self.given_ranks).world_size

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Samples that this rank gets in the next iteration."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Samples that all ranks together get in the next iteration."""
        return len(self) * self.num_replicas


# Trainers and our loaders: Accelerate splits the batches of those that it prepared over its processes, so we must
# not; Lightning makes batch samplers again, and may forget a state.


class Prepared(NamedTuple):
    """How a loader made by ``accelerator.prepare`` treats its batches.

    Attributes:
        num_processes: Processes over which it splits them.
        splits_batches: Each process gets a part of every batch, instead of every num_processes-th
            batch.
        dispatches: One process reads, and sends the others their part.
        drops_last: Batches that are not full are dropped.
        num_workers: Workers of the loader.
        splits_samples_by: For a stream that each process reads completely: the samples that each
            takes in turn; None if the stream yields batches, which cannot be split this way.
        epoch: The loader's own epoch count, if only the loader knows it: `set_epoch` of one made by
            ``skip_first_batches`` does not reach any sampler, and one with
            ``use_stateful_dataloader`` may begin an iteration that is never used. Else None.
    """

    num_processes: int = 1
    splits_batches: bool = False
    dispatches: bool = False
    drops_last: bool = False
    num_workers: int = 0
    splits_samples_by: int | None = 1
    epoch: int | None = None

    @classmethod
    def loader(cls) -> Prepared | None:
        """The loader of Accelerate's that calls this function, directly or indirectly; None if there is
        none.

        It is found on the call stack, also in forked workers, and when the dataset is pickled for
        spawned ones. Preparing a loader leaves no mark on the dataset, so another loader over the same
        dataset splits by itself.
        """
        if _MODULE not in sys.modules:
            return None
        owners = {type(owner).__name__: owner for owner in _owners(sys._getframe(1))}
        skips = [owners.pop(name) for name in _SKIPPING if name in owners]
        if not owners:
            return None  # also if skip_first_batches was called with a loader that is not prepared
        loader = owners.get("DataLoaderShard", owners.get("DataLoaderDispatcher"))
        is_stateful = "BatchSamplerShard" in owners and getattr(
            loader, "use_stateful_dataloader", False
        )
        return _described(owners)._replace(
            epoch=getattr(loader, "iteration", None) if skips or is_stateful else None
        )

    @staticmethod
    def check_epoch(loaded: int, epoch: int) -> None:
        """ValueError if Accelerate's own count of iterations would discard a loaded state of another
        epoch.
        """
        if is_automatic():
            raise other_epoch(loaded, epoch)


def is_automatic() -> bool:
    """Whether this call of `set_epoch` is Accelerate's own at the beginning of an iteration, not
    the user's.
    """
    names = [frame.f_code.co_name for frame in _frames(sys._getframe(1)) if _is_accelerates(frame)]
    return names[:1] == ["set_epoch"] and "__iter__" in names[:3]


def other_epoch(loaded: int, epoch: int) -> ValueError:
    """The error for a loaded state that Accelerate's own count would discard.

    Args:
        loaded: The epoch to pass to its `set_epoch` to resume from the state.
        epoch: The epoch that it begins.
    """
    return ValueError(
        f"the loaded state is of epoch {loaded}, the loader that Accelerate prepared begins epoch {epoch}: call "
        f"its set_epoch({loaded}) first, and set_epoch at the beginning of each epoch"
    )


def _described(owners: dict[str, Any]) -> Prepared:
    dispatcher = owners.get("DataLoaderDispatcher")
    if dispatcher is not None:
        loader = getattr(dispatcher, "base_dataloader", None)  # not set yet in its constructor
        return Prepared(
            num_processes=dispatcher.state.num_processes if hasattr(dispatcher, "state") else 1,
            splits_batches=bool(getattr(dispatcher, "split_batches", False)),
            dispatches=True,
            drops_last=bool(getattr(dispatcher, "_drop_last", False)),
            num_workers=getattr(loader, "num_workers", 0),
        )
    shard = owners.get("BatchSamplerShard", owners.get("IterableDatasetShard"))
    if shard is None:
        return Prepared()
    size = shard.batch_size if type(shard).__name__ == "IterableDatasetShard" else 1
    return Prepared(shard.num_processes, shard.split_batches, splits_samples_by=size)


def _owners(frame: FrameType) -> Iterator[Any]:
    """The objects with a method of Accelerate's on the stack."""
    for caller in _frames(frame):
        if _is_accelerates(caller) and "self" in caller.f_locals:
            yield caller.f_locals["self"]


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_accelerates(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == _MODULE


def give_forgotten_states() -> None:
    """Make Lightning load its loaders' states from a checkpoint, where it has begun to iterate first.

    Called by its `set_epoch`, before the first batch. Whatever reads
    ``trainer.estimated_stepping_batches`` makes it begin before the checkpoint is there, and then it
    never looks at these states (https://github.com/Lightning-AI/pytorch-lightning/issues/20550).
    """
    for frame in _frames(sys._getframe(1)):
        if frame.f_globals.get("__name__") not in _FIT_LOOPS:
            continue
        loop = frame.f_locals["self"]
        if loop.restarting and not hasattr(loop, "_combined_loader_states_to_load"):
            warn_once(
                "this Lightning has the states of loaders elsewhere than 2.6: if your program reads "
                "trainer.estimated_stepping_batches, look whether a resumed run gets each record once (Lightning#20550)"
            )
        elif loop.restarting and loop._combined_loader_states_to_load:
            loop._load_combined_loader_states()
            iter(loop._data_fetcher)
