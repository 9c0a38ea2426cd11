"""tfds.write: read back by tfds.load, and by TFDS itself where TFDS_PYTHON names a Python that has
it.

Covers tfds/leaves, tfds/encoding.
"""

import json
import os
import signal
import subprocess

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tfds_values import DATA, EXPECTED, assert_same, directory
from torchvision import tv_tensors

from torch_tfrecord import encode_image, tfds
from torch_tfrecord.tfds import features as f
from torch_tfrecord.tfds.encoding import SampleEncoder
from torch_tfrecord.tfds.parser import TFDSParser

RAW = {"jpeg": None}  # writing a decoded JPEG again would lose pixels


def samples_of(name, split, **options):
    decoders = RAW if name == "drawings" else None
    return list(tfds.load(directory(name), split, index="memory", decoders=decoders, **options))


@pytest.mark.parametrize("name", ["drawings", "kinds"])
@pytest.mark.parametrize("as_numpy_layout", [False, True])
def test_what_was_read_is_written_and_read_again(tmp_path, name, as_numpy_layout):
    info = tfds.info(directory(name))
    samples = {
        split: samples_of(name, split, as_numpy_layout=as_numpy_layout) for split in info.splits
    }
    written = tfds.write(
        tmp_path / "out" / "1.2.3",
        samples,
        info.features,
        name=name,
        version="1.2.3",
        supervised_keys=info.supervised_keys,
        num_shards=2,
        as_numpy_layout=as_numpy_layout,
    )
    assert (written.features, written.supervised_keys) == (info.features, info.supervised_keys)
    for split in info.splits:
        decoders = RAW if name == "drawings" else None
        ds = tfds.load(
            tmp_path / "out",
            split,
            index="memory",
            decoders=decoders,
            as_numpy_layout=as_numpy_layout,
        )
        assert ds.files == written.files(split)
        for found, expected in zip(ds, samples[split], strict=True):
            assert_same(found, expected)


@pytest.mark.skipif(
    "TFDS_PYTHON" not in os.environ, reason="TFDS_PYTHON names no Python with tensorflow-datasets"
)
@pytest.mark.parametrize("name", ["drawings", "kinds"])
def test_tfds_reads_what_we_write(tmp_path, name):
    info = tfds.info(directory(name))
    # In TFDS's layout: boxes in pixels would come back rounded.
    samples = {split: samples_of(name, split, as_numpy_layout=True) for split in info.splits}
    target = tmp_path / name / "1.0.0"
    keys = info.supervised_keys
    options = {"supervised_keys": keys, "num_shards": 2, "as_numpy_layout": True}
    tfds.write(target, samples, info.features, name=name, disable_shuffling=True, **options)
    for split in info.splits:
        assert len(tfds.load(target, split)) == len(samples[split])
    assert (target / ".torch_index").is_dir()  # an index that we kept there does not disturb it
    command = [os.environ["TFDS_PYTHON"], str(DATA / "oracle.py"), "read", str(target)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=280).stdout)
    assert found == {key: EXPECTED[name][key] for key in found}


def test_files_are_those_of_tfds(tmp_path):
    features = {
        "x": torch.float32,
        "label": f.ClassLabel(names=["a", "b/c"]),
        "in": {"l": f.ClassLabel(names=["d"])},
    }
    samples = [{"x": i / 2, "label": i % 2, "in": {"l": "d"}} for i in range(11)]
    info = tfds.write(
        tmp_path / "toy",
        {"train": samples, "test": iter(samples[:1])},
        features,
        name="toy",
        version="3.1.4",
        config_name="big",
        description="d",
        citation="c",
        license="l",
        supervised_keys=("x", "label"),
        num_shards={"train": 3},
    )
    assert sorted(path.name for path in (tmp_path / "toy").iterdir()) == [
        "dataset_info.json",
        "features.json",
        "in-l.labels.txt",
        "label.labels.txt",
        "toy-test.tfrecord-00000-of-00001",
        "toy-train.tfrecord-00000-of-00003",
        "toy-train.tfrecord-00001-of-00003",
        "toy-train.tfrecord-00002-of-00003",
    ]
    stored = json.loads((tmp_path / "toy" / "dataset_info.json").read_text())
    assert stored["splits"][0]["shardLengths"] == ["4", "3", "4"]
    assert stored["fileFormat"] == "tfrecord"
    # TFDS refuses to interleave ordered datasets, and so do loaders of robots
    assert "disableShuffling" not in stored
    assert (info.version, info.config_name, info.citation, info.license) == (
        "3.1.4",
        "big",
        "c",
        "l",
    )
    assert [float(sample["x"]) for sample in tfds.load(info, "train", index="memory")] == [
        i / 2 for i in range(11)
    ]
    assert info.features["label"].names == ("a", "b/c")


def test_a_list_of_dicts_is_a_sequence_too(tmp_path):
    features = {
        "steps": f.Dataset(
            {
                "action": f.Tensor((2,), "float32"),
                "text": f.Text(),
                "ids": f.Sequence(f.Scalar("int64")),
            }
        )
    }
    steps = [
        {"action": [1.0, 2.0], "text": "a", "ids": [1]},
        {"action": [3.0, 4.0], "text": "b", "ids": []},
    ]
    tfds.write(tmp_path / "d", {"train": [{"steps": steps}, {"steps": []}]}, features, name="d")
    ds = tfds.load(tmp_path / "d", index="memory")
    assert ds[0]["steps"]["action"].tolist() == [[1, 2], [3, 4]]
    assert ds[0]["steps"]["text"] == ["a", "b"]
    assert [part.tolist() for part in ds[0]["steps"]["ids"].unbind()] == [[1], []]
    assert ds[1]["steps"]["action"].shape == (0, 2)
    assert ds[1]["steps"]["text"] == []


def test_images_from_files_bytes_and_arrays(tmp_path):
    pixels = torch.arange(2 * 3 * 3, dtype=torch.uint8).reshape(3, 2, 3)
    path = tmp_path / "file.bmp"
    path.write_bytes(encode_image(pixels, "bmp"))
    values = [path, path.read_bytes(), pixels, pixels.numpy(), tv_tensors.Image(pixels)]
    tfds.write(
        tmp_path / "d", {"train": [{"i": value} for value in values]}, {"i": f.Image()}, name="d"
    )
    ds = tfds.load(tmp_path / "d", index="memory")
    assert all(torch.equal(sample["i"], pixels) for sample in ds)
    raw = tfds.load(tmp_path / "d", index="memory", decoders={"i": None})
    assert raw[0]["i"] == path.read_bytes()


# What TFDS 4.9.10 writes for Image((3, 4, channels), "uint16") with these pixels.
DEEP = {
    3: "89504e470d0a1a0a0000000d49484452000000040000000310020000006b06e5d20000003b494441540899636660677ecf7e9d7b"
    "0f9f81808a9084088f1883c417a917d27758f41ee83fd07fc0b383e70102723fe07ec0a20f914013e67e0000bfc61d45a69e7336"
    "0000000049454e44ae426082",
    4: "89504e470d0a1a0a0000000d4948445200000004000000031006000000e46472850000004a494441540899636660677ecf7e9d7b"
    "3fff122109111e3106892f522f64eec85e903fa2b843798daa02a35dbb53be5bb897bdc0028105fc50288004196bd91bdeb75cef"
    "d88f2a8c500a0049e522257d8860a40000000049454e44ae426082",
}


@pytest.mark.parametrize("channels", DEEP)
def test_colours_of_16_bits(tmp_path, channels):
    feature, size = f.Image((None, None, channels), dtype="uint16"), (3, 4, channels)
    pixels = (np.arange(np.prod(size)) * 1000 + 7).astype(np.uint16).reshape(size)
    theirs = bytes.fromhex(DEEP[channels])
    tfds.write(
        tmp_path / "deep",
        {"train": [{"x": theirs}, {"x": pixels}]},
        {"x": feature},
        name="deep",
        as_numpy_layout=True,
    )
    for sample in tfds.load(tmp_path / "deep", as_numpy_layout=True):
        assert sample["x"].dtype == torch.uint16 and np.array_equal(sample["x"].numpy(), pixels)
    if "TFDS_PYTHON" not in os.environ:
        return
    code = (
        "import sys, tensorflow_datasets as tfds; from pathlib import Path;"
        "[print(each['x'].tolist()) for each in tfds.as_numpy(tfds.builder_from_directory(next(Path(sys.argv[1]).rglob("
        "'features.json')).parent).as_dataset('train'))]"
    )
    command = [os.environ["TFDS_PYTHON"], "-c", code, str(tmp_path / "deep")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    assert done.stdout.splitlines() == [str(pixels.tolist())] * 2


def test_boxes_of_every_format(tmp_path):
    features = {
        name: f.BBoxFeature(name) for name in ("REL_YXYX", "REL_XYXY", "YXYX", "XYXY", "XYWH")
    }
    boxes = {
        "XYXY": [[2.0, 3.0, 6.0, 9.0]],
        "XYWH": [[2.0, 3.0, 4.0, 6.0]],
        "CXCYWH": [[4.0, 6.0, 4.0, 6.0]],
    }
    values = [
        tv_tensors.BoundingBoxes(box, format=kind, canvas_size=(12, 8))
        for kind, box in boxes.items()
    ]
    tfds.write(
        tmp_path / "d",
        {"train": [dict.fromkeys(features, box) for box in values]},
        features,
        name="d",
    )
    for sample in tfds.load(tmp_path / "d", index="memory", as_numpy_layout=True):
        assert {name: box.tolist() for name, box in sample.items()} == {
            "REL_YXYX": [0.25, 0.25, 0.75, 0.75],
            "REL_XYXY": [0.25, 0.25, 0.75, 0.75],
            "YXYX": [3, 2, 9, 6],
            "XYXY": [2, 3, 6, 9],
            "XYWH": [2, 3, 4, 6],
        }


@pytest.mark.parametrize(
    ("feature", "value", "text"),
    [
        (f.Scalar("uint8"), 300, "does not fit uint8"),
        (f.Scalar("uint8"), 0.5, "does not fit uint8"),
        (f.Tensor((2,), "float32"), [1.0], "expected shape"),
        (f.Scalar("int64"), None, "expected a value, got None"),
        (f.ClassLabel(3), 3, "expected a label"),
        (f.ClassLabel(names=["a"]), "b", "'b' is not a class name"),
        (f.Text(), b"\xff", "utf-8"),
        (f.Text(), 3, "expected bytes, got int"),
        (f.Image(), np.zeros((3, 2, 2), np.float32), "expected pixels of uint8"),
        (f.Image((2, 2, 3)), np.zeros((3, 2, 4), np.uint8), "expected an image"),
        (f.BBoxFeature(), [0, 0, 2, 1], "from 0 to 1"),
        (f.Sequence(f.Scalar("int64")), 3, "expected a sequence"),
        (f.Sequence(f.Scalar("int64"), 2), [1], "expected a sequence of 2, got 1"),
        (
            f.Audio(lazy_decode=True),
            np.zeros(3),
            "expected bytes, got ndarray; what is in a file: ",
        ),
        (f.FeaturesDict({"a": f.Text()}), {"b": "x"}, "expected the names"),
    ],
)
def test_samples_that_do_not_fit(tmp_path, feature, value, text):
    with pytest.raises(
        (TypeError, ValueError), match=rf"split 'train', sample 0: feature 'x.*{text}"
    ):
        tfds.write(tmp_path / "d", {"train": [{"x": value}]}, {"x": feature}, name="d")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "1a"}, "name"),
        ({"version": "1.0"}, "version"),
        ({"supervised_keys": ("x", "y")}, "no feature 'y'"),
        ({"supervised_keys": "x"}, "tuple of 2 or 3"),
        ({"num_shards": 0}, "num_shards"),
        ({"num_shards": 5}, "5 shards need as many samples, got 2"),
        ({"samples_by_split": {}}, "at least one split"),
        ({"samples_by_split": {"train": []}}, "split 'train' has no samples"),
        ({"samples_by_split": {"a b": []}}, "split's name"),
        ({"features": {"x": f.Tensor((None, None), "int64")}}, "two unknown sizes"),
        ({"features": {"x": f.UnknownFeature("y")}}, "cannot write"),
        ({"features": {"x": f.Scalar("complex128x")}}, "torch has no dtype"),
    ],
)
def test_wrong_arguments_leave_nothing(tmp_path, options, text):
    arguments = {
        "samples_by_split": {"train": [{"x": 1}, {"x": 2}]},
        "features": {"x": torch.int64},
        "name": "d",
    }
    with pytest.raises((KeyError, TypeError, ValueError), match=text):
        tfds.write(tmp_path / "d", **{**arguments, **options})
    assert list(tmp_path.iterdir()) == []


def test_a_failing_source_leaves_nothing(tmp_path):
    def samples():
        yield {"x": 1}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tfds.write(tmp_path / "d", {"train": samples()}, {"x": torch.int64}, name="d")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "d").mkdir()
    tfds.write(tmp_path / "d", {"train": [{"x": 1}]}, {"x": torch.int64}, name="d")
    before = {path: path.read_bytes() for path in (tmp_path / "d").iterdir()}
    with pytest.raises(FileExistsError):
        tfds.write(tmp_path / "d", {"train": [{"x": 2}]}, {"x": torch.int64}, name="d")
    assert {path: path.read_bytes() for path in (tmp_path / "d").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_what_a_killed_run_left_is_cleared(tmp_path):
    def samples():
        yield {"x": 1}
        os.kill(os.getpid(), signal.SIGKILL)

    (tmp_path / "incomplete.AB12CD_1.0.0").mkdir()  # TFDS's own
    child = os.fork()
    if child == 0:
        tfds.write(tmp_path / "1.0.0", {"train": samples()}, {"x": torch.int64}, name="d")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    assert all(name.startswith("incomplete.") for name in os.listdir(tmp_path))
    tfds.write(tmp_path / "1.0.0", {"train": [{"x": 1}]}, {"x": torch.int64}, name="d")
    assert sorted(os.listdir(tmp_path)) == ["1.0.0", "incomplete.AB12CD_1.0.0"]
    assert [sample["x"].item() for sample in tfds.load(tmp_path, split="train")] == [1]


def test_the_records_are_those_of_tfds():
    """The same entries with the same values, byte for byte once protobuf sorted the keys."""
    from torch_tfrecord import decode_example

    info = tfds.info(directory("kinds"))
    encoder = SampleEncoder(info.features)
    ds = tfds.load(info, index="memory")
    for position, sample in enumerate(ds):
        theirs, ours = decode_example(ds.raw(position)), decode_example(encoder.encode(sample))
        for record in (theirs, ours):  # another zlib may press the same bytes otherwise
            for key in ("zlib", "seq_zlib", "dynamic/value", "ragged_image/ragged_flat_values"):
                record.pop(key, None)
        assert sorted(ours) == sorted(theirs)
        for key, values in theirs.items():
            if isinstance(values, list):
                assert list(ours[key]) == values, key
            else:
                assert (ours[key].dtype, ours[key].tobytes()) == (values.dtype, values.tobytes()), (
                    key
                )


trees = st.recursive(
    st.sampled_from(
        [
            f.Scalar("int64"),
            f.Scalar("uint64"),
            f.Text(),
            f.Tensor((2,), "float32"),
            f.Scalar("string"),
        ]
    ),
    lambda inner: (
        st.builds(f.Sequence, inner)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(f.FeaturesDict)
    ),
    max_leaves=5,
)


def value_of(feature, data):
    if isinstance(feature, f.FeaturesDict):
        return {name: value_of(item, data) for name, item in feature.items()}
    if isinstance(feature, f.Sequence):
        return [value_of(feature.feature, data) for _ in range(data.draw(st.integers(0, 3)))]
    if isinstance(feature, f.Text):
        return data.draw(st.text(max_size=3))
    if isinstance(feature, f.Tensor):
        return data.draw(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2))
    if feature.dtype == "string":
        return data.draw(st.binary(max_size=3))
    low, high = (0, 2**64 - 1) if feature.dtype == "uint64" else (-(2**63), 2**63 - 1)
    return data.draw(st.integers(low, high).map(np.dtype(feature.dtype).type))


@pytest.mark.daily
@given(trees, st.data())
def test_any_tree_comes_back(tree, data):
    features = f.FeaturesDict({"root": tree})
    encoder, parser = SampleEncoder(features), TFDSParser(features)
    once = parser.single(encoder.encode({"root": value_of(tree, data)}))
    assert_same(parser.single(encoder.encode(once)), once)
