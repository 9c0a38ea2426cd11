"""The originals' loaders beside these, in one process, on the same directories:

    python tests/support/robot_episodes.py DATA
    python examples/robots/compare.py openpi|openvla|octo DATA CHECKOUTS
    python examples/robots/compare.py lerobot DATA

CHECKOUTS holds clones of the originals (openpi, openvla, octo), imported and not copied;
`tests/data/robots/record.py` has their commits. Weights and vocabularies are not downloaded:
tokenizers are made of a few words. Both sides are read until all their samples were seen; these
must be equal, in keys, shapes, dtypes and values.

An environment for the first three, beside torch, torchvision and this library's own needs but
protobuf (TensorFlow 2.15 wants an older one; both work with 4.25), Python 3.11, each line a call of
`pip install`::

    tensorflow-cpu==2.15.0 tensorflow-datasets==4.9.9 "numpy<2"
    jax==0.5.3 flax==0.10.2 ml_dtypes==0.4.1 "numpy<2" orbax-checkpoint==0.11.13 chex==0.1.90
        tensorstore==0.1.74 beartype==0.19.0 jaxtyping==0.2.36 "optax<0.2.6" augmax einops tyro
        sentencepiece equinox etils fsspec tqdm-loggable numpydantic dm-tree safetensors treescope
        ml_collections polars
    --no-deps transformers==4.53.2 ./dlimp
    "tokenizers<0.22" "huggingface_hub<1" regex pyyaml "tensorflow-metadata<1.16" "protobuf<5"

For LeRobot another one: `pip install lerobot==0.4.4`; 0.5 and later need Python 3.12.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np

Leaves = dict[str, np.ndarray]


def stub(name: str, path: Path | None = None, **names: Any) -> Any:
    """A module that is not installed and not needed, or a package without its __init__."""
    module = types.ModuleType(name)
    module.__path__ = [str(path)] if path else []
    module.__dict__.update(names)
    sys.modules[name] = module
    return module


def flat(tree: Any, path: str = "") -> Leaves:
    if dataclasses.is_dataclass(tree):
        tree = {each.name: getattr(tree, each.name) for each in dataclasses.fields(tree)}
    if isinstance(tree, dict):
        return {
            key: leaf
            for name, item in tree.items()
            for key, leaf in flat(item, f"{path}/{name}" if path else str(name)).items()
        }
    return {} if tree is None else {path: np.asarray(tree)}


def describe(leaves: Leaves) -> dict[str, str]:
    return {name: f"{leaf.dtype} {[*leaf.shape]}" for name, leaf in sorted(leaves.items())}


def rows(
    batches: Any, count: int, drop: tuple[str, ...] = ()
) -> tuple[dict[str, str], list[Leaves]]:
    """The form of a batch, and the different samples of `count` batches, in an order of their own."""
    form: dict[str, str] = {}
    found: dict[bytes, Leaves] = {}
    for batch, _ in zip(batches, range(count), strict=False):
        leaves = {name: leaf for name, leaf in flat(batch).items() if name not in drop}
        form = form or describe(leaves)
        for row in range(len(next(iter(leaves.values())))):
            sample = {name: leaves[name][row] for name in sorted(leaves)}
            found.setdefault(
                b"".join(np.asarray(leaf).tobytes() for leaf in sample.values()), sample
            )
    return form, [found[key] for key in sorted(found)]


def by(order: tuple[str, ...], samples: list[Leaves]) -> dict[str, Leaves]:
    """Each once, by these leaves, or by its place."""
    if not order:
        return {str(number): sample for number, sample in enumerate(samples)}
    return {str([np.asarray(sample[key]).tolist() for key in order]): sample for sample in samples}


def report(
    name: str, theirs: Any, ours: Any, order: tuple[str, ...] = (), has_more: bool = False
) -> None:
    """Print the forms, and how far the values of the same samples are apart. `order`: the leaves by
    which samples are the same, where other leaves may differ by the rounding of sums.
    """
    (form, expected), (our_form, found) = theirs, ours
    expected, found = by(order, expected), by(order, found)
    for key in sorted({*form, *our_form}):
        same = form.get(key) == our_form.get(key)
        print(f"  {key}: {form.get(key)}" + ("" if same else f" != ours {our_form.get(key)}"))
    print(f"{name}: {len(expected)} different samples of theirs, {len(found)} of ours")
    assert form == our_form
    assert {*expected} == {*found} if not has_more else {*expected} < {*found}
    apart: dict[str, float] = {}
    for place, sample in expected.items():
        for key, leaf in sample.items():
            other = np.asarray(found[place][key])
            if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "biuf":
                off = float(np.abs(leaf.astype(float) - other.astype(float)).max(initial=0))
                apart[key] = max(apart.get(key, 0.0), off)
            else:
                assert leaf == other
    print(f"{name}: largest difference of a value", apart)


# openpi: JAX's batches equal to the bit; what its PyTorch trainer would get.


def openpi(data: Path, checkouts: Path) -> None:
    for part in ("", ".common", ".common.datasets", ".common.datasets.lerobot_dataset"):
        stub(f"lerobot{part}")
    sys.path[:0] = [
        str(checkouts / "openpi" / part) for part in ("src", "packages/openpi-client/src")
    ]
    import jax
    import openpi.shared.download as download
    import openpi.shared.normalize as normalize
    import openpi.training.config as configs
    import openpi.training.data_loader as theirs
    import openpi_loader
    import sentencepiece
    from openpi.models.pi0_config import Pi0Config
    from openpi.training.droid_rlds_dataset import DroidActionSpace, DroidRldsDataset, RLDSDataset

    folder = Path(tempfile.mkdtemp())
    sentencepiece.SentencePieceTrainer.train(
        minloglevel=2,
        sentence_iterator=iter(
            ["Task 0 of droid, second words 12, third words 3456789 State: Action;"]
        ),
        model_prefix=str(folder / "words"),
        vocab_size=300,
        hard_vocab_limit=False,
        byte_fallback=True,
    )
    download.maybe_download = lambda path, **_: (
        folder / "words.model" if "tokenizer" in str(path) else Path(path)
    )
    random = np.random.default_rng(0)
    width = random.uniform(0.5, 1, [4, 8])
    normalize.save(
        folder / "droid",
        {
            name: normalize.NormStats(mean=width[0] / 9, std=width[1], q01=-width[2], q99=width[3])
            for name in ("state", "actions")
        },
    )

    class Droid(DroidRldsDataset):
        """Theirs, with a buffer for so few steps. Copied: TensorFlow's arrays are read-only, and
        openpi's DeltaActions writes into them (ValueError: output array is read-only).
        """

        def __init__(self, **given: Any) -> None:
            super().__init__(**given, shuffle_buffer_size=50)

        def __iter__(self) -> Any:
            return (jax.tree.map(np.array, batch) for batch in super().__iter__())

    theirs.DroidRldsDataset = Droid
    for pi05 in (False, True):
        config = configs.TrainConfig(
            name="small",
            exp_name="compare",
            model=Pi0Config(pi05=pi05, action_horizon=16, max_token_len=96),
            data=configs.RLDSDroidDataConfig(
                repo_id="droid",
                assets=configs.AssetsConfig(assets_dir=str(folder), asset_id="droid"),
                rlds_data_dir=str(data),
                action_space=DroidActionSpace.JOINT_POSITION,
                datasets=[RLDSDataset("droid", "1.0.1", 1.0, str(data / "keep.json"))],
            ),
            batch_size=8,
            num_workers=0,
        )

        def batches(make: Any, **arguments: Any) -> Any:
            loader = make(config, shuffle=True, num_batches=60, **arguments)  # noqa: B023
            assert isinstance(loader.data_config(), configs.DataConfig)
            for observation, actions in loader:
                yield {**flat(observation), "actions": actions}

        ours = rows(batches(openpi_loader.create_data_loader), 60)
        report(f"openpi, pi05={pi05}", rows(batches(theirs.create_data_loader), 60), ours)
        try:
            next(batches(theirs.create_data_loader, framework="pytorch"))
        except NotImplementedError as error:
            print(f"theirs with framework='pytorch': {error}")
        tensors = batches(openpi_loader.create_data_loader, framework="pytorch")
        form, torch_rows = rows(tensors, 60)
        assert len(torch_rows) == len(ours[1])
        print("ours with framework='pytorch':", form)


# OpenVLA: its class, batch transform and collator around both; a tokenizer of a few words.

MIX = [("bridge_orig", 1.0), ("libero_spatial_no_noops", 0.5)]


class Words:
    """A tokenizer: characters and 300 numbers."""

    vocab_size, model_max_length, pad_token_id = 600, 128, 0

    def __call__(self, text: str, add_special_tokens: bool = True) -> Any:
        """Each character a token."""
        return types.SimpleNamespace(input_ids=[1, *map(ord, text)])

    def decode(self, tokens: list[int]) -> str:
        """The text again."""
        return "".join(map(chr, tokens))


def openvla(data: Path, checkouts: Path) -> None:
    sys.path[:0] = [str(checkouts / "openvla")]
    prismatic = checkouts / "openvla" / "prismatic"
    import logging

    stub("prismatic", prismatic)
    stub("prismatic.overwatch", initialize_overwatch=logging.getLogger)
    stub("prismatic.vla", prismatic / "vla")
    stub("prismatic.models", prismatic / "models")
    stub("prismatic.models.backbones", prismatic / "models" / "backbones")
    stub("prismatic.models.backbones.llm", prismatic / "models" / "backbones" / "llm")
    stub("prismatic.models.backbones.vision", ImageTransform=object)
    for part in ("", ".geometry", ".geometry.transformation"):
        stub(f"tensorflow_graphics{part}")
    import openvla_loader
    import torch
    from prismatic.models.backbones.llm.prompting import PurePromptBuilder
    from prismatic.util.data_utils import PaddedCollatorForActionPrediction
    from prismatic.vla.action_tokenizer import ActionTokenizer
    from prismatic.vla.datasets import RLDSBatchTransform, RLDSDataset
    from prismatic.vla.datasets.rlds.oxe import OXE_NAMED_MIXTURES

    OXE_NAMED_MIXTURES["small"] = MIX
    words: Any = Words()
    transform = RLDSBatchTransform(
        ActionTokenizer(words),
        words,
        lambda image: torch.from_numpy(np.array(image)).movedim(-1, 0) / 255,
        PurePromptBuilder,
    )
    collator = PaddedCollatorForActionPrediction(128, words.pad_token_id)

    def batches(dataset: Any) -> Any:
        for batch in torch.utils.data.DataLoader(dataset, batch_size=8, collate_fn=collator):
            names = batch.pop("dataset_names")
            yield {**batch, "dataset_names": np.array(names)}

    def padded(dataset: Any) -> Any:
        """Rows that do not depend on the longest text of their batch."""
        for batch in batches(dataset):
            wide = {
                name: np.pad(batch[name], [(0, 0), (0, 128 - batch[name].shape[1])])
                for name in ("input_ids", "labels", "attention_mask")
            }
            pixels = (batch["pixel_values"].numpy() * 255).round()
            yield {**wide, "pixel_values": pixels, "dataset_names": batch["dataset_names"]}

    theirs = RLDSDataset(data, "small", transform, (224, 224), shuffle_buffer_size=10)
    ours = openvla_loader.RLDSDataset(data, MIX, transform, (224, 224), batch_size=8)
    print("a batch of theirs:", describe(flat(next(batches(theirs)))))
    print("a batch of ours:  ", describe(flat(next(batches(ours)))))
    report("openvla", rows(padded(theirs), 60), rows(padded(ours), 20), order=("input_ids",))
    for name, each in theirs.dataset_statistics.items():
        found = flat(ours.dataset_statistics[name])
        expected = {key: leaf for key, leaf in flat(each).items() if "proprio" not in key}  # zeros
        apart = {
            key: float(np.abs(leaf.astype(float) - found[key].astype(float)).max())
            for key, leaf in expected.items()
        }
        print(f"openvla, statistics of {name}: largest difference", max(apart.values()))


# Octo.


def octo(data: Path, checkouts: Path) -> None:
    sys.path[:0] = [str(checkouts / "octo")]
    for part in ("", ".geometry", ".geometry.transformation"):
        stub(f"tensorflow_graphics{part}")
    sys.path.append(str(Path(__file__).parents[2] / "tests" / "data" / "robots"))
    import octo_loader
    from record import octo_dataset

    theirs = octo_dataset(data, (64, 64), batch_size=8)
    ours = octo_loader.OctoBatches(data / "bridge_dataset" / "1.0.0", 8, size=(64, 64))
    order = ("task/language_instruction", "observation/timestep", "task/timestep")
    # ours also draws an episode's last step as goal, which Octo has dropped before it draws
    report("octo", rows(theirs.iterator(), 80), rows(ours.iterator(), 150), order, has_more=True)


# LeRobot: a LeRobotDataset of the same episodes, pictures as PNG; ACT's loss on both batches.


def lerobot(data: Path) -> None:
    import torch
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors
    from lerobot_loader import lerobot_steps

    from torch_tfrecord import tfds

    directory, chunk = data / "bridge_orig" / "1.0.0", 4
    image = "observation.images.top"
    root = Path(tempfile.mkdtemp()) / "bridge"
    form = {
        image: {"dtype": "image", "shape": (20, 24, 3), "names": ["height", "width", "channels"]},
        "observation.state": {"dtype": "float32", "shape": (7,), "names": None},
        "action": {"dtype": "float32", "shape": (7,), "names": None},
    }
    converted = LeRobotDataset.create("small/bridge", 10, form, root=root, use_videos=False)
    for episode in tfds.RLDSEpisodes(directory, "train"):
        steps = episode["steps"]
        for step in range(episode["_len"]):
            picture = torch.as_tensor(steps["observation"]["image_0"][step]).movedim(0, -1)
            converted.add_frame(
                {
                    image: picture.numpy(),
                    "observation.state": steps["observation"]["state"][step].numpy(),
                    "action": steps["action"][step].numpy(),
                    "task": steps["language_instruction"][step],
                }
            )
        converted.save_episode()
    converted.finalize()
    ahead = {"action": [step / 10 for step in range(chunk)]}
    theirs = LeRobotDataset("small/bridge", root=root, delta_timestamps=ahead)
    ours, stats = lerobot_steps(directory, {"top": "image_0"}, chunk_size=chunk)
    assert len(theirs) == len(ours)

    def batches(dataset: Any) -> Any:
        return torch.utils.data.DataLoader(dataset, batch_size=8)

    def numbers(dataset: Any) -> Any:
        for batch in batches(dataset):
            yield {
                name: np.asarray(column) for name, column in batch.items() if name != "task_index"
            }

    report("lerobot", rows(numbers(theirs), 99), rows(numbers(ours), 99))
    for name in ("action", "observation.state"):
        apart = {
            each: float(np.abs(np.asarray(stats[name][each]) - theirs.meta.stats[name][each]).max())
            for each in ("mean", "std", "min", "max")
        }
        print(f"lerobot, stats of {name}: largest difference", apart)
    config = ACTConfig(
        input_features={
            image: PolicyFeature(FeatureType.VISUAL, (3, 20, 24)),
            "observation.state": PolicyFeature(FeatureType.STATE, (7,)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (7,))},
        chunk_size=chunk,
        n_action_steps=chunk,
        dim_model=64,
        n_heads=4,
        dim_feedforward=128,
        pretrained_backbone_weights=None,
        device="cpu",
    )
    torch.manual_seed(0)
    policy = ACTPolicy(config)
    preprocess, _ = make_pre_post_processors(config, dataset_stats=stats)
    for name, dataset in (("theirs", theirs), ("ours", ours)):
        torch.manual_seed(1)
        loss, _ = policy(preprocess(next(iter(batches(dataset)))))
        loss.backward()
        print(f"ACT's loss on a batch of {name}: {loss.item():.7f}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    globals()[sys.argv[1]](Path(sys.argv[2]), *map(Path, sys.argv[3:]))
