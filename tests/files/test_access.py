"""How remote data is reached: equal by content, and silent about its secrets."""

import copy
import pickle

import pytest

from torch_tfrecord import (
    RecordIndex,
    TFRecordDataset,
    TFRecordIterableDataset,
    build_index,
    find_files,
    read_records,
)
from torch_tfrecord.files import Access

SECRETS = {
    "key": "me-and-nobody",
    "secret": "s3cr3t!!",
    "client_kwargs": {"headers": ["Bearer abcd"]},
    "anon": False,
}


def test_equal_by_content():
    assert Access(SECRETS) == Access(copy.deepcopy(SECRETS))
    assert hash(Access(SECRETS)) == hash(Access(dict(reversed(SECRETS.items()))))
    assert Access(SECRETS) != Access({**SECRETS, "anon": 0})
    assert Access() == Access.DEFAULT == Access({}) != Access({"a": 1})
    assert pickle.loads(pickle.dumps(Access(SECRETS))) == Access(SECRETS)


def test_options_are_copied():
    options = copy.deepcopy(SECRETS)
    access = Access(options)
    options["client_kwargs"]["headers"].append("more")
    assert access.storage_options == SECRETS


def test_no_value_is_shown():
    access = Access(SECRETS)
    for text in (repr(access), str(access), f"{access}"):
        assert not any(secret in text for secret in ("me-and-nobody", "s3cr3t!!", "Bearer"))
    text = access.without_secrets("GET as me-and-nobody with s3cr3t!! and Bearer abcd: no")
    assert text == "GET as ... with ... and ...: no"


@pytest.mark.parametrize("options", ["key=1", [("key", 1)], {1: "a"}, 7])
@pytest.mark.parametrize(
    "call",
    [
        lambda options: TFRecordDataset("memory://a", storage_options=options),
        lambda options: TFRecordIterableDataset("memory://a", storage_options=options),
        lambda options: build_index("memory://a", storage_options=options),
        lambda options: RecordIndex.load("memory://a", storage_options=options),
        lambda options: find_files("memory://a", storage_options=options),
        lambda options: read_records("memory://a", storage_options=options),
    ],
)
def test_wrong_options(call, options):
    with pytest.raises(
        TypeError, match=r"^storage_options must be a dict with names of str, or None, got "
    ):
        call(options)
