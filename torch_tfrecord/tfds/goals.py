"""Goals: later steps of the same episode, drawn at random, whose observations tell a policy what to
reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import at_least, integer
from torch_tfrecord.order.draw_epoch import DrawEpoch

__all__ = ["GoalDraws", "UniformGoals"]


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
