"""docs/recipes: the values that the pages read are those that the original programs read.

tests/data/recipes/<name>/make.py says what wrote the records, and what read them.
"""

import zipfile

import numpy as np
import pytest
import torch
from recipe_data import DATA, NEEDS_DOCS, assert_equal

from torch_tfrecord import TFRecordDataset, collate

pytestmark = NEEDS_DOCS


@pytest.fixture
def read(run):
    """Run a recipe on its files; its names, and what the original read."""

    def read(page):
        with zipfile.ZipFile(DATA.parent / page / "data.zip") as data:
            data.extractall()
        with np.load("expected.npz") as stored:
            return run(page), dict(stored)

    return read


def test_youtube8m(read):
    names, original = read("recipes/youtube8m")
    batch = names["batch"] | {"num_frames": names["num_frames"].int()}
    for name, column in batch.items():
        assert_equal(column, np.concatenate([original[f"train/{n}/{name}"] for n in range(4)]))
    assert batch["num_frames"].tolist() == [4, 1, 300, 2]
    # The segments that the last record labels first begin at 15, 0 and 20.
    orders = [[0, 1], [0], [1, 0, 2]]
    for mine, name in (("matrices", "video_matrix"), ("labels", ""), ("weights", "label_weights")):
        theirs = [original[f"valid/{number}/{name or mine}"] for number in range(3)]
        rows = [array[order] for array, order in zip(theirs, orders, strict=True)]
        assert_equal(names[mine], np.concatenate(rows))
    assert not names["matrices"][5, 2:].any()  # behind the last frame


def test_bert(read):
    names, original = read("recipes/bert")
    records = names["records"]
    batch = collate([records[position] for position in range(len(records))])
    assert {f"batch/{name}" for name in batch} == original.keys()
    for name, column in batch.items():
        assert_equal(column, original[f"batch/{name}"])
    inputs = names["for_transformers"](batch)
    words = inputs["labels"] != -100
    assert words.sum() == original["batch/masked_lm_weights"].sum()
    # The ids of what was masked, in the order of the places.
    ids, used = original["batch/masked_lm_ids"], original["batch/masked_lm_weights"] > 0
    assert inputs["labels"][words].tolist() == ids[used].tolist()
    assert (inputs["input_ids"][words] == 4).float().mean() > 0.5  # [MASK]
    (shuffled,) = names["loader"]
    assert sorted(shuffled["input_ids"].tolist()) == sorted(batch["input_ids"].tolist())


def test_object_detection(read):
    names, original = read("recipes/object_detection")
    found = TFRecordDataset("coco*.tfrecord", names["features"], transform=names["read"])
    for number, sample in enumerate(found):
        sample["image"] = sample["image"].permute(1, 2, 0)
        sample["source_id"] = [sample["source_id"]]
        for name, value in sample.items():
            assert_equal(value, original[f"{number}/{name}"])
    assert number == 2
    assert original["0/groundtruth_boxes"].shape == (2, 4)
    images, targets = names["as_lists"](names["records"])
    assert [len(target["boxes"]) for target in targets] == [2, 0, 2]
    assert targets[0]["boxes"].tolist() == pytest.approx(np.array([[2, 3, 12, 11], [0, 0, 32, 24]]))
    assert targets[0]["masks"].shape == (2, 24, 32)
    assert images[2].shape == (3, 11, 17)


def test_flowers(read):
    names, original = read("recipes/flowers")
    difference = 0
    for kind, dataset in (("train", "train"), ("val", "validation"), ("test", "test")):
        samples = names[dataset]
        if kind == "train":  # without its random flips
            samples = TFRecordDataset(samples.files, names["labeled"], transform=names["scale"])
        assert len(samples) == {"train": 3}.get(kind, 2)
        for number, sample in enumerate(samples):
            image, other = sample.values()
            expected = original[f"{kind}/{number}/accurate"]
            # torchvision multiplies by 1 / 255, which may differ from a division in the last bit.
            accurate = torch.from_numpy(expected).permute(2, 0, 1)
            torch.testing.assert_close(image, accurate, rtol=2**-23, atol=0)
            as_it_is = original[f"{kind}/{number}/image"]
            difference = max(difference, np.abs(as_it_is - expected).max() * 255)
            other = [other] if kind == "test" else other
            assert_equal(other, original[f"{kind}/{number}/other"])
    assert (
        1 <= round(difference) <= 11
    )  # of TensorFlow's two ways to decode, as docs/images.md says
    assert names["label"].tolist() == [5, 5]
    (batch,) = names["loader"]
    assert sorted(batch[1].tolist()) == [0, 67, 103]
    assert [name for name, _ in zip(names["batch"]["id"], names["rows"], strict=False)] == [
        "000000005",
        "000000006",
    ]


def test_nsynth(read):
    names, original = read("recipes/nsynth")
    for number, note in enumerate(names["notes"]):
        for name, value in note.items():
            expected = original[f"{number}/{name}"]
            found = [value] if name == "note_str" else value.reshape(expected.shape)
            assert_equal(found, expected)
        assert torch.equal(names["batch"]["audio"][number, 0], note["audio"][28928:35072])
    assert number == 3
    assert {key.split("/")[1] for key in original} == note.keys()
    assert [note["note_str"] for note in names["acoustic"]] == [
        "flute_acoustic_001-060-025",
        "brass_acoustic_003-024-050",
    ]


def test_deepvariant(read):
    names, original = read("recipes/deepvariant")
    for number, (sample, call) in enumerate(zip(names["train"], names["candidates"], strict=True)):
        for name, value in sample.items():
            assert_equal(value, original[f"{number}/train/{name}"])
        assert torch.equal(call["image"], sample["image"])
        assert call["locus"] == original[f"{number}/locus"].item().decode()
        for name in ("variant/encoded", "alt_allele_indices/encoded"):
            assert call[name].hex() == original[f"{number}/{name}"].item()
        found = names["preprocess"](sample["image"][None])[0]
        assert_equal(found, original[f"{number}/preprocessed"].transpose(2, 0, 1))
    assert number == 2
    assert names["images"].shape == (3, 7, 12, 21)
    assert sorted(names["label"].flatten().tolist()) == [0, 1, 2]
    weights = [original[f"{number}/train/sample_weight"].item() for number in range(3)]
    assert weights == [1, 10, 1]


def test_t5(read):
    names, original = read("recipes/t5")
    assert len(names["pairs"].files) == 3
    for name, column in names["batch"].items():
        assert_equal(column, original[f"padded/{name}"])
    tokens = original["padded/decoder_target_tokens"]
    assert sorted((tokens != 0).sum(1)) == [2, 4, 31, 41, 51, 61, 114, 114]
    # Which documents share a row differs; each row of the original is one of ours.
    position = 0
    segments = original["packed/decoder_segment_ids"]
    for row, number in enumerate(segments.max(1)):
        samples = [names["texts"][place] for place in range(position, position + number)]
        position += number
        for name, column in names["decoder_only"](samples).items():
            assert_equal(column[0], original[f"packed/{name}"][row])
    assert position == len(tokens)
    assert segments.max() > 1
    assert len(names["packed"]["decoder_target_tokens"]) == 4 <= len(segments)
    documents = names["packed"]["decoder_segment_ids"].max(1).values
    assert documents.sum() == len(tokens)


def test_proteins(read):
    names, original = read("recipes/proteins")
    for number, protein in enumerate(names["proteins"]):
        for name, value in protein.items():
            found = [value] if isinstance(value, str) else value
            assert_equal(found, original[f"{number}/{name}"])
    assert number == 2
    assert {key.split("/")[1] for key in original} == protein.keys() | {"seq_length"}
    assert names["lengths"]["aatype"].tolist() == [[9, 21], [1, 21], [6, 21]]
    pairs = names["batch"]["gap_matrix"]
    assert pairs.shape == (3, 9, 9, 1)
    assert_equal(pairs[2, :6, :6], original["2/gap_matrix"])
    assert not pairs[2, 6:].any()


def test_ranking(read):
    names, original = read("recipes/ranking")
    context, documents = names["batch"]
    assert not context
    assert {f"batch/{name}" for name in documents} == original.keys()
    for name, column in documents.items():
        assert_equal(column, original[f"batch/{name}"])
    assert names["x"].shape == (4, 10, 136)
    assert_equal(names["x"][..., 6:7], original["batch/custom_features_7"])
    assert_equal(names["labels"].long(), original["batch/utility"][..., 0])
    assert names["mask"].sum(1).tolist() == [3, 1, 10, 10]
