"""The base class of all TFDS features, and the checks of shapes, dtypes and encodings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np
import torch

__all__ = ["STRING", "FeatureConnector", "Shape", "few", "fits", "set_fields", "torch_dtype_of"]

STRING = "string"
_ENCODINGS = ("none", "bytes", "zlib")
_MAX_ELEMENTS = 1 << 48  # far above what a record holds, far below where torch's sizes overflow

Shape: TypeAlias = tuple[int | None, ...]


@dataclass(frozen=True, repr=False)
class FeatureConnector:
    """The base class of all features.

    Args:
        doc: Free-text description of the feature.
    """

    doc: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        """Check and normalise the shape, dtype and encoding, if the feature has them."""
        own = vars(self)
        set_fields(
            self, **{name: check(own[name]) for name, check in _CHECKS.items() if name in own}
        )

    def __repr__(self) -> str:
        """Show the code that builds the feature, without default arguments."""
        shown = [
            _code(value)
            if item.default is MISSING and not item.kw_only
            else f"{item.name}={_code(value)}"
            for item in sorted(fields(self), key=lambda item: item.kw_only is True)
            if item.init and (value := getattr(self, item.name)) != item.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def torch_dtype_of(name: str) -> torch.dtype | None:
    """The torch dtype for a NumPy dtype name; None for "string" and dtypes that torch lacks."""
    found = vars(torch).get(name)
    if (
        not isinstance(found, torch.dtype)
        or str(found) != f"torch.{name}"
        or name.startswith(("q", "bits"))
    ):
        return None
    return found


def set_fields(feature: FeatureConnector, /, **values: object) -> None:
    """Set fields of a frozen feature while it is built."""
    for name, value in values.items():
        object.__setattr__(feature, name, value)


def _checked_shape(shape: Iterable[int | None]) -> Shape:
    """Normalise a shape to a tuple, with None for -1.

    Raises:
        ValueError: A size is negative, or the shape is too large for any record.
    """
    sizes = tuple(None if size in (None, -1) else int(size) for size in shape)
    if any(size is not None and size < 0 for size in sizes):
        raise ValueError(f"shape must be sizes or None, got {shape!r}")
    if math.prod(size or 1 for size in sizes) > _MAX_ELEMENTS:
        raise ValueError(f"shape has more than {_MAX_ELEMENTS} elements")
    return sizes


def fits(found: Sequence[int | None], shape: Shape) -> bool:
    """Whether concrete sizes match a shape with unknown sizes."""
    return len(found) == len(shape) and all(
        size in (None, there) for size, there in zip(shape, found, strict=True)
    )


def _checked_dtype(dtype: Any) -> str:
    """The NumPy name of a NumPy, torch or Python dtype."""
    if dtype in (bytes, str, object, "object", "bytes", "str", STRING):
        return STRING
    if isinstance(dtype, torch.dtype):
        return str(dtype).removeprefix("torch.")
    if isinstance(dtype, str):
        return dtype
    return str(np.dtype(dtype).name)


def _checked_encoding(encoding: object) -> str:
    """The encoding name in lower case.

    Raises:
        ValueError: The encoding is unknown.
    """
    name = str(encoding).lower()
    if name not in _ENCODINGS:
        raise ValueError(f"encoding must be one of {_ENCODINGS}, got {encoding!r}")
    return name


_CHECKS: dict[str, Callable[[Any], object]] = {
    "shape": _checked_shape,
    "dtype": _checked_dtype,
    "encoding": _checked_encoding,
}


def few(names: tuple[str, ...]) -> str:
    """The first eight names, for errors."""
    return ", ".join(map(repr, names[:8])) + (
        f" and {len(names) - 8} more" if len(names) > 8 else ""
    )


def _code(value: object) -> str:
    if isinstance(value, tuple) and len(value) > 8:
        return f"({few(value)})"
    return repr(value)
