"""One column of a batch, padded: a tensor that holds it already, or a list of its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import default_collate

from torch_tfrecord.batches.collate import keep_type
from torch_tfrecord.batches.nested_lists import flat_sizes, list_sizes, pad_lists, scalars
from torch_tfrecord.batches.padded_sizes import Sizes, lengths_of, padded_size, reserve_padded, sizes_of
from torch_tfrecord.values.containers import offsets_of
from torch_tfrecord.values.dtypes import dtype_name
from torch_tfrecord.values.stacking import pad_rows

__all__ = ["ColumnRows", "Padded", "column_rows", "pad_column", "pad_numbers", "pad_strings"]

Padded: TypeAlias = tuple[Any, Any]
"""A batch and its lengths, nested alike."""

_POINTER_BYTES = 8  # of one entry in a Python list


@dataclass(frozen=True, eq=False)
class ColumnRows:
    """A column that need not be taken apart to be padded: dense values [B, ...], or where each row begins and ends."""

    values: torch.Tensor
    offsets: torch.Tensor | None

    def sizes(self) -> Sizes:
        """The shapes of the rows."""
        inner = np.array(self.values.shape[1:], np.int64)
        if self.offsets is None:
            return np.tile(inner, (len(self.values), 1))
        lengths = self.offsets.diff().numpy()[:, None]
        return np.hstack([lengths, np.tile(inner, (len(lengths), 1))])


def column_rows(column: Any) -> ColumnRows | None:
    """A tensor's rows, where it is dense, or jagged without gaps; on the CPU, and no gradient is asked for."""
    if column.layout == torch.strided and not column.is_nested:
        return ColumnRows(column, None) if _is_plain(column) else None
    if column.layout != torch.jagged or column._lengths is not None or column._ragged_idx != 1:
        return None
    values, offsets = column.values(), column.offsets()
    is_whole = (offsets[0].item(), offsets[-1].item()) == (0, len(values))
    return ColumnRows(values, offsets.contiguous()) if is_whole and _is_plain(values) else None


def _is_plain(values: torch.Tensor) -> bool:
    return values.device.type == "cpu" and not (values.requires_grad or values.is_conj() or values.is_neg())


def pad_column(column: ColumnRows, shapes: Any, padding: Any, name: str) -> Padded:
    """Pad a column: the same as `pad_numbers` of its rows, errors too."""
    sizes, plain = column.sizes(), column.values.as_subclass(torch.Tensor)
    size, fill = _prepare(sizes, shapes, padding, plain.dtype, name)
    if column.offsets is None:
        return keep_type(_pad_inner(plain, size, fill), column.values), lengths_of(sizes)
    return _fill_rows(plain, column.offsets, size, fill), lengths_of(sizes)


def _fill_rows(values: torch.Tensor, offsets: torch.Tensor, size: tuple[int, ...], fill: Any) -> torch.Tensor:
    return pad_rows(_pad_inner(values, size[1:], fill), offsets, size[0], values.new_full((), fill))


def _pad_inner(values: torch.Tensor, inner: tuple[int, ...], fill: Any) -> torch.Tensor:
    """Values [N, ...] as [N, *inner], which is nowhere smaller."""
    if values.shape[1:] == inner:
        return values
    padded = values.new_full((len(values), *inner), fill)
    padded[tuple(map(slice, values.shape))] = values
    return padded


def pad_numbers(values: list[Any], shapes: Any, padding: Any, name: str) -> Padded:
    """Pad tensors, arrays, numbers or nested lists of numbers, one for each sample.

    Raises:
        TypeError: Something else among them, other dtypes, or a padding value that the dtype does not hold.
        ValueError: As `padded_size`.
    """
    tensors = _tensors(values, name)
    _check_alike(tensors, name)
    sizes = sizes_of([tuple(tensor.shape) for tensor in tensors], name)
    plain = [tensor.as_subclass(torch.Tensor) for tensor in tensors]
    size, fill = _prepare(sizes, shapes, padding, plain[0].dtype, name)
    if tuple(sizes.min(axis=0)) == size:
        batch = default_collate(plain)
    elif (sizes[:, 1:] == sizes[0, 1:]).all() and all(map(_is_plain, plain)):
        batch = _fill_rows(torch.cat(plain), offsets_of(sizes[:, 0].tolist()), size, fill)
    else:
        batch = plain[0].new_full((len(plain), *size), fill)
        for number, tensor in enumerate(plain):
            batch[number][tuple(map(slice, tensor.shape))] = tensor
    return keep_type(batch, tensors[0]), lengths_of(sizes)


def _tensors(values: list[Any], name: str) -> list[torch.Tensor]:
    try:
        if isinstance(values[0], (bool, int, float, complex, list)):
            arrays = [np.asarray(value) for value in values]
            # An empty list has no dtype of its own.
            dtype = np.result_type(*(array for array in arrays if array.size))
            return [torch.from_numpy(array.astype(dtype)) for array in arrays]
        return [torch.tensor(value) if isinstance(value, (np.ndarray, np.generic)) else value for value in values]
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name or 'samples'}: expected numbers alone, in lists of equal length") from error


def _check_alike(tensors: list[Any], name: str) -> None:
    for number, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor) or tensor.is_nested or tensor.layout != torch.strided:
            kind = "a jagged or sparse tensor" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise TypeError(
                f"{name or 'samples'}: padding is only supported for dense tensors, numbers, bytes and str, got {kind} "
                f"in sample {number}"
            )
        if tensor.dtype != tensors[0].dtype:
            raise TypeError(
                f"{name or 'samples'}: expected one dtype, got {dtype_name(tensors[0].dtype)} in sample 0, "
                f"{dtype_name(tensor.dtype)} in sample {number}"
            )


def _prepare(sizes: Sizes, shapes: Any, padding: Any, dtype: torch.dtype, name: str) -> tuple[tuple[int, ...], Any]:
    """The size of a sample in the batch, and what it is filled with; the batch's bytes are reserved."""
    size = padded_size(sizes, shapes, name)
    fill = _exact_number(padding, dtype, name) if size else 0
    reserve_padded(sizes, size, dtype.itemsize, name)
    return size, fill


def _exact_number(value: Any, dtype: torch.dtype, name: str) -> Any:
    """The padding value, if the dtype holds it exactly."""
    if value is None:
        return 0
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        value = value.item()
    try:
        held = torch.tensor(value, dtype=dtype).item()
    except (RuntimeError, TypeError, ValueError, OverflowError):
        held = None
    if held is None or not (held == value or (held != held and value != value)):
        nearest = f"; the nearest is {held!r}" if isinstance(held, float) and isinstance(value, float) else ""
        raise TypeError(
            f"{name or 'samples'}: Invalid `padding_values`. {dtype_name(dtype)} cannot hold {value!r} exactly{nearest}"
        )
    return held


def pad_strings(values: list[Any], kind: type[bytes] | type[str], shape: Any, padding: Any, name: str) -> Padded:
    """Pad bytes or str, or nested lists of them, one for each sample; kind is the type of the first.

    Raises:
        TypeError: Something else among them, or a padding value of another type.
        ValueError: As `padded_size`, or lists of unequal length within a sample.
    """
    shapes = flat_sizes(values, kind)  # mostly rows of strings, or strings
    if shapes is None:
        shapes = _string_sizes(values, kind, name)
    sizes = sizes_of(shapes, name)
    size = padded_size(sizes, shape, name)
    if padding is not None and not isinstance(padding, kind) and size and any(scalars(values)):
        raise TypeError(f"{name or 'samples'}: Invalid `padding_values`. {kind.__name__} cannot hold {padding!r}")
    fill = kind() if padding is None else padding
    reserve_padded(sizes, size, _POINTER_BYTES, name)
    return pad_lists(values, size, fill), lengths_of(sizes)


def _string_sizes(values: list[Any], kind: type[bytes] | type[str], name: str) -> list[tuple[int, ...]]:
    for scalar in scalars(values):
        if not isinstance(scalar, kind):
            raise TypeError(f"{name or 'samples'}: expected {kind.__name__} alone, got {type(scalar).__name__}, too")
    try:
        return list_sizes(values)
    except ValueError as error:
        raise ValueError(f"{name or 'samples'}: {error}") from None
