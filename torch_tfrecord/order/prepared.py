"""Loaders that Hugging Face Accelerate prepared: they deal batches out over its processes, so that we must not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

__all__ = ["Prepared", "check_loaded_epoch", "check_num_received", "is_automatic", "other_epoch", "prepared_loader"]

_MODULE = "accelerate.data_loader"
_SKIPPING = ("SkipBatchSampler", "SkipDataLoader")


class Prepared(NamedTuple):
    """What a loader made by ``accelerator.prepare`` does with the batches it is given.

    Attributes:
        num_processes: Processes over which it deals them out.
        splits_batches: Each process gets a part of every batch, not every num_processes-th batch.
        dispatches: One process reads, and sends the others their part.
        drops_last: Batches that are not full are left out.
        num_workers: Of the loader.
        splits_samples_by: For a stream of which each process reads all: samples that each takes in turn; None where
            the stream gives batches, which cannot be dealt out in this way.
        epoch: The loader's own count, where it alone knows: `set_epoch` of one made by ``skip_first_batches`` reaches
            no sampler, one with ``use_stateful_dataloader`` can begin an iteration that it throws away. Else None.
    """

    num_processes: int = 1
    splits_batches: bool = False
    dispatches: bool = False
    drops_last: bool = False
    num_workers: int = 0
    splits_samples_by: int | None = 1
    epoch: int | None = None


def prepared_loader() -> Prepared | None:
    """The loader of Accelerate's that calls this function from however far away; None where there is none.

    It stands on the stack: also in workers that were forked, and where the dataset is pickled for those that are
    spawned. Nothing is marked when a loader is prepared, so another loader over the same dataset splits by itself.
    """
    if _MODULE not in sys.modules:
        return None
    owners = {type(owner).__name__: owner for owner in _owners(sys._getframe(1))}
    skips = [owners.pop(name) for name in _SKIPPING if name in owners]
    if not owners:
        return None  # also where skip_first_batches was given a loader that is not prepared
    loader = owners.get("DataLoaderShard", owners.get("DataLoaderDispatcher"))
    is_stateful = "BatchSamplerShard" in owners and getattr(loader, "use_stateful_dataloader", False)
    return _described(owners)._replace(epoch=getattr(loader, "iteration", None) if skips or is_stateful else None)


def is_automatic() -> bool:
    """Whether Accelerate calls by itself, when an iteration begins, what the user may also call (`set_epoch`)."""
    names = [frame.f_code.co_name for frame in _frames(sys._getframe(1)) if _is_accelerates(frame)]
    return names[:1] == ["set_epoch"] and "__iter__" in names[:3]


def check_loaded_epoch(loaded: int, epoch: int) -> None:
    """ValueError where Accelerate's own count of iterations would throw away a loaded state, of another epoch."""
    if is_automatic():
        raise other_epoch(loaded, epoch)


def other_epoch(loaded: int, epoch: int) -> ValueError:
    """The error where Accelerate's own count would throw away a loaded state.

    Args:
        loaded: What its `set_epoch` must be given for the state to be gone on with.
        epoch: What it begins with.
    """
    return ValueError(
        f"the loaded state is of epoch {loaded}, the loader that Accelerate prepared begins epoch {epoch}: call "
        f"its set_epoch({loaded}) first, and set_epoch at the beginning of each epoch"
    )


def check_num_received(prepared: Prepared | None, num_received: int | None, what: str) -> None:
    """ValueError where what was handed out is no measure for what was received."""
    # Accelerate itself may ask: StatefulDataLoader keeps a state with each batch.
    if prepared is not None and num_received is None and prepared_loader() is None:
        raise ValueError(
            f"Accelerate's loader reads ahead of the training: expected num_received, the {what} that this rank has "
            "received (make_dataloader's loader.batch_sampler.state_dict takes it, too), got None"
        )


def _described(owners: dict[str, Any]) -> Prepared:
    dispatcher = owners.get("DataLoaderDispatcher")
    if dispatcher is not None:
        loader = getattr(dispatcher, "base_dataloader", None)  # not there while it is made
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
    """The objects whose methods of Accelerate's are under way."""
    for caller in _frames(frame):
        if _is_accelerates(caller) and "self" in caller.f_locals:
            yield caller.f_locals["self"]


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_accelerates(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == _MODULE
