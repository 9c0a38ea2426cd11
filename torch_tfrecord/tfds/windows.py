"""Which steps of an episode a sample holds: windows around a step, and goals that are drawn from the
later steps, whose observations tell a policy what to reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import Pad, at_least, integer, one_of
from torch_tfrecord.order.draw_epoch import DrawEpoch

__all__ = [
    "GoalDraws",
    "Span",
    "UniformGoals",
    "Windows",
    "lay_out",
]


class Span(NamedTuple):
    """A half-open range of steps of one episode, and the number of padding steps before and after
    it.
    """

    first: int
    stop: int
    before: int = 0
    behind: int = 0

    @property
    def size(self) -> int:
        """Number of steps with the padding."""
        return self.before + self.stop - self.first + self.behind


def lay_out(spans: Sequence[Span]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The step at each place of spans of equal size, where padding repeats the nearest step, and
    whether it is a step of the episode: int64 and bool, each [N, steps].

    Example:
        >>> lay_out([Span(4, 6, before=1)])
        (array([[4, 4, 5]]), array([[False,  True,  True]]))
    """
    rows = np.fromiter(chain.from_iterable(spans), np.int64, 4 * len(spans)).reshape(-1, 4)
    first, stop, before, _ = rows.T[:, :, None]
    places = np.arange(spans[0].size) + (first - before)
    steps: npt.NDArray[np.int64] = np.minimum(np.maximum(places, first), stop - 1)
    return steps, steps == places


@dataclass(frozen=True)
class Windows:
    """The windows around a step: `window_size` steps up to and including it, and `action_horizon`
    steps from it on.

    A window never crosses an episode border. At the ends of an episode it is padded; with
    `pad=None`, such steps are excluded.

    Args:
        window_size: Number of observations per sample: the current step and those before it.
        action_horizon: Number of actions per sample: the current step and those after it.
        pad: "repeat" (the first observation, the last action), "zero", or None.

    Raises:
        TypeError: A size is not an integer.
        ValueError: A size is below 1, or `pad` is unknown.

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
        """Number of positions in episodes of these lengths, int64 of the same shape."""
        if self.pad is not None:
            return num_steps
        return np.maximum(num_steps - (self.window_size + self.action_horizon - 2), 0)

    def step(self, number: int) -> int:
        """The step at a position within an episode."""
        return number if self.pad is not None else number + self.window_size - 1

    def observations(self, step: int) -> Span:
        """The observation steps of the sample at a step."""
        first = step - self.window_size + 1
        return Span(max(first, 0), step + 1, before=max(-first, 0))

    def actions(self, step: int, num_steps: int) -> Span:
        """The action steps of the sample at a step."""
        stop = step + self.action_horizon
        return Span(step, min(stop, num_steps), behind=max(stop - num_steps, 0))


@dataclass(frozen=True)
class UniformGoals:
    """Draw each sample's goal uniformly from the steps that follow in its episode, as Octo and
    OpenVLA do.

    A draw is a pure function of the seed, the epoch and the step: the same for any number of
    workers and ranks, another one in the next epoch. See `RLDSDataset.set_epoch`.

    Args:
        min_distance: Steps from the current step to the first possible goal: 0 as in Octo, or 1 as
            in OpenVLA. Near the end of an episode the goal is its last step.
        max_distance: Steps to the last possible goal, if the episode is that long (Octo's
            ``max_goal_distance`` is one more); None for the end of the episode.
        seed: Decides the draws; an integer of any size.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: A distance is negative, or `max_distance` is below `min_distance`.

    Example:
        >>> ds = RLDSDataset("bridge/0.1.0", goals=UniformGoals(max_distance=20))  # doctest: +SKIP
        >>> ds[0]["task"]["image_0"].shape, ds[0]["task"]["timestep"]  # doctest: +SKIP
        (torch.Size([3, 256, 256]), 17)
    """

    min_distance: int = 0
    max_distance: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the fields."""
        integer("seed", self.seed)
        at_least(0, "min_distance", self.min_distance)
        if self.max_distance is not None:
            at_least(self.min_distance, "max_distance", self.max_distance)

    def draw(
        self,
        steps: npt.NDArray[np.int64],
        num_steps: npt.NDArray[np.int64],
        keys: npt.NDArray[np.uint64],
    ) -> npt.NDArray[np.int64]:
        """The goals of steps, each of an episode of some number of steps, by the random numbers of
        their keys.
        """
        first = np.minimum(steps + self.min_distance, num_steps - 1)
        stop = (
            num_steps
            if self.max_distance is None
            else np.minimum(steps + self.max_distance + 1, num_steps)
        )
        span = np.maximum(stop - first, 1)
        chances = (keys >> np.uint64(11)) * 2.0**-53  # from 0 to below 1
        goals: npt.NDArray[np.int64] = first + np.minimum(
            (chances * span).astype(np.int64), span - 1
        )
        return goals


class GoalDraws:
    """Draws the goals of batches of positions, each in the epoch of its batch.

    Args:
        goals: How to draw.
        num_steps: int64 [episodes].

    Attributes:
        epoch: The epoch of positions that do not know theirs.
    """

    def __init__(self, goals: UniformGoals, num_steps: npt.NDArray[np.int64]) -> None:
        self._goals = goals
        self._num_steps = num_steps
        self._begins = np.cumsum(num_steps) - num_steps
        self.epoch = DrawEpoch()

    def of(
        self, positions: Sequence[int], episodes: Sequence[int], steps: Sequence[int]
    ) -> list[int]:
        """The goal steps of a batch of positions, which must be `salted`, at these steps of these
        episodes.
        """
        numbers, at = np.array(episodes, np.int64), np.array(steps, np.int64)
        # By the step among all steps of the split: the same whichever of them are positions.
        keys = self.epoch.keys(positions, self._begins[numbers] + at, self._goals.seed)
        goals: list[int] = self._goals.draw(at, self._num_steps[numbers], keys).tolist()
        return goals
