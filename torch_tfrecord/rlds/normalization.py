"""Normalise actions and states by a dataset's statistics, as Octo, OpenVLA and openpi do, and
back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from torch_tfrecord.arguments import one_of, true_or_false
from torch_tfrecord.shown import shown_list, shown_value

__all__ = ["NormalizationType", "Normalize"]

NormalizationType: TypeAlias = Literal["normal", "bounds", "bounds_q99"]
_Change: TypeAlias = Callable[[str, Any], torch.Tensor]
_PROPRIO = ("observation/proprio", "observation/state")
# The value that each maps to 0, and how far it is to 1; for bounds to -1 and 1.
_NEEDED = {"normal": ("mean", "std"), "bounds": ("min", "max"), "bounds_q99": ("q01", "q99")}


class Normalize:
    """Normalise the actions and the state of an episode, a sample or a batch by a dataset's
    statistics.

    As `episode_transform` (after your own) it runs once for each episode, before windows are cut;
    it is also a `step_transform`, and works on batches, on any device. It returns a new dict. A
    dimension x becomes::

        "normal"        (x - mean) / (std + epsilon)
        "bounds"        2 * (x - min) / (max - min + epsilon) - 1
        "bounds_q99"    2 * (x - q01) / (q99 - q01 + epsilon) - 1

    Args:
        statistics: What `dataset_statistics` returns; or the same from a
            ``dataset_statistics.json`` of OpenVLA (of one dataset) or Octo (with "p01" and "p99").
            Without "proprio", states stay as they are.
        normalization: One of these. OpenVLA names all three so; Octo's "bounds" is "bounds_q99"
            with ``zero_unchanging=False``; openpi's quantiles are "bounds_q99" with ``epsilon=1e-6,
            clip=False, zero_unchanging=False``.
        mask: For each action dimension, whether to normalise it: False for a gripper that is 0 or
            1. None: "mask" of the statistics' "action", else all.
        epsilon: Added to the divisor.
        clip: Limit to [-1, 1], for bounds.
        zero_unchanging: Set dimensions whose min is their max to 0, for bounds (also those that
            `mask` excludes, as in OpenVLA).
        action: Path of the actions, a tensor [..., dimensions].
        proprio: Path of the state; None for "observation/proprio" or "observation/state", whichever
            is there.

    Raises:
        ValueError: `normalization` is unknown, the statistics lack what it needs, or `mask` has
            another length.
        KeyError: When called: there is no tensor at a path.

    Example:
        >>> statistics = {"action": {"mean": [1.0, 0.0], "std": [2.0, 1.0]}}
        >>> normalize = Normalize(statistics, "normal", mask=[True, False])
        >>> batch = normalize({"action": torch.tensor([[5.0, 1.0]])})
        >>> batch["action"], normalize.inverse(batch["action"])
        (tensor([[2., 1.]]), tensor([[5., 1.]]))
    """

    def __init__(
        self,
        statistics: Mapping[str, Any],
        normalization: NormalizationType = "normal",
        *,
        mask: Sequence[bool] | None = None,
        epsilon: float = 1e-8,
        clip: bool = True,
        zero_unchanging: bool = True,
        action: str = "action",
        proprio: str | None = None,
    ) -> None:
        one_of("normalization", normalization, *_NEEDED)
        if not isinstance(statistics, Mapping) or "action" not in statistics:
            raise ValueError(
                f"statistics must be a dict with 'action', got {shown_value(statistics)}"
            )
        self._action, self._proprio = action, _PROPRIO if proprio is None else (proprio,)
        self._normalization = normalization
        # The mean and std of "normal" promise no range.
        self._is_bounded = normalization != "normal"
        self._clip = true_or_false("clip", clip) and self._is_bounded
        finds_unchanging = true_or_false("zero_unchanging", zero_unchanging) and self._is_bounded
        # The first value, the width and the only value of each dimension; whether it is normalised,
        # and whether it has only one value.
        self._scales: dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        for name in ("action", "proprio"):
            if name not in statistics:
                continue
            own = statistics[name]
            low, high = (_numbers(name, own, each) for each in _NEEDED[normalization])
            chosen = own.get("mask") if mask is None or name != "action" else mask
            # through NumPy: a mask may be an array, or consist of 0 and 1
            is_scaled = torch.tensor(
                np.asarray([True] * len(low) if chosen is None else chosen, bool)
            )
            if is_scaled.shape != low.shape:
                raise ValueError(
                    f"mask must have {len(low)} values, as {name!r} of the statistics, got {chosen}"
                )
            is_unchanging, only = torch.zeros_like(is_scaled), low
            if finds_unchanging:
                only = _numbers(name, own, "min")
                is_unchanging = only == _numbers(name, own, "max")
            width = (high - low if self._is_bounded else high) + epsilon
            # float64, so that nothing is lost before it is cast to the values' dtype
            self._scales[name] = torch.stack([low, width, only]), is_scaled, is_unchanging

    def __call__(self, values: Mapping[str, object]) -> dict[str, Any]:
        """Normalise an episode, a sample or a batch."""
        return self._map(values, self._forward)

    def inverse(self, values: object, name: Literal["action", "proprio"] = "action") -> Any:
        """Take back what the call does: for a tensor [..., dimensions] of actions (or "proprio"),
        or for a dict.

        A dimension that was set to 0 gets its only value.
        """
        if isinstance(values, Mapping):
            return self._map(values, self._backward)
        return self._backward(name, torch.as_tensor(values))

    def _map(self, values: Mapping[str, object], change: _Change) -> dict[str, object]:
        changed = _replace_at(values, self._action.split("/"), partial(change, "action"))
        if "proprio" not in self._scales:
            return changed
        for path in self._proprio:
            # The first usual name that is there; one of the user's own must be.
            with contextlib.suppress(KeyError):
                return _replace_at(changed, path.split("/"), partial(change, "proprio"))
        raise KeyError(
            f"no {' or '.join(map(repr, self._proprio))} to normalise; set proprio to the path of the state, "
            "or leave 'proprio' out of the statistics"
        )

    def _forward(self, name: str, values: Any) -> torch.Tensor:
        low, width, _, is_scaled, is_unchanging = self._on(name, values)
        scaled = 2 * (values - low) / width - 1 if self._is_bounded else (values - low) / width
        scaled = torch.where(is_scaled, scaled.clamp(-1, 1) if self._clip else scaled, values)
        return torch.where(is_unchanging, 0, scaled)

    def _backward(self, name: str, values: Any) -> torch.Tensor:
        low, width, only, is_scaled, is_unchanging = self._on(name, values)
        raw = (values + 1) / 2 * width + low if self._is_bounded else values * width + low
        return torch.where(is_unchanging, only, torch.where(is_scaled, raw, values))

    def _on(self, name: str, values: object) -> tuple[torch.Tensor, ...]:
        """The numbers on the device and in the dtype of the values."""
        rows, *flags = self._scales[name]
        if not isinstance(values, torch.Tensor) or values.shape[-1:] != rows.shape[1:]:
            shape = getattr(values, "shape", None)
            got = type(values).__name__ if shape is None else f"shape {list(shape)}"
            raise ValueError(
                f"{name}: expected a tensor [..., {rows.shape[1]}], as the statistics, got {got}"
            )
        dtype = values.dtype if values.is_floating_point() else torch.float32
        return *rows.to(values.device, dtype), *(flag.to(values.device) for flag in flags)

    def __repr__(self) -> str:
        return f"Normalize({self._normalization!r}, {', '.join(self._scales)})"


def _numbers(name: str, statistics: Mapping[str, object], wanted: str) -> torch.Tensor:
    """One list of the statistics; quantiles also by the names that Octo gives them."""
    there = next((each for each in (wanted, wanted.replace("q", "p")) if each in statistics), None)
    if there is None:
        raise ValueError(
            f"statistics: {name!r} lacks {wanted!r}, there are {shown_list(list(statistics), repr)}"
        )
    # through NumPy: the values may be arrays, of any dtype
    return torch.tensor(np.array(statistics[there], np.float64))


def _replace_at(
    values: Mapping[str, object], path: Sequence[str], change: Callable[[Any], object]
) -> dict[str, object]:
    """A copy with another value at a path."""
    name, *rest = path
    if not isinstance(values, Mapping) or name not in values:
        raise KeyError(f"no {name!r} to normalise; there are {shown_list(list(values), repr)}")
    inner: Any = values[name]
    changed = _replace_at(inner, rest, change) if rest else change(inner)
    return {**values, name: changed}
