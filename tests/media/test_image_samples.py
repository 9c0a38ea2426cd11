"""Images cropped while they are decoded: decoding the whole image and torchvision's transforms are
the oracle.

Covers loading/sample_maker, media/crop_jobs.
"""

import ctypes
import random
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import pure_python
from hypothesis import given, settings
from hypothesis import strategies as st
from image_kinds import EVERY_KIND, JPEG_KINDS, PHOTO, WHOLE_KINDS, decode_stack, draw, encode, exif
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    ImageDecodeError,
    LimitExceededError,
    ParseError,
    RandomResizedCrop,
    ResizedCenterCrop,
    TFRecordWriter,
    decode_image,
    encode_example,
    encode_sequence_example,
    errors,
    make_dataloader,
    native,
    parse_single_example,
    parse_single_sequence_example,
)
from torch_tfrecord.media import crop_jobs
from torch_tfrecord.media.crop_jobs import StoredImage, decode_region
from torch_tfrecord.native import optional_module

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NEEDS_LIBJPEG = pytest.mark.skipif(
    optional_module("jpeg") is None, reason="built without libjpeg-turbo's headers"
)
CROP = RandomResizedCrop((24, 20), horizontal_flip=0.5, seed=4)


@pytest.fixture(params=[pytest.param("libjpeg", marks=NEEDS_LIBJPEG), "none"])
def regions_by(request):
    """The decoder of regions, and none."""
    with pure_python(request.param == "none"):
        yield request.param


def reader(**options):
    return Image(**options)._reader("image")


def one(data, key=0, shape=(), **options):
    return reader(**options).from_values([data], [shape], [key])[0]


def expected(data, crop, key, mode="RGB"):
    """Decoded whole, then cropped and resized by torchvision."""
    image = decode_image(data, mode)
    plan = crop.plan(*image.shape[1:], key)
    result = functional.resized_crop(
        image, *plan[:4], [*plan[4:6]], InterpolationMode(crop.interpolation), crop.antialias
    )
    return functional.horizontal_flip(result) if plan.across else result


# Regions


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", JPEG_KINDS)
@NEEDS_LIBJPEG
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_region_has_the_pixels_of_the_whole_image(name, mode, data):
    encoded = JPEG_KINDS[name]
    top, left = data.draw(st.integers(0, 74)), data.draw(st.integers(0, 100))
    height, width = data.draw(st.integers(1, 75 - top)), data.draw(st.integers(1, 101 - left))
    pixels = decode_region(encoded, mode, (top, left, height, width))
    whole = decode_image(encoded, mode).permute(1, 2, 0).numpy()
    assert np.array_equal(pixels, whole[top : top + height, left : left + width])


@NEEDS_LIBJPEG
def test_a_region_is_inside_a_whole_picture():
    data = JPEG_KINDS["4:2:0"]
    assert decode_region(data, "RGB", (70, 0, 5, 101)).shape == (5, 101, 3)
    for region in (
        (0, 0, 76, 9),
        (70, 0, 6, 9),
        (0, 101, 9, 1),
        (2**32 - 1, 0, 2, 2),
        (0, 0, 0, 9),
    ):
        assert decode_region(data, "RGB", region) is None
    assert decode_region(data, "RGBA", (0, 0, 9, 9)) is None
    for damaged in (b"", b"no image", data[:300], data[: len(data) // 2], memoryview(data)[:-1]):
        assert decode_region(damaged, "RGB", (0, 0, 2, 2)) is None


@NEEDS_LIBJPEG
def test_a_compiled_decoder_that_fails_is_told_once(monkeypatch):
    """Only errors of the data are left to another decoder in silence."""

    class Job(optional_module("jpeg").CropJob):
        problem = "Wrong JPEG library version: library is 62, caller expects 80"
        sizes = property(lambda self: super().sizes * 0)

    broken = SimpleNamespace(CropJob=Job, plain_sizes=optional_module("jpeg").plain_sizes)
    monkeypatch.setattr(crop_jobs, "optional_module", lambda name: broken)
    errors.warn_once.cache_clear()
    data = JPEG_KINDS["4:2:0"]
    whole = decode_image(data)
    text = (
        r"^the compiled decoder of JPEG images fails \(Wrong JPEG library version: "
        r"library is 62, caller expects 80\): another one decodes whole images, which takes longer"
    )
    with pytest.warns(RuntimeWarning, match=text):
        pixels = StoredImage(data, "RGB").pixels((3, 5, 40, 30))
    assert np.array_equal(pixels, whole[:, 3:43, 5:35].permute(1, 2, 0).numpy())
    stack = decode_stack([data, data], "RGB", [1, 0], 2)  # without a second warning
    assert torch.equal(stack, torch.stack([whole, whole]))


@NEEDS_LIBJPEG
def test_another_libjpeg_than_at_compile_time_is_no_damaged_image(tmp_path):
    """The compiled reader, built for another version than that of the libjpeg which it meets."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    header = Path(native.__file__).parent / "jpeg_region.h"
    data, out = JPEG_KINDS["4:2:0"], ctypes.create_string_buffer(75 * 101 * 3)
    found = {}
    for version in (62, 70, 80):
        (tmp_path / "double.c").write_text(
            "#include <stdio.h>\n#include <jpeglib.h>\n#undef JPEG_LIB_VERSION\n"
            f'#define JPEG_LIB_VERSION {version}\n#include "{header}"\n'
            "int read_whole(const unsigned char *data, size_t size, unsigned char *out, char *problem) {\n"
            "    return region_read(data, size, 75, 101, 0, 0, 75, 101, 3, out, problem);\n}\n"
        )
        library = tmp_path / f"double{version}.so"
        command = ["cc", "-w", "-shared", "-fPIC", "-o", library, tmp_path / "double.c", "-ljpeg"]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("needs the headers of libjpeg-turbo")
        read, problem = ctypes.CDLL(str(library)).read_whole, ctypes.create_string_buffer(256)
        status = read(data, ctypes.c_size_t(len(data)), out, problem)
        found[version] = status, problem.value.decode()
        assert read(data[:300], ctypes.c_size_t(300), out, problem) == (3 if status else 1)
    (own,) = [version for version, (status, _) in found.items() if not status]
    for version in {*found} - {own}:
        text = f"Wrong JPEG library version: library is {own}, caller expects {version}"
        assert found[version] == (3, text)


# Samples and batches


@pytest.mark.parametrize("name", EVERY_KIND)
def test_a_crop_is_the_whole_image_cropped_by_torchvision(regions_by, name):
    data = EVERY_KIND[name]
    for key in range(12):
        assert torch.equal(one(data, key, crop=CROP), expected(data, CROP, key))


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest", "nearest-exact"])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_every_mode_and_interpolation(mode, interpolation, antialias):
    crop = RandomResizedCrop((24, 20), interpolation=interpolation, antialias=antialias)
    for data in (JPEG_KINDS["4:2:0"], JPEG_KINDS["gray"], WHOLE_KINDS["PNG with alpha"]):
        for key in range(4):
            assert torch.equal(
                one(data, key, mode=mode, crop=crop), expected(data, crop, key, mode)
            )


@pytest.mark.parametrize(("height", "width"), [(75, 101), (101, 75), (30, 31), (5, 90)])
@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_the_centre_is_that_of_torchvisions_transforms(regions_by, kind, height, width):
    data = encode(draw(height, width), kind)
    transform = v2.Compose([v2.Resize(28), v2.CenterCrop((24, 23))])
    assert torch.equal(
        one(data, crop=ResizedCenterCrop((24, 23), 28)), transform(decode_image(data))
    )


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("crop", [CROP, None])
def test_normalised_bits_are_torchvisions(mode, crop):
    mean, std = (MEAN, STD) if mode == "RGB" else (MEAN[:1], STD[:1])
    transform = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])
    for key, data in enumerate(EVERY_KIND.values()):
        plain = one(data, key, mode=mode, crop=crop)
        result = one(data, key, mode=mode, crop=crop, normalize=(mean, std))
        assert result.dtype == torch.float32
        assert torch.equal(result, transform(plain))


def test_a_sample_is_the_row_of_the_batch():
    values = [memoryview(bytearray(data)) for data in EVERY_KIND.values()]
    for normalize in (None, (MEAN, STD)):
        images = reader(crop=CROP, normalize=normalize)
        keys = np.arange(len(values), dtype=np.uint64) * np.uint64(2**60)
        batch = images.from_values(values, [()] * len(values), keys)
        assert type(batch) is tv_tensors.Image
        assert batch.shape == (len(values), 3, 24, 20)
        order = torch.contiguous_format if normalize else torch.channels_last
        assert batch.is_contiguous(memory_format=order)
        for row, value, key in zip(batch, values, keys.tolist(), strict=True):
            record = {"image": bytes(value)}
            sample = images.from_values([record["image"]], [()], [key])[0]
            sample = tv_tensors.wrap(sample, like=batch)
            assert type(sample) is tv_tensors.Image and torch.equal(sample, row)
    assert reader(crop=CROP).from_values([], [], []).shape == (0, 3, 24, 20)


def test_parsing_an_example():
    record = encode_example({"a": JPEG_KINDS["4:2:0"], "h": 75, "w": 101})
    spec = Image(key="a", crop=CROP, shape=("h", "w", 3))
    assert torch.equal(
        parse_single_example(record, {"x": spec})["x"], expected(JPEG_KINDS["4:2:0"], CROP, 0)
    )
    with pytest.raises(ParseError) as caught:
        parse_single_example(record, {"x": Image(key="a", crop=CROP, shape=("w", None, 3))})
    assert str(caught.value) == (
        "feature 'x' (Image, key 'a'): expected an image of (height, width, channels) (101, None, 3), got (75, 101, 3)"
    )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_first_then_cropped(regions_by, orientation):
    data = encode(PHOTO, exif=exif(orientation))
    upright = decode_image(data, apply_orientation=True)
    plan = CROP.plan(*upright.shape[1:], 5)
    wanted = functional.resized_crop(upright, *plan[:4], [24, 20])
    wanted = functional.horizontal_flip(wanted) if plan.across else wanted
    assert torch.equal(one(data, 5, crop=CROP, apply_orientation=True), wanted)
    assert torch.equal(one(data, 5, crop=CROP), expected(data, CROP, 5))


# Damage


class TopCrop(RandomResizedCrop):
    """The image's first rows only, for which little of a file is read."""

    def plan(self, height, width, key):
        return super().plan(height, width, key)._replace(top=0, left=0, height=2, width=9)


@pytest.mark.parametrize("name", ["4:2:0", "gray", "progressive", "PNG", "EXIF"])
def test_a_cut_file_is_an_error_even_where_the_crop_is_there(regions_by, name):
    data = EVERY_KIND[name]
    crop = TopCrop(8)
    one(data, crop=crop)
    for length in [*range(0, len(data) - 40, 97), *range(len(data) - 40, len(data))]:
        with pytest.raises(ImageDecodeError) as caught:
            one(memoryview(data)[:length], crop=crop)
        assert str(caught.value).startswith("expected ")


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's remarks on damaged metadata
def test_changed_bytes_give_an_image_or_our_error_and_nothing_else(regions_by):
    rng = random.Random(6)
    for data in EVERY_KIND.values():
        for _ in range(20):
            damaged = bytearray(data)
            for _ in range(rng.choice([1, 1, 4])):
                damaged[rng.randrange(min(len(damaged), 700))] ^= 1 << rng.randrange(8)
            try:
                assert one(damaged, rng.randrange(99), crop=CROP).shape == (3, 24, 20)
            except (ImageDecodeError, LimitExceededError) as error:
                assert str(error).startswith("expected ")


# Specs, memory, threads


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        (
            {"crop": 224},
            TypeError,
            "crop must be torch_tfrecord.RandomResizedCrop(size) or torch_tfrecord.ResizedCenterCrop(size), got int; "
            "transforms of torchvision go in transform=",
        ),
        (
            {"mode": "unchanged", "crop": CROP},
            ValueError,
            "crop and normalize need one number of channels: mode must not be 'unchanged'",
        ),
        ({"normalize": 0.5}, TypeError, "normalize must be (mean, std), got 0.5"),
        (
            {"mode": "L", "normalize": ((1,), (1, 2))},
            ValueError,
            "normalize must have 1 means and 1 deviations, got ((1,), (1, 2))",
        ),
        (
            {"mode": "L", "normalize": ((1,), (0,))},
            ValueError,
            "normalize must have finite means and deviations other than 0, got ((1,), (0,))",
        ),
    ],
)  # fmt: skip
def test_wrong_specs(options, kind, text):
    with pytest.raises(kind) as caught:
        Image(**options)
    assert str(caught.value) == text


# Through the library


def test_a_loader_draws_anew_for_each_epoch_and_the_same_for_any_batch_size(tmp_path):
    with TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for number in range(7):
            writer.write({"image": encode(draw(60, 80, number)), "label": number})
    features = {
        "image": Image(crop=RandomResizedCrop(16, horizontal_flip=0.5)),
        "label": FixedLenFeature((), torch.int64),
    }

    def epochs(batch_size):
        loader = make_dataloader(tmp_path / "a.tfrecord", batch_size, features)
        found = []
        for _ in range(2):
            rows = [
                row
                for batch in loader
                for row in zip(batch["label"].tolist(), batch["image"], strict=True)
            ]
            found.append([image.clone() for _, image in sorted(rows, key=lambda row: row[0])])
        return found

    first, second = epochs(7)
    assert first[0].shape == (3, 16, 16)
    again, also = epochs(2)
    assert all(map(torch.equal, first, again)) and all(map(torch.equal, second, also))
    assert not any(map(torch.equal, first, second))


def test_sequence_examples_take_the_centre_only():
    with pytest.raises(
        ValueError, match=r"^crop of 'x': images of a SequenceExample have no random crop"
    ):
        parse_single_sequence_example(b"", {"x": Image(crop=CROP)}, None)
    with pytest.raises(
        ValueError, match=r"^crop of 'x': images of a SequenceExample have no random crop"
    ):
        parse_single_sequence_example(b"", None, {"x": Image(crop=CROP)})
    record = encode_sequence_example({}, {"x": [[JPEG_KINDS["4:2:0"]], [JPEG_KINDS["gray"]]]})
    _, steps = parse_single_sequence_example(
        record, None, {"x": Image(crop=ResizedCenterCrop(20, 24))}
    )
    assert type(steps["x"]) is tv_tensors.Video and steps["x"].shape == (2, 3, 20, 20)
