"""`tfrecord show` of lists of Examples, of events, by the features of known data sets, and as JSON.

Covers index_tools/_features.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from index_tools._features import RECIPES
from index_tools.main import main
from torch_tfrecord import (
    FixedLenFeature,
    ListFeatures,
    SequenceFeatures,
    TFRecordDataset,
    TFRecordWriter,
    encode_image,
    encode_sequence_example,
    infer_features,
    parse_example,
)

DATA = Path(__file__).parents[1] / "data"
PICTURE = encode_image(torch.zeros(3, 4, 6, dtype=torch.uint8), "png")


def write(path, rows):
    with TFRecordWriter(path) as writer:
        for row in rows:
            writer.write(row)


def features_of(text):
    """What the printed code assigns."""
    namespace = {}
    exec(text[text.index("import torch") :], namespace)
    return namespace["features"]


def show_json(capsys, *arguments):
    assert main(["show", *arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


class TestFeatures:
    """As code that runs."""

    def test_lists_of_examples(self, capsys):
        path = str(DATA / "ranking" / "elwc.tfrecord")
        found = infer_features(path)
        assert isinstance(found, ListFeatures)
        assert main(["show", path, "-n", "1"]) == 0
        printed = features_of(capsys.readouterr().out)
        assert printed == found
        # what TF-Ranking reads from the same records, by its own specs: ranking/lists.json
        dataset = TFRecordDataset(path, printed, index="memory")
        for position in range(len(dataset)):
            context, examples = dataset[position]
            assert context.keys() == printed.context_features.keys()
            assert examples.keys() == printed.example_features.keys()

    def test_sequence_examples(self, capsys):
        record = encode_sequence_example({"id": 7}, {"frame": [PICTURE] * 2, "t": [[1], [2, 3]]})
        write("a.tfrecord", [record] * 2)
        assert main(["show", "a.tfrecord"]) == 0
        printed = features_of(capsys.readouterr().out)
        assert isinstance(printed, SequenceFeatures)
        context, steps = TFRecordDataset("a.tfrecord", printed, index="memory")[1]
        assert context == {"id": torch.tensor(7)}
        assert steps["frame"].shape == (2, 3, 4, 6)


class TestEvents:
    """Of TensorBoard, as TensorFlow writes them: events/make.py."""

    def test_tensors(self, capsys):
        path = DATA / "events" / "tensors.tfevents"
        assert main(["show", str(path), "-n", "20", "--no-features"]) == 0
        blocks = [block.split("\n") for block in capsys.readouterr().out.split("\n\n")[:-1]]
        heads = [block[0].split(" bytes, ")[1] for block in blocks]
        assert heads == [
            "event of step 0, brain.Event:2",
            *(f"event of step {step}, 1 value" for step in range(6)),
        ]
        assert [block[1:] for block in blocks] == [
            [],
            ["  loss  float32  1  1"],
            ["  loss  float32  1  0.5"],
            ["  loss  float32  1  0.3333333"],
            ['  picture  bytes  3  "6", "4", png 6x4, 69 bytes'],
            ['  note  bytes  1  "a line of text"'],
            ["  weights  float32  3  1, 2, 3"],
        ]

    def test_values(self, capsys):
        found = show_json(capsys, str(DATA / "events" / "values.tfevents"), "--no-features")
        assert [row["kind"] for row in found] == [
            "event of step 0, brain.Event:2",
            "event of step 7, 3 values",
        ]
        assert found[1]["features"] == [
            ["loss", "float32", "1", "0.5"],
            ["picture", "bytes", "1", "png 6x4, 69 bytes"],
            ["weights", "bytes", "1", '""'],
        ]

    def test_tags_do_not_control_the_terminal(self, capsys):
        # an event of step 0 with a value whose tag has an escape, and one that is no UTF-8
        bad = bytes.fromhex("090000000000000000") + b"\x2a\x0b\x0a\x09\x0a\x02\x1b[\x15\0\0\x80\x3f"
        wrong = bytes.fromhex("090000000000000000") + b"\x2a\x05\x0a\x03\x0a\x01\xff"
        write("a.tfevents", [bad, wrong])
        assert main(["show", "a.tfevents", "--no-features"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1] == "  \\x1b[  float32  1  1"
        assert lines[3].endswith("looks like a TensorFlow event, as in tfevents files")


ROWS = {
    "bert-pretraining": {
        **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), [1] * 128),
        **dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), [1] * 20),
        "masked_lm_weights": [1.0] * 20,
        "next_sentence_labels": 1,
    },
    "imagenet": {
        "image/encoded": PICTURE,
        **dict.fromkeys(("image/height", "image/width", "image/channels"), 3),
        **dict.fromkeys(("image/colorspace", "image/format", "image/filename"), "x"),
        **dict.fromkeys(("image/class/synset", "image/class/text"), "x"),
        "image/class/label": 1,
    },
    "mnist": {
        "image_raw": bytes(784),
        "height": 28,
        "width": 28,
        "depth": 1,
        "label": 5,
    },
    "object-detection": {
        "image/encoded": PICTURE,
        **{f"image/object/bbox/{side}": [0.1, 0.2] for side in ("xmin", "ymin", "xmax", "ymax")},
        "image/object/class/text": ["/m/01", "/m/02"],
    },
    "youtube8m-videos": {
        "id": "abcd",
        "labels": [1, 522],
        "mean_rgb": np.zeros(1024, np.float32),
        "mean_audio": np.zeros(128, np.float32),
    },
}


class TestKnownDataSets:
    """--as."""

    def test_each_recipe_runs_and_says_where_it_is_from(self):
        for name, code in RECIPES.items():
            assert code.startswith("# "), name
            assert features_of(code), name

    @pytest.mark.parametrize("name", [*ROWS, "open-images"])
    def test_records_of_examples(self, name, capsys):
        row = ROWS.get(name, ROWS["object-detection"])
        write("a.tfrecord", [row] * 2)
        assert main(["show", "a.tfrecord", "--as", name]) == 0
        text = capsys.readouterr().out
        assert len([line for line in text.splitlines() if line.startswith("record ")]) == 2
        assert text.endswith(RECIPES[name] + "\n")

    def test_waymo_motion(self, capsys):
        row = {"scenario/id": "abc"}
        rows = 7  # of the road graph: as many as the version has
        for name, spec in features_of(RECIPES["waymo-motion"]).items():
            if name != "scenario/id":
                shape = spec.shape if isinstance(spec, FixedLenFeature) else (rows, *spec.shape)
                is_float = spec.dtype == torch.float32
                row[name] = np.ones(shape, np.float32 if is_float else np.int64)
        # occupancy_flow_data.py: 1 + 5 + 4 + 3 * 12 + 2 * 5 features
        assert len(row) == 56
        assert row["state/future/velocity_x"].shape == (128, 80)
        assert row["traffic_light_state/past/state"].shape == (10, 16)
        assert row["state/id"].dtype == np.float32
        write("a.tfrecord", [row])
        assert main(["show", "a.tfrecord", "--as", "waymo-motion", "--json"]) == 0
        record, features = map(json.loads, capsys.readouterr().out.splitlines())
        assert ["state/past/x", "float32", "1280", "1, 1, 1, 1, 1, 1, 1, 1, ..."] in record[
            "features"
        ]
        assert features == {"features": RECIPES["waymo-motion"]}

    def test_what_does_not_fit_is_named(self, capsys):
        write("a.tfrecord", [ROWS["mnist"], {"label": 3}])
        assert main(["show", "a.tfrecord", "--as", "mnist"]) == 1
        captured = capsys.readouterr()
        assert captured.out.startswith("record 0: a.tfrecord")
        assert captured.err.startswith("tfrecord: a.tfrecord: record 1 at byte 8")
        assert "image_raw" in captured.err


def test_json_of_examples(capsys):
    write("a.tfrecord", [{"label": 3, "name": "a\x1b"}, {"label": 4, "name": "b"}])
    found = show_json(capsys, "a.tfrecord", "--position", "0")
    assert found[0] == {
        "position": 0,
        "path": "a.tfrecord",
        "offset": 0,
        "length": found[0]["length"],
        "kind": "Example, 2 features",
        "features": [
            ["label", "int64", "1", "3"],
            ["name", "bytes", "1", found[0]["features"][1][3]],
        ],
    }
    features = features_of(found[1]["features"].replace("# inferred", "#"))
    assert parse_example([*TFRecordDataset("a.tfrecord", index="memory")], features)[
        "label"
    ].tolist() == [3, 4]


def test_json_of_nothing(capsys):
    write("a.tfrecord", [])
    assert show_json(capsys, "a.tfrecord", "--no-features") == []
