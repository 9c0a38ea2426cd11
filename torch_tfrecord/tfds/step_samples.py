"""Samples of steps: the windows of the columns of their episodes, one sample or a batch as
columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from torch_tfrecord.columns.dtypes import decode_text
from torch_tfrecord.tfds.episode_columns import each_leaf
from torch_tfrecord.tfds.episode_store import Episode
from torch_tfrecord.tfds.windows import (
    Span,
    StepBatch,
    Windows,
    laid_out,
    shared_names,
    together,
    window,
)

__all__ = ["StepSamples", "own"]

_OBSERVATION, _ACTION = "observation", "action"
INSTRUCTIONS = ("language_instruction", "natural_language_instruction", "instruction")


class StepSamples:
    """Builds samples from episodes.

    Args:
        windows: The windows around each step.
        dataset_name: Stands in each sample.
    """

    def __init__(self, windows: Windows, dataset_name: str) -> None:
        self._windows = windows
        self._dataset_name = dataset_name

    def one(self, episode: Episode, step: int, goal: int | None) -> dict[str, Any]:
        """The sample of a step, and the observation at its goal step if there is one: a row of
        `batch`, faster.
        """
        pad = self._windows.pad
        seen, done = (
            self._windows.observations(step),
            self._windows.actions(step, episode.num_steps),
        )
        sample: dict[str, Any] = {}
        for name, columns in episode.steps.items():
            if name == _OBSERVATION:
                sample[name] = each_leaf(columns, lambda column: window(column, seen, pad))
            elif name == _ACTION:
                sample[name] = each_leaf(columns, lambda column: window(column, done, pad))
            else:
                sample[name] = each_leaf(columns, lambda column: column.at(step))
        observation = sample.setdefault(_OBSERVATION, {})
        if isinstance(observation, dict):
            observation["timestep"] = torch.from_numpy(seen.repeated())
            observation["pad_mask"] = torch.from_numpy(seen.mask())
        sample["action_pad_mask"] = torch.from_numpy(done.mask())
        sample["task"] = task = {}
        if goal is not None:
            task.update(each_leaf(_seen_at_goal(episode), lambda column: column.at(goal)))
            task["timestep"] = goal
        task["language_instruction"] = instruction(episode, step)
        sample.update(each_leaf(episode.metadata, own))
        sample["dataset_name"] = self._dataset_name
        sample["_len"], sample["_traj_index"], sample["_frame_index"] = (
            episode.num_steps,
            episode.number,
            step,
        )
        return sample

    def batch(
        self, episodes: Sequence[Episode], steps: list[int], goals: list[int] | None
    ) -> dict[str, Any]:
        """The columns of the samples of these steps, each of one episode, with their goal steps if
        there are any.
        """
        places = [(episode.number, step) for episode, step in zip(episodes, steps, strict=True)]
        seen = [self._windows.observations(step) for step in steps]
        done = [
            self._windows.actions(step, item.num_steps)
            for item, step in zip(episodes, steps, strict=True)
        ]
        order = sorted(range(len(places)), key=places.__getitem__)
        take_seen, take_done, take_one = (
            StepBatch(spans, order, self._windows.pad)
            for spans in (seen, done, [Span(step, step + 1) for step in steps])
        )
        columns: dict[str, Any] = {}
        for name, trees in shared_names([episode.steps for episode in episodes]):
            way = {_OBSERVATION: take_seen.take, _ACTION: take_done.take}.get(name, take_one.at)
            columns[name] = together(trees, way)
        observation = columns.setdefault(_OBSERVATION, {})
        if isinstance(observation, dict):
            observation["timestep"], observation["pad_mask"] = map(torch.from_numpy, laid_out(seen))
        columns["action_pad_mask"] = torch.from_numpy(laid_out(done)[1])
        texts = [instruction(episode, step) for episode, step in zip(episodes, steps, strict=True)]
        columns["task"] = _at_goals(episodes, goals) | {"language_instruction": texts}
        for name, trees in shared_names([episode.metadata for episode in episodes]):
            columns[name] = together(trees, lambda values: [*map(own, values)])
        columns["dataset_name"] = [self._dataset_name] * len(places)
        # Lists, as a sample has these as int.
        columns["_len"] = [episode.num_steps for episode in episodes]
        columns["_traj_index"], columns["_frame_index"] = (
            [episode.number for episode in episodes],
            steps,
        )
        return columns


def _seen_at_goal(episode: Episode) -> Any:
    observation = episode.steps.get(_OBSERVATION, {})
    return observation if isinstance(observation, Mapping) else {_OBSERVATION: observation}


def _at_goals(episodes: Sequence[Episode], goals: list[int] | None) -> dict[str, Any]:
    """The observations at the goal steps, as columns."""
    if goals is None:
        return {}
    order = sorted(range(len(goals)), key=lambda number: (episodes[number].number, goals[number]))
    batch = StepBatch([Span(goal, goal + 1) for goal in goals], order, None)
    task: dict[str, Any] = together([*map(_seen_at_goal, episodes)], batch.at)
    return task | {"timestep": goals}


def own(value: Any) -> Any:
    """Copy metadata, so that a sample may modify it."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def instruction(episode: Episode, step: int) -> str:
    """The language instruction: the first of the usual names in the step, its observation, or the
    episode.
    """
    for tree in _text_places(episode):
        for name in INSTRUCTIONS if isinstance(tree, Mapping) else ():
            value = tree.get(name)
            value = value.at(step) if hasattr(value, "at") else value
            if isinstance(value, (str, bytes)):
                return value if isinstance(value, str) else decode_text(value)
    return ""


def _text_places(episode: Episode) -> Iterator[Any]:
    yield episode.steps
    yield episode.steps.get(_OBSERVATION)
    yield episode.metadata
    yield from episode.metadata.values()
