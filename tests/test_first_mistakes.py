"""What a new user gets wrong first: each error says what to write in its place.

By public names only. More of them, with what is right, are on docs/assistants.md.
Covers arguments.
"""

import copy
import inspect
import pickle
import subprocess
import sys

import pytest
import torch
from helpers import for_each, run_program
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.transforms import v2

import torch_tfrecord
from index_tools.main import main
from torch_tfrecord import TFRecordWriter, encode_image

MISTAKES = [
    # The kind of list.
    ("read(image=FixedLenFeature((), torch.uint8))", "ParseError", "holds bytes: Image() reads a picture"),
    ("read(raw=FixedLenFeature((4,), torch.uint8))", "ParseError", "RawTensor(shape, dtype) an array"),
    ("read(name=VarLenFeature(torch.float32))", "ParseError", "FixedLenFeature((), bytes) the bytes, Text() a"),
    ("read(label=FixedLenFeature((), torch.float32))", "ParseError", "holds int64: read torch.int64, then convert"),
    ("read(label=Text())", "ParseError", "the record holds int64: read torch.int64"),
    ("read(score=FixedLenFeature((), torch.int64))", "ParseError", "holds float32: read torch.float32, then convert"),
    ("read(score=FixedLenFeature((), bytes))", "ParseError", "holds float32: read torch.float32, then convert"),
    # Transforms that take a picture.
    *(
        (
            f"TFRecordDataset(PATH, SPECS, transform={transform})[1]",
            "TypeError",
            f"record 1 at byte {{at}}: the transform {name} takes a picture, and a sample is a dict of 'image', "
            "'label': take a class of torchvision.transforms.v2, or transform sample['image']",
        )
        for transform, name in (
            ("v1.ToTensor()", "ToTensor"),
            ("v1.Compose([v1.ToTensor()])", "Compose"),
            ("v1.Compose([v1.RandomResizedCrop(4), v1.ToTensor()])", "Compose"),
            ("v1.Normalize([0.5], [0.5])", "Normalize"),
            ("v2.functional.to_image", "to_image"),
        )
    ),
    ("next(iter(make_dataloader(PATH, 2, SPECS, transform=v1.Resize(4))))", "TypeError", "torchvision.transforms.v2"),
    # Specs.
    ("Image(crop=v2.RandomResizedCrop(224))", "TypeError", "ResizedCenterCrop(size), got torchvision.transforms.v2."),
    ("Image(224)", "ValueError", "crop=RandomResizedCrop(224), or a transform"),
    ("Image([224, 224])", "ValueError", "crop=RandomResizedCrop(224), or a transform"),
    ('Image("rgb")', "ValueError", "got 'rgb': did you mean 'RGB'?"),
    ('Image("image/encoded")', "ValueError", "did you mean key='image/encoded'?"),
    ('TFRecordDataset(PATH, {"image": Image})', "TypeError", "this one is the class: Image(...) makes a spec of it"),
    ('TFRecordDataset(PATH, {"label": FixedLenFeature})', "TypeError", "FixedLenFeature(...) makes a spec"),
    ("parse_example(RECORD)", "ValueError", "decode_example(record) needs none"),
    ("parse_single_example(RECORD)", "ValueError", "decode_example(record) needs none"),
    # The order of arguments, and what is read.
    ("make_dataloader(PATH, SPECS, 2)", "TypeError", "the order is make_dataloader(paths, batch_size, features)"),
    ("make_dataloader(PATH, SPECS)", "TypeError", "the order is make_dataloader(paths, batch_size, features)"),
    ("make_dataloader(DataLoader(DS, 2), 2)", "TypeError", "got a DataLoader: pass its dataset, loader.dataset"),
    ("make_dataloader(make_dataloader(DS, 2), 2)", "TypeError", "pass its dataset, loader.dataset"),
    ("make_dataloader([DS, DS], 2)", "TypeError", "joined by torch.utils.data.ConcatDataset, or by Mixture"),
    ("TFRecordDataset([DS, DS])", "TypeError", "torch.utils.data.ConcatDataset"),
    # Names that are not quite right.
    ("TFRecordDataset(PATH, tranform=None)", "TypeError", "keyword argument 'tranform'; did you mean 'transform'?"),
    ("TFRecordIterableDataset(PATH, bach_size=2)", "TypeError", "'bach_size'; did you mean 'batch_size'?"),
    ("FixedLenFeature((), torch.int64, defaultvalue=1)", "TypeError", "did you mean 'default_value'?"),
    ('Image(shapes=("h", "w", 3))', "TypeError", "did you mean 'shape'?"),
    ("RandomResizedCrop(4, scal=(0.5, 1))", "TypeError", "did you mean 'scale'?"),
    ("LengthBatchSampler(DS, max_token=9)", "TypeError", "did you mean 'max_tokens'?"),
    ("RecordSampler(DS, suffle=True)", "TypeError", "did you mean 'shuffle'?"),
    ("PaddedCollate(padding_value=1)", "TypeError", "did you mean 'padding_values'?"),
    ('TFRecordWriter("new", compression="GZIP")', "TypeError", "did you mean 'compression_type'?"),
    ('ShardedTFRecordWriter("new", n_shards=2)', "TypeError", "did you mean 'num_shards'?"),
    ("read(lable=FixedLenFeature((), torch.int64))", "ParseError", "'score'; did you mean 'label'?"),
    ('read(x=Image(key="imag"))', "ParseError", "; did you mean 'image'?"),
    ("torch_tfrecord.TFRecordDatset", "AttributeError", "did you mean 'TFRecordDataset'?"),
    ("torch_tfrecord.make_dataLoader", "AttributeError", "did you mean 'make_dataloader'?"),
    ("torch_tfrecord.xyzzy", "AttributeError", "module 'torch_tfrecord' has no attribute 'xyzzy'"),
    # Paths.
    ('TFRecordDataset("data/trian.tfrecord")', "FileNotFoundError", "did you mean 'train.tfrecord'?"),
    ('TFRecordDataset("data/train")', "FileNotFoundError", "did you mean 'train.tfrecord'?"),
    ('TFRecordDataset("data/val")', "FileNotFoundError", "did you mean 'val-*'?"),
    ('TFRecordDataset("dta/train.tfrecord")', "FileNotFoundError", "there is no folder 'dta'"),
    ('TFRecordDataset("data/old/train-*")', "FileNotFoundError", "there is no folder 'data/old'"),
    ('TFRecordDataset("dat")', "FileNotFoundError", "did you mean 'data'?"),
    ('find_files("data/trian.tfrecord")', "FileNotFoundError", "did you mean 'train.tfrecord'?"),
    # Methods of tf.data's and Hugging Face's datasets.
    ("DS.map(len)", "AttributeError", "'TFRecordDataset' object has no attribute 'map': transform= "),
    ("DS.filter(len)", "AttributeError", "where(name, value) selects records"),
    ("DS.shuffle(100)", "AttributeError", "make_dataloader(ds, batch_size) shuffles"),
    ("DS.batch(2)", "AttributeError", "make_dataloader(ds, batch_size) makes batches"),
    ("DS.take(2)", "AttributeError", "ds[:n] is a dataset of the first n"),
    ("DS.skip(2)", "AttributeError", "ds[n:] is a dataset of the rest"),
    ("TFRecordIterableDataset(PATH).shuffle(100)", "AttributeError", "a stream takes shuffle=True"),
    ("Mixture([DS, DS]).map(len)", "AttributeError", "transform= "),
    ('DS["label"]', "TypeError", "got 'label': ds[0] is a sample, ds.select_columns([name]) a dataset of one feature"),
    ("DS[0.5]", "TypeError", "a position must be an integer, got 0.5"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "data").mkdir()
    picture = encode_image(torch.zeros(3, 8, 8, dtype=torch.uint8))
    names = ["train.tfrecord", "val-00000-of-00002.tfrecord", "val-00001-of-00002.tfrecord"]
    for name in names:
        with TFRecordWriter(folder / "data" / name) as writer:
            for number in range(4):
                writer.write(
                    {"image": picture, "label": number, "score": 0.5, "name": "x", "raw": bytes(4)}
                )
    return folder


@pytest.fixture
def names(folder, monkeypatch):
    """What the programs may use."""
    monkeypatch.chdir(folder)
    public = {name: getattr(torch_tfrecord, name) for name in torch_tfrecord.__all__}
    specs = {
        "image": public["Image"](),
        "label": public["FixedLenFeature"]((), torch.int64),
    }
    ds = torch_tfrecord.TFRecordDataset("data/train.tfrecord", specs)
    return public | {
        "torch_tfrecord": torch_tfrecord,
        "torch": torch,
        "DataLoader": DataLoader,
        "v1": v1,
        "v2": v2,
        "PATH": "data/train.tfrecord",
        "SPECS": specs,
        "DS": ds,
        "RECORD": ds.raw(0),
        "read": lambda **specs: torch_tfrecord.TFRecordDataset("data/train.tfrecord", specs)[0],
    }


@for_each(("program", "kind", "words"), MISTAKES)
def test_the_error_says_what_to_do(names, program, kind, words):
    words = words.replace("{at}", str(names["DS"].locate(1)[1]))
    with pytest.raises(Exception, match=r"\w") as caught:
        eval(program, names)
    assert (caught.type.__name__, words in str(caught.value)) == (kind, True), caught.value


def test_errors_of_ours_that_look_like_those_stay(names):
    """A transform's own TypeError is not taken for one of torchvision's."""

    def fails(sample):
        raise TypeError("expected a path")

    ds = torch_tfrecord.TFRecordDataset(names["PATH"], names["SPECS"], transform=fails)
    with pytest.raises(TypeError, match=r"^expected a path"):
        ds[0]
    # Without a name that is like it, the list of names and the usual advice.
    with pytest.raises(torch_tfrecord.ParseError, match=r"'score'; to read records that lack it"):
        names["read"](nothing_like_it=torch_tfrecord.Image())


def test_datasets_have_no_attributes_for_it(names):
    """hasattr, getattr with a default, copy and pickle see nothing of the hints."""
    dataset = names["DS"]
    stream = torch_tfrecord.TFRecordIterableDataset(names["PATH"], names["SPECS"])
    for one in (dataset, stream, dataset[1:], torch_tfrecord.Mixture([dataset, dataset])):
        assert not hasattr(one, "map") and not hasattr(one, "shuffle")
        assert getattr(one, "take", 3) == 3
        assert "map" not in dir(one)
        with pytest.raises(AttributeError, match=r"object has no attribute '_nothing'$"):
            one._nothing  # noqa: B018
        for again in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            assert type(again) is type(one)
    assert copy.deepcopy(dataset)[3]["label"] == 3
    blank = type(dataset).__new__(type(dataset))  # as pickle makes one
    assert not hasattr(blank, "map")


def test_classes_keep_their_signatures():
    for kind in (torch_tfrecord.TFRecordDataset, torch_tfrecord.Image):
        found = inspect.signature(kind).parameters
        assert "kwargs" not in found and "named" not in found
    assert {"transform", "index_dir"} < {
        *inspect.signature(torch_tfrecord.TFRecordDataset).parameters
    }
    assert next(iter(inspect.signature(torch_tfrecord.Image).parameters)) == "mode"


REMOTE = """
import sys
for name in ("obstore", "s3fs", "gcsfs", "adlfs", "aiohttp"):
    sys.modules[name] = None  # as if it was not installed
from torch_tfrecord import TFRecordDataset
try:
    TFRecordDataset(sys.argv[1])
except ImportError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "https"])
def test_remote_paths_without_the_extra(tmp_path, scheme):
    done = run_program(REMOTE, tmp_path, f"{scheme}://bucket/train.tfrecord")
    assert done.stdout == (
        f"reading {scheme}:// needs the package obstore: pip install obstore, or all of its extra: pip install "
        "'torch-tfrecord[remote]', in a clone pip install -e '.[remote]'\n"
    ), done.stderr


@pytest.mark.slow
def test_a_server_without_ranges(folder):
    """It is asked for a range once, not six times with pauses."""
    pytest.importorskip("obstore")
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            port = server.stdout.readline().split(" port ")[1].split()[0]
            with pytest.raises(
                torch_tfrecord.RemoteError,
                match=r"the server does not send ranges, as python -m http.server: take another one \(1 attempt\)",
            ):
                torch_tfrecord.TFRecordDataset(
                    f"http://127.0.0.1:{port}/data/train.tfrecord", index="memory"
                )
        finally:
            server.terminate()
        asked = server.stderr.read().count('"GET /data/train.tfrecord HTTP')
    assert asked == 1


@for_each(
    ("sets", "hint"),
    [
        (["train=0.8", "test=0.1"], "they sum to 0.9; test=0.2 would do"),
        (["train=80", "test=20"], "they sum to 100"),
        (["train=0.9", "val=0.05", "test=0.2"], "they sum to 1.15; test=0.05 would do"),
    ],
)
def test_split_says_what_the_shares_are(folder, capsys, sets, hint):
    assert main(["split", str(folder / "data/train.tfrecord"), str(folder / "out/x"), *sets]) == 2
    assert hint in capsys.readouterr().err
