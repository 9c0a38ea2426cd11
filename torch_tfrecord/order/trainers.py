"""Trainers and our loaders: Accelerate splits the batches of those that it prepared over its
processes, so we must not; Lightning makes batch samplers again, and may forget a state.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from torch_tfrecord.errors import warn_once

__all__ = [
    "Prepared",
    "check_loaded_epoch",
    "check_num_received",
    "give_forgotten_states",
    "is_automatic",
    "keeps_its_order",
    "other_epoch",
    "prepared_loader",
]

_MODULE = "accelerate.data_loader"
_FIT_LOOPS = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")
_SKIPPING = ("SkipBatchSampler", "SkipDataLoader")


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


def prepared_loader() -> Prepared | None:
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


def is_automatic() -> bool:
    """Whether this call of `set_epoch` is Accelerate's own at the beginning of an iteration, not
    the user's.
    """
    names = [frame.f_code.co_name for frame in _frames(sys._getframe(1)) if _is_accelerates(frame)]
    return names[:1] == ["set_epoch"] and "__iter__" in names[:3]


def check_loaded_epoch(loaded: int, epoch: int) -> None:
    """ValueError if Accelerate's own count of iterations would discard a loaded state of another
    epoch.
    """
    if is_automatic():
        raise other_epoch(loaded, epoch)


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


def check_num_received(prepared: Prepared | None, num_received: int | None, what: str) -> None:
    """ValueError if the number yielded does not say how many were received."""
    # Accelerate itself may ask without a number: StatefulDataLoader keeps a state with each batch.
    if prepared is not None and num_received is None and prepared_loader() is None:
        raise ValueError(
            f"Accelerate's loader prefetches: expected num_received, the {what} that this rank has received "
            "(make_dataloader's loader.batch_sampler.state_dict takes it, too), got None"
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


_T = TypeVar("_T", bound=type)


def keeps_its_order(batch_sampler: _T) -> _T:
    """Make Lightning keep our batch sampler when it puts its own sampler into a DataLoader.

    Lightning then makes the batch sampler again, from arguments that it saves under these names,
    with its own sampler among them. Ours decides in its method `_for_sampler` what to return for
    it.
    """

    def arguments(batches: Any) -> dict[str, Any]:
        return {"sampler": None, "drop_last": None, "explicit_cls": batches._for_sampler}

    for name, value in {
        "args": (),
        "arg_names": (),
        "default_kwargs": {},
        "kwargs": property(arguments),
    }.items():
        setattr(batch_sampler, f"__pl_saved_{name}", value)
    return batch_sampler
