"""What TFDS itself writes and reads: makes the datasets beside, and prints the values of any
directory.

Runs only where tensorflow-datasets is installed (4.9.10 with TensorFlow 2.21 made what is here); no
test imports it.

    python oracle.py make tests/data/tfds      writes the datasets and expected.json.gz
    python oracle.py make DIRECTORY array_record      the same in another format
    python oracle.py read DIRECTORY            prints the values of all splits as JSON
"""

import gzip
import hashlib
import json
import os
import struct
import sys
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

F = tfds.features
ORDER = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)


def picture(number, height, width, channels, dtype=np.uint8):
    """A drawn gradient with a disc: no photograph."""
    y, x = np.mgrid[:height, :width]
    disc = (y - height / 2) ** 2 + (x - width / 2) ** 2 < (2 + number % 5) ** 2
    planes = [(x * 9 * (c + 1) + y * 5 + number * 31 + disc * 90) % 256 for c in range(channels)]
    pixels = np.stack(planes, -1)
    return (pixels * 257 - number if dtype == np.uint16 else pixels).clip(0).astype(dtype)


def bmp(pixels):
    """A 24-bit BMP file."""
    height, width, _ = pixels.shape
    rows = b"".join(row[:, ::-1].tobytes() + bytes(-3 * width % 4) for row in pixels[::-1])
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(rows), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(rows), 0, 0, 54) + info + rows


class Drawings(tfds.core.GeneratorBasedBuilder):
    """Pictures of every kind."""

    VERSION = tfds.core.Version("1.2.10")
    RELEASE_NOTES = {"1.2.10": "first"}  # noqa: RUF012

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description="Drawn pictures.",
            disable_shuffling=True,
            supervised_keys=("image", "label"),
            features=F.FeaturesDict(
                {
                    "image": F.Image(encoding_format="png"),
                    "gray": F.Image(shape=(8, 9, 1), encoding_format="png"),
                    "rgba": F.Image(shape=(None, None, 4), encoding_format="png"),
                    "jpeg": F.Image(shape=(16, 24, 3), encoding_format="jpeg"),
                    "file": F.Image(shape=(None, None, 3)),
                    "mask16": F.Image(
                        shape=(None, None, 1), dtype=np.uint16, encoding_format="png"
                    ),
                    "depth": F.Image(
                        shape=(None, None, 1), dtype=np.float32, encoding_format="png"
                    ),
                    "segmentation": F.LabeledImage(
                        shape=(None, None, 1), labels=["sky", "road", "car"]
                    ),
                    "label": F.ClassLabel(names=["round", "flat/wide", "étoile"]),
                    "other": F.ClassLabel(num_classes=7),
                    "box": F.BBoxFeature(),
                    "pixel_box": F.BBoxFeature(bbox_format="XYWH"),
                    "objects": F.Sequence(
                        {
                            "box": F.BBoxFeature(),
                            "label": F.ClassLabel(names=["a", "b"]),
                            "points": F.Tensor(shape=(2, 2), dtype=np.float32),
                            "name": F.Text(),
                            "inner": {"score": np.float32},
                        }
                    ),
                    "crops": F.Sequence(F.Image(shape=(4, 5, 3), encoding_format="png")),
                    "video": F.Video(shape=(None, 6, 7, 3), encoding_format="png"),
                    "labels": F.Sequence(F.ClassLabel(names=["x", "y", "z"])),
                    "nested/name": {"kind": F.ClassLabel(names=["p", "q"])},
                }
            ),
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(5), "test": self._generate_examples(2)}

    def _generate_examples(self, count):
        random = np.random.default_rng(count)
        for i in range(count):
            boxes = [
                sorted(random.uniform(0, 1, 2)) + sorted(random.uniform(0, 1, 2))
                for _ in range(i % 3)
            ]
            bbox = [F.BBox(ymin=b[0], xmin=b[2], ymax=b[1], xmax=b[3]) for b in boxes]
            with tempfile.NamedTemporaryFile(suffix=".bmp", delete=False) as file:
                file.write(bmp(picture(i, 7, 6, 3)))
            yield (
                i,
                {
                    "image": picture(i, 10 + i, 12, 3),
                    "gray": picture(i, 8, 9, 1),
                    "rgba": picture(i, 6, 5, 4),
                    "jpeg": picture(i, 16, 24, 3),
                    "file": file.name,
                    "mask16": picture(i, 5, 6, 1, np.uint16),
                    "depth": random.normal(size=(4, 5, 1)).astype(np.float32),
                    "segmentation": (picture(i, 6, 6, 1) % 3).astype(np.uint8),
                    "label": i % 3 if i else -1,
                    "other": i,
                    "box": F.BBox(ymin=0.25, xmin=0.5, ymax=0.75, xmax=1.0),
                    "pixel_box": F.BBox(1.0, 2.0, 3.0 + i, 4.0),
                    "objects": [
                        {
                            "box": box,
                            "label": number % 2,
                            "points": random.normal(size=(2, 2)).astype(np.float32),
                            "name": f"ö{number}",
                            "inner": {"score": number / 3},
                        }
                        for number, box in enumerate(bbox)
                    ],
                    "crops": [picture(i + k, 4, 5, 3) for k in range(i % 3)],
                    "video": [picture(i + k, 6, 7, 3) for k in range(1 + i % 2)],
                    "labels": [k % 3 for k in range(i)],
                    "nested/name": {"kind": i % 2},
                },
            )


SCALARS = (
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)


def extreme(name, i):
    """Smallest, largest and other values of a dtype."""
    dtype = np.dtype(name)
    if dtype.kind == "f":
        return dtype.type([0.1, -1.5, np.inf, 3.14159265358979][i % 4])
    info = np.iinfo(dtype)
    return dtype.type([info.min, info.max, 7][i % 3])


class Kinds(tfds.core.GeneratorBasedBuilder):
    """Numbers, texts and sequences of every kind."""

    BUILDER_CONFIGS = [  # noqa: RUF012
        tfds.core.BuilderConfig(name="all", version=tfds.core.Version("0.1.0"), description="all")
    ]

    def _info(self):
        tensor = F.Tensor
        return tfds.core.DatasetInfo(
            builder=self,
            disable_shuffling=True,
            supervised_keys=({"v": "vector", "t": "text"}, "int8"),
            features=F.FeaturesDict(
                {
                    **{name: F.Scalar(np.dtype(name)) for name in SCALARS},
                    **{
                        f"opt_{name}": F.Scalar(np.dtype(name), optional=True)
                        for name in ("int32", "float32", "bool")
                    },
                    "flag": np.bool_,
                    "raw": F.Scalar(np.object_),
                    "strings": tensor(shape=(2,), dtype=np.object_),
                    "vector": tensor(shape=(3,), dtype=np.float32),
                    "u64s": tensor(shape=(2,), dtype=np.uint64),
                    "rows": tensor(shape=(None, 2), dtype=np.int32),
                    "columns": tensor(shape=(2, None), dtype=np.float64),
                    "raw_bytes": tensor(shape=(2, 3), dtype=np.float64, encoding="bytes"),
                    "raw_bool": tensor(shape=(None,), dtype=np.bool_, encoding="bytes"),
                    "zlib": tensor(shape=(None, 2), dtype=np.uint64, encoding="zlib"),
                    "dynamic": tensor(shape=(None, 2, None), dtype=np.int16, encoding="zlib"),
                    "text": F.Text(),
                    "deep": {"er": {"number": np.int32, "text": F.Text()}},
                    "seq": F.Sequence(np.int32),
                    "seq_bool": F.Sequence(np.bool_),
                    "seq_u64": F.Sequence(np.uint64),
                    "seq_fixed": F.Sequence(np.float32, length=3),
                    "seq_vector": F.Sequence(tensor(shape=(2,), dtype=np.float32)),
                    "seq_text": F.Sequence(F.Text()),
                    "seq_zlib": F.Sequence(tensor(shape=(2, 2), dtype=np.int16, encoding="zlib")),
                    "ragged": F.Sequence(F.Sequence(np.int64)),
                    "ragged3": F.Sequence(F.Sequence(F.Sequence(np.float32))),
                    "ragged_text": F.Sequence(F.Sequence(F.Text())),
                    "ragged_vector": F.Sequence(F.Sequence(tensor(shape=(2,), dtype=np.int64))),
                    "ragged_dict": F.Sequence({"ids": F.Sequence(np.int64), "name": F.Text()}),
                    "ragged_image": F.Sequence(
                        F.Sequence(F.Image(shape=(2, 3, 3), encoding_format="png"))
                    ),
                    "audio": F.Audio(sample_rate=8000),
                    "stereo": F.Audio(shape=(None, 2), dtype=np.int16),
                    "translation": F.Translation(["de", "en"]),
                    "languages": F.TranslationVariableLanguages(["de", "en", "fr"]),
                }
            ),
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(5)}

    def _generate_examples(self, count):
        random = np.random.default_rng(9)
        for i in range(count):

            def ints(*shape):
                return random.integers(-9, 9, shape)

            yield (
                i,
                {
                    **{name: extreme(name, i) for name in SCALARS},
                    "opt_int32": None if i % 2 else i,
                    "opt_float32": i / 2 if i % 2 else None,
                    "opt_bool": None if i == 3 else bool(i % 2),
                    "flag": bool(i % 2),
                    "raw": bytes([0, 255, i, 0]),
                    "strings": [b"a\0", "é" * i],
                    "vector": random.normal(size=3).astype(np.float32),
                    "u64s": np.array([2**64 - 1 - i, i], np.uint64),
                    "rows": ints(i, 2).astype(np.int32),
                    "columns": ints(2, i + 1).astype(np.float64) / 3,
                    "raw_bytes": random.normal(size=(2, 3)),
                    "raw_bool": ints(i) > 0,
                    "zlib": np.arange(2 * i, dtype=np.uint64).reshape(i, 2) + np.uint64(2**63),
                    "dynamic": ints(i, 2, 3 - i % 2).astype(np.int16),
                    "text": "grüße " * i,
                    "deep": {"er": {"number": -i, "text": str(i)}},
                    "seq": list(range(i)),
                    "seq_bool": [k % 2 == 0 for k in range(i)],
                    "seq_u64": np.array([2**64 - 1] * i, np.uint64),
                    "seq_fixed": [0.5, i, -1.0],
                    "seq_vector": random.normal(size=(i, 2)).astype(np.float32),
                    "seq_text": ["ä" * k for k in range(i)],
                    "seq_zlib": list(ints(i, 2, 2).astype(np.int16)),
                    "ragged": [list(range(k)) for k in range(i)],
                    "ragged3": [[[0.5] * k, []] for k in range(i)],
                    "ragged_text": [["b"] * k for k in range(i)],
                    "ragged_vector": [[[k, k + 1]] * k for k in range(i)],
                    "ragged_dict": [{"ids": [k] * k, "name": str(k)} for k in range(i)],
                    "ragged_image": [[picture(i, 2, 3, 3)] * k for k in range(i % 3)],
                    "audio": ints(i + 1).astype(np.int64) * 1000,
                    "stereo": ints(i + 1, 2).astype(np.int16),
                    "translation": {"de": f"Katze {i}", "en": f"cat {i}"},
                    "languages": {"en": ["one", "uno"][: 1 + i % 2], "de": "eins"},
                },
            )


class Counted(tfds.core.GeneratorBasedBuilder):
    """Many examples in several shards, for split strings."""

    VERSION = tfds.core.Version("2.0.0")

    def _info(self):
        features = F.FeaturesDict({"id": np.int64})
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(0, 130), "test": self._generate_examples(1000, 11)}

    def _generate_examples(self, first, count):
        for i in range(count):
            yield i, {"id": first + i}


SPLITS = """train|test|all|train+test|test+train[:2]|train[:10%]+train[:3]|train[:50%]|train[50%:]|train[33.3%:66.6%]
train[-20%:]|train[:-5]|train[-5:]|train[100:130]|train[100:131]|train[:0]|train[5:2]|train[5]|train[:1shard]
train[1shard]|train[-1shard]|train[-1shard:]|train[1shard:3shard]|train[7shard]|train[:120%]|nope|test[:5%]|test[:4%]
train[10:50%]|test[45%:55%]|train [:3]|train + test[:2]|train[:-131]|all[:3]|train[:1.5]|train[0:1:2]""".replace(
    "\n", "|"
)


def value(leaf):
    """A value as JSON: dtype, shape and values; floats as hex of their bits, large arrays as a
    hash.
    """
    if isinstance(leaf, tf.RaggedTensor):
        return {
            "flat": value(leaf.flat_values),
            "splits": [part.numpy().tolist() for part in leaf.nested_row_splits],
        }
    array = np.asarray(leaf)
    out = {
        "dtype": "string" if array.dtype.kind in "OS" else str(array.dtype),
        "shape": list(array.shape),
    }
    if out["dtype"] == "string":
        return {**out, "values": [item.hex() for item in array.ravel().tolist()]}
    if array.size > 64:
        return {**out, "sha256": hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()}
    if array.dtype.kind == "f":
        bits = array.astype(array.dtype.newbyteorder(">")).tobytes()
        size = array.dtype.itemsize
        return {**out, "values": [bits[k : k + size].hex() for k in range(0, len(bits), size)]}
    return {**out, "values": array.ravel().tolist()}


def flatten(example, prefix=""):
    """Names joined by /."""
    if isinstance(example, dict):
        return {
            key: leaf
            for name, item in example.items()
            for key, leaf in flatten(item, f"{prefix}{name}/").items()
        }
    if isinstance(example, tf.data.Dataset):
        steps = [flatten(step) for step in example]
        return {prefix[:-1]: {"steps": steps}}
    return {prefix[:-1]: value(example)}


def jpegs(features):
    """Top-level images whose arrays are JPEG: TFDS decodes these with the fast, less exact
    transform.
    """
    return [
        name for name, item in features.items() if getattr(item, "_encoding_format", None) == "jpeg"
    ]


def examples_of(builder, split, decoders):
    """The examples in file order; `as_dataset` does not read array_record."""
    if builder.info.file_format.value == "array_record":
        raw = builder.as_data_source(
            split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES
        )
        records = tf.data.Dataset.from_tensor_slices([raw[i] for i in range(len(raw))])
        return records.map(
            lambda record: builder.info.features.deserialize_example(record, decoders=decoders)
        )
    return builder.as_dataset(
        split=split, shuffle_files=False, read_config=ORDER, decoders=decoders
    )


def read(directory):
    """All examples of all splits; JPEG decoded with the accurate transform."""
    builder = tfds.builder_from_directory(directory)
    skipped = {name: tfds.decode.SkipDecoding() for name in jpegs(builder.info.features)}
    out = {}
    for split in builder.info.splits:
        out[split] = []
        for example in examples_of(builder, split, skipped):
            for name in skipped:
                if not isinstance(builder.info.features[name], F.Video):
                    example[name] = tf.io.decode_jpeg(example[name], dct_method="INTEGER_ACCURATE")
            out[split].append(flatten(example))
    keys = builder.info.supervised_keys
    counts = {name: list(split.shard_lengths) for name, split in builder.info.splits.items()}
    return {
        "supervised_keys": keys,
        "shard_lengths": counts,
        "examples": out,
        "features": repr(builder.info.features),
    }


def split_ids(directory):
    """Split string -> ids of its examples, or the class of the error."""
    builder = tfds.builder_from_directory(directory)

    def ids(split):
        return [int(example["id"]) for example in examples_of(builder, split, None)]

    found = {}
    for split in SPLITS.split("|"):
        try:
            found[split] = ids(split)
        except Exception as error:  # whatever TFDS raises
            found[split] = type(error).__name__
    even = {
        f"{split}|{n}|{drop}": [
            ids(part) for part in tfds.even_splits(split, n, drop_remainder=drop)
        ]
        for split, n, drop in (
            ("train", 3, False),
            ("train", 4, True),
            ("test", 3, False),
            ("test[1:]+train[:7]", 2, False),
        )
    }
    percent = {
        f"{low}|{high}": ids(
            tfds.core.ReadInstruction("train", low, high, unit="%", rounding="pct1_dropremainder")
        )
        for low, high in ((0, 50), (10, 30), (33, None), (-20, None))
    }
    return {"splits": found, "even": even, "pct1": percent}


def make(out, file_format="tfrecord"):
    """Write the datasets and what TFDS reads of them."""
    expected = {}
    for builder_class, shards in ((Drawings, 2), (Kinds, 2), (Counted, 4)):
        config = tfds.download.DownloadConfig(num_shards=shards)
        builder = builder_class(data_dir=out)
        builder.download_and_prepare(file_format=file_format, download_config=config)
        directory = os.path.relpath(builder.data_dir, out)
        expected[builder.name] = {"directory": directory, **read(builder.data_dir)}
        if builder_class is Counted:
            expected[builder.name].update(split_ids(builder.data_dir), examples={})
    with open(os.path.join(out, "expected.json.gz"), "wb") as file:
        file.write(gzip.compress(json.dumps(expected, sort_keys=True).encode(), mtime=0))


if __name__ == "__main__":
    verb, directory, *options = sys.argv[1:]
    if verb == "make":
        make(directory, *options)
    else:
        json.dump(read(directory), sys.stdout)
