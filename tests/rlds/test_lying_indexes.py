"""Indexes of episodes that are damaged, or that lie with a right checksum: refused, built again,
never believed.
"""

import json
import os
import random
import shutil
import struct
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rlds_episodes import write_episodes
from sidecars import changed as sidecar_with
from sidecars import flips, taken_apart

from torch_tfrecord import CorruptRecordError, IndexMismatchError, RecordIndex, tfds
from torch_tfrecord.records import IndexKeeper
from torch_tfrecord.tfds import RLDSDataset

changed = partial(sidecar_with, lazy="pieces")

LENGTHS = (3, 12, 1)
ROW = 3  # words of a piece: key, size, CRC
FEATURES = {
    "steps": tfds.features.Dataset(
        {
            "observation": {"image": tfds.features.Image((32, 40, 3), encoding_format="png")},
            "action": tfds.features.Tensor((3,), "float32"),
            "reward": tfds.features.Scalar("float32"),
            "words": tfds.features.Sequence(tfds.features.Text()),
            "numbers": tfds.features.Sequence(tfds.features.Scalar("int64")),
            "is_first": tfds.features.Scalar("bool"),
            "language_instruction": tfds.features.Text(),
        }
    ),
    "episode_metadata": {
        "name": tfds.features.Text(),
        "none": tfds.features.Sequence(tfds.features.Scalar("int64")),
    },
}


def with_lists(episode):
    for number, step in enumerate(episode["steps"]):
        del step["observation"]["wrist_image"], step["observation"]["state"], step["is_last"]
        step["words"] = ["a", "bc"][: number % 3]
        step["numbers"] = list(range(number % 4))
    episode["episode_metadata"] = {"name": episode["episode_metadata"]["name"], "none": []}
    return episode


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    directory = tmp_path_factory.mktemp("lying") / "drawn" / "1.0.0"
    write_episodes(directory, LENGTHS, num_shards=1, features=FEATURES, change=with_lists)
    RLDSDataset(directory)
    return directory


@pytest.fixture
def own(drawn, tmp_path):
    return Path(shutil.copytree(drawn, tmp_path / "own" / "1.0.0"))


def data_file(directory):
    return str(directory / "drawn-train.tfrecord-00000-of-00001")


def sidecar(directory):
    return Path(IndexKeeper.place(data_file(directory) + ".steps"))


def read(directory, **options):
    ds = RLDSDataset(directory, window_size=2, **options)
    return [ds[position] for position in range(len(ds))]


def same(left, right):
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


def offset_of(directory, number):
    return int(RecordIndex.load(IndexKeeper.place(data_file(directory))).offsets[number])


# Damage.


def _header_bits(content):
    return 8 * (8 + struct.unpack("<Q", content[:8])[0])


@pytest.mark.daily
def test_a_flipped_bit_is_built_again_or_an_error(own):
    expected = read(own, index="memory")
    content = sidecar(own).read_bytes()
    bits = random.Random(1).sample(range(_header_bits(content)), 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for damaged in flips(content, bits):
            sidecar(own).write_bytes(damaged)
            with pytest.raises(IndexMismatchError, match=data_file(own)):
                RLDSDataset(own, index="require")
            assert same(read(own), expected)
            assert sidecar(own).read_bytes() in (
                content,
                damaged,
            )  # a flipped mark: it might be anybody's
            shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)


# Lies: every checksum is right.


def tables(arrays):
    ends = arrays["ends"].tolist()
    rows = arrays["pieces"].reshape(-1, ROW)
    return [rows[begin:end].copy() for begin, end in zip([0, *ends], ends, strict=False)]


def with_tables(content, changed_tables, **arrays):
    parts = [table.astype("<u4") for table in changed_tables]
    made = {
        "ends": np.cumsum([len(part) for part in parts]),
        "checksums": np.array([crc32c(part.tobytes()) for part in parts], "<u4"),
        "pieces": np.concatenate(parts).ravel(),
    }
    return changed(content, made | arrays)


def check_lie(directory, content, expected):
    """With "require" an error or the right samples, each of the step that it says; with "auto" the same, since
    what opens is not built again.
    """
    good = sidecar(directory).read_bytes()
    for policy in ("require", "auto"):
        sidecar(directory).write_bytes(content)
        try:
            ds = RLDSDataset(directory, window_size=2, index=policy)
        except IndexMismatchError:
            assert policy == "require"
            continue
        for position in range(len(ds)):
            episode, step = ds.locate(position)
            try:
                sample = ds[position]
            except IndexMismatchError as error:
                assert data_file(directory) in str(error)
            else:
                assert ds.num_steps[episode] == LENGTHS[episode]
                assert same(sample, expected[sum(LENGTHS[:episode]) + step])
    sidecar(directory).write_bytes(good)


def _mutated(content, rng):
    _, arrays = taken_apart(content)
    own = tables(arrays)
    extra = {}
    for _ in range(rng.randrange(1, 4)):
        number = rng.randrange(len(own))
        table = own[number]
        if not len(table):
            continue
        one, two = rng.randrange(len(table)), rng.randrange(len(table))
        match rng.randrange(9):
            case 0:
                own[number] = np.delete(table, one, axis=0)
            case 1:
                table[one, rng.randrange(ROW)] ^= 1 << rng.randrange(8)
            case 2:
                table[one, 0] = rng.randrange(12)
            case 3:
                moved = rng.randrange(-3, 4) % (1 << 32)
                table[one, 1] += moved
                table[two, 1] -= moved
            case 4:
                columns = rng.choice([[0], [1], [2], [1, 2], [0, 1, 2]])
                table[one, columns], table[two, columns] = (
                    table[two, columns],
                    table[one, columns],
                )
            case 5:
                table[one, rng.randrange(ROW)] = rng.choice([0, 1, 2**31, 2**32 - 1])
            case 6:
                own[number] = np.insert(table, one, table[two], axis=0)
            case 7:
                extra["num_steps"] = arrays["num_steps"] + np.array(
                    [rng.randrange(-1, 2) for _ in own]
                )
            case 8:
                number = rng.randrange(len(own))
                own[number] = own[rng.randrange(len(own))]
    return with_tables(content, own, **extra)


@pytest.mark.daily
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_lying_tables_give_no_wrong_sample(drawn, seed):
    if not hasattr(test_lying_tables_give_no_wrong_sample, "expected"):
        test_lying_tables_give_no_wrong_sample.expected = read(drawn, index="memory")
    with np.errstate(over="ignore"):
        content = _mutated(sidecar(drawn).read_bytes(), random.Random(seed))
    check_lie(drawn, content, test_lying_tables_give_no_wrong_sample.expected)


def keys_of(directory):
    return json.loads(taken_apart(sidecar(directory).read_bytes())[0]["__metadata__"]["keys"])


NUMBERS = "steps/numbers/ragged_flat_values"
LIES = [
    {"steps/reward": "steps/action", "steps/action": "steps/reward"},
    {NUMBERS: "steps/observation/image"},
    {
        "episode_metadata/name": "episode_metadata/none",
        "episode_metadata/none": "episode_metadata/name",
    },
]


@pytest.mark.parametrize("changes", LIES, ids=range(len(LIES)))
def test_lies_that_agree_with_themselves(own, changes):
    expected = read(own, index="memory")
    content, keys = sidecar(own).read_bytes(), keys_of(own)
    mine = tables(taken_apart(content)[1])
    rows = {keys[key]: number for number, key in enumerate(mine[1][:, 0].tolist())}
    for key, value in changes.items():
        mine[1][rows[key], 0] = keys.index(value)
    check_lie(own, with_tables(content, mine), expected)
    sidecar(own).write_bytes(with_tables(content, mine))
    with pytest.raises(IndexMismatchError, match=data_file(own)):
        read(own, index="require")


def test_a_list_that_is_called_a_frame_of_another(own):
    """A list that is missing would be no error if it were optional."""
    content, keys = sidecar(own).read_bytes(), keys_of(own)
    mine = tables(taken_apart(content)[1])
    words = mine[2]  # of one step, whose image is no long list
    image, reward = keys.index("steps/observation/image"), keys.index("steps/reward")
    assert words[:, 0].tolist().count(image) == 1
    assert words[words[:, 0].tolist().index(image) + 1, 0] == reward
    words[words[:, 0] == reward, 0] = image
    sidecar(own).write_bytes(with_tables(content, mine))
    ds = RLDSDataset(own, features=["steps/language_instruction"], index="require")
    with pytest.raises(IndexMismatchError, match=r"record 2 at byte .*feature 'steps/observation"):
        ds[sum(LENGTHS) - 1]


@pytest.mark.slow
def test_keys_that_are_exchanged(own):
    """The one flipped bit of the metadata that gave wrong samples, with a right checksum."""
    expected = read(own, index="memory")
    content = sidecar(own).read_bytes()
    header, _ = taken_apart(content)
    keys = header["__metadata__"]["keys"]
    for old, new in [
        ("steps/words", "steps/wordz"),
        ("steps/reward", "steps/rewarf"),
        ("/name", "/nbme"),
    ]:
        assert old in keys
        check_lie(own, changed(content, keys=keys.replace(old, new)), expected)
    for text in ["[]", "{}", "[1]", '["a","a"]', '["\\ud800"]', "[", "[" * 5000]:
        check_lie(own, changed(content, keys=text), expected)


@pytest.mark.parametrize("steps", [[4, 11, 1], [2, 13, 1], [3, 12, 2], [0, 15, 1]])
def test_steps_that_no_list_has(own, steps):
    sidecar(own).write_bytes(changed(sidecar(own).read_bytes(), {"num_steps": np.array(steps)}))
    ds = RLDSDataset(own, index="require")
    for position in range(len(ds)):
        episode, _ = ds.locate(position)
        if steps[episode] != LENGTHS[episode]:
            with pytest.raises(
                IndexMismatchError,
                match=rf"record {episode} at .*expected {steps[episode]} steps, got lists of {LENGTHS[episode]}",
            ):
                ds[position]


def test_steps_that_cannot_be(own):
    content = sidecar(own).read_bytes()
    for steps in ([3, 12, -1], [3, 12, 2**62]):
        sidecar(own).write_bytes(changed(content, {"num_steps": np.array(steps)}))
        with pytest.raises(IndexMismatchError, match="impossible numbers of steps"):
            RLDSDataset(own, index="require")


def test_a_frame_of_another_length(own):
    """The checksums of the frames are right, too: the length that stands in front of each is
    not.
    """
    content, keys = sidecar(own).read_bytes(), keys_of(own)
    payload = Path(data_file(own)).read_bytes()[offset_of(own, 1) + 12 :]
    mine = tables(taken_apart(content)[1])
    rows = mine[1]
    first = rows[:, 0].tolist().index(keys.index("steps/observation/image"))
    changed_rows = rows[first + 3 : first + 5]  # after the head, of steps 2 and 3
    changed_rows[:, 1] += np.array([5, -5]).astype("<u4")
    ends = (
        offset_of(own, 2)
        - offset_of(own, 1)
        - 16
        - rows[::-1, 1].cumsum(dtype=np.int64)[::-1]
        + rows[:, 1]
    )
    for row, end in zip(changed_rows, ends[first + 3 :].tolist(), strict=False):
        row[2] = crc32c(payload[end - int(row[1]) : end])
    expected = read(own, index="memory")
    check_lie(own, with_tables(content, mine), expected)
    sidecar(own).write_bytes(with_tables(content, mine))
    ds = RLDSDataset(own, index="require")
    assert same(
        ds[LENGTHS[0] + 1]["observation"],
        RLDSDataset(own, index="memory")[LENGTHS[0] + 1]["observation"],
    )
    with pytest.raises(
        IndexMismatchError, match=r"record 1 at byte .*the episode index does not match this record"
    ):
        ds[LENGTHS[0] + 2]


def test_a_damaged_record_is_not_blamed_on_the_index(own):
    """Size, ends and time as before, so that both indexes pass for fresh: the record's own checksum
    tells.
    """
    path = Path(data_file(own))
    status, content = path.stat(), path.read_bytes()
    second = offset_of(own, 1)
    for key, text in [
        (b"steps/reward", "feature 'steps/reward'"),
        (b"task 1", "language_instruction'"),
    ]:
        at = content.index(key, second)
        with open(path, "r+b") as file:
            os.pwrite(file.fileno(), bytes([content[at] ^ 1]), at)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        ds = RLDSDataset(own, index="require")
        assert ds[0]["_len"] == LENGTHS[0]
        with pytest.raises(CorruptRecordError, match=f"^{path}: record 1 at byte .*{text}"):
            ds[LENGTHS[0]]
        path.write_bytes(content)


@pytest.mark.parametrize("size", [6 << 30])
def test_an_index_of_gigabytes_is_not_read(own, size):
    with open(sidecar(own), "r+b") as file:
        file.truncate(size)
    with pytest.raises(IndexMismatchError, match="as its header says, got 6442450944"):
        RLDSDataset(own, index="require")
    content = RLDSDataset(own)
    assert len(content) == sum(LENGTHS)
    assert sidecar(own).stat().st_size < 1 << 20
