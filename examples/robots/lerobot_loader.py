"""RLDS directories for LeRobot's policies, unconverted: the batches of a `LeRobotDataset`.

In a training loop as in LeRobot's `examples/training/train_policy.py`, with this folder on the
PYTHONPATH, three lines change::

    - dataset = LeRobotDataset("lerobot/...", delta_timestamps=delta_timestamps)
    + steps, stats = lerobot_steps(directory, {"top": "image_0"}, chunk_size=cfg.chunk_size)
    - preprocessor, postprocessor = make_pre_post_processors(cfg, dataset_stats=dataset.meta.stats)
    + preprocessor, postprocessor = make_pre_post_processors(cfg, dataset_stats=stats)
    - dataloader = torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True, ...)
    + dataloader = make_dataloader(steps, batch_size=64)

A policy's `input_features` are `observation.images.<name>` and `observation.state`, its output
`action`. Batches lack LeRobot's `task_index`; they have the text itself, `task`.
`python compare.py lerobot DATA` compares them with a `LeRobotDataset` of the same episodes, and
computes the loss of LeRobot's ACT on both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torch_tfrecord import tfds

# LeRobot's for pictures, unless you set use_imagenet_stats=False
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def as_lerobot(
    cameras: Mapping[str, str], state: str, fps: float, starts: torch.Tensor, batch: dict[str, Any]
) -> dict[str, Any]:
    """LeRobot's columns: images float32 [B, C, H, W] from 0 to 1, with a time axis before C (and
    masks of padding) where the window has more than one observation.
    """
    seen = batch["observation"]
    columns = {f"observation.images.{name}": seen[old] / 255 for name, old in cameras.items()}
    columns["observation.state"] = seen[state].float()
    if seen["pad_mask"].shape[1] == 1:
        columns = {name: column[:, 0] for name, column in columns.items()}
    else:
        columns |= {f"{name}_is_pad": ~seen["pad_mask"] for name in columns}
    step = batch["_frame_index"]
    return columns | {
        "action": batch["action"].float(),
        "action_is_pad": ~batch["action_pad_mask"],
        "timestamp": (step / fps).float(),
        "frame_index": step,
        "episode_index": batch["_traj_index"],
        "index": starts[batch["_traj_index"]] + step,
        "task": batch["task"]["language_instruction"],
    }


def lerobot_steps(
    directory: str | Path,
    cameras: Mapping[str, str],
    *,
    state: str = "state",
    chunk_size: int = 1,
    n_obs_steps: int = 1,
    fps: float = 10.0,
    split: str = "train",
    episode_transform: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> tuple[tfds.RLDSDataset, dict[str, dict[str, torch.Tensor]]]:
    """The steps, and LeRobot's `stats`. `cameras`: LeRobot's names, and those of the directory."""
    lengths = torch.as_tensor(tfds.RLDSEpisodes(directory, split).num_steps)
    starts = torch.cumsum(lengths, 0) - lengths
    steps = tfds.RLDSDataset(
        directory,
        split,
        window_size=n_obs_steps,
        action_horizon=chunk_size,
        episode_transform=episode_transform,
        batch_transform=partial(as_lerobot, dict(cameras), state, fps, starts),
    )
    found = tfds.dataset_statistics(
        directory, split, proprio=f"observation/{state}", episode_transform=episode_transform
    )
    numbers = ("mean", "std", "min", "max", "q01", "q99")
    stats = {
        name: {each: torch.tensor(found[column][each]) for each in numbers}
        for name, column in (("action", "action"), ("observation.state", "proprio"))
    }
    for name in cameras:
        stats[f"observation.images.{name}"] = {
            each: torch.tensor(values)[:, None, None] for each, values in IMAGENET.items()
        }
    return steps, stats
