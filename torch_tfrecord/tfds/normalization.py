"""Normalise actions and states by a dataset's statistics, as Octo, OpenVLA and openpi do, and
back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.arguments import one_of, true_or_false
from torch_tfrecord.shown import shown_list, shown_value

__all__ = ["NormalizationType", "Normalize"]

NormalizationType: TypeAlias = Literal["normal", "bounds", "bounds_q99"]
_PROPRIO = ("observation/proprio", "observation/state")


class Normalize:
    """Normalise the actions and the state of an episode, a sample or a batch by a dataset's
    statistics.

    As `episode_transform` (behind your own) it runs once for each episode, before windows are cut;
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
        one_of("normalization", normalization, "normal", "bounds", "bounds_q99")
        if not isinstance(statistics, Mapping) or "action" not in statistics:
            raise ValueError(
                f"statistics must be a dict with 'action', got {shown_value(statistics)}"
            )
        is_bounded = normalization != "normal"
        self._action, self._proprio = action, _PROPRIO if proprio is None else (proprio,)
        self._normalization = normalization
        self._clip = true_or_false("clip", clip) and is_bounded
        self._scales = {
            name: _Scale(
                name, statistics[name], normalization, epsilon, mask if name == "action" else None
            )
            for name in ("action", "proprio")
            if name in statistics
        }
        for name, scale in (
            self._scales.items() if true_or_false("zero_unchanging", zero_unchanging) else ()
        ):
            if is_bounded:
                scale.find_unchanging(name, statistics[name])

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Normalise an episode, a sample or a batch."""
        return self._map(values, lambda tensor, scale: scale.forward(tensor, self._clip))

    def inverse(self, values: Any, name: Literal["action", "proprio"] = "action") -> Any:
        """Take back what the call does: for a tensor [..., dimensions] of actions (or "proprio"),
        or for a dict.

        A dimension that was set to 0 gets its only value.
        """
        if isinstance(values, Mapping):
            return self._map(values, lambda tensor, scale: scale.backward(tensor))
        return self._scales[name].backward(torch.as_tensor(values))

    def _map(self, values: Mapping[str, object], change: _Change) -> dict[str, object]:
        changed = _replace_at(values, self._action.split("/"), change, self._scales["action"])
        if "proprio" in self._scales:
            path = next(
                (path.split("/") for path in self._proprio if _is_there(values, path.split("/"))),
                None,
            )
            if path is None:
                raise KeyError(
                    f"no {' or '.join(map(repr, self._proprio))} to normalise; set proprio to the path of the state, "
                    "or leave 'proprio' out of the statistics"
                )
            changed = _replace_at(changed, path, change, self._scales["proprio"])
        return changed

    def __repr__(self) -> str:
        return f"Normalize({self._normalization!r}, {', '.join(self._scales)})"


class _Scale:
    """The numbers of one column: (x - low) / width, mapped from [0, 1] to [-1, 1] for bounds."""

    def __init__(
        self,
        name: str,
        statistics: Mapping[str, Any],
        normalization: NormalizationType,
        epsilon: float,
        mask: Sequence[bool] | None,
    ) -> None:
        needed = {
            "normal": ("mean", "std"),
            "bounds": ("min", "max"),
            "bounds_q99": ("q01", "q99"),
        }[normalization]
        self._name = name
        self._low, high = (_numbers(name, statistics, each) for each in needed)
        self._is_bounded = normalization != "normal"
        self._width = (high - self._low if self._is_bounded else high) + epsilon
        mask = statistics.get("mask") if mask is None else mask
        self._mask = np.ones(self._low.shape, bool) if mask is None else np.asarray(mask, bool)
        if self._mask.shape != self._low.shape:
            raise ValueError(
                f"mask must have {len(self._low)} values, as {name!r} of the statistics, got {mask}"
            )
        self._unchanging, self._only = np.zeros_like(self._mask), self._low

    def find_unchanging(self, name: str, statistics: Mapping[str, object]) -> None:
        """Set dimensions that never change to 0 from now on."""
        self._only = _numbers(name, statistics, "min")
        self._unchanging = self._only == _numbers(name, statistics, "max")

    def forward(self, values: torch.Tensor, clip: bool) -> torch.Tensor:
        low, width, mask, unchanging, _ = self._on(values)
        scaled = 2 * (values - low) / width - 1 if self._is_bounded else (values - low) / width
        scaled = torch.where(mask, scaled.clamp(-1, 1) if clip else scaled, values)
        return torch.where(unchanging, 0, scaled)

    def backward(self, values: torch.Tensor) -> torch.Tensor:
        low, width, mask, unchanging, only = self._on(values)
        raw = (values + 1) / 2 * width + low if self._is_bounded else values * width + low
        return torch.where(unchanging, only, torch.where(mask, raw, values))

    def _on(self, values: torch.Tensor) -> list[torch.Tensor]:
        """The numbers on the device and in the dtype of the values."""
        if (
            not isinstance(values, torch.Tensor)
            or not values.dim()
            or values.shape[-1] != len(self._low)
        ):
            got = (
                f"shape {list(values.shape)}"
                if isinstance(values, torch.Tensor)
                else type(values).__name__
            )
            raise ValueError(
                f"{self._name}: expected a tensor [..., {len(self._low)}], as the statistics, got {got}"
            )
        dtype = values.dtype if values.is_floating_point() else torch.float32
        numbers = [
            torch.from_numpy(each).to(values.device, dtype)
            for each in (self._low, self._width, self._only)
        ]
        masks = [
            torch.from_numpy(each).to(values.device) for each in (self._mask, self._unchanging)
        ]
        return [*numbers[:2], *masks, numbers[2]]


def _numbers(name: str, statistics: Mapping[str, object], wanted: str) -> npt.NDArray[np.float64]:
    """One list of the statistics; quantiles also by the names that Octo gives them."""
    there = next((each for each in (wanted, wanted.replace("q", "p")) if each in statistics), None)
    if there is None:
        raise ValueError(
            f"statistics: {name!r} lacks {wanted!r}, there are {shown_list(list(statistics), repr)}"
        )
    return np.array(statistics[there], np.float64)


def _is_there(values: object, path: Sequence[str]) -> bool:
    for name in path:
        if not isinstance(values, Mapping) or name not in values:
            return False
        values = values[name]
    return True


_Change: TypeAlias = Callable[[torch.Tensor, _Scale], torch.Tensor]


def _replace_at(
    values: Mapping[str, Any], path: Sequence[str], change: _Change, scale: _Scale
) -> dict[str, Any]:
    """A copy with another value at a path."""
    name, *rest = path
    if not isinstance(values, Mapping) or name not in values:
        raise KeyError(f"no {name!r} to normalise; there are {shown_list(list(values), repr)}")
    return {
        **values,
        name: _replace_at(values[name], rest, change, scale)
        if rest
        else change(values[name], scale),
    }
