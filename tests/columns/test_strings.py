"""Features with one or several byte strings, as TensorFlow reads them: RawTensor, and Image with
several.

Covers columns/raw_tensor, columns/raw_tensor, media/image.
"""
# ruff: noqa: E501 - tables of whole texts read better in one line each.

import base64
import gzip
import importlib
import json
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import framed, pure_python
from torch.utils.data import DataLoader
from torchvision import tv_tensors

from torch_tfrecord import (
    Image,
    ImageDecodeError,
    LimitExceededError,
    PaddedCollate,
    ParseError,
    RandomResizedCrop,
    RawTensor,
    ResizedCenterCrop,
    SequenceFeatures,
    TFRecordDataset,
    TFRecordIterableDataset,
    collate,
    encode_example,
    encode_image,
    encode_sequence_example,
    make_dataloader,
    parse_example,
    parse_single_example,
    parse_single_sequence_example,
)

CASES = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "data" / "strings" / "cases.json.gz").read_bytes())
)

# TensorFlow gives what it has of a stream that was cut or is followed by something; each is an
# error here.
RAISED = {
    "zlib another stream behind it": "expected the end of the zlib stream, got {} bytes after it",
    "zlib other bytes behind it": "expected the end of the zlib stream, got 3 bytes after it",
    "zlib cut": "expected a whole zlib stream, got a truncated one of {} bytes",
    "gzip cut": "expected a whole gzip stream, got a truncated one of {} bytes",
    "zlib nothing": "expected a whole zlib stream, got a truncated one of 0 bytes",
    "gzip nothing": "expected a whole gzip stream, got a truncated one of 0 bytes",
}


@pytest.fixture(params=[False, True], ids=["core", "fallback"])
def core(request):
    with pure_python(request.param):
        yield


def expected(case):
    """TensorFlow's tensor; images with their channels first."""
    dtype = getattr(torch, case["dtype"])
    found = (
        torch.frombuffer(bytearray.fromhex(case["values"]), dtype=dtype)
        if case["values"]
        else torch.empty(0, dtype=dtype)
    )
    found = found.reshape(case["shape"])
    return found.permute(0, 3, 1, 2) if case["spec"].startswith("Image") else found


def bits(tensor):
    assert isinstance(tensor, torch.Tensor)
    plain = tensor.as_subclass(torch.Tensor).contiguous()
    return tensor.dtype, list(tensor.shape), plain.reshape(-1).view(torch.uint8).tolist()


@pytest.mark.slow
def test_every_stored_result_of_tensorflow(core):
    failed = 0
    for case in CASES:
        record, features = base64.b64decode(case["record"]), {"x": eval(case["spec"])}
        if "error" in case or case["name"] in RAISED:
            failed += 1
            with pytest.raises(
                ParseError, match=r"^feature 'x' \(RawTensor\): expected "
            ) as caught:
                parse_single_example(record, features)
            assert RAISED.get(case["name"], "expected").split("{}")[0] in str(caught.value)
            with pytest.raises(
                ParseError, match=r"^record 0: feature 'x' \(RawTensor\): expected "
            ):
                parse_example([record, record], features)
            continue
        want = bits(expected(case))
        assert bits(parse_single_example(record, features)["x"]) == want, case["name"]
        batch = parse_example([record, record], features)["x"]
        assert [bits(row) for row in batch] == [want, want], case["name"]
    assert failed == len(RAISED) + 8


# RawTensor


def raw(dtype, *values):
    return np.array(values, dtype).tobytes()


ROWS = [raw("<i2", 1, 2, 3), raw("<i2", 4, 5, 6)]
GOOD = {"x": ROWS, "n": 2, "shape": [2, 3], "packed": zlib.compress(b"".join(ROWS))}


def test_the_shape_decides_how_strings_are_joined(core):
    record = encode_example(GOOD | {"one": b"".join(ROWS), "empty": b""})
    for shape in ((2, 3), (-1, 3), (2, -1), ("n", 3), ("n", -1), "shape"):
        for key in ("x", "one"):
            got = parse_single_example(record, {"x": RawTensor(shape, torch.int16, key=key)})["x"]
            assert got.tolist() == [[1, 2, 3], [4, 5, 6]], (shape, key)
            got.zero_()
    assert parse_single_example(record, {"x": RawTensor((-1,), torch.int16, key="one")})[
        "x"
    ].shape == (6,)


def test_whole_shapes_of_records_differ(core):
    records = [
        encode_example({"x": raw("<f4", *range(6)), "s": [2, 3]}),
        encode_example({"x": raw("<f4", 1.5), "s": np.zeros(0, np.int64)}),
        encode_example({"x": [b"", b""], "s": [2, 0, 7]}),
        encode_example({"x": raw("<f4", *range(6)), "s": [2, 3]}),
    ]
    spec = {"x": RawTensor("s", torch.float32)}
    assert [parse_single_example(record, spec)["x"].shape for record in records] == [
        (2, 3),
        (),
        (2, 0, 7),
        (2, 3),
    ]
    assert [value.shape for value in parse_example(records, spec)["x"]] == [
        (2, 3),
        (),
        (2, 0, 7),
        (2, 3),
    ]
    assert parse_example([records[0], records[3]], spec)["x"].shape == (2, 2, 3)


@pytest.mark.parametrize(
    "dtype", [torch.complex32, torch.uint32, torch.uint64, torch.float8_e5m2, torch.float8_e4m3fn]
)
def test_dtypes_that_tensorflow_does_not_take(core, dtype):
    data = bytes(range(1, 17))
    size = dtype.itemsize // (2 if dtype.is_complex else 1)
    turned = b"".join(data[begin : begin + size][::-1] for begin in range(0, 16, size))
    little = parse_single_example(encode_example({"x": data}), {"x": RawTensor(-1, dtype)})["x"]
    big = parse_single_example(
        encode_example({"x": turned}), {"x": RawTensor(-1, dtype, little_endian=False)}
    )["x"]
    assert bits(little) == bits(big) == (dtype, [16 // dtype.itemsize], [*data])


WRONG = [
    (RawTensor((2, 3), torch.int16), {"x": [ROWS[0], ROWS[1][:4]]}, "expected strings of one length, got 6 bytes in string 0, 4 in string 1"),
    (RawTensor((2, -1), torch.int16), {"x": [b"123", b"123"]}, "expected a multiple of 2 bytes in each of 2 strings for shape [2, -1] of int16, got 3"),
    (RawTensor((2, 4), torch.int16), {}, "expected 8 bytes in each of 2 strings for shape [2, 4] of int16, got 6"),
    (RawTensor((3, 2), torch.int16), {}, "expected 1 string or 3 for shape [3, 2], got 2"),
    (RawTensor((), torch.int16), {}, "expected 1 string for shape [], got 2"),
    (RawTensor((3, -1), torch.int16), {"x": np.zeros(0, "S1")}, "expected 1 string or 3 for shape [3, -1], got 0"),
    (RawTensor((1, -1, 2), torch.int16), {}, "expected 1 string or 1 for shape [1, -1, 2], got 2"),
    (RawTensor("shape", torch.int16), {"shape": [3, 2]}, "expected 1 string or 3 for shape [3, 2], got 2"),
    (RawTensor("shape", torch.int16), {"shape": [2, 1 << 62]}, f"expected {1 << 63} bytes in each of 2 strings for shape [2, {1 << 62}] of int16, got 6"),
    (RawTensor("shape", torch.int16), {"shape": [2, -3]}, "expected a size, got -3"),
    (RawTensor("shape", torch.int16), {"shape": [1] * 65}, "expected a shape of at most 64 sizes, got 65"),
    (RawTensor("shape", torch.int16), {"shape": [0.5]}, "Data types don't match. Data type: float but expected type: int64"),
    (RawTensor("gone", torch.int16), {}, "key 'gone' is required but could not be found: the record has 'n', 'packed', 'shape', 'x'"),
    (RawTensor((2, 3), torch.int16, key="y"), {}, "key 'y' is required but could not be found: the record has 'n', 'packed', 'shape', 'x'; to read records that lack it, take VarLenFeature, or a spec with default_value="),
    (RawTensor((2, 3), torch.int16, key="packed", compression="zlib"), {"packed": zlib.compress(b"12")}, "expected 12 bytes for shape [2, 3] of int16, got 2"),
    (RawTensor((2, 3), torch.int16, key="packed", compression="zlib"), {"packed": zlib.compress(bytes(13))}, "expected a zlib stream of 12 bytes, got a longer one"),
    (RawTensor((2, 3), torch.int16, key="packed", compression="gzip"), {}, "expected a gzip stream, got other bytes or a damaged one"),
    (RawTensor((2, 3), torch.int16, key="packed", compression="zlib"), {"packed": GOOD["packed"][:-1]}, "expected a whole zlib stream, got a truncated one of 19 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "change", "text"), WRONG, ids=[text for *_, text in WRONG])
def test_records_that_do_not_fit(core, tmp_path, spec, change, text):
    record = encode_example(GOOD | change)
    what = "shape" if "a size" in text or "gone" in text or "float" in text else "RawTensor"
    key = {"shape": spec.shape if isinstance(spec.shape, str) else "", "RawTensor": spec.key}[what]
    label = f"feature 'x' ({what})" if key is None else f"feature 'x' ({what}, key {key!r})"
    with pytest.raises(ParseError) as caught:
        parse_single_example(record, {"x": spec})
    assert str(caught.value) == f"{label}: {text}"
    first = encode_example({"x": b"", "other": 1})
    path = tmp_path / "a.tfrecord"
    path.write_bytes(framed(first, record, record))
    ds = TFRecordDataset(path, {"x": spec}, index="memory")
    wanted = f"{path}: record 1 at byte {len(first) + 16}: {label}: {text}"
    for read in (
        lambda: ds[1],
        lambda: ds[1:].__getitems__([0, 1]),
        lambda: [*DataLoader(ds[1:], 2)],
    ):
        with pytest.raises(ParseError) as caught:
            read()
        assert str(caught.value).splitlines()[0] == wanted
    with pytest.raises(ParseError):
        next(iter(TFRecordIterableDataset(path, {"x": spec}, batch_size=3)))


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"little_endian": 1}, TypeError, "little_endian must be True or False, got 1"),
        (
            {"compression": "ZSTD"},
            ValueError,
            "compression must be None, 'zlib', 'gzip' or 'zstd', got 'ZSTD'",
        ),
        (
            {"compression": 1},
            ValueError,
            "compression must be None, 'zlib', 'gzip' or 'zstd', got 1",
        ),
        ({"fixed_length": 0}, ValueError, "fixed_length must be an integer of at least 1, got 0"),
        (
            {"fixed_length": 2.0},
            TypeError,
            "fixed_length must be an integer of at least 1, got 2.0 (float)",
        ),
        (
            {"fixed_length": 6},
            ValueError,
            "fixed_length must be a multiple of the 4 bytes of float32, got 6",
        ),
    ],
)
def test_wrong_arguments(options, kind, text):
    with pytest.raises(kind) as caught:
        RawTensor((2,), torch.float32, **options)
    assert str(caught.value) == text
    with pytest.raises(ValueError, match="several must be None, 'stack' or 'list', got 'tuple'"):
        Image(several="tuple")


@pytest.mark.slow
def test_bombs_stay_within_the_batchs_memory(core):
    bomb = zlib.compress(bytes(64 << 20), 9)
    record = encode_example({"x": bomb, "n": 64 << 20})
    for spec in (
        RawTensor((-1,), torch.uint8, compression="zlib"),
        RawTensor(("n",), torch.uint8, compression="zlib"),
    ):
        with pytest.raises(
            LimitExceededError,
            match=r"^record 0: feature 'x' \(RawTensor\): expected a batch of at most",
        ):
            parse_example([record], {"x": spec}, max_batch_bytes=8 << 20)
    with pytest.raises(ParseError, match="expected a zlib stream of 100 bytes, got a longer one"):
        parse_example(
            [record],
            {"x": RawTensor((100,), torch.uint8, compression="zlib")},
            max_batch_bytes=1000,
        )
    with pytest.raises(LimitExceededError):
        parse_example(
            [record],
            {"x": RawTensor((8,), torch.uint8, compression="zlib", fixed_length=8)},
            max_batch_bytes=8 << 20,
        )


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("strings", [200, 1])
def test_strings_are_filled_up_within_the_batchs_memory(core, compression, strings):
    part = b"" if compression is None else zlib.compress(b"")
    records = [encode_example({"x": [part] * strings})] * (200 // strings)
    spec = RawTensor((strings, -1), torch.uint8, fixed_length=1 << 20, compression=compression)
    text = r"^record [01]: feature 'x' \(RawTensor\): expected a batch of at most 1500000 bytes \(max_batch_bytes\), got one "
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceededError, match=text):
            parse_example(records, {"x": spec}, max_batch_bytes=1_500_000)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


# Frames of zstd, and what TensorFlow 2.21 gives for each by decode_compressed, or our error.
FRAMES = {
    "one": ("28b52ffd200c610000000102030405060708090a0b", bytes(range(12))),
    "a checksum": ("28b52ffd240c610000000102030405060708090a0ba5dc081f", bytes(range(12))),
    "nothing in it": ("28b52ffd2000010000", b""),
    "cut": (
        "28b52ffd200c610000000102030405060708090a",
        "expected a whole zstd stream, got a truncated one of 20 bytes",
    ),
    "no bytes": ("", "expected a whole zstd stream, got a truncated one of 0 bytes"),
    "damaged": (
        "28b52ffd240c610000000102030405060708090a0ba5dc0800",
        "expected a zstd stream, got other bytes or a damag",
    ),
    "bytes behind it": (
        "28b52ffd2000010000616263",
        "expected a zstd stream, got other bytes or a damaged one",
    ),
}
# TensorFlow refuses these.
MORE_FRAMES = {
    "no size": ("28b52ffd0058610000000102030405060708090a0b", bytes(range(12))),
    "two": (FRAMES["one"][0] * 2, bytes(range(12)) * 2),
    "one to skip": ("502a4d1803000000616263" + FRAMES["one"][0], bytes(range(12))),
}


@pytest.fixture
def zstd():
    return (
        importlib.import_module("compression.zstd")
        if sys.version_info >= (3, 14)
        else pytest.importorskip("backports.zstd")
    )


@pytest.mark.parametrize("name", FRAMES | MORE_FRAMES)
def test_zstd(core, zstd, name):
    data, wanted = (FRAMES | MORE_FRAMES)[name]
    record = encode_example({"x": bytes.fromhex(data), "n": len(wanted)})
    for shape in ((-1,), ("n",)):
        spec = {"x": RawTensor(shape, torch.uint8, compression="zstd")}
        if isinstance(wanted, bytes):
            assert parse_single_example(record, spec)["x"].tolist() == [*wanted]
            assert parse_example([record, record], spec)["x"].tolist() == [[*wanted]] * 2
        else:
            with pytest.raises(
                ParseError, match=rf"^record 0: feature 'x' \(RawTensor\): {wanted}"
            ):
                parse_example([record], spec)


def test_zstd_bombs_stay_within_the_batchs_memory(core, zstd):
    record = encode_example({"x": zstd.compress(bytes(64 << 20)), "n": 64 << 20})
    tracemalloc.start()
    try:
        for shape in ((-1,), ("n",)):
            spec = {"x": RawTensor(shape, torch.uint8, compression="zstd")}
            with pytest.raises(
                LimitExceededError,
                match=r"^record 0: feature 'x' \(RawTensor\): expected a batch of at",
            ):
                parse_example([record], spec, max_batch_bytes=2 << 20)
        spec = {"x": RawTensor((100,), torch.uint8, compression="zstd")}
        with pytest.raises(
            ParseError, match="expected a zstd stream of 100 bytes, got a longer one"
        ):
            parse_example([record], spec, max_batch_bytes=1000)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_zstd_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    text = (
        r"^compression by zstd needs the package backports\.zstd: pip install backports\.zstd, or "
    )
    with pytest.raises(ImportError, match=text):
        parse_single_example(
            encode_example({"x": b"1"}), {"x": RawTensor((2,), torch.uint8, compression="zstd")}
        )


def test_streams_of_any_size_are_inflated_in_parts(zstd):
    data = np.random.default_rng(3).bytes(600_000) + bytes(3_000_000)  # much input, and much output
    halves = [data[:1_000_000], b"", data[1_000_000:]]
    for kind, packed in (
        ("zlib", zlib.compress(data)),
        ("gzip", gzip.compress(data)),
        ("gzip", b"".join(map(gzip.compress, halves))),
        ("zstd", zstd.compress(data)),
    ):
        assert len(packed) > 2 << 18  # more than is fed at once
        record = encode_example({"x": packed, "n": len(data)})
        for shape in ((-1,), ("n",)):
            spec = {"x": RawTensor(shape, torch.uint8, compression=kind)}
            assert parse_single_example(record, spec)["x"].numpy().tobytes() == data


def test_arrays_in_feature_lists(core):
    lists = {"x": [ROWS, [ROWS[1], ROWS[0]]], "s": [[2, 3], [3, 2]]}
    record = encode_sequence_example({"whole": [2, 3], "none": np.zeros(0, np.int64)}, lists)

    def steps(spec, record=record):
        return parse_single_sequence_example(record, sequence_features={"x": spec})[1]["x"]

    assert steps(RawTensor((2, 3), torch.int16)).tolist() == [
        [[1, 2, 3], [4, 5, 6]],
        [[4, 5, 6], [1, 2, 3]],
    ]
    assert steps(RawTensor("whole", torch.int16)).shape == (2, 2, 3)
    other = encode_sequence_example({}, lists | {"x": [b"".join(ROWS)] * 2})
    assert [step.shape for step in steps(RawTensor("s", torch.int16), other)] == [(2, 3), (3, 2)]
    with pytest.raises(
        ParseError,
        match=r"feature 'x' \(shape, key 'none'\): expected at least one size, got none$",
    ):
        steps(RawTensor("none", torch.int16))
    with pytest.raises(
        ParseError, match=r"^step 1: feature 'x' \(RawTensor\): expected 1 string or 3 for shape"
    ):
        steps(RawTensor("s", torch.int16))


# Images


def picture(value, height=4, width=6, mode="L"):
    pixels = torch.full(({"L": 1, "RGB": 3}[mode], height, width), value, dtype=torch.uint8)
    return encode_image(pixels, "png")


MASKS = [[10, 20], [30], [], [40, 50]]


def masks(values, **options):
    return encode_example(
        {"m": [picture(value, **options) for value in values] or np.zeros(0, "S1")}
    )


def test_images_are_stacked_or_listed_as_the_argument_says(core):
    records = [*map(masks, MASKS), encode_example({"other": 1})]
    for several in ("stack", "list"):
        spec = {"m": Image("L", several=several)}
        batch = parse_example(records, spec)["m"]
        assert isinstance(batch, list)
        for record, row, values in zip(records, batch, [*MASKS, []], strict=True):
            one = parse_single_example(record, spec)["m"]
            assert type(one) is type(row) is (tv_tensors.Image if several == "stack" else list)
            for images in (one, row):
                assert [image.shape for image in images] == [(1, 4, 6)] * len(values)
                assert [
                    int(image.as_subclass(torch.Tensor).float().mean()) for image in images
                ] == values
            if several == "list":
                assert {*map(type, [*one, *row])} <= {tv_tensors.Image}
    same = parse_example([records[0], records[3]], {"m": Image("L", several="stack")})["m"]
    assert type(same) is torch.Tensor
    assert (same.shape, same[:, :, 0, 0, 0].tolist()) == ((2, 2, 1, 4, 6), MASKS[::3])


def test_no_images_have_a_shape(core):
    def none(*arguments, **options):
        found = parse_single_example(
            masks([]), {"m": Image(*arguments, several="stack", **options)}
        )["m"]
        assert type(found) is tv_tensors.Image
        return found.dtype, tuple(found.shape)

    assert none() == (torch.uint8, (0, 3, 0, 0))
    assert none("L", shape=(7, None, 1)) == (torch.uint8, (0, 1, 7, 0))
    assert none("unchanged", shape=(None, 5, 2)) == (torch.uint8, (0, 2, 0, 5))
    assert none("L", crop=ResizedCenterCrop(3, 4)) == (torch.uint8, (0, 1, 3, 3))
    assert none("L", normalize=((0.5,), (0.5,)), crop=ResizedCenterCrop((2, 3), 4)) == (
        torch.float32,
        (0, 1, 2, 3),
    )


def test_sizes_within_a_record_may_differ_in_a_list_only(core):
    record = encode_example({"m": [picture(1), picture(2, 3, 3)]})
    found = parse_single_example(record, {"m": Image("L", several="list")})["m"]
    assert [image.shape for image in found] == [(1, 4, 6), (1, 3, 3)]
    text = "feature 'm' (Image): expected images of one size, got [1, 4, 6] of uint8 in image 0, [1, 3, 3] of uint8 in image 1: several='list' reads them"
    for read, place in (
        (parse_single_example, ""),
        (lambda *given: parse_example([masks([1]), given[0]], given[1]), "record 1: "),
    ):
        with pytest.raises(ParseError) as caught:
            read(record, {"m": Image("L", several="stack")})
        assert str(caught.value) == place + text


def test_errors_name_the_image(core):
    record = encode_example({"m": [picture(1), b"SECRET", picture(2)]})
    for spec in (
        Image("L", several="stack"),
        Image("L", several="list"),
        Image("L", several="stack", crop=ResizedCenterCrop(3, 4)),
    ):
        with pytest.raises(
            ImageDecodeError, match=r"^record 1: feature 'm' \(Image\): image 1: expected a JPEG"
        ) as caught:
            parse_example([masks([1, 2]), record], {"m": spec})
        assert "SECRET" not in str(caught.value)
    with pytest.raises(
        ParseError,
        match=r"^feature 'm' \(Image\): image 1: expected an image of .* \(4, 6, 1\), got \(4, 5, 1\)$",
    ):
        parse_single_example(
            encode_example({"m": [picture(1), picture(1, 4, 5)]}),
            {"m": Image("L", shape=(4, 6, 1), several="list")},
        )
    with pytest.raises(ImageDecodeError, match="image 1: expected at most 24 pixels"):
        parse_single_example(
            encode_example({"m": [picture(1), picture(1, 5, 5)]}),
            {"m": Image("L", max_pixels=24, several="list")},
        )
    with pytest.raises(
        LimitExceededError, match=r"^record 1: feature 'm' \(Image\): expected a batch of at most"
    ):
        parse_example(
            [masks([1]), masks([1] * 9)], {"m": Image("L", several="list")}, max_batch_bytes=150
        )


def test_a_records_images_get_the_same_crop(core, tmp_path):
    columns = torch.arange(64, dtype=torch.uint8).repeat(1, 48, 1)
    ramps = [encode_image(columns, "png"), encode_image(columns + 100, "png")]
    path = tmp_path / "a.tfrecord"
    path.write_bytes(
        framed(
            *[encode_example({"m": ramps[: 1 + number % 2], "i": ramps[0]}) for number in range(6)]
        )
    )
    crop = RandomResizedCrop(8)
    features = {"m": Image("L", several="stack", crop=crop), "i": Image("L", crop=crop)}
    ds = TFRecordDataset(path, features, index="memory")
    ds.set_epoch(3)
    batch = ds.__getitems__([*range(6)])
    assert len({sample["i"].sum().item() for sample in batch}) > 1  # records differ
    for number, sample in enumerate(batch):
        one = ds[number]
        assert torch.equal(sample["m"], one["m"])
        assert torch.equal(one["m"][0], one["i"])
        assert one["m"].shape == (1 + number % 2, 1, 8, 8)
        if number % 2:
            assert torch.equal(
                one["m"][1].int() - one["m"][0].int(), torch.full((1, 8, 8), 100, dtype=torch.int32)
            )
    with pytest.raises(
        ValueError, match="crop of 'm': images of a SequenceExample have no random crop"
    ):
        TFRecordDataset(path, SequenceFeatures({"m": features["m"]}), index="memory")


def test_several_images_in_each_step(core):
    record = encode_sequence_example(
        {"m": [picture(7)] * 3}, {"m": [[picture(1), picture(2)], [picture(3), picture(4)]]}
    )
    spec = {"m": Image("L", several="stack")}
    context, steps = parse_single_sequence_example(record, spec, spec)
    assert context["m"].shape == (3, 1, 4, 6)
    assert type(steps["m"]) is tv_tensors.Image
    assert steps["m"][..., 0, 0, 0].tolist() == [[1, 2], [3, 4]]
    listed = parse_single_sequence_example(
        record, sequence_features={"m": Image("L", several="list")}
    )[1]["m"]
    assert [[image[0, 0, 0].item() for image in step] for step in listed] == [[1, 2], [3, 4]]
    other = encode_sequence_example({}, {"m": [[picture(1)], [picture(3), picture(4)]]})
    assert [
        step.shape for step in parse_single_sequence_example(other, sequence_features=spec)[1]["m"]
    ] == [
        (1, 1, 4, 6),
        (2, 1, 4, 6),
    ]


# Every way in

SPECS = {
    "m": Image("L", several="stack"),
    "rows": RawTensor((-1, 3), torch.int16, key="x"),
    "whole": RawTensor("shape", torch.int16, key="packed", compression="zlib", little_endian=False),
}


def plain(batch):
    if isinstance(batch, dict):
        return {name: plain(part) for name, part in batch.items()}
    return bits(batch) if isinstance(batch, torch.Tensor) else [*map(plain, batch)]


@pytest.fixture
def path(tmp_path):
    records = [{"m": [picture(number), picture(2 * number)]} | GOOD for number in range(8)]
    (tmp_path / "a.tfrecord").write_bytes(framed(*map(encode_example, records)))
    return tmp_path / "a.tfrecord"


@pytest.mark.daily
def test_workers_give_the_same(path):
    want = plain([*make_dataloader(path, 4, SPECS, shuffle=False)])
    spawned = {"num_workers": 2, "multiprocessing_context": "forkserver"}
    assert plain([*make_dataloader(path, 4, SPECS, shuffle=False, **spawned)]) == want
    assert plain([*DataLoader(TFRecordDataset(path, SPECS), 4, num_workers=2)]) == want


def test_numbers_of_images_that_differ(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(framed(*map(masks, MASKS)))
    ds = TFRecordDataset(path, {"m": Image("L", several="stack")}, index="memory")
    with pytest.raises(
        ValueError, match=r"\['m'\]: cannot batch tensors with different shapes.*PaddedCollate"
    ):
        next(iter(DataLoader(ds, 4, collate_fn=collate)))
    padded, lengths = next(iter(DataLoader(ds, 4, collate_fn=PaddedCollate(return_lengths=True))))
    assert padded["m"].shape == (4, 2, 1, 4, 6)
    assert lengths["m"][:, 0].tolist() == [2, 1, 0, 2]
    assert padded["m"][..., 0, 0, 0].tolist() == [[10, 20], [30, 0], [0, 0], [40, 50]]
    lists = TFRecordDataset(path, {"m": Image("L", several="list")}, index="memory")
    batch = next(
        iter(DataLoader(lists, 4, collate_fn=lambda samples: [sample["m"] for sample in samples]))
    )
    assert [[image[0, 0, 0].item() for image in sample] for sample in batch] == MASKS
    for order in ([0, 1, 2, 3], [2, 0, 1, 3]):
        with pytest.raises(
            ValueError,
            match=r"\['m'\]: expected sequences of equal length, got lengths \[0, 1, 2\]",
        ):
            collate([lists[number] for number in order])
