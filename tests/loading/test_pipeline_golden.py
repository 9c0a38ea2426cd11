"""What tf.data 2.21 returned for the same files and elements: the same here, or different on a
stated purpose.
"""

import base64
import itertools
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from torch_tfrecord import (
    FixedLenFeature,
    Mixture,
    PaddedCollate,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    collate,
    encode_example,
    find_files,
    make_dataloader,
    parse_single_example,
)

DATA = Path(__file__).parents[1] / "data" / "pipeline"
GOLDEN = json.loads((DATA / "pipeline.json").read_text(encoding="utf-8"))
# Every case adds a line here; the last test of the file counts them.
SEEN = {}


def same(case):
    assert SEEN.setdefault(case, "same") == "same"


def different(case, reason):
    assert SEEN.setdefault(case, reason) == reason


def cases(group):
    entries = GOLDEN[group]
    if isinstance(entries, dict):
        entries = entries.get("cases", [entries])
    return [
        pytest.param(case, f"{group}/{number}", id=str(number))
        for number, case in enumerate(entries)
    ]


def golden_value(array):
    """A stored array as tensor (bit for bit), or for strings as nested list of bytes."""
    shape, values, dtype = array["shape"], array["values"], array["dtype"]
    if dtype == "string":
        return nested([base64.b64decode(value) for value in values], shape)
    if dtype == "complex64":
        parts = [torch.tensor([int(v[k], 16) for v in values], dtype=torch.int64) for k in (0, 1)]
        real, imaginary = (part.to(torch.uint32).view(torch.float32) for part in parts)
        return torch.complex(real, imaginary).reshape(shape)
    if dtype in ("float32", "float64", "bfloat16"):
        unsigned = np.dtype(f"uint{int(dtype.removeprefix('b')[5:])}")
        bits = np.array([int(value, 16) for value in values], unsigned)
        return torch.from_numpy(bits).view(getattr(torch, dtype)).reshape(shape)
    return torch.tensor(values, dtype=getattr(torch, dtype)).reshape(shape)


def nested(values, shape):
    if not shape:
        return values[0]
    size = len(values) // shape[0] if shape[0] else 0
    return [nested(values[row * size : (row + 1) * size], shape[1:]) for row in range(shape[0])]


def assert_identical(found, expected):
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_identical(found[key], expected[key])
    elif isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.contiguous().view(torch.uint8).equal(expected.contiguous().view(torch.uint8))
    else:
        assert found == expected


def chunks(elements, size, drop_last):
    parts = [elements[start : start + size] for start in range(0, len(elements), size)]
    return [part for part in parts if len(part) == size or not drop_last]


def write_numbered(folder, lengths):
    """Files of records that say which they are."""
    paths = []
    for file, length in enumerate(lengths):
        paths.append(folder / f"part-{file:05d}.tfrecord")
        with TFRecordWriter(paths[-1]) as writer:
            for record in range(length):
                writer.write(b"%d %d" % (file, record))
    return paths


def write_ids(path, count):
    with TFRecordWriter(path) as writer:
        for number in range(count):
            writer.write({"id": number})
    return path


IDS = {"id": FixedLenFeature((), torch.int64)}


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """Files by the numbers of their records, written once."""
    written = {}

    def files(lengths):
        if tuple(lengths) not in written:
            written[tuple(lengths)] = write_numbered(tmp_path_factory.mktemp("numbered"), lengths)
        return written[tuple(lengths)]

    return files


@pytest.mark.parametrize(("case", "name"), cases("interleave"))
def test_interleave(case, name, numbered):
    cycle = case.get("cycle_length", case.get("num_parallel_reads") or 1)
    stream = TFRecordIterableDataset(
        numbered(case["lengths"]), cycle_length=cycle, block_length=case.get("block_length", 1)
    )
    assert [list(map(int, record.split())) for record in stream] == case["order"]
    same(name)


@pytest.mark.filterwarnings("ignore:no file has a record")
@pytest.mark.parametrize(("case", "name"), cases("shard"))
def test_shard(case, name, tmp_path):
    path = write_ids(tmp_path / "a.tfrecord", case["n"])
    count = case["num_shards"]
    ds = TFRecordDataset(path, IDS, index="memory")
    for shard, expected in enumerate(case["shards"]):
        assert [int(sample["id"]) for sample in ds[shard::count]] == expected
        stream = TFRecordIterableDataset(path, IDS, rank=shard, world_size=count)
        assert [int(sample["id"]) for sample in stream] == expected
    same(name)


@pytest.mark.parametrize(("case", "name"), cases("shard_errors"))
def test_shard_errors(case, name, tmp_path):
    path = write_ids(tmp_path / "a.tfrecord", 1)
    with pytest.raises(ValueError, match=f"rank={case['index']}, world_size={case['num_shards']}"):
        TFRecordIterableDataset(path, rank=case["index"], world_size=case["num_shards"])
    same(name)


STRADDLE = "an epoch ends with its own batch; TensorFlow repeats before it batches"


@pytest.mark.filterwarnings("ignore:no file has a record")
@pytest.mark.parametrize(("case", "name"), cases("batch"))
def test_batch(case, name, tmp_path):
    path = write_ids(tmp_path / "a.tfrecord", case["n"])
    loader = make_dataloader(
        path,
        case["batch_size"],
        IDS,
        shuffle=False,
        num_epochs=case["repeat_before"],
        drop_last=case["drop_remainder"],
    )
    found = [batch["id"].tolist() for batch in loader]
    assert len(loader) == len(found)
    if case["repeat_before"] == 1:
        assert found == case["batches"]
        same(name)
    else:
        one = chunks(list(range(case["n"])), case["batch_size"], case["drop_remainder"])
        assert found == one * case["repeat_before"] != case["batches"]
        different(name, STRADDLE)


@pytest.mark.parametrize(("case", "name"), cases("ragged_batch"))
def test_ragged_batch(case, name):
    records = [encode_example({"x": np.array(element, np.int64)}) for element in case["elements"]]
    elements = [
        parse_single_example(record, {"x": VarLenFeature(torch.int64)}) for record in records
    ]
    parts = chunks(elements, case["batch_size"], case["drop_remainder"])
    assert len(parts) == len(case["batches"])
    for part, expected in zip(parts, case["batches"], strict=True):
        batch = collate(part)["x"]
        assert batch.values().tolist() == expected["flat_values"]
        assert batch.offsets().tolist() == expected["row_splits"]
    same(name)


def test_batch_of_unequal_shapes():
    case = GOLDEN["batch_of_unequal_shapes"]
    tensors = [torch.arange(length) for length in case["lengths"]]
    batch = collate(tensors)
    assert [row.tolist() for row in batch.unbind()] == [tensor.tolist() for tensor in tensors]
    different(
        "batch_of_unequal_shapes/0",
        "1-D tensors of unequal length are a jagged batch, as VarLenFeature's are",
    )
    # What cannot be jagged is an error with TensorFlow's phrase.
    with pytest.raises(
        ValueError,
        match=r"cannot batch tensors with different shapes: \[2, 1\] in sample 0, \[3, 1\]",
    ):
        collate([tensor[:, None] for tensor in tensors])


@pytest.mark.parametrize(("case", "name"), cases("padded_batch"))
def test_padded_batch(case, name, tmp_path):
    if case["batch_size"] == 0:
        with pytest.raises(ValueError, match=r"Batch size must be greater than zero"):
            make_dataloader(write_ids(tmp_path / "a.tfrecord", 1), 0)
        same(name)
        return
    value = case["padding_value"]
    pad = PaddedCollate(case["padded_shape"], None if value is None else golden_value(value))
    parts = chunks(
        [golden_value(element) for element in case["elements"]],
        case["batch_size"],
        case["drop_remainder"],
    )
    if case["name"] in ("value_wrong_dtype", "value_int32_for_int64"):
        assert "error" in case
        assert pad(parts[0]).tolist() == [[1, -1, -1], [1, 2, 3]]
        different(
            name,
            "a padding value of another dtype is taken where the feature's dtype holds it exactly",
        )
    elif "error" in case:
        phrase = case["error"]["message"].split(" with the shape")[0].split(" (")[0]
        with pytest.raises(ValueError) as caught:
            for part in parts:
                pad(part)
        assert phrase in str(caught.value)
        same(name)
    else:
        assert len(parts) == len(case["batches"])
        for part, expected in zip(parts, case["batches"], strict=True):
            assert_identical(pad(part), golden_value(expected))
        same(name)


def test_padded_batch_dict():
    case = GOLDEN["padded_batch_dict"]
    elements = [
        {key: golden_value(value) for key, value in element.items()} for element in case["elements"]
    ]
    paddings = {
        key: None if value is None else golden_value(value)
        for key, value in case["padding_values"].items()
    }
    loader = DataLoader(
        elements, case["batch_size"], collate_fn=PaddedCollate(case["padded_shapes"], paddings)
    )
    expected = [
        {key: golden_value(value) for key, value in batch.items()} for batch in case["batches"]
    ]
    for batch, wanted in zip(loader, expected, strict=True):
        assert_identical(batch, wanted)
    same("padded_batch_dict/0")


MBFD = GOLDEN["make_batched_features_dataset"]


def specs():
    built = {}
    for key, spec in MBFD["features"].items():
        dtype = bytes if spec["dtype"] == "string" else getattr(torch, spec["dtype"])
        if spec["kind"] == "VarLen":
            built[key] = VarLenFeature(dtype)
        else:
            default = spec["default"] and golden_value(spec["default"]).item()
            built[key] = FixedLenFeature(tuple(spec["shape"]), dtype, default)
    return built


def golden_column(column):
    if column["type"] == "dense":
        return golden_value(column)
    rows = [[] for _ in range(column["dense_shape"][0])]
    for (row, _), value in zip(column["indices"], column["values"], strict=True):
        rows[row].append(base64.b64decode(value))
    return rows


def golden_batch(batch):
    features = {key: golden_column(column) for key, column in batch["features"].items()}
    return (features, golden_column(batch["label"])) if "label" in batch else features


def assert_same_batch(found, expected):
    if isinstance(expected, tuple):
        assert_identical(found[1], expected[1])
        found, expected = found[0], expected[0]
    # tf.data sorts the keys; ours are in the order of the features
    assert set(found) == set(expected)
    assert_identical({key: found[key] for key in expected}, expected)


@pytest.mark.parametrize(("case", "name"), cases("make_batched_features_dataset"))
@pytest.mark.parametrize("num_workers", [0, 2])
def test_make_batched_features_dataset(case, name, num_workers, tmp_path):
    given = dict(case["arguments"])
    readers = given.pop("reader_num_threads", 1)
    drop = given.pop("drop_final_batch", False)
    for path in DATA.glob("part-*"):
        shutil.copy(path, tmp_path)  # an index is kept beside the data
    files, size = tmp_path / "part-?????-of-00003", case["batch_size"]
    expected = [golden_batch(batch) for batch in case.get("batches", [])]
    if readers > 1:
        # A loader by position reads one file after another; the stream interleaves.
        stream = TFRecordIterableDataset(
            files, specs(), batch_size=size, drop_last=drop, cycle_length=readers
        )
        found = list(DataLoader(stream, batch_size=None))
    elif "error" in case:
        with pytest.raises(
            ValueError,
            match=r"The `label_key` provided \(nope\) must be one of the `features` keys",
        ):
            make_dataloader(files, size, specs(), **given)
        same(name)
        return
    else:
        loader = make_dataloader(
            files, size, specs(), drop_last=drop, num_workers=num_workers, **given
        )
        found = list(itertools.islice(loader, case["first_batches_only"]))
    if case["name"] in ("two_epochs", "endless"):
        one = [list(range(8))[start : start + size] for start in range(0, 8, size)]
        wanted = itertools.islice(
            itertools.cycle(one), case["first_batches_only"] or len(one) * given["num_epochs"]
        )
        assert [batch["id"].tolist() for batch in found] == list(wanted)
        assert [batch["id"].tolist() for batch in found] != [
            batch["id"].tolist() for batch in expected
        ]
        # The same samples in the same order, in batches with other borders.
        ids = torch.cat([batch["id"] for batch in found]).tolist()
        theirs = torch.cat([batch["id"] for batch in expected]).tolist()
        assert ids[: len(theirs)] == theirs[: len(ids)]
        different(name, STRADDLE)
        return
    assert len(found) == len(expected)
    for batch, wanted in zip(found, expected, strict=True):
        assert_same_batch(batch, wanted)
    same(name)


def test_pattern_without_match(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file matches the pattern"):
        make_dataloader(tmp_path / "none-*", 2)
    same("pattern_without_match/0")


NO_DOTFILES = "* does not match names that begin with a dot"
LIST_FILES = {
    1: NO_DOTFILES,
    2: NO_DOTFILES + "; a folder is no file",
    9: "a file that is named twice is an error",
    11: "each pattern must match something",
    12: "** goes down any number of folders",
    14: "a folder stands for the TFRecord files in it",
}


@pytest.mark.parametrize(("case", "name"), cases("list_files"))
def test_list_files(case, name, tmp_path):
    number = int(name.split("/")[1])
    for existing in GOLDEN["list_files"]["existing"]:
        path = tmp_path / existing
        path.parent.mkdir(parents=True, exist_ok=True)
        with TFRecordWriter(path) as writer:
            writer.write(b"a")
    patterns = [str(tmp_path / pattern) for pattern in case["patterns"]]

    def found():
        return [str(Path(path).relative_to(tmp_path)) for path in find_files(patterns)]

    if number not in LIST_FILES:
        if "error" in case:
            with pytest.raises(
                FileNotFoundError, match=r"no file matches the pattern|No such file"
            ):
                found()
        else:
            assert found() == case["files"]
        same(name)
        return
    if number == 9:
        with pytest.raises(ValueError, match="each file may be named once"):
            found()
    elif number == 11:
        with pytest.raises(FileNotFoundError, match="no file matches the pattern"):
            found()
    else:
        existing = GOLDEN["list_files"]["existing"]
        all_tfrecord = [
            path for path in existing if path.endswith(".tfrecord") and not path.startswith(".")
        ]
        wanted = {
            1: [path for path in case["files"] if not path.startswith(".")],
            2: [path for path in case["files"] if not path.startswith(".") and path != "sub"],
            12: sorted(all_tfrecord, key=str.encode),
            14: ["sub/c.tfrecord"],
        }[number]
        assert found() == wanted != case["files"]
    different(name, LIST_FILES[number])


@pytest.mark.parametrize(("case", "name"), cases("choose_from_datasets"))
def test_choose_from_datasets(case, name):
    datasets = [
        range(100 * number, 100 * number + length) for number, length in enumerate(case["lengths"])
    ]
    stop = (
        "first_exhausted" if case["stop_on_empty_dataset"] else "all_exhausted_without_replacement"
    )
    mixture = Mixture(datasets, choices=case["choices"], shuffle=False, stop=stop)
    assert [mixture[position] for position in range(len(mixture))] == case["elements"]
    same(name)


def test_counts():
    groups = (
        "interleave",
        "shard",
        "shard_errors",
        "batch",
        "choose_from_datasets",
        "padded_batch",
        "ragged_batch",
    )
    total = sum(len(GOLDEN[group]) for group in groups)
    total += len(GOLDEN["list_files"]["cases"]) + len(MBFD["cases"])
    total += 3  # padded_batch_dict, batch_of_unequal_shapes, pattern_without_match
    if len(SEEN) < total:
        pytest.skip("only a part of this file ran")
    counts = Counter(SEEN.values())
    number_same = counts.pop("same")
    number_different = sum(counts.values())
    print(
        f"\npipeline.json: {total} cases: {number_same} same, {number_different} deliberately different, none else;"
    )
    print("  The deliberate ones:")
    for reason, count in counts.most_common():
        print(f"  {count:2} {reason}")
    assert (number_same, number_different) == (178, 13)
    assert number_same + number_different == total
