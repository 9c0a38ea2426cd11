"""OpenVLA's dataset of RLDS directories, read without TensorFlow, a part for each rank.

`RLDSDataset` takes the arguments of OpenVLA's own class, and gives its samples. Change one line of
`vla-scripts/finetune.py`, with this folder on the PYTHONPATH::

    - from prismatic.vla.datasets import RLDSBatchTransform, RLDSDataset
    + from prismatic.vla.datasets import RLDSBatchTransform
    + from openvla_loader import RLDSDataset

OpenVLA's batch transform, tokenizers and collator stay as they are. (Its package imports
TensorFlow all the same.) A dataset of your own needs an entry in `STANDARDIZE`, as it needs one in
OpenVLA's `OXE_STANDARDIZATION_TRANSFORMS`.
`python compare.py openvla DATA CHECKOUTS` runs both datasets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset
from torchvision.transforms import v2

from torch_tfrecord import Mixture, make_dataloader, tfds

Episode = dict[str, Any]
MASK = [True] * 6 + [False]  # the gripper stays as it is
BY_NUMBER = {"keep_key": "{_traj_index}"}


def open_or_closed(gripper: torch.Tensor) -> torch.Tensor:
    """0 or 1; a value between takes the one that it moves to."""
    found, state = gripper.clone(), gripper[-1]
    for step in reversed(range(len(gripper))):
        if not 0.05 <= gripper[step] <= 0.95:
            state = (gripper[step] > 0.5).float()
        found[step] = state
    return found


def moved_and_gripper(episode: Episode) -> torch.Tensor:
    """Bridge V2's actions: where the arm went; nowhere from the last step, which is not kept."""
    state = episode["observation"]["state"][:, :6]
    moved = torch.cat([state[1:] - state[:-1], torch.zeros(1, 6)])
    return torch.cat([moved, open_or_closed(episode["action"][:, -1])[:, None]], 1)


def bridge(episode: Episode) -> Episode:
    return {
        "observation": {"image_primary": episode["observation"]["image_0"]},
        "action": moved_and_gripper(episode),
        "language_instruction": episode["language_instruction"],
    }


def libero(episode: Episode) -> Episode:
    action = episode["action"]
    return {
        "observation": {"image_primary": episode["observation"]["image"]},
        "action": torch.cat([action[:, :6], 1 - action[:, 6:].clamp(0, 1)], 1),
        "language_instruction": episode["language_instruction"],
    }


STANDARDIZE: dict[str, Callable[[Episode], Episode]] = {
    "bridge_orig": bridge,
    "libero_spatial_no_noops": libero,
}
LEFT_OUT = {"bridge_orig": 1}  # steps at each end: the first has no action, nor has the last


def prepare(name: str, normalize: tfds.Normalize, episode: Episode) -> Episode:
    return normalize(STANDARDIZE[name](episode))


def directory_of(root: str | Path, name: str) -> Path:
    return max(Path(root, name).glob("*.*.*"))


def steps_to_keep(path: Path, name: str, is_labeled: bool = False) -> dict[str, list[list[int]]]:
    """Each episode, without the steps at its ends that are left out; or only those with a text."""
    ends = LEFT_OUT.get(name, 0)
    episodes = tfds.RLDSEpisodes(path, "all", features=["steps/language_instruction"])
    return {
        str(episode["_traj_index"]): [[ends, episode["_len"] - ends]]
        for episode in episodes
        if not is_labeled or any(episode["steps"]["language_instruction"])
    }


def statistics_of(path: Path, name: str) -> dict[str, Any]:
    """OpenVLA's, of the data as it was before episodes without a text are left out."""
    kept = steps_to_keep(path, name)
    statistics = tfds.dataset_statistics(
        path, "all", keep=kept, **BY_NUMBER, episode_transform=STANDARDIZE[name]
    )
    statistics["action"]["mask"] = MASK
    return statistics


def lanczos(old: int, new: int) -> torch.Tensor:
    """The matrix [new, old] of tf.image.resize(method="lanczos3", antialias=True)."""
    scale = max(old / new, 1)
    at = ((torch.arange(old) + 0.5) - (torch.arange(new)[:, None] + 0.5) * old / new) / scale
    weights = torch.sinc(at) * torch.sinc(at / 3) * (at.abs() <= 3)
    return weights / weights.sum(1, keepdim=True)


def resize(images: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """uint8 [..., H, W], as dlimp resizes images."""
    rows, columns = lanczos(images.shape[-2], height), lanczos(images.shape[-1], width)
    return (rows @ images.float() @ columns.T).round().clamp(0, 255).to(torch.uint8)


def as_openvla(sample: dict[str, Any], size: tuple[int, int] = (224, 224)) -> dict[str, Any]:
    """A step as OpenVLA's batch transform takes it: images [1, H, W, C], text in bytes."""
    image = resize(sample["observation"]["image_primary"], *size).movedim(-3, -1)
    return {
        "dataset_name": sample["dataset_name"].encode(),
        "action": sample["action"].numpy(),
        "observation": {"image_primary": image.numpy()},
        "task": {"language_instruction": sample["task"]["language_instruction"].encode()},
    }


def augmented(size: tuple[int, int], sample: dict[str, Any]) -> dict[str, Any]:
    """The ranges of OpenVLA's `image_aug`, by torchvision, which has other formulas for colours."""
    change = v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=(0.9, 0.9), ratio=(1.0, 1.0)),
            v2.ColorJitter(brightness=0.2, contrast=0.2, saturation=0.2, hue=0.05),
        ]
    )
    seen = sample["observation"]
    return sample | {"observation": seen | {"image_primary": change(seen["image_primary"])}}


def transformed(
    batch_transform: Callable[[dict[str, Any]], Any],
    size: tuple[int, int],
    image_aug: bool,
    sample: dict[str, Any],
) -> Any:
    return batch_transform(as_openvla(augmented(size, sample) if image_aug else sample, size))


def openvla_steps(
    data_root_dir: str | Path,
    mix: Sequence[tuple[str, float]],
    split: str = "train[:95%]",
    step_transform: Callable[[dict[str, Any]], Any] | None = None,
) -> tuple[Mixture, dict[str, Any]]:
    """The mixture, with OpenVLA's weights, and the statistics of each dataset."""
    datasets, statistics = {}, {}
    for name, _ in mix:
        path = directory_of(data_root_dir, name)
        statistics[name] = statistics_of(path, name)
        datasets[name] = tfds.RLDSDataset(
            path,
            split,
            keep=steps_to_keep(path, name, is_labeled=True),
            **BY_NUMBER,
            episode_transform=partial(
                prepare, name, tfds.Normalize(statistics[name], "bounds_q99")
            ),
            step_transform=step_transform,
        )
    weights = {name: weight * statistics[name]["num_transitions"] for name, weight in mix}
    return Mixture(datasets, weights, stop="all_exhausted"), statistics


class RLDSDataset(IterableDataset[Any]):
    """Endless samples, as OpenVLA's class of this name gives them.

    Args:
        data_root_dir, batch_transform, resize_resolution, image_aug: As there.
        data_mix: A dataset's name, or pairs of names and weights, such as an entry of
            `OXE_NAMED_MIXTURES`.
        shuffle_buffer_size: Not used: the shuffle is exact.
        seed: Decides the order.
        batch_size: That of your DataLoader: then `loader.state_dict()` counts what it has given.
        num_workers: Processes that read and transform; with 0, threads read.
    """

    def __init__(
        self,
        data_root_dir: str | Path,
        data_mix: str | Sequence[tuple[str, float]],
        batch_transform: Callable[[dict[str, Any]], Any],
        resize_resolution: tuple[int, int],
        shuffle_buffer_size: int = 0,
        train: bool = True,
        image_aug: bool = False,
        *,
        seed: int = 0,
        batch_size: int = 16,
        num_workers: int = 0,
    ) -> None:
        mix = [(data_mix, 1.0)] if isinstance(data_mix, str) else data_mix
        self.mixture, self.dataset_statistics = openvla_steps(
            data_root_dir,
            mix,
            "train[:95%]" if train else "train[95%:]",
            partial(transformed, batch_transform, resize_resolution, image_aug),
        )
        self.loader = make_dataloader(
            self.mixture,
            batch_size,
            seed=seed,
            num_epochs=None,
            drop_last=True,
            num_workers=num_workers,
            collate_fn=list,
        )

    def __iter__(self) -> Iterator[Any]:
        for samples in self.loader:
            yield from samples

    def __len__(self) -> int:
        return len(self.mixture)
