"""Damaged directories and records of TFDS datasets: an error of this package that names the
feature, or harmless.
"""

import json
import random
import shutil

import numpy as np
import pytest
from tfds_values import directory

from torch_tfrecord import TFRecordError, decode_example, encode_example, tfds
from torch_tfrecord.tfds.parser import Decoding, TFDSParser

JSON_VALUES = [
    None,
    0,
    -1,
    -5,
    "",
    "x",
    "-1",
    [],
    {},
    [1],
    {"a": 1},
    1e300,
    float("nan"),
    True,
    10**30,
    "9" * 25,
]


def places(value, path=()):
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*path, key)
            yield from places(value[key], (*path, key))


def changed(value, path, new):
    value = json.loads(json.dumps(value))
    target = value
    for key in path[:-1]:
        target = target[key]
    if new == "remove":
        del target[path[-1]]
    else:
        target[path[-1]] = new
    return value


@pytest.mark.daily
@pytest.mark.parametrize("name", ["drawings", "kinds"])
@pytest.mark.parametrize("file", ["features.json", "dataset_info.json"])
def test_any_changed_field_is_an_error_or_harmless(tmp_path, name, file):
    shutil.copytree(directory(name), tmp_path / "copy")
    path = tmp_path / "copy" / file
    whole = json.loads(path.read_text())
    draw = random.Random(f"{name}{file}")
    found = list(places(whole))
    for _ in range(120):
        new = draw.choice([*JSON_VALUES, "remove"])
        path.write_text(json.dumps(changed(whole, draw.choice(found), new)))
        try:
            info = tfds.info(tmp_path / "copy")
            assert str(info)
            list(tfds.load(info, "all", index="memory"))
        except TFRecordError as error:
            assert (
                "features.json" in str(error)
                or "dataset_info.json" in str(error)
                or "feature " in str(error)
            )
        except FileNotFoundError as error:
            # another name of the dataset or its splits: other files
            assert "tfrecord" in str(error)
        except ValueError as error:
            assert "holds no example" in str(error)


def change_value(draw, record):
    key = draw.choice(sorted(record))
    value = record[key]
    kinds = [np.array([1]), np.array([1.0], np.float32), [b"x"], np.zeros(0, np.int64)]
    choice = draw.randrange(6)
    if choice == 0:
        del record[key]
    elif choice == 1:
        record[key] = value[: draw.randrange(len(value) + 1)]
    elif choice == 2:
        record[key] = draw.choice(kinds)
    elif choice == 3 and len(value):
        record[key] = (
            np.concatenate([value, value[:1]])
            if isinstance(value, np.ndarray)
            else value + value[:1]
        )
    elif isinstance(value, np.ndarray) and len(value):
        record[key] = value.copy()
        record[key][draw.randrange(len(value))] = draw.choice([-1, 0, 7, 2**31])
    elif isinstance(value, list) and value and value[0]:
        data = bytearray(value[0])
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        record[key] = [bytes(data[: draw.choice([len(data), len(data) // 2])]), *value[1:]]
    return {
        key: np.zeros(0, "S1") if isinstance(value, list) and not value else value
        for key, value in record.items()
    }


@pytest.mark.daily
@pytest.mark.parametrize("name", ["drawings", "kinds"])
@pytest.mark.parametrize("as_numpy_layout", [False, True])
def test_any_changed_record_is_an_error_or_harmless(name, as_numpy_layout, capfd):
    info = tfds.info(directory(name))
    ds = tfds.load(info, index="memory")
    parser = TFDSParser(info.features, decoding=Decoding(as_numpy_layout))
    records = [decode_example(ds.raw(position)) for position in range(len(ds))]
    draw = random.Random(name)
    errors = 0
    for _ in range(400):
        record = encode_example(change_value(draw, dict(draw.choice(records))))
        try:
            parser.single(record)
        except TFRecordError as error:
            errors += 1
            assert "feature '" in str(error)
    assert errors > 50
    capfd.readouterr()  # libjpeg's own words
