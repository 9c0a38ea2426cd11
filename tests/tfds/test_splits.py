"""Split strings as numbers alone; against TFDS itself they are tested in test_tfds_loading."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.tfds import ReadInstruction, even_splits
from torch_tfrecord.tfds.splits import SplitRange, resolve_split

SIZES = {"train": (4, 3, 4), "test-b": (5,)}
lengths = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(sum).map(tuple)


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train", [("train", 0, 11)]),
        ("test-b+train[1:2]", [("test-b", 0, 5), ("train", 1, 2)]),
        ("train[:50%]", [("train", 0, 6)]),  # round(5.5) is even
        ("test-b[:50%]", [("test-b", 0, 2)]),  # round(2.5) too
        ("train[1shard]", [("train", 4, 7)]),
        ("train[-2shard:]", [("train", 4, 11)]),
        ("train[:-1shard]", [("train", 0, 7)]),
        ("train[:]", [("train", 0, 11)]),
        ("train[0:]+test-b[:]", [("train", 0, 11), ("test-b", 0, 5)]),
        # TFDS 4.9.10 cuts shards off at the ends, not examples
        ("train[:4shard]", [("train", 0, 11)]),
        ("train[-9shard:2shard]", [("train", 0, 7)]),
        (" all ", [("train", 0, 11), ("test-b", 0, 5)]),
        (ReadInstruction("train", 2) + "test-b", [("train", 2, 11), ("test-b", 0, 5)]),
        ("test-b" + ReadInstruction("train", to=-9), [("test-b", 0, 5), ("train", 0, 2)]),
    ],
)
def test_ranges(split, expected):
    assert resolve_split(split, SIZES) == [SplitRange(*part) for part in expected]


@pytest.mark.parametrize(
    ("split", "text"),
    [
        ("val", "unknown split 'val'; there are 'train', 'test-b'"),
        ("train[12:]", r"outside the 11 examples"),
        ("train[:12]", r"slice \[0:12\] is outside the 11 examples"),
        ("train[4shard]", "outside the 3 shards"),
        ("train[3shard:]", "outside the 3 shards"),
        ("train[-4shard]", "holds no example"),
        ("train[:-4shard]", "holds no example"),  # TFDS 4.9.10 returns the first two shards
        ("train[3]", "only shards take a single index"),
        ("train[]", "cannot read"),
        ("train[::2]", "cannot read"),
        ("", "cannot read"),
        ("train+", "cannot read"),
        ("train[:1.5]", "cannot read"),
        ("train[101%:]", "percents must be from -100 to 100, got 101"),
        ("train[4:4]", "holds no example"),
        ("all[:3]", "'all' cannot be sliced"),
    ],
)
def test_what_cannot_be_read(split, text):
    with pytest.raises(ValueError, match=text):
        resolve_split(split, SIZES)


def test_wrong_arguments():
    with pytest.raises(TypeError, match="split must be str"):
        resolve_split(3, SIZES)
    with pytest.raises(ValueError, match="unit"):
        ReadInstruction("train", unit="percent")
    with pytest.raises(ValueError, match="rounding"):
        ReadInstruction("train", rounding="up")
    with pytest.raises(TypeError, match="bounds must be int"):
        ReadInstruction("train", 0.5)
    with pytest.raises(ValueError, match="percents"):
        ReadInstruction("train", float("nan"), unit="%")
    with pytest.raises(ValueError, match="at least 100 examples, got 11"):
        resolve_split(
            ReadInstruction("train", to=50, unit="%", rounding="pct1_dropremainder"), SIZES
        )
    for n in (0, -1, True, 2.0):
        with pytest.raises((TypeError, ValueError), match="n must be an integer"):
            even_splits("train", n)


@pytest.mark.slow
@given(lengths, st.integers(1, 7))
def test_even_splits_cover_all_in_order(shards, n):
    sizes = {"a": shards}
    total = sum(shards)
    parts = []
    for part in even_splits("a", n):
        try:
            parts += resolve_split(part, sizes)
        except ValueError:
            assert total < n
    counts = [part.stop - part.start for part in parts]
    assert [index for part in parts for index in range(part.start, part.stop)] == list(range(total))
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


@pytest.mark.slow
@given(lengths, st.integers(-50, 50), st.integers(-50, 50))
def test_slices_are_pythons_or_an_error(shards, start, stop):
    total = sum(shards)
    sizes = {"a": shards}
    expected = list(range(total))[start:stop] if stop else list(range(total))[start:0]
    try:
        (part,) = resolve_split(f"a[{start}:{stop}]", sizes)
    except ValueError:
        assert not expected or abs(start) > total or abs(stop) > total
    else:
        assert list(range(part.start, part.stop)) == expected
