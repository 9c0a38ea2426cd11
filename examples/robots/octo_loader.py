"""Octo's batches of Bridge V2 in RLDS form, without TensorFlow.

`OctoBatches` gives what `make_interleaved_dataset(...).iterator()` gives: two observations, four
actions for each, a goal image. Change three lines of `scripts/finetune.py` (or `train.py`), with
this folder on the PYTHONPATH::

    - from octo.data.dataset import make_single_dataset
    + from octo_loader import OctoBatches
    - dataset = make_single_dataset(FLAGS.config.dataset_kwargs, ..., train=True)
    + dataset = OctoBatches("data/bridge_dataset/1.0.0", FLAGS.config.batch_size)
    - train_data_iter = dataset.repeat().unbatch().shuffle(...).batch(...).iterator()
    + train_data_iter = dataset.iterator()

`python compare.py octo DATA CHECKOUTS` runs both.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from openvla_loader import BY_NUMBER, MASK, moved_and_gripper, resize

from torch_tfrecord import collate, make_dataloader, tfds

Episode = dict[str, Any]
WINDOW, HORIZON = 2, 4


def standardize_bridge(episode: Episode) -> Episode:
    seen = episode["observation"]
    return {
        "observation": {"image_primary": seen["image_0"], "proprio": seen["state"]},
        "action": moved_and_gripper(episode),
        "language_instruction": episode["language_instruction"],
    }


def chunk(normalize: tfds.Normalize, episode: Episode) -> Episode:
    """The actions from each step on, in the observation: a window has those of all its steps."""
    episode = normalize(standardize_bridge(episode))
    action = episode.pop("action")
    last = len(action) - 2  # the last step has no action
    steps = torch.arange(len(action))[:, None] + torch.arange(HORIZON)
    episode["observation"]["action"] = action[steps.clamp(max=last)]  # [T, HORIZON, 7]
    return episode


def finish(size: tuple[int, int], samples: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch with Octo's names and masks; images [B, ..., C, H, W] of `size`."""
    batch = collate(samples)
    seen, task = batch["observation"], batch["task"]
    del task["action"]
    for part in (seen, task):
        part["image_primary"] = resize(part["image_primary"], *size)
    # Octo's arithmetic: an action counts as padding from two steps after the goal on.
    steps = (
        batch["_frame_index"][:, None, None]
        - (WINDOW + 1)
        + torch.arange(WINDOW)[:, None]
        + torch.arange(HORIZON)
    )
    seen["task_completed"] = task["timestep"][:, None, None] <= steps
    batch["action"] = seen.pop("action")  # [B, WINDOW, HORIZON, 7]
    batch["action_pad_mask"] = ~seen["task_completed"][..., None].expand_as(batch["action"])
    seen["timestep_pad_mask"] = seen.pop("pad_mask")
    return batch


def as_arrays(batch: Any) -> Any:
    """NumPy arrays: images [..., H, W, C], texts as bytes, steps as int32."""
    if isinstance(batch, dict):
        return {name: as_arrays(column) for name, column in batch.items()}
    if not isinstance(batch, torch.Tensor):
        return np.array([text.encode() for text in batch], object)
    if batch.dtype == torch.uint8:
        batch = batch.movedim(-3, -1)
    return batch.numpy().astype(np.int32 if batch.dtype == torch.int64 else batch.numpy().dtype)


def octo_steps(
    directory: str | Path, split: str = "train[:95%]"
) -> tuple[tfds.RLDSDataset, dict[str, Any]]:
    """The steps with their windows, goals and actions, and the statistics."""
    lengths = tfds.RLDSEpisodes(directory, "all").num_steps.tolist()
    but_last = {str(number): [[0, steps - 1]] for number, steps in enumerate(lengths)}
    statistics = tfds.dataset_statistics(
        directory, "all", keep=but_last, **BY_NUMBER, episode_transform=standardize_bridge
    )
    steps = tfds.RLDSDataset(
        directory,
        split,
        window_size=WINDOW,
        goals=tfds.UniformGoals(),
        keep=but_last,
        **BY_NUMBER,
        episode_transform=partial(chunk, tfds.Normalize(statistics, "normal", mask=MASK)),
    )
    return steps, statistics


class OctoBatches:
    """Endless batches of NumPy arrays; `loader` has `state_dict` and `load_state_dict`."""

    def __init__(
        self,
        directory: str | Path,
        batch_size: int,
        *,
        size: tuple[int, int] = (256, 256),
        train: bool = True,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        split = "train[:95%]" if train else "train[95%:]"
        self.steps, self.dataset_statistics = octo_steps(directory, split)
        self.loader = make_dataloader(
            self.steps,
            batch_size,
            seed=seed,
            num_epochs=None,
            drop_last=True,
            num_workers=num_workers,
            collate_fn=partial(finish, size),
        )

    def iterator(self) -> Iterator[dict[str, Any]]:
        """The batches, without end."""
        for batch in self.loader:
            part = {
                name: column
                for name, column in batch.items()
                if name in ("observation", "task", "action", "action_pad_mask", "dataset_name")
            }
            seen, task = part["observation"], part["task"]
            count = len(batch["dataset_name"])
            there = torch.ones(count, dtype=torch.bool)
            names = ("image_primary", "proprio", "timestep")
            seen["pad_mask_dict"] = {name: there[:, None].expand(-1, WINDOW) for name in names}
            task["pad_mask_dict"] = dict.fromkeys([*names, "language_instruction"], there)
            yield as_arrays(part)
