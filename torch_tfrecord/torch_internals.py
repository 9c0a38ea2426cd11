"""All that we use of torch beyond its documentation, as seen in torch 2.15; where a release lacks
one of them, a documented way takes its place, slower but with the same result.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, default_collate

__all__ = [
    "as_kind_of",
    "as_plain_tensors",
    "collate_by_kinds",
    "collate_functions",
    "has_hooks",
    "is_in_bad_fork",
    "is_profiling",
    "jagged",
    "jagged_parts",
    "longest_of",
    "next_batch",
    "register_as_dict",
    "show_order",
    "sparse",
    "sparse_parts",
    "tv_classes",
    "workers_of",
]

CollateFunctions: TypeAlias = dict[type | tuple[type, ...], Callable[..., object]]
"""By the type of a value, or several types: what makes a batch of such values."""


# Tensors.


def as_plain_tensors() -> AbstractContextManager[object]:
    """Within it a jagged tensor answers like a plain one; else each question takes Python 20 us."""
    make: Callable[[], AbstractContextManager[object]] | None
    make = getattr(torch._C, "DisableTorchFunctionSubclass", None)
    return nullcontext() if make is None else make()


def jagged(values: torch.Tensor, offsets: torch.Tensor, longest: int) -> torch.Tensor:
    """``torch.nested.nested_tensor_from_jagged(values, offsets)``, which knows its longest row.

    Built with the class itself, as in torch's operators: torch's function takes three times as
    long, and its check for torch.fx tracing makes torch write a warning to stderr, once per
    process.
    """
    if not values.requires_grad:  # gradients only flow through torch's own view
        with suppress(ImportError, TypeError):
            from torch.nested._internal.nested_tensor import NestedTensor

            # a shape without elements has the number, as torch's compiler wants it
            known = {"max_seqlen": torch.from_numpy(np.zeros((longest, 0), np.float32))}
            return NestedTensor(values, offsets, _metadata_cache=known)
    return torch.nested.nested_tensor_from_jagged(values, offsets, max_seqlen=longest)


def jagged_parts(tensor: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The values and offsets of a jagged tensor, without the operators that gradients need; None if
    its rows have gaps, or another dimension than the second is jagged.
    """
    with suppress(AttributeError):
        if tensor._lengths is None and tensor._ragged_idx == 1:
            return tensor._values, tensor._offsets
    return None


def sparse_parts(tensor: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices and values of a sparse tensor, coalesced or not."""
    # the public ones refuse a tensor that is not coalesced, which would cost a sort
    if hasattr(tensor, "_indices") and hasattr(tensor, "_values"):
        return tensor._indices(), tensor._values()
    return tensor.coalesce().indices(), tensor.coalesce().values()


def sparse(
    indices: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...], *, is_coalesced: bool
) -> torch.Tensor:
    """A ``torch.sparse_coo`` tensor, without checking or sorting."""
    # The caller has checked the indices, and torch would read them all again.
    choose_sparse_checks()
    return torch.sparse_coo_tensor(
        indices,
        values,
        shape,
        is_coalesced=is_coalesced,
        check_invariants=False,
        device=values.device,
    )


@functools.cache
def choose_sparse_checks() -> None:
    """Say that sparse tensors are not checked, unless you have said that they are: torch 2.11 warns
    where nobody did, even in a call with ``check_invariants=False``.
    """
    checks = torch.sparse.check_sparse_tensor_invariants
    if not checks.is_enabled():
        checks.disable()


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether a module may do more than its forward method says."""
    # a torch that names them otherwise may have some: then nothing is left out
    return bool(
        getattr(module, "_forward_hooks", True) or getattr(module, "_forward_pre_hooks", True)
    )


# Batches.


def collate_functions() -> CollateFunctions:
    """The functions by which ``default_collate`` makes batches, to be extended; torch documents the
    map, but not its module.
    """
    try:
        from torch.utils.data._utils.collate import default_collate_fn_map
    except ImportError:
        return {}
    return default_collate_fn_map


def collate_by_kinds(samples: Sequence[object], functions: CollateFunctions) -> Any:
    """``default_collate`` with more functions than usual."""
    try:
        from torch.utils.data._utils.collate import collate
    except ImportError:
        return default_collate(list(samples))
    return collate(samples, collate_fn_map={**functions})


def register_as_dict(kind: type, name: str) -> None:
    """Register a class as a dict with torch's functions over nested values."""
    # ValueError: another thread has just done it
    with suppress(ImportError, AttributeError, KeyError, ValueError):
        from torch.utils import _pytree

        of_dict = _pytree.SUPPORTED_NODES[dict]
        _pytree.register_pytree_node(
            kind,
            of_dict.flatten_fn,
            of_dict.unflatten_fn,
            serialized_type_name=name,
            flatten_with_keys_fn=of_dict.flatten_with_keys_fn,
        )


# Devices.


def is_in_bad_fork(module: object) -> bool:
    """Whether a device's module, such as ``torch.cuda``, was in use when this process was forked."""
    # where that is unknown, torch's own error comes later
    return bool(getattr(module, "_is_in_bad_fork", bool)())


# Loaders.


# True where that is unknown: a step that nobody records only costs time.
is_profiling: Callable[[], bool] = functools.partial(
    getattr, torch.autograd.profiler, "_is_profiler_enabled", True
)
"""Whether torch's profiler records steps; it takes 10 us to ask it for a step that it does not
record."""


def next_batch(batches: Any) -> Any:
    """``next``; of torch's iterators without a step that no profiler records: it takes the thread
    that trains 10 us, and 80 us after some milliseconds of other work.
    """
    if is_profiling() or not hasattr(batches, "_num_yielded"):
        return next(batches)
    batch = batches._next_data()
    batches._num_yielded += 1
    return batch


def show_order(loader: DataLoader[object], sampler: object, *, drop_last: bool) -> None:
    """Show trainers the sampler and `drop_last` of a DataLoader with a batch sampler.

    There DataLoader has a SequentialSampler that it does not use, and False; it does not let either
    be changed. Accelerate needs `drop_last` to count the samples of the last batch.
    """
    # past DataLoader's own __setattr__, which refuses both names once it is made
    object.__setattr__(loader, "sampler", sampler)
    object.__setattr__(loader, "drop_last", drop_last)


def workers_of(iterator: object) -> Sequence[BaseProcess]:
    """The worker processes of a DataLoader's iterator; none if that is unknown."""
    return getattr(iterator, "_workers", ())


def longest_of(offsets: torch.Tensor | npt.NDArray[Any]) -> int:
    """The length of the longest row, by the row splits."""
    # faster than torch for few rows
    ends = offsets.numpy(force=True) if isinstance(offsets, torch.Tensor) else offsets
    return int((ends[1:] - ends[:-1]).max(initial=0))


def tv_classes(*names: str) -> tuple[type[torch.Tensor], ...]:
    """Classes of ``torchvision.tv_tensors``; none of them where nobody has imported it, which takes a
    second: there no tensor is of one.
    """
    module = sys.modules.get("torchvision.tv_tensors")
    found = [getattr(module, name, None) for name in names]  # another thread may import it now
    return tuple(kind for kind in found if kind is not None)


def as_kind_of(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A tensor as the same tv_tensor as another one, if that is one."""
    if not isinstance(other, tv_classes("TVTensor")):
        return tensor
    from torchvision import tv_tensors  # imported by now

    return tv_tensors.wrap(tensor, like=other)
