"""Files that TensorFlow wrote, as tables: what stands in them, by protobuf alone, for comparison with
what other tools make of them.
"""

import shutil
from pathlib import Path

import pytest
import torch

from torch_tfrecord import FixedLenFeature, Text, VarLenFeature, decode_example, read_records

DATA = Path(__file__).parents[1] / "data"
GOLDEN = {
    "pipeline": "pipeline/part-*-of-*",
    "table": "ports/table-*.tfrecord",
    "text": "ports/text-*.tfrecord",
    "thousand": "records/thousand_small.tfrecord",
}
THOUSAND = {"i": FixedLenFeature((), torch.int64), "name": Text()}
TEXT = {
    "label": FixedLenFeature((), torch.int64),
    "text": Text(),
    "tokens": VarLenFeature(torch.int64),
}


@pytest.fixture(scope="session")
def golden(tmp_path_factory):
    """Name -> pattern of copies, beside which indexes may be kept."""
    folder = tmp_path_factory.mktemp("golden")
    for name, pattern in GOLDEN.items():
        (folder / name).mkdir()
        for path in DATA.glob(pattern):
            shutil.copy(path, folder / name)
    return {name: f"{folder}/{name}/{Path(pattern).name}" for name, pattern in GOLDEN.items()}


def totals(pattern):
    """Of each key: the number of its values, and their sum; of strings their bytes."""
    folder = Path(pattern).parent
    paths = sorted(folder.glob(Path(pattern).name))
    rows = [decode_example(record) for path in paths for record in read_records(path)]
    return len(rows), totals_of_rows(rows)


def totals_of_rows(rows):
    """The same of rows of Python values."""
    found = {}
    for row in rows:
        for name, value in row.items():
            count, total = found.get(name, (0, 0))
            values = [*_flat(value)]
            total += sum(len(v) if isinstance(v, bytes) else v for v in values)
            found[name] = count + len(values), total
    return {name: (count, pytest.approx(total)) for name, (count, total) in found.items() if count}


def _flat(value):
    if value is None:
        return
    if isinstance(value, str):
        yield value.encode()
    elif isinstance(value, (bytes, bytearray)):
        yield bytes(value)
    elif hasattr(value, "__iter__"):
        for part in value:
            yield from _flat(part)
    else:
        yield value.item() if hasattr(value, "item") else value
