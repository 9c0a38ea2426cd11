"""The exceptions: their text, their tree, and their way through a DataLoader worker."""

import copy
import importlib
import pickle
import re
from pathlib import Path

import pytest
from helpers import for_each
from torch._utils import ExceptionWrapper

import torch_tfrecord
from torch_tfrecord import errors

CLASSES = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]


@for_each(
    ("known", "text"),
    [
        ({}, "bad"),
        ({"path": "a"}, "a: bad"),
        ({"offset": 0}, "at byte 0: bad"),
        ({"position": 0}, "record 0: bad"),
        ({"position": 2, "offset": 38}, "record 2 at byte 38: bad"),
        ({"path": Path("d/a"), "position": 2, "offset": 38}, "d/a: record 2 at byte 38: bad"),
    ],
)
@for_each("kind", CLASSES)
def test_text_and_attributes(kind, known, text):
    error = kind("bad", **known)
    assert str(error) == text
    expected = (
        str(known["path"]) if "path" in known else None,
        known.get("offset"),
        known.get("position"),
    )
    assert (error.path, error.offset, error.position) == expected


@pytest.mark.parametrize("kind", CLASSES)
def test_tree_and_export(kind):
    assert issubclass(kind, errors.TFRecordError)
    assert not issubclass(kind, (OSError, ValueError, TypeError))
    assert getattr(torch_tfrecord, kind.__name__) is kind


def test_at_most_eight_classes():
    assert len(CLASSES) == 8


@pytest.mark.parametrize(
    "again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy]
)
@pytest.mark.parametrize("kind", CLASSES)
def test_pickle_and_copy_keep_everything(kind, again):
    error = again(kind("bad", path="p", offset=7, position=1))
    assert type(error) is kind
    assert (str(error), error.path, error.offset, error.position) == (
        "p: record 1 at byte 7: bad",
        "p",
        7,
        1,
    )


@pytest.mark.parametrize("kind", CLASSES)
def test_torch_rebuilds_the_class_from_a_worker(kind):
    try:
        raise kind("bad", path="p", offset=7, position=1)
    except errors.TFRecordError:
        wrapper = pickle.loads(pickle.dumps(ExceptionWrapper(where="in worker")))
    with pytest.raises(kind, match="p: record 1 at byte 7: bad"):
        wrapper.reraise()


def test_locate_fills_only_what_is_not_known():
    error = errors.CorruptRecordError("bad", offset=5)
    assert error.locate(path="p", offset=9, position=0) is error
    assert str(error.locate(path="q", position=8)) == "p: record 0 at byte 5: bad"


def test_without_text():
    assert str(errors.TFRecordError()) == ""
    with pytest.raises(TypeError):
        errors.TFRecordError("text", "path")  # the rest goes by keyword


def test_a_missing_package_says_how_to_get_it():
    with pytest.raises(ImportError) as raised, errors.needs_extra("a picture", "tools"):
        importlib.import_module("no_such_package")
    assert str(raised.value) == (
        "a picture needs the package no_such_package: pip install no_such_package, or all of its extra: "
        "pip install 'torch-tfrecord[tools]', in a clone pip install -e '.[tools]'"
    )
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)


def test_a_broken_package_speaks_for_itself(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("raise ImportError('no libbroken.so')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"^no libbroken\.so$"), errors.needs_extra("it", "tools"):
        importlib.import_module("broken_package")


def test_extras_that_errors_name_exist():
    root = Path(torch_tfrecord.__file__).parents[1]
    if not (root / "pyproject.toml").is_file():
        pytest.skip("not beside an installed package")
    extras = re.findall(r"^(\w+) = \[", (root / "pyproject.toml").read_text(), re.MULTILINE)
    named = []
    for path in [*root.glob("torch_tfrecord/**/*.py"), *root.glob("index_tools/*.py")]:
        text = path.read_text(encoding="utf-8")
        named += re.findall(r'needs_extra\("[^"]+", "(\w+)"', text)
        # every text is worded in one place
        assert path.name == "errors.py" or "torch-tfrecord[" not in text, path
    assert len(named) >= 10 and {*named} <= {*extras}
