"""Record the batches of the original loaders: `python record.py DATASETS CHECKOUTS OUT.npz`, with
TensorFlow.

DATASETS is what `tests/support/robot_episodes.py` wrote. CHECKOUTS holds clones of the originals, imported
and not copied; what they import beside their data code (torch, model code, downloads) is replaced
by empty modules.

    kvablack/dlimp                  ad72ce3  dlimp/
    Physical-Intelligence/openpi    15a9616  src/openpi/training/droid_rlds_dataset.py
    openvla/openvla                 c8f03f4  prismatic/vla/datasets/rlds/
    octo-models/octo                241fb35  octo/data/

Samples come in random order and again and again, so each is kept once, by dataset, instruction and
step.
"""

import logging
import sys
import types
from pathlib import Path

import numpy as np

RESIZED = (16, 16)


def stub(name, path=None, **names):
    module = types.ModuleType(name)
    if path is not None:
        module.__path__ = [str(path)]
    module.__dict__.update(names)
    sys.modules[name] = module


def prepare(checkouts):
    sys.path[:0] = [str(checkouts / name) for name in ("dlimp", "octo", "openvla", "openpi/src")]
    prismatic = checkouts / "openvla" / "prismatic"
    stub("prismatic", prismatic)
    stub("prismatic.overwatch", initialize_overwatch=logging.getLogger)
    stub("prismatic.vla", prismatic / "vla")
    stub("prismatic.vla.datasets", prismatic / "vla" / "datasets")
    for name in (
        "tensorflow_graphics",
        "tensorflow_graphics.geometry",
        "tensorflow_graphics.geometry.transformation",
    ):
        stub(name, "")  # for DROID's rotations
    stub("huggingface_hub", hf_hub_download=None)
    openpi = checkouts / "openpi" / "src" / "openpi"
    download = types.ModuleType("openpi.shared.download")
    download.maybe_download = lambda path: path
    stub("openpi", openpi)
    stub("openpi.shared", openpi / "shared", download=download)
    sys.modules["openpi.shared.download"] = download


def flat(tree, path=""):
    if not isinstance(tree, dict):
        return {path: tree}
    return {
        key: leaf
        for name, item in tree.items()
        for key, leaf in flat(item, f"{path}/{name}" if path else name).items()
    }


def stacked(samples, prefix):
    columns = {}
    for name in samples[0]:
        column = np.stack([np.asarray(sample[name]) for sample in samples])
        columns[f"{prefix}/{name}"] = column.astype("U") if column.dtype.kind in "SO" else column
    return columns


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def openpi(datasets):
    from openpi.training.droid_rlds_dataset import DroidRldsDataset, RLDSDataset

    chosen = [
        RLDSDataset(
            name="droid", version="1.0.1", weight=1.0, filter_dict_path=str(datasets / "keep.json")
        )
    ]
    loader = DroidRldsDataset(
        str(datasets), batch_size=8, datasets=chosen, shuffle=False, shuffle_buffer_size=10
    )
    found = {}
    for batch, _ in zip(loader, range(60), strict=False):
        columns = flat(batch)
        for row in range(len(batch["actions"])):
            sample = {name: column[row] for name, column in columns.items()}
            sample["prompt"], sample["step_id"] = text(sample["prompt"]), text(sample["step_id"])
            found.setdefault(
                (sample["step_id"], sample["observation/image"].tobytes(), sample["prompt"]), sample
            )
    return stacked([found[key] for key in sorted(found)], "openpi")


def by_step(samples, count, timestep):
    found = {}
    for sample, _ in zip(samples, range(count), strict=False):
        sample = flat(sample)
        for name in ("dataset_name", "task/language_instruction"):
            sample[name] = text(sample[name])
        key = sample["dataset_name"], sample["task/language_instruction"], int(timestep(sample))
        found.setdefault(key, sample)
    return [found[key] for key in sorted(found)]


def numbers(statistics, prefix):
    return {
        f"{prefix}/statistics/{name}": np.asarray(value) for name, value in flat(statistics).items()
    }


def openvla(datasets):
    from prismatic.vla.datasets.rlds import make_interleaved_dataset
    from prismatic.vla.datasets.rlds.oxe.materialize import get_oxe_dataset_kwargs_and_weights
    from prismatic.vla.datasets.rlds.utils.data_utils import NormalizationType

    kwargs, weights = get_oxe_dataset_kwargs_and_weights(
        datasets,
        [("bridge_orig", 1.0), ("libero_spatial_no_noops", 0.5)],
        load_camera_views=("primary",),
        load_depth=False,
        load_proprio=False,
        load_language=True,
        action_proprio_normalization_type=NormalizationType.BOUNDS_Q99,
    )
    dataset, length, statistics = (
        make_interleaved_dataset(  # as prismatic/vla/datasets/datasets.py calls it
            dataset_kwargs_list=kwargs,
            sample_weights=weights,
            train=True,
            shuffle_buffer_size=10,
            traj_transform_kwargs={
                "window_size": 1,
                "future_action_window_size": 0,
                "skip_unlabeled": True,
                "goal_relabeling_strategy": "uniform",
            },
            frame_transform_kwargs={"resize_size": RESIZED, "num_parallel_calls": 2},
            balance_weights=True,
            traj_transform_threads=2,
            traj_read_threads=2,
        )
    )
    found = stacked(
        by_step(dataset.as_numpy_iterator(), 600, lambda s: s["observation/timestep"][-1]),
        "openvla",
    )
    for name, each in statistics.items():
        found |= numbers(each, f"openvla/{name}")
    return found | {
        "openvla/sample_weights": dataset.sample_weights,
        "openvla/dataset_len": np.array(length),
    }


def octo_dataset(datasets, size, windows=(), **options):
    """Octo's dataset; `windows` are further options of its windows. `examples/robots/compare.py` takes it, too."""
    from octo.data.dataset import make_interleaved_dataset
    from octo.data.oxe import make_oxe_dataset_kwargs_and_weights

    kwargs, weights = make_oxe_dataset_kwargs_and_weights(
        [("bridge_dataset", 1.0)], str(datasets), load_camera_views=("primary",), load_proprio=True
    )
    return make_interleaved_dataset(
        kwargs,
        weights,
        train=True,
        shuffle_buffer_size=10,
        traj_transform_kwargs={
            "window_size": 2,
            "action_horizon": 4,
            "goal_relabeling_strategy": "uniform",
            **dict(windows),
        },
        frame_transform_kwargs={"resize_size": {"primary": size}},
        **options,
    )


def octo(datasets):
    dataset = octo_dataset(
        datasets,
        RESIZED,
        {"subsample_length": 100, "skip_unlabeled": True},
        balance_weights=True,
        traj_transform_threads=2,
        traj_read_threads=2,
    )
    found = stacked(
        by_step(dataset.as_numpy_iterator(), 400, lambda s: s["observation/timestep"][-1]), "octo"
    )
    return found | numbers(dataset.dataset_statistics["bridge_dataset"], "octo")


if __name__ == "__main__":
    prepare(Path(sys.argv[2]))
    import tensorflow as tf

    tf.random.set_seed(17)
    source = Path(sys.argv[1])
    arrays = openpi(source) | openvla(source) | octo(source)
    np.savez_compressed(sys.argv[3], **arrays)
    for name, array in arrays.items():
        print(name, array.dtype, array.shape)
