"""Windows of steps: which steps of an episode a sample holds; integers in, integers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import Pad, at_least, one_of

__all__ = ["Span", "Windows", "masks", "repeated_steps"]


class Span(NamedTuple):
    """Neighbouring steps of one episode, half-open, and how many are missing in front of them and behind."""

    first: int
    stop: int
    before: int = 0
    behind: int = 0

    def mask(self) -> npt.NDArray[np.bool_]:
        """bool [before + steps + behind]: True for a step of the episode, False for padding."""
        mask = np.ones(self.before + self.stop - self.first + self.behind, np.bool_)
        mask[: self.before] = False
        mask[len(mask) - self.behind :] = False
        return mask

    def repeated(self) -> npt.NDArray[np.int64]:
        """int64: the step at each place, where padding repeats the nearest step."""
        places = np.arange(self.first - self.before, self.stop + self.behind, dtype=np.int64)
        places[: self.before] = self.first
        places[len(places) - self.behind :] = self.stop - 1
        return places


def masks(spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
    """bool [N, steps]: `Span.mask` of spans of one size."""
    first, stop, before, behind = _fields(spans)
    places = np.arange((before + stop - first + behind)[0, 0])
    mask: npt.NDArray[np.bool_] = (places >= before) & (places < len(places) - behind)
    return mask


def repeated_steps(spans: Sequence[Span]) -> npt.NDArray[np.int64]:
    """int64 [N, steps]: `Span.repeated` of spans of one size."""
    first, stop, before, behind = _fields(spans)
    places = np.arange((before + stop - first + behind)[0, 0]) + (first - before)
    repeated: npt.NDArray[np.int64] = np.minimum(np.maximum(places, first), stop - 1)
    return repeated


def _fields(spans: Sequence[Span]) -> npt.NDArray[np.int64]:
    """int64 [4, N, 1]."""
    rows = np.fromiter(chain.from_iterable(spans), np.int64, 4 * len(spans)).reshape(-1, 4)
    fields: npt.NDArray[np.int64] = rows.T[:, :, None]
    return fields


@dataclass(frozen=True)
class Windows:
    """The steps around a step: `window_size` up to and with it, and `action_horizon` from it on.

    A window never leaves its episode. What it lacks at the episode's ends is padded, or, with `pad=None`, the step is
    no position.

    Args:
        window_size: Observations of a sample: the step's own and those before it.
        action_horizon: Actions of a sample: the step's own and those after it.
        pad: "repeat" (the episode's first observation, its last action), "zero", or None.

    Raises:
        TypeError: A size that is no integer.
        ValueError: A size below 1, or another `pad`.

    Example:
        >>> windows = Windows(window_size=3, action_horizon=4)
        >>> windows.observations(1), windows.actions(8, num_steps=10)
        (Span(first=0, stop=2, before=1, behind=0), Span(first=8, stop=10, before=0, behind=2))
    """

    window_size: int = 1
    action_horizon: int = 1
    pad: Pad = "repeat"

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("window_size", "action_horizon"):
            value = getattr(self, name)
            object.__setattr__(self, name, at_least(1, name, value))
        one_of("pad", self.pad, "repeat", "zero", None)

    def num_positions(self, num_steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many steps of episodes of these lengths are positions, int64 of the same shape."""
        if self.pad is not None:
            return num_steps
        return np.maximum(num_steps - (self.window_size + self.action_horizon - 2), 0)

    def step(self, number: int) -> int:
        """The step of an episode's position with this number."""
        return number if self.pad is not None else number + self.window_size - 1

    def observations(self, step: int) -> Span:
        """The steps whose observations the sample of a step has."""
        first = step - self.window_size + 1
        return Span(max(first, 0), step + 1, before=max(-first, 0))

    def actions(self, step: int, num_steps: int) -> Span:
        """The steps whose actions the sample of a step has."""
        stop = step + self.action_horizon
        return Span(step, min(stop, num_steps), behind=max(stop - num_steps, 0))
