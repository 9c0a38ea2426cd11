"""Episodes that TFDS itself wrote, and the values that it reads from them: makes what lies beside.

Runs only where tensorflow-datasets is installed (4.9.10 with TensorFlow 2.21 made what is here); no
test imports it.

    python oracle.py tests/data/tfds_rlds
    python oracle.py DIRECTORY array_record      the same in another format
"""

import gzip
import hashlib
import json
import os
import shutil
import sys
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow_datasets as tfds

F = tfds.features
LENGTHS = {"train": [5, 1, 12, 3, 7, 2], "val": [4, 2]}


class DrawnEpisodes(tfds.core.GeneratorBasedBuilder):
    """Episodes with drawn pictures and a feature of every kind that RLDS datasets have."""

    VERSION = tfds.core.Version("0.1.0")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            disable_shuffling=True,
            features=F.FeaturesDict(
                {
                    "steps": F.Dataset(
                        {
                            "observation": {
                                "image": F.Image(shape=(40, 48, 3), encoding_format="png"),
                                "depth": F.Tensor(shape=(6, 5), dtype=np.float32, encoding="zlib"),
                                "state": F.Tensor(shape=(3,), dtype=np.float64),
                                "natural_language_instruction": F.Tensor(shape=(), dtype=np.str_),
                                "points": F.Sequence(F.Tensor(shape=(2,), dtype=np.float32)),
                            },
                            "action": {
                                "world_vector": F.Tensor(shape=(3,), dtype=np.float32),
                                "gripper": F.Tensor(shape=(1,), dtype=np.float32),
                                "mode": F.ClassLabel(names=["open", "close"]),
                            },
                            "reward": F.Scalar(dtype=np.float32),
                            "tick": F.Scalar(dtype=np.int64),
                            "is_first": np.bool_,
                            "is_last": np.bool_,
                            "is_terminal": np.bool_,
                        }
                    ),
                    "episode_metadata": {"name": F.Text(), "gains": F.Sequence(np.float32)},
                }
            ),
        )

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in LENGTHS}

    def _generate_examples(self, split):
        for number, length in enumerate(LENGTHS[split]):
            random = np.random.default_rng([number, len(split)])
            steps = [step(random, number, at, length) for at in range(length)]
            gains = random.normal(size=number).astype(np.float32)
            yield (
                number,
                {
                    "steps": steps,
                    "episode_metadata": {"name": f"{split} {number} é", "gains": gains},
                },
            )


def step(random, number, at, length):
    y, x = np.mgrid[:40, :48]
    pixels = np.stack(
        [(x * 5 + y * 3 + at * 20 + number * 7 + 60 * channel) % 256 for channel in range(3)], -1
    )
    # so that a long episode's list of pictures is a large one
    pixels[:20, :20] = random.integers(0, 256, (20, 20, 3))
    return {
        "observation": {
            "image": pixels.astype(np.uint8),
            "depth": random.normal(size=(6, 5)).astype(np.float32),
            "state": random.normal(size=3).astype(np.float32).astype(np.float64),
            "natural_language_instruction": f"push block {number}",
            "points": random.normal(size=(int(random.integers(0, 4)), 2)).astype(np.float32),
        },
        "action": {
            "world_vector": random.normal(size=3).astype(np.float32),
            "gripper": random.normal(size=1).astype(np.float32),
            "mode": int(random.integers(0, 2)),
        },
        "reward": float(at),
        "tick": int(random.integers(-(2**40), 2**40)),
        "is_first": at == 0,
        "is_last": at == length - 1,
        "is_terminal": at == length - 1 and number % 2 == 0,
    }


def flat(tree, path=""):
    if isinstance(tree, dict):
        return {
            key: value
            for name, item in tree.items()
            for key, value in flat(item, f"{path}/{name}").items()
        }
    array = np.asarray(tree)
    if array.dtype == object or array.dtype.kind == "S":
        return {path[1:]: tree.decode()}
    if array.size > 100:
        return {
            path[1:]: {
                "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
                "shape": list(array.shape),
            }
        }
    return {path[1:]: {"dtype": str(array.dtype), "values": array.tolist()}}


def episodes_of(builder, split):
    """The episodes in file order; `as_dataset` does not read array_record."""
    if builder.info.file_format.value == "array_record":
        raw = builder.as_data_source(
            split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES
        )
        return (
            tfds.as_numpy(builder.info.features.deserialize_example(raw[i]))
            for i in range(len(raw))
        )
    order = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    return tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False, read_config=order))


def main(target, file_format="tfrecord"):
    with tempfile.TemporaryDirectory() as folder:
        builder = DrawnEpisodes(data_dir=folder)
        config = tfds.download.DownloadConfig(num_shards=2)
        builder.download_and_prepare(download_config=config, file_format=file_format)
        for split in LENGTHS:
            print(split, builder.info.splits[split].shard_lengths)
        expected = {}
        for split in LENGTHS:
            expected[split] = []
            for episode in episodes_of(builder, split):
                steps = [flat(item) for item in episode.pop("steps")]
                expected[split].append({"steps": steps, **flat(episode)})
        shutil.rmtree(os.path.join(target, "drawn_episodes"), ignore_errors=True)
        shutil.copytree(
            os.path.join(folder, "drawn_episodes"), os.path.join(target, "drawn_episodes")
        )
    with gzip.GzipFile(os.path.join(target, "expected.json.gz"), "wb", mtime=0) as file:
        file.write(json.dumps(expected).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
