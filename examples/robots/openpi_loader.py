"""openpi's data loader for DROID in RLDS form, without TensorFlow, for JAX and for PyTorch.

`create_data_loader` takes and returns what openpi's own function does. Change one line of
`scripts/train.py`, and of `scripts/train_pytorch.py` ("PyTorch RLDS data loader is not supported
yet"), with this folder on the PYTHONPATH::

    - import openpi.training.data_loader as _data_loader
    + import openpi_loader as _data_loader

    - import openpi.training.data_loader as _data
    + import openpi_loader as _data

openpi's transforms, its statistics and its tokenizer stay as they are: they are called, not copied.
`config.num_workers` processes run them; with 0 (as in openpi's configurations for RLDS) they run in
the training process, and only reading and decoding is done by threads.
`python compare.py openpi DATA CHECKOUTS` runs both loaders.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

from torch_tfrecord import Mixture, make_dataloader, tfds

CAMERAS = ["exterior_image_1_left", "exterior_image_2_left"]
TEXTS = ["language_instruction", "language_instruction_2", "language_instruction_3"]
ALL_STEPS = {"success": [[0, 2**40]]}  # of each episode, without a filter of openpi


def key_of_success(is_filtered: bool, metadata: dict[str, Any]) -> str | None:
    """An episode's key in openpi's filter; none for a failure."""
    paths = metadata["episode_metadata"]
    if not re.fullmatch(".*success.*", paths["file_path"]):
        return None
    return f"{paths['recording_folderpath']}--{paths['file_path']}" if is_filtered else "success"


def join_actions(joints: str, episode: dict[str, Any]) -> dict[str, Any]:
    control = episode["action_dict"]
    episode["action"] = torch.cat([control[joints], control["gripper_position"]], -1)
    return episode


def as_droid(sample: dict[str, Any]) -> dict[str, Any]:
    """A step as openpi's `DroidRldsDataset` gives it: images [H, W, C], actions [horizon, 8]."""
    seen = sample["observation"]
    return {
        "actions": sample["action"].numpy(),
        "observation": {
            "image": seen["image"][0].movedim(0, -1).numpy(),
            "wrist_image": seen["wrist_image_left"][0].movedim(0, -1).numpy(),
            "joint_position": seen["joint_position"][0].numpy(),
            "gripper_position": seen["gripper_position"][0].numpy(),
        },
        "prompt": sample["task"]["language_instruction"],
    }


def droid_steps(
    data_dir: str,
    datasets: Sequence[Any],
    action_horizon: int,
    joints: str = "joint_position",
    step_transform: Callable[[dict[str, Any]], Any] = as_droid,
) -> Any:
    """The kept steps of `datasets`: each has openpi's name, version, weight, filter_dict_path."""
    wanted = {
        "steps": {
            "observation": {
                "image": tfds.OneOf(CAMERAS),  # the other one is not read
                **dict.fromkeys(["wrist_image_left", "joint_position", "gripper_position"], True),
            },
            "action_dict": [joints, "gripper_position"],
            "language_instruction": tfds.OneOf(TEXTS),
        }
    }
    found = [
        tfds.RLDSDataset(
            f"{data_dir}/{each.name}/{each.version}",
            features=wanted,
            keep=each.filter_dict_path or ALL_STEPS,
            keep_key=partial(key_of_success, each.filter_dict_path is not None),
            action_horizon=action_horizon,
            episode_transform=partial(join_actions, joints),
            step_transform=step_transform,
        )
        for each in datasets
    ]
    if len(found) == 1:
        return found[0]
    return Mixture(found, [each.weight for each in datasets], stop="all_exhausted")


class Itself:
    """A dataset whose index is the sample: so openpi's `transform_dataset` becomes a function."""

    def __getitem__(self, sample: Any) -> Any:
        return sample

    def __len__(self) -> int:
        return 1


def transformed(transforms: Any, sample: dict[str, Any]) -> Any:
    return transforms[as_droid(sample)]


def stack(samples: list[Any]) -> Any:
    """NumPy arrays [B, ...], in dicts as those of the samples."""
    first = samples[0]
    if isinstance(first, dict):
        return {name: stack([sample[name] for sample in samples]) for name in first}
    return np.stack([np.asarray(sample) for sample in samples])


def to_tensors(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: to_tensors(column) for name, column in batch.items()}
    return torch.as_tensor(batch)


@dataclasses.dataclass
class TensorBatches:
    """What openpi lacks beside its RLDSDataLoader: the batches as tensors."""

    loader: Any
    num_batches: int | None

    def __iter__(self) -> Iterator[Any]:
        return map(to_tensors, islice(self.loader, self.num_batches))


def create_data_loader(
    config: Any,
    *,
    sharding: Any = None,
    shuffle: bool = False,
    num_batches: int | None = None,
    skip_norm_stats: bool = False,
    framework: str = "jax",
) -> Any:
    """As `openpi.training.data_loader.create_data_loader`, whose loader also has `state_dict` and
    `load_state_dict`: a resumed run gets the batches that it had not received yet.

    Under torchrun each rank reads its own part, `config.batch_size // world_size` steps a batch.
    """
    import openpi.shared.download as download
    import openpi.training.data_loader as theirs

    data_config = config.data.create(config.assets_dirs, config.model)
    if data_config.rlds_data_dir is None:
        return theirs.create_data_loader(
            config,
            sharding=sharding,
            shuffle=shuffle,
            num_batches=num_batches,
            skip_norm_stats=skip_norm_stats,
            framework=framework,
        )
    transforms = theirs.transform_dataset(Itself(), data_config, skip_norm_stats=skip_norm_stats)
    steps = droid_steps(
        data_config.rlds_data_dir,
        [
            dataclasses.replace(each, filter_dict_path=download.maybe_download(path))
            if (path := each.filter_dict_path)
            else each
            for each in data_config.datasets
        ],
        config.model.action_horizon,
        data_config.action_space.name.lower(),
        partial(transformed, transforms),
    )
    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    records = make_dataloader(
        steps,
        config.batch_size // ranks,
        shuffle=shuffle,
        seed=config.seed,
        num_epochs=None,
        drop_last=True,
        num_workers=config.num_workers,
        multiprocessing_context="spawn" if config.num_workers else None,  # JAX has threads
        collate_fn=stack,
    )
    batches: Any = TensorBatches(records, num_batches)
    if framework == "jax":
        batches = theirs.RLDSDataLoader(records, sharding=sharding, num_batches=num_batches)

    class Loader(theirs.DataLoaderImpl):
        state_dict = staticmethod(records.state_dict)
        load_state_dict = staticmethod(records.load_state_dict)

    return Loader(data_config, batches)
