"""tfds.info: dataset_info.json and features.json of every generation, and what is damaged.

Covers tfds/features, tfds/features_json, tfds/splits.
"""

import json
import os
import shutil

import pytest
from tfds_values import DATA, directory

from torch_tfrecord import ParseError, tfds
from torch_tfrecord.tfds import features as f
from torch_tfrecord.tfds.features_json import features_from_json, features_to_json
from torch_tfrecord.tfds.splits import shard_borders, shard_count, shard_paths

CORE = "tensorflow_datasets.core.features."


@pytest.fixture
def folder(tmp_path):
    """A copy whose files a test may change."""
    shutil.copytree(directory("drawings"), tmp_path / "drawings" / "1.2.10")
    return tmp_path / "drawings" / "1.2.10"


def change(folder, **fields):
    path = folder / "dataset_info.json"
    info = json.loads(path.read_text())
    info.update(fields)
    path.write_text(json.dumps({name: value for name, value in info.items() if value is not None}))


def test_what_a_directory_says():
    info = tfds.info(directory("drawings"))
    assert (info.name, info.version, info.config_name) == ("drawings", "1.2.10", None)
    assert info.description == "Drawn pictures."
    assert info.supervised_keys == ("image", "label")
    assert [
        (split.name, split.num_examples, split.shard_lengths) for split in info.splits.values()
    ] == [
        ("train", 5, (2, 3)),
        ("test", 2, (1, 1)),
    ]
    assert info.features["label"].names == ("round", "flat/wide", "étoile")
    assert info.features["label"].int2str(2) == "étoile"
    assert info.features["label"].str2int("flat/wide") == 1
    assert info.features["objects/label"].names == ("a", "b")
    assert info.features["labels"].feature.names == ("x", "y", "z")
    assert info.features["segmentation"].names == ("sky", "road", "car")
    assert info.features["nested/name"]["kind"].names == ("p", "q")
    assert info.features["other"].names is None
    assert info.features["other"].int2str(6) == "6"
    assert info.features["video"].shape == (None, 6, 7, 3)


def test_nested_supervised_keys_and_config():
    info = tfds.info(DATA / "kinds")
    assert info.directory.endswith("kinds/all/0.1.0")
    assert (info.config_name, info.supervised_keys) == (
        "all",
        ({"t": "text", "v": "vector"}, "int8"),
    )


def test_it_prints_for_people():
    text = str(tfds.info(directory("drawings")))
    for part in (
        "drawings/1.2.10",
        "train: 5 examples in 2 shards",
        "'label': ClassLabel(num_classes=3",
        "Sequence(",
    ):
        assert part in text


@pytest.mark.parametrize("name", ["drawings", "kinds", "counted"])
def test_written_json_reads_the_same(name):
    tree = tfds.info(directory(name)).features
    written = json.loads(json.dumps(features_to_json(tree)))
    stored = json.loads((directory(name) / "features.json").read_text())
    assert features_from_json(written, "p") == features_from_json(stored, "p")
    assert eval(repr(tree), vars(f)) == tree


def test_the_highest_version_as_numbers(folder):
    for version in ("1.2.9", "1.10.0", "0.99.99"):
        shutil.copytree(folder, folder.parent / version)
    assert tfds.info(folder.parent).directory.endswith("/1.10.0")


def test_several_configs(folder, tmp_path):
    for config in ("one", "two"):
        shutil.copytree(folder, tmp_path / "many" / config / "1.0.0")
    with pytest.raises(ValueError, match="several configs, choose one: one, two"):
        tfds.info(tmp_path / "many")
    (tmp_path / "many" / ".config").mkdir()
    (tmp_path / "many" / ".config" / "metadata.json").write_text('{"default_config_name": "two"}')
    assert "/two/" in tfds.info(tmp_path / "many").directory


def test_a_directory_that_was_never_finished(folder):
    unfinished = folder.parent / "incomplete.AB12CD_1.2.10"
    folder.rename(unfinished)
    with pytest.raises(ValueError, match="has not finished"):
        tfds.info(unfinished)
    with pytest.raises(FileNotFoundError, match=r"incomplete.AB12CD_1.2.10 was never finished"):
        tfds.info(folder.parent)


def test_not_a_dataset(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match=r"dataset_info.json"):
        tfds.info(DATA.parent)
    (folder / "features.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"features.json"):
        tfds.info(folder)


@pytest.mark.parametrize("kind", ["riegeli", "parquet"])
def test_other_formats_are_refused_by_name(folder, kind):
    change(folder, fileFormat=kind, alternativeFileFormats=["riegeli"])
    expected = (
        f"dataset_info.json: fileFormat: expected 'tfrecord' or 'array_record', got "
        f"'{kind}': .*prepare the dataset"
    )
    with pytest.raises(ParseError, match=expected):
        tfds.info(folder)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"splits": {}}, r"splits"),
        ({"splits": 5}, "splits: expected a list, got 5"),
        ({"splits": [5]}, r"splits\[0\]"),
        ({"splits": [{"name": "a b"}]}, r"splits\[0\].name: expected a split's name, got 'a b'"),
        (
            {"splits": [{"name": "t", "shardLengths": ["x"]}]},
            r"splits\[0\].shardLengths: expected a list of integers",
        ),
        ({"splits": [{"name": "t", "shardLengths": [-1]}]}, r"splits\[0\].shardLengths"),
        ({"splits": [{"name": "t", "shardLengths": ["9" * 30]}]}, r"splits\[0\].shardLengths"),
        (
            {"splits": [{"name": "t", "numBytes": 1.5}]},
            r"splits\[0\].numBytes: expected an integer",
        ),
        ({"splits": [{"name": "t"}, {"name": "t"}]}, "splits: expected different names"),
        ({"version": 3}, "version: expected a string, got 3"),
        (
            {"supervisedKeys": {"tuple": {"items": [{"feature": "x"}]}}},
            "supervisedKeys: expected featureKey",
        ),
    ],
)
def test_damaged_fields_are_named(folder, fields, text):
    change(folder, **fields)
    if fields == {"splits": {}}:
        assert tfds.info(folder).splits == {}
    else:
        with pytest.raises(ParseError, match=f"dataset_info.json: {text}"):
            tfds.info(folder)


@pytest.mark.parametrize("file", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff{}", b"[" * 100_000, b"[1]", b"3"])
def test_damaged_json_is_named(folder, file, content):
    (folder / file).write_bytes(content)
    with pytest.raises(ParseError, match=file):
        tfds.info(folder)


def test_every_cut_of_features_json_is_found(folder):
    whole = (folder / "features.json").read_bytes()
    for length in range(0, len(whole) - 1, 97):
        (folder / "features.json").write_bytes(whole[:length])
        with pytest.raises(ParseError, match=r"features.json: expected JSON, got damaged text"):
            tfds.info(folder)


def test_old_forms_of_dataset_info(folder):
    change(
        folder,
        supervisedKeys={"input": "image", "output": "label"},
        splits=[{"name": "train", "numShards": "2", "numBytes": 7}],
        fileFormat=None,
        sizeInBytes="77",
    )
    info = tfds.info(folder)
    assert info.supervised_keys == ("image", "label")
    assert (info.splits["train"].shard_lengths, info.splits["train"].num_shards) == (None, 2)
    assert [path.rsplit("/", 1)[1] for path in info.files("train")] == [
        "drawings-train.tfrecord-00000-of-00002",
        "drawings-train.tfrecord-00001-of-00002",
    ]


# One tree in the three generations of the format.
TREE = f.FeaturesDict(
    {
        "audio": f.Audio((None,), "int64", file_format="wav", sample_rate=8000),
        "box": f.BBoxFeature(),
        "image": f.Image((None, None, 3), "uint8", "png"),
        "label": f.ClassLabel(4),
        "seq": f.Sequence(f.FeaturesDict({"x": f.Tensor((2,), "float32")})),
        "steps": f.Dataset(f.Scalar("int32"), 3),
        "text": f.Text(),
        "video": f.Video((None, 4, 5, 3)),
        "words": f.Translation(("de", "en")),
    }
)


def old(kind, content):
    return {"type": CORE + kind, "content": content}


OLDEST = old(
    "features_dict.FeaturesDict",
    {
        "audio": old(
            "audio_feature.Audio",
            {"file_format": "wav", "shape": [None], "dtype": "int64", "sample_rate": 8000},
        ),
        "box": old("bounding_boxes.BBoxFeature", {}),
        "image": old(
            "image_feature.Image",
            {"shape": [None, None, 3], "dtype": "uint8", "encoding_format": "png"},
        ),
        "label": old("class_label_feature.ClassLabel", {"num_classes": 4}),
        "seq": old(
            "sequence_feature.Sequence",
            {
                "feature": old(
                    "features_dict.FeaturesDict",
                    {
                        "x": old(
                            "feature.Tensor", {"shape": [2], "dtype": "float32", "encoding": "none"}
                        )
                    },
                ),
                "length": None,
            },
        ),
        "steps": old(
            "dataset_feature.Dataset",
            {"feature": old("scalar.Scalar", {"shape": [], "dtype": "int32"}), "length": 3},
        ),
        "text": old("text_feature.Text", {}),
        "video": old(
            "video_feature.Video",
            {"shape": [None, 4, 5, 3], "encoding_format": None, "ffmpeg_extra_args": []},
        ),
        "words": old("translation_feature.Translation", {"languages": ["de", "en"]}),
    },
)


def between(node, as_text):
    """The new form's content, under the old keys."""
    key = next(name for name in node if name not in ("pythonClassName", "description"))
    content = json.dumps(node[key]) if as_text else node[key]
    return {
        "type": node["pythonClassName"],
        "content": content,
        "proto_cls": "tensorflow_datasets.Feature",
    }


@pytest.mark.parametrize(
    "form",
    [
        features_to_json(TREE),
        OLDEST,
        between(features_to_json(TREE), False),
        between(features_to_json(TREE), True),
    ],
    ids=["new", "oldest", "between", "between as text"],
)
def test_every_generation_of_features_json(form):
    assert features_from_json(json.loads(json.dumps(form)), "features.json") == TREE


def test_numbers_may_be_strings_or_numbers():
    for length, classes in ((-1, 3), ("-1", "3")):
        label = {
            "pythonClassName": CORE + "class_label_feature.ClassLabel",
            "classLabel": {"numClasses": classes},
        }
        node = {
            "pythonClassName": CORE + "sequence_feature.Sequence",
            "sequence": {"feature": label, "length": length},
        }
        root = {
            "pythonClassName": CORE + "features_dict.FeaturesDict",
            "featuresDict": {"features": {"a": node}},
        }
        assert features_from_json(root, "p") == f.FeaturesDict({"a": f.Sequence(f.ClassLabel(3))})


def test_a_feature_called_features():
    inner = old("features_dict.FeaturesDict", {"features": old("text_feature.Text", {})})
    assert features_from_json(inner, "p") == f.FeaturesDict({"features": f.Text()})


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (5, "expected an object, got int"),
        ({}, "expected the feature's class"),
        (
            {
                "pythonClassName": CORE + "image_feature.Image",
                "image": {"shape": {"dimensions": ["x"]}},
            },
            "shape",
        ),
        (
            {
                "pythonClassName": CORE + "image_feature.Image",
                "image": {"shape": {"dimensions": ["3"]}},
            },
            "3 entries",
        ),
        (
            {
                "type": CORE + "tensor_feature.Tensor",
                "content": {"shape": [10**9] * 3, "dtype": "int8"},
            },
            "elements",
        ),
        ({"pythonClassName": CORE + "image_feature.Image", "image": [], "text": {}}, "one content"),
        ({"pythonClassName": CORE + "scalar.Scalar", "tensor": {}}, "expected a dtype"),
        (
            {
                "pythonClassName": CORE + "scalar.Scalar",
                "tensor": {"dtype": "int8", "encoding": "x"},
            },
            "encoding",
        ),
        (
            {"pythonClassName": CORE + "sequence_feature.Sequence", "sequence": {"length": "2"}},
            "expected an object, got NoneType",
        ),
        (
            {
                "pythonClassName": CORE + "bounding_boxes.BBoxFeature",
                "boundingBox": {"bboxFormat": "ZZ"},
            },
            "bbox_format",
        ),
        ({"type": CORE + "text_feature.Text", "content": "{"}, "content as JSON"),
    ],
)
def test_damaged_features_are_named(node, text):
    root = {
        "pythonClassName": CORE + "features_dict.FeaturesDict",
        "featuresDict": {"features": {"a": {}}},
    }
    root["featuresDict"]["features"]["a"] = {
        "pythonClassName": CORE + "features_dict.FeaturesDict",
        "featuresDict": {"features": {"b": node}},
    }
    with pytest.raises(ParseError, match=f"features.json: feature 'a/b': .*{text}"):
        features_from_json(root, "features.json")


def test_old_text_encoders_are_refused_where_asked_for():
    root = old("features_dict.FeaturesDict", {"t": old("text_feature.Text", {"use_encoder": True})})
    assert features_from_json(root, "p")["t"].reason == "text of the old encoders"


def test_labels():
    label = f.ClassLabel(names=["a", "b"])
    with pytest.raises(ValueError, match="at least 0 and below 2, got -1"):
        label.int2str(-1)
    with pytest.raises(ValueError, match="'c' is not a class name; expected one of"):
        label.str2int("c")
    assert f.ClassLabel(num_classes=3).str2int("2") == 2
    with pytest.raises(ValueError, match="number of names, 2"):
        f.ClassLabel(3, ["a", "b"])


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("", "d/n-a.tfrecord-00001-of-00012"),
        ("{SPLIT}/data.{FILEFORMAT}-{SHARD_INDEX}", "d/a/data.tfrecord-00001"),
        ("x_{NUM_SHARDS}_{SHARD_INDEX}", "d/x_00012_00001"),
        ("{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}%gzip", "d/n-a.tfrecord-00001-of-00012"),
        ("{SPLIT}.{FILEFORMAT}@12", "d/a.tfrecord-00001-of-00012"),
        ("{SPLIT}.{FILEFORMAT}@*", "d/a.tfrecord-00001-of-00012"),
    ],
)
def test_templates(template, expected):
    assert shard_paths("d", template, dataset="n", split="a", num_shards=12)[1] == expected


@pytest.mark.parametrize(
    ("template", "dataset", "name"),
    [
        ("/etc/{SPLIT}", "n", "/etc/a"),
        ("../{SPLIT}", "n", "../a"),
        ("x/../../{SPLIT}", "n", "x/../../a"),
        ("{DATASET}", "/n", "/n"),
        ("{DATASET}/x", "..", "../x"),
    ],
)
def test_templates_that_leave_the_folder(template, dataset, name):
    with pytest.raises(ParseError) as caught:
        shard_paths("d", template, dataset=dataset, split="a", num_shards=1)
    assert (
        str(caught.value)
        == f"split 'a': filepathTemplate {template!r} leads outside the dataset directory: {name!r}"
    )
    assert shard_paths("d", "..x/{SPLIT}..", dataset="n", split="a", num_shards=1) == ["d/..x/a.."]


def test_a_template_that_leaves_the_folder_is_neither_read_nor_indexed(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for number in range(2):
        shutil.copy(
            folder / f"drawings-train.tfrecord-0000{number}-of-00002",
            elsewhere / f"x-0000{number}-of-00002",
        )
    split = json.loads((folder / "dataset_info.json").read_text())["splits"][0]
    for template in (f"{elsewhere}/x-{{SHARD_X_OF_Y}}", "../../elsewhere/x-{SHARD_X_OF_Y}"):
        change(folder, splits=[{**split, "filepathTemplate": template}])
        with pytest.raises(ParseError) as caught:
            tfds.load(folder, split="train")
        assert str(caught.value).startswith(
            f"{folder}/dataset_info.json: split 'train': filepathTemplate {template!r} leads outside the dataset"
        )
    assert len(os.listdir(elsewhere)) == 2


@pytest.mark.slow
def test_six_digits_and_templates_that_cannot_be_read():
    assert shard_paths("d", "", dataset="n", split="a", num_shards=100_000)[7].endswith(
        "-000007-of-100000"
    )
    assert shard_paths("d", "{SPLIT}.x", dataset="n", split="a", num_shards=1) == ["d/a.x"]
    for template in ("{SPLIT}.x", "{WHAT}-{SHARD_INDEX}", "{SPLIT"):
        with pytest.raises(ParseError, match="split 'a'"):
            shard_paths("d", template, dataset="n", split="a", num_shards=2)


def test_shards_as_tfds_chooses_them():
    # Values of tensorflow_datasets 4.9.10, shard_utils.ShardConfig.calculate_number_shards.
    mib = 1 << 20
    assert [shard_count(size * mib, 10_000) for size in (1, 64, 127, 128, 300, 5000, 70_000)] == [
        1,
        1,
        1,
        2,
        4,
        64,
        1024,
    ]
    assert shard_count(5000 * mib, 3) == 1 or shard_count(5000 * mib, 10) == 8
    assert shard_count(3000 * 1024 * mib, 100_000) == 3072
    assert shard_borders(127, 4) == [32, 64, 95, 127]
