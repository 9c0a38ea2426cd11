"""Errors and warnings about files whose names are no UTF-8 can be printed, logged and written as
JSON.
"""

import json
import os
import pickle
import warnings

import pytest
import torch
from helpers import framed

from torch_tfrecord import (
    CorruptRecordError,
    FixedLenFeature,
    TFRecordDataset,
    TFRecordIterableDataset,
    read_records,
)

NAME = os.fsdecode(b"caf\xe9.tfrecord")


def check(text):
    assert "caf\\xe9.tfrecord" in text
    assert text.encode() == text.encode("utf-8", "strict")
    assert json.loads(json.dumps(text, ensure_ascii=False).encode()) == text


@pytest.fixture
def path(tmp_path):
    (tmp_path / NAME).write_bytes(framed(b"abc", b"defg")[:-1])
    return str(tmp_path / NAME)


def test_errors(path):
    for read in (read_records, TFRecordIterableDataset):
        with pytest.raises(CorruptRecordError) as caught:
            list(read(path))
        check(str(caught.value))
        assert caught.value.path == path
        assert pickle.loads(pickle.dumps(caught.value)).path == path
    check(str(CorruptRecordError("x").locate(path=path)))
    check(str(CorruptRecordError(f"{path}: inside the text")))


def test_warnings(path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert list(read_records(path, on_error="skip")) == [b"abc"]
    check(str(caught[0].message))


def test_notes_and_lists_of_names(path, tmp_path):
    (tmp_path / NAME).write_bytes(framed(b"abc"))

    def fail(sample):
        raise KeyError("wrong")

    for kind in (TFRecordDataset, TFRecordIterableDataset):
        options = {"index": "memory"} if kind is TFRecordDataset else {}
        ds = kind(path, transform=fail, **options)
        with pytest.raises(KeyError) as caught:
            next(iter(ds)) if kind is TFRecordIterableDataset else ds[0]
        for note in getattr(caught.value, "__notes__", ()):
            check(note)
        check(repr(ds).replace("\\udce9", "\\xe9"))
        repr(ds).encode()
    with pytest.raises(ValueError, match="named once") as twice:
        TFRecordDataset([path, path], {"id": FixedLenFeature((), torch.int64)})
    check(str(twice.value))
    with pytest.raises(FileNotFoundError) as missing:
        TFRecordDataset(str(tmp_path / os.fsdecode(b"\xe9@3")))
    str(missing.value).encode()
