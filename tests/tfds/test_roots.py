"""Datasets whose features are not a FeaturesDict of values, and those without features.json, by
every way in.

Covers tfds/dataset_info, tfds/episodes, tfds/loading.
That the values are TFDS's, test_structures.py says.
"""

import copy
import json
import pickle

import pytest
import torch
from tfds_values import assert_same
from torch.utils.data import DataLoader

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    Json,
    ParseError,
    SequenceFeatures,
    Text,
    TFRecordDataset,
    TFRecordWriter,
    collate,
    encode_sequence_example,
    make_dataloader,
    tfds,
)
from torch_tfrecord.tfds import features as f
from torch_tfrecord.tfds.features_json import features_to_json

PAIRS = [{"de": f"Satz {n}", "en": f"sentence {n}"} for n in range(4)]
WORDS = [{"word": [f"w{k}" for k in range(n)], "tag": torch.arange(n)} for n in range(4)]
EMPTY = [
    {"x": torch.tensor(n), "meta": {}, "deep": {"a": torch.tensor([n, n]), "b": {"c": {}}}}
    for n in range(4)
]
EMPTY_FEATURES = {
    "x": f.Scalar("int64"),
    "meta": {},
    "deep": {"a": f.Tensor((2,), "int64"), "b": {"c": {}}},
}
ROOTS = [
    (f.Translation(("de", "en")), PAIRS),
    (f.Sequence({"word": f.Text(), "tag": f.ClassLabel(num_classes=5)}), WORDS),
    (f.Dataset({"word": f.Text(), "tag": f.ClassLabel(num_classes=5)}), WORDS),
    (f.FeaturesDict(EMPTY_FEATURES), EMPTY),
]
NAMES = ["translation", "sequence", "dataset", "empty"]


@pytest.fixture
def written(tmp_path):
    def write(features, samples, **options):
        return tfds.write(
            tmp_path / "one" / "1.0.0", {"train": samples}, features, name="one", **options
        ).directory

    return write


def assert_batch(batch, samples):
    """A batch against what `collate` makes of the samples themselves."""
    assert_same(batch, collate(copy.deepcopy(samples)))


@pytest.mark.slow
@pytest.mark.parametrize(("features", "samples"), ROOTS, ids=NAMES)
def test_every_way_in(written, features, samples):
    directory = written(features, samples)
    assert tfds.info(directory).features == features
    ds = tfds.load(directory)
    assert_same([ds[n] for n in range(4)], samples)
    assert_same(list(ds.__getitems__([3, 1])), [samples[3], samples[1]])
    assert_batch(ds[[3, 1]], [samples[3], samples[1]])
    assert_same(pickle.loads(pickle.dumps(ds))[3], samples[3])
    for workers in (0, 2):
        batches = list(DataLoader(ds, 2, num_workers=workers, collate_fn=collate))
        for number, batch in enumerate(batches):
            assert_batch(batch, samples[2 * number : 2 * number + 2])
        loader = make_dataloader(ds, 2, shuffle=False, num_workers=workers)
        for batch, other in zip(loader, batches, strict=True):
            assert_same(batch, other)


@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_own_collate(written, workers):
    batch = next(iter(DataLoader(tfds.load(written(*ROOTS[0])), 2, num_workers=workers)))
    assert batch == {"de": ["Satz 0", "Satz 1"], "en": ["sentence 0", "sentence 1"]}


@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_own_collate_keeps_empty_dicts(written, workers):
    batch = next(iter(DataLoader(tfds.load(written(*ROOTS[3])), 2, num_workers=workers)))
    assert batch["meta"] == {}
    assert batch["deep"]["b"] == {"c": {}}
    assert batch["x"].tolist() == [0, 1]


def test_parts_of_a_translation(written):
    info = tfds.info(written(ROOTS[0][0], PAIRS, supervised_keys=("de", "en")))
    assert info.features["en"] == f.Text()
    assert list(f.Translation(iter(["en", "de"]))) == ["en", "de"]
    assert tfds.load(info, as_supervised=True)[1] == ("Satz 1", "sentence 1")
    assert tfds.load(info, features=["en"])[2] == {"en": "sentence 2"}
    assert eval(repr(info.features), vars(f)) == info.features


def test_parts_of_a_sequence(written):
    info = tfds.info(written(ROOTS[1][0], WORDS))
    assert info.features["tag"].num_classes == 5
    assert "tag" in info.features
    assert "x" not in info.features
    assert tfds.load(info, features=["word"])[2] == {"word": ["w0", "w1"]}
    with pytest.raises(KeyError, match="no feature 'x'; there are tag, word"):
        tfds.load(info, features=["x"])


def test_texts_in_varying_languages(written):
    samples = [{"de": "eins", "en": ["one", "uno"]}, {"en": "two"}]
    ds = tfds.load(written(f.TranslationVariableLanguages(("de", "en")), samples))
    assert ds[0] == {"language": ["de", "en", "en"], "translation": ["eins", "one", "uno"]}
    assert ds[1] == {"language": ["en"], "translation": ["two"]}


def test_an_empty_dict_by_name(written):
    directory = written(*ROOTS[3])
    assert tfds.load(directory, features=["meta"])[0] == {"meta": {}}
    assert tfds.load(directory, features=["deep/b"])[0] == {"deep": {"b": {"c": {}}}}
    assert set(tfds.load(directory, features=["x"])[0]) == {"x"}
    assert collate(tfds.load(directory, features=["meta"]).__getitems__([0, 1])) == {"meta": {}}


@pytest.mark.parametrize(
    "root", [f.Text(), f.Tensor((2,), "int64"), f.Sequence(f.Scalar("int64")), f.Video()]
)
def test_roots_that_tfds_cannot_write(tmp_path, written, root):
    directory = written(*ROOTS[0])
    (tmp_path / "one" / "1.0.0" / "features.json").write_text(json.dumps(features_to_json(root)))
    with pytest.raises(
        ParseError, match=r"features.json: expected a FeaturesDict, or a Sequence of dicts, got "
    ):
        tfds.info(directory)
    with pytest.raises(TypeError, match="expected a FeaturesDict, or a Sequence of dicts, got"):
        tfds.write(tmp_path / "two", {"train": PAIRS}, root, name="two")


def test_episodes_without_metadata(written):
    step = {
        "action": f.Tensor((2,), "float32"),
        "observation": {"state": f.Scalar("int64")},
        "info": {},
    }
    features = {"steps": f.Dataset(step), "episode_metadata": {}}
    episodes = [
        {
            "steps": {
                "action": torch.ones(n, 2),
                "observation": {"state": torch.arange(n)},
                "info": {},
            },
            "episode_metadata": {},
        }
        for n in (3, 2)
    ]
    directory = written(features, episodes)
    ds = tfds.RLDSDataset(directory, window_size=2)
    assert ds[0]["episode_metadata"] == {} == ds[4]["info"]
    for batch in DataLoader(ds, 3, collate_fn=collate):
        assert batch["episode_metadata"] == {} == batch["info"]
        assert batch["action"].shape[1:] == (1, 2)
    assert set(tfds.RLDSDataset(directory, features=["steps/action", "episode_metadata"])[0]) >= {
        "episode_metadata"
    }
    transformed = tfds.RLDSDataset(directory, episode_transform=dict)
    assert_same(transformed[1], tfds.RLDSDataset(directory)[1])
    whole = tfds.RLDSEpisodes(directory)[0]
    assert whole["episode_metadata"] == {} == whole["steps"]["info"]


# Without features.json.

PICTURES = [
    {"image": torch.full((3, 4, 5), n, dtype=torch.uint8), "label": n % 2, "name": f"n{n}"}
    for n in range(5)
]
TREE = {
    "image": f.Image(encoding_format="png"),
    "label": f.ClassLabel(names=["a", "b"]),
    "name": f.Text(),
}
SPECS = {"image": Image("RGB"), "label": FixedLenFeature((), torch.int64), "name": Text()}


@pytest.fixture
def old(tmp_path, written):
    """A directory as TFDS 1 wrote it."""
    folder = tmp_path / "one" / "1.0.0"
    written(TREE, PICTURES, supervised_keys=("image", "label"), num_shards=2)
    info = {
        "citation": "none",
        "location": {"urls": ["https://example.com"]},
        "name": "one",
        "schema": {"feature": [{"name": "image", "type": "BYTES"}]},
        "sizeInBytes": "12",
        "downloadChecksums": {},
        "splits": [{"name": "train", "numShards": "2", "statistics": {"numExamples": "5"}}],
        "supervisedKeys": {"input": "image", "output": "label"},
        "version": "1.0.0",
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").unlink()
    return folder


def test_episodes_of_an_old_directory(written, tmp_path):
    tree = f.FeaturesDict(
        {"steps": f.Dataset({"action": f.Tensor((2,), "float32")}), "id": f.Text()}
    )
    directory = written(tree, [{"steps": {"action": torch.ones(3, 2)}, "id": "first"}])
    with pytest.raises(TypeError, match="features must be names"):
        tfds.RLDSDataset(directory, features={"id": Text()})
    (tmp_path / "one" / "1.0.0" / "features.json").unlink()
    ds = tfds.RLDSDataset(directory, features=tree)
    assert (len(ds), ds[2]["id"], ds[2]["action"].tolist()) == (3, "first", [[1.0, 1.0]])
    assert tfds.RLDSEpisodes(directory, features=tree)[0]["steps"]["action"].shape == (3, 2)


def test_the_error_says_what_to_give(old):
    for read in (tfds.info, tfds.load, tfds.RLDSDataset):
        with pytest.raises(
            FileNotFoundError,
            match=r"no features.json .* give tfds.load features=, specs or a Feat",
        ):
            read(old)
    for names in (["image"], {"image": True}):
        with pytest.raises(FileNotFoundError, match=r"no features.json"):
            tfds.load(old, features=names)


@pytest.mark.slow
@pytest.mark.parametrize(
    "features", [SPECS, TREE, f.FeaturesDict(TREE)], ids=["specs", "mapping", "tree"]
)
def test_features_of_an_old_directory(old, features):
    ds = tfds.load(old, "train[1:]", features=features)
    assert isinstance(ds, TFRecordDataset)
    assert len(ds) == 4
    for number in range(4):
        assert ds[number]["image"].tolist() == PICTURES[number + 1]["image"].tolist()
        assert (int(ds[number]["label"]), ds[number]["name"]) == (
            (number + 1) % 2,
            f"n{number + 1}",
        )
    for workers in (0, 2):
        first = next(iter(DataLoader(ds, 4, num_workers=workers, collate_fn=collate)))
        assert first["image"].shape == (4, 3, 4, 5)
        assert first["label"].tolist() == [1, 0, 1, 0]
        loader = make_dataloader(ds, 4, shuffle=False, num_workers=workers)
        assert next(iter(loader))["name"] == ["n1", "n2", "n3", "n4"]
    assert next(iter(DataLoader(ds, 2)))["label"].tolist() == [1, 0]
    assert pickle.loads(pickle.dumps(ds))[0]["name"] == "n1"


def test_a_tree_does_what_features_json_does(old):
    image, label = tfds.load(old, features=f.FeaturesDict(TREE), as_supervised=True)[3]
    assert (image.shape, int(label)) == ((3, 4, 5), 1)
    encoded = tfds.load(old, features=TREE, decoders={"image": None})
    assert encoded[0]["image"][:4] == b"\x89PNG"


def test_specs_are_read_instead_of_features_json(written, tmp_path):
    directory = written(TREE, PICTURES)
    (tmp_path / "one" / "1.0.0" / "features.json").write_text("damaged")
    assert tfds.load(directory, features={"title": Text(key="name")})[2] == {"title": "n2"}
    for name, value in (
        ("as_numpy_layout", True),
        ("decoders", {"image": None}),
        ("defaults", {"label": 0}),
    ):
        with pytest.raises(ValueError, match=f"{name} must not be given with feature specs"):
            tfds.load(directory, features=SPECS, **{name: value})
    with pytest.raises(TypeError, match="name"):
        tfds.load(directory, features={**SPECS, "name": True})


@pytest.mark.parametrize("has_tree", [True, False])
def test_one_spec_for_whole_records(written, tmp_path, has_tree):
    directory = written(TREE, PICTURES[:2])
    folder = tmp_path / "one" / "1.0.0"
    (folder / "features.json").write_text("damaged") if has_tree else (
        folder / "features.json"
    ).unlink()
    [shard] = folder.glob("*.tfrecord*")
    with TFRecordWriter(shard) as writer:
        writer.write("tëxt".encode())
        writer.write(b"[2, 5]")
    ds = tfds.load(directory, features=Text())
    assert [*ds] == ["tëxt", "[2, 5]"]
    assert next(iter(DataLoader(ds, 2))) == ["tëxt", "[2, 5]"]
    assert tfds.load(directory, "train[1:]", features=Json())[0] == [2, 5]
    with pytest.raises(
        ValueError, match=r"as_supervised must not be given with feature specs|no supervised_keys"
    ):
        tfds.load(directory, features=Text(), as_supervised=True)
    with TFRecordWriter(shard) as writer:
        for number in range(2):
            writer.write(
                encode_sequence_example({"n": number}, {"word": [b"a", b"b"][: number + 1]})
            )
    sequences = SequenceFeatures(
        {"n": FixedLenFeature((), torch.int64)}, {"word": FixedLenSequenceFeature((), bytes)}
    )
    assert tfds.load(directory, features=sequences)[1] == ({"n": 1}, {"word": [b"a", b"b"]})
