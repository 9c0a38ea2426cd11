"""tfds.load against what TFDS itself read from the same files (data/tfds, made by its oracle.py).

Covers tfds/leaves, tfds/loading, tfds/parser.
"""

import json
import pickle
import shutil

import pytest
import torch
from tfds_values import EXPECTED, assert_equal, assert_same, directory, leaf, paths
from torch.utils.data import DataLoader, Subset
from torchvision import tv_tensors

from torch_tfrecord import (
    IndexMismatchError,
    ParseError,
    TFRecordDataset,
    TFRecordWriter,
    collate,
    tfds,
)

SPLITS = [(name, split) for name in ("drawings", "kinds") for split in EXPECTED[name]["examples"]]
OPTIONAL = {"opt_int32", "opt_float32", "opt_bool"}


def load(name, split="train", **options):
    return tfds.load(directory(name), split, index="memory", **options)


def as_is(samples):
    return samples


def one_int(value):
    return int(value["id"])


def assert_as_tfds(sample, expected):
    assert set(paths(sample)) == set(expected)
    for path, value in expected.items():
        found = leaf(sample, path)
        if found is None:
            assert path in OPTIONAL
        else:
            assert_equal(found, value, path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "split"), SPLITS)
@pytest.mark.parametrize(("workers", "context"), [(0, None), (1, "fork"), (2, "fork")])
def test_every_value_is_what_tfds_returned(name, split, workers, context):
    ds = load(name, split, as_numpy_layout=True)
    loader = DataLoader(
        ds, 2, num_workers=workers, multiprocessing_context=context, collate_fn=as_is
    )
    found = [sample for batch in loader for sample in batch]
    assert isinstance(ds, TFRecordDataset)
    assert len(found) == len(ds) == len(EXPECTED[name]["examples"][split])
    for sample, expected in zip(found, EXPECTED[name]["examples"][split], strict=True):
        assert_as_tfds(sample, expected)


@pytest.mark.slow
def test_the_same_from_workers_that_know_nothing_of_this_process():
    ds = load("kinds", as_numpy_layout=True)
    loader = DataLoader(
        ds, 2, num_workers=2, multiprocessing_context="forkserver", collate_fn=as_is
    )
    found = [sample for batch in loader for sample in batch]
    for sample, expected in zip(found, EXPECTED["kinds"]["examples"]["train"], strict=True):
        assert_as_tfds(sample, expected)


@pytest.mark.parametrize("name", ["drawings", "kinds"])
def test_the_torch_layout_is_the_other_one_turned(name):
    here, there = load(name), load(name, as_numpy_layout=True)
    for position in range(len(here)):
        sample, turned = here[position], there[position]
        for path in paths(sample):
            value = leaf(sample, path)
            if isinstance(value, (tv_tensors.Image, tv_tensors.Video, tv_tensors.Mask)):
                axes = range(value.dim() - 3)
                back = value.as_subclass(torch.Tensor).permute(*axes, -2, -1, -3)
                assert torch.equal(back, leaf(turned, path)), path
            elif not isinstance(value, tv_tensors.BoundingBoxes) and path != "ragged_image":
                assert_same(value, leaf(turned, path), path)


def test_kinds_of_values():
    sample = load("drawings")[2]
    kinds = {
        "image": tv_tensors.Image,
        "mask16": tv_tensors.Image,
        "depth": tv_tensors.Image,
        "segmentation": tv_tensors.Mask,
        "video": tv_tensors.Video,
        "crops": tv_tensors.Image,
        "box": tv_tensors.BoundingBoxes,
    }
    for name, kind in kinds.items():
        assert type(sample[name]) is kind, name
    assert sample["image"].shape == (3, 12, 12)
    assert sample["mask16"].dtype == torch.uint16
    assert sample["objects"]["name"] == ["ö0", "ö1"]
    assert type(load("kinds")[1]["text"]) is str
    assert load("kinds")[1]["raw"] == b"\x00\xff\x01\x00"


def test_boxes_are_in_pixels_of_the_image():
    sample = load("drawings", features=["box", "pixel_box", "objects/box"])[2]
    height, width = 12, 12
    assert sample["box"].canvas_size == (height, width)
    assert sample["box"].tolist() == [[6.0, 3.0, 12.0, 9.0]]
    assert sample["pixel_box"].format.value == "XYWH"
    assert sample["pixel_box"].tolist() == [[1.0, 2.0, 5.0, 4.0]]
    plain = load("drawings", features=["objects/box"], as_numpy_layout=True)[2]["objects"]["box"]
    assert torch.equal(
        sample["objects"]["box"].as_subclass(torch.Tensor), plain[:, [1, 0, 3, 2]] * 12
    )
    assert load("drawings")[0]["objects"]["box"].shape == (0, 4)


def test_relative_boxes_without_an_image_have_a_canvas_of_one(tmp_path):
    samples = [{"box": [0.25, 0.5, 0.75, 1.0], "pixels": [1.0, 2.0, 3.0, 4.0]}]
    features = {"box": tfds.features.BBoxFeature(), "pixels": tfds.features.BBoxFeature("XYXY")}
    tfds.write(tmp_path / "boxes", {"train": samples}, features, name="boxes")
    sample = tfds.load(tmp_path / "boxes")[0]
    assert sample["box"].canvas_size == (1, 1)
    assert sample["box"].tolist() == [[0.5, 0.25, 1.0, 0.75]]
    assert sample["pixels"].tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(("split", "expected"), EXPECTED["counted"]["splits"].items())
def test_split_strings(split, expected):
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=r"split|slice|percent|shard"):
            load("counted", split)
    else:
        ds = load("counted", split)
        assert [one_int(ds[position]) for position in range(len(ds))] == expected


@pytest.mark.parametrize(("case", "expected"), EXPECTED["counted"]["even"].items())
def test_even_splits(case, expected):
    split, n, drop = case.split("|")
    parts = [
        load("counted", part)
        for part in tfds.even_splits(split, int(n), drop_remainder=drop == "True")
    ]
    assert [[one_int(ds[position]) for position in range(len(ds))] for ds in parts] == expected


@pytest.mark.parametrize(("case", "expected"), EXPECTED["counted"]["pct1"].items())
def test_percent_with_the_remainder_dropped(case, expected):
    low, high = (None if bound == "None" else int(bound) for bound in case.split("|"))
    ds = load(
        "counted", tfds.ReadInstruction("train", low, high, unit="%", rounding="pct1_dropremainder")
    )
    assert [one_int(ds[position]) for position in range(len(ds))] == expected


def test_a_slice_is_a_dataset_like_any_other(tmp_path):
    ds = load("counted", "train[:10%]+test[-3:]+train[:3]")
    ids = [one_int(ds[position]) for position in range(len(ds))]
    assert ids == [*range(13), 1008, 1009, 1010, 0, 1, 2]
    assert one_int(ds[-1]) == 2
    assert [one_int(sample) for sample in ds[3:18:4]] == ids[3:18:4]
    assert [one_int(sample) for sample in ds.__getitems__([15, 0, 15])] == [1010, 0, 1010]
    assert [one_int(sample) for sample in Subset(ds, [13, 2])] == [1008, 2]
    assert [one_int(sample) for sample in pickle.loads(pickle.dumps(ds))] == ids
    assert ds.raw(16) == ds.raw(0)
    assert ds.locate(13)[0].endswith("counted-test.tfrecord-00003-of-00004")
    with pytest.raises(IndexError, match="19"):
        ds[19]


def test_only_the_shards_of_the_slice_are_opened(tmp_path):
    folder = copied("counted", tmp_path)
    for number in (0, 2, 3):
        (folder / f"counted-train.tfrecord-{number:05d}-of-00004").unlink()
    ds = tfds.load(folder, "train[1shard]", index="memory")
    assert (len(ds), one_int(ds[0]), len(ds.files)) == (33, 32, 1)


@pytest.mark.parametrize(("name", "keys"), [("drawings", ("image", "label")), ("kinds", None)])
def test_as_supervised(name, keys):
    ds, whole = load(name, as_supervised=True), load(name)
    for position in range(len(ds)):
        sample = whole[position]
        expected = (
            tuple(sample[key] for key in keys)
            if keys
            else ({"v": sample["vector"], "t": sample["text"]}, sample["int8"])
        )
        assert_same(ds[position], expected)


def test_as_supervised_needs_keys():
    with pytest.raises(ValueError, match="supervised_keys"):
        load("counted", as_supervised=True)


@pytest.mark.parametrize(
    "features",
    [
        ["text", "deep/er/number", "ragged_dict"],
        {"text": True, "deep": {"er": ["number"]}, "ragged_dict": {"ids", "name"}, "seq": False},
    ],
)
def test_only_what_is_named_is_read(features):
    sample, whole = load("kinds", features=features)[3], load("kinds")[3]
    number = whole["deep"]["er"]["number"]
    expected = {
        "text": whole["text"],
        "deep": {"er": {"number": number}},
        "ragged_dict": whole["ragged_dict"],
    }
    assert_same(dict(sorted(sample.items())), dict(sorted(expected.items())))


def test_names_that_are_not_there():
    for options in (
        {"features": ["imag"]},
        {"decoders": {"imag": None}},
        {"defaults": {"imag": 1}},
    ):
        with pytest.raises(KeyError, match="imag"):
            load("drawings", **options)
    with pytest.raises(ValueError, match="at least one"):
        load("drawings", features=[])
    with pytest.raises(ValueError, match="'other' is not an encoded value"):
        load("drawings", decoders={"other": None})
    with pytest.raises(ValueError, match="'other' is not optional"):
        load("drawings", defaults={"other": 1})


def test_decoders_take_the_place_of_decoding():
    sample = load(
        "drawings", features=["image", "crops", "jpeg"], decoders={"image": None, "crops": len}
    )[2]
    assert sample["image"][:4] == b"\x89PNG"
    assert all(isinstance(size, int) and size > 60 for size in sample["crops"])
    assert len(sample["crops"]) == 2
    assert sample["jpeg"].shape == (3, 16, 24)


def test_an_optional_value_is_none_or_the_default():
    assert [sample["opt_int32"] for sample in load("kinds", features=["opt_int32"])][1::2] == [
        None,
        None,
    ]
    ds = load(
        "kinds",
        features=["opt_int32", "opt_bool"],
        defaults={"opt_int32": torch.tensor(-1, dtype=torch.int32)},
    )
    assert [int(sample["opt_int32"]) for sample in ds] == [0, -1, 2, -1, 4]
    assert ds[3]["opt_bool"] is None


def test_batches():
    ds = load("kinds", features=["vector", "seq", "text", "ragged", "u64s"])
    batch = next(iter(DataLoader(ds, 3, collate_fn=collate)))
    assert batch["vector"].shape == (3, 3)
    assert [part.tolist() for part in batch["seq"].unbind()] == [[], [0], [0, 1]]
    assert batch["text"] == ["", "grüße ", "grüße grüße "]
    assert batch["ragged"].to_list() == [[], [[]], [[], [0]]]
    assert batch["u64s"].dtype == torch.uint64


def test_a_transform_sees_each_sample():
    ds = load("counted", "test", transform=one_int)
    assert list(ds) == list(range(1000, 1011))


def copied(name, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(directory(name), folder)
    return folder


def test_a_missing_shard(tmp_path):
    folder = copied("counted", tmp_path)
    gone = folder / "counted-train.tfrecord-00002-of-00004"
    gone.unlink()
    with pytest.raises(FileNotFoundError, match=gone.name):
        tfds.load(folder, index="memory")


@pytest.mark.parametrize("found", [31, 34])
def test_a_shard_with_another_number_of_records(tmp_path, found):
    folder = copied("counted", tmp_path)
    wrong = folder / "counted-train.tfrecord-00001-of-00004"
    with TFRecordWriter(wrong) as writer:
        for number in range(found):
            writer.write({"id": number})
    with pytest.raises(
        IndexMismatchError, match=f"{wrong.name}: expected 33 records.*shardLengths.*got {found}"
    ):
        tfds.load(folder, index="memory")


def test_an_old_directory_without_lengths_is_counted(tmp_path):
    folder = copied("counted", tmp_path)
    path = folder / "dataset_info.json"
    info = json.loads(path.read_text())
    for split in info["splits"]:
        split["numShards"] = str(len(split.pop("shardLengths")))
        del split["filepathTemplate"]
    del info["fileFormat"]
    path.write_text(json.dumps(info))
    assert tfds.info(folder).splits["train"].num_examples is None
    ds = tfds.load(folder, "train[-3:]+test[:1]", index="memory")
    assert [one_int(sample) for sample in ds] == [127, 128, 129, 1000]


def test_an_unknown_class_is_an_error_only_where_it_is_asked_for(tmp_path):
    folder = copied("counted", tmp_path)
    path = folder / "features.json"
    tree = json.loads(path.read_text())
    tree["featuresDict"]["features"]["odd"] = {
        "pythonClassName": "my.code.Odd",
        "jsonFeature": {"json": "{}"},
    }
    path.write_text(json.dumps(tree))
    with pytest.raises(
        ParseError, match=r"features.json: feature 'odd': an unknown feature class, 'my.code.Odd'"
    ):
        tfds.load(folder, index="memory")
    assert one_int(tfds.load(folder, features=["id"], index="memory")[7]) == 7
    assert "UnknownFeature('my.code.Odd')" in str(tfds.info(folder))


def test_a_record_that_does_not_fit_is_named(tmp_path):
    folder = copied("counted", tmp_path)
    shard = folder / "counted-test.tfrecord-00001-of-00004"
    with TFRecordWriter(shard) as writer:
        for number in range(3):
            writer.write({"id": number} if number != 1 else {"other": 1})
    ds = tfds.load(folder, "test", index="memory")
    with pytest.raises(ParseError, match=rf"{shard.name}: record 1 at byte \d+: feature 'id'"):
        ds[4]


def test_split_none_is_every_split():
    every, info = tfds.load(directory("drawings"), None, index="memory", with_info=True)
    examples = EXPECTED["drawings"]["examples"]
    assert {name: len(ds) for name, ds in every.items()} == {
        name: len(examples[name]) for name in info.splits
    }
    for name, ds in every.items():
        assert_same(ds[0], load("drawings", name)[0])
    only = tfds.load(directory("drawings"), None, index="memory")
    assert list(only) == list(info.splits) and type(only["train"]) is TFRecordDataset
    ds, again = tfds.load(directory("drawings"), "train", index="memory", with_info=True)
    assert (len(ds), again.name) == (len(every["train"]), info.name)


def test_data_dir_and_names_as_in_tfds(tmp_path, monkeypatch):
    source = directory("drawings")
    shutil.copytree(source, tmp_path / "here" / "drawings" / "2.0.0")
    shutil.copytree(source, tmp_path / "here" / "drawings" / "1.0.0")
    monkeypatch.chdir(tmp_path)
    for name, version in (
        ("drawings", "2.0.0"),
        ("drawings:1.0.0", "1.0.0"),
        ("drawings/1.0.0", "1.0.0"),
    ):
        for folder in ("here", tmp_path / "here"):
            ds, info = tfds.load(name, "train", data_dir=folder, index="memory", with_info=True)
            assert f"drawings/{version}" in info.directory
            assert f"drawings/{version}" in ds.files[0]
            assert len(ds) == len(EXPECTED["drawings"]["examples"]["train"])
    with pytest.raises(FileNotFoundError, match="load takes its name with data_dir="):
        tfds.load("drawings", "train")
    with pytest.raises(ValueError, match=r"^shuffle_files must be False: make_dataloader\(ds"):
        tfds.load("drawings", "train", data_dir="here", shuffle_files=True)
    assert len(tfds.load("drawings", data_dir="here", index="memory", shuffle_files=False))
