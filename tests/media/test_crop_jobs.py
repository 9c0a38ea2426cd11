"""Crops in the compiled core: the draw is that of Python, the resize torch's bit for bit, and what it
leaves to Python is what it must leave.

Covers media/crops.
"""

import random

import numpy as np
import pytest
import torch
from helpers import pure_python
from image_kinds import EVERY_KIND, JPEG_KINDS, PHOTO, draw, encode
from torch.nn.functional import interpolate
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from torch_tfrecord import (
    Image,
    LimitExceededError,
    ParseError,
    RandomResizedCrop,
    ResizedCenterCrop,
    TFRecordDataset,
    TFRecordWriter,
    decode_image,
    encode_example,
    encode_image,
)
from torch_tfrecord.columns.parsers import ExampleParser
from torch_tfrecord.media import crop_jobs, leading_crops
from torch_tfrecord.media import image as image_columns
from torch_tfrecord.media.crop_jobs import StoredImage
from torch_tfrecord.media.headers import read_header
from torch_tfrecord.media.leading_crops import find_leading_crop
from torch_tfrecord.native import optional_module
from torch_tfrecord.random_stream import to_64_bits

jpeg = optional_module("jpeg")
pytestmark = pytest.mark.skipif(jpeg is None, reason="built without libjpeg-turbo's headers")
NEEDS_AVX2 = pytest.mark.skipif(
    not crop_jobs.resizes_in_core("bilinear"), reason="torch resizes uint8 otherwise here"
)
NORMAL = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# What the core does, of the kinds of pictures.
CORE_KINDS = {*JPEG_KINDS} - {"EXIF"}


# The draw


def plan_crop(size, height, width, key, **crop):
    out = np.empty(size[0] * size[1] * 3, np.uint8)
    keys = np.zeros(1, np.uint64)
    options = {"max_pixels": 1 << 62, "resizes": True, "keys": keys, **crop}
    return jpeg.CropJob(None, [b""], out, (1, *size, 3), **options).plan(height, width, key)


def compare_plans(count, seed):
    rng = np.random.default_rng(seed)
    left = 0
    for number in range(count):
        height, width = (int(2**power) for power in rng.uniform(0, (16, 9, 3)[number % 3], 2))
        height, width = height if number % 10 else 1, width if number % 13 else 1
        size = tuple(rng.integers(1, 300, 2).tolist())
        key = int(rng.integers(0, 2**64, dtype=np.uint64))
        if number % 5:
            crop = RandomResizedCrop(
                size,
                sorted(rng.uniform(0.01, 1.5, 2)) if number % 2 else (0.08, 1.0),
                sorted(np.exp(rng.uniform(-3, 3, 2))) if number % 4 > 1 else (3 / 4, 4 / 3),
                horizontal_flip=(0.0, 0.5, 1.0)[number % 3],
                seed=int(rng.integers(-(2**62), 2**62)),
            )
            drawn = (to_64_bits(crop.seed), crop.scale, crop.ratio, crop.horizontal_flip)
            found = plan_crop(size, height, width, key, drawn=drawn)
        else:
            resize = max(size) + number % 50 if number % 2 else (size[0] + 3, size[1] + 8)
            centred = resize if number % 2 == 0 else (0, resize)
            if number % 3 == 0:
                resize, centred = "pad", (0, 0)
            crop = ResizedCenterCrop(size, resize)
            found = plan_crop(size, height, width, key, centred=centred)
        plan = crop.plan(height, width, key)
        if found is None:
            left += 1
            assert 0 in plan[2:4] or 1 in plan[4:6]  # no pixels: Python's
        else:
            assert [*found.values()] == [*plan], (height, width, key)
    assert left < count / 10


def test_the_draw_is_that_of_python():
    compare_plans(2000, 1)


@pytest.mark.daily
def test_a_hundred_thousand_draws_are_those_of_python():
    compare_plans(100_000, 2)


def test_a_draw_beyond_numbers_is_left_to_python():
    scale = (1e308, 1.7e308)
    assert plan_crop((8, 8), 9, 9, 0, drawn=(0, scale, (1, 1), 0)) is None
    with pytest.raises(OverflowError):
        RandomResizedCrop(8, scale).plan(9, 9, 0)
    assert plan_crop((8, 8), 1, 65_535, 0, centred=(0, 1 << 40)) is None


# The resize


def compare_resizes(count, seed):
    rng = np.random.default_rng(seed)
    for number in range(count):
        kind, channels = ("bilinear", "bicubic")[number % 2], (3, 3, 1)[number % 3]
        most = (12, 60, 260)[number % 3] if number % 50 else 900
        height, width, *size = rng.integers(1, most, 4).tolist()
        size = [height if number % 11 == 0 else size[0], width if number % 7 == 0 else size[1]]
        pixels = rng.integers(0, 256, (channels, height, width), dtype=np.uint8)
        if number % 4 == 0:  # the largest sums
            pixels = pixels // 128 * 255
        data = encode_image(torch.from_numpy(pixels), "jpeg", 100)
        image = decode_image(data, {1: "L", 3: "RGB"}[channels])[None]
        image = image.contiguous(memory_format=torch.channels_last)
        wanted = interpolate(image, size, mode=kind, align_corners=False, antialias=True)
        wanted = wanted[0].permute(1, 2, 0).numpy()
        begins = [int(rng.integers(side)) if number % 3 else 0 for side in size]
        shape = [size[0] - begins[0], size[1] - begins[1], channels]
        for axis in range(2):
            if rng.random() < 0.2:  # zeros around it
                begins[axis] = -int(rng.integers(20))
                shape[axis] = size[axis] - begins[axis] + int(rng.integers(20))
        across, down = rng.integers(0, 2, 2).tolist()
        out = np.full((1, *shape), 77, np.uint8)
        plan = (0, 0, height, width, *size, *begins, across, down)
        assert job([data], out, plans=np.array([plan]), bicubic=kind == "bicubic").done == 1
        cut = functional.crop(torch.from_numpy(wanted).permute(2, 0, 1), *begins, *shape[:2])
        mirrored = cut.permute(1, 2, 0).numpy()[:: -1 if down else 1, :: -1 if across else 1]
        assert np.array_equal(out[0], mirrored), (kind, plan)


@NEEDS_AVX2
def test_the_resize_is_torchs_bit_for_bit():
    compare_resizes(300, 1)


@NEEDS_AVX2
@pytest.mark.daily
def test_a_hundred_thousand_resizes_are_torchs():
    compare_resizes(100_000, 2)


@NEEDS_AVX2
def test_plans_that_do_not_fit_are_left_to_python():
    data = encode(draw(4, 5))
    plans = [
        (0, 0, 4, 5, 4, 5, 0, 0, 0, 0),
        (0, 0, 2, 5, 2, 5, -1, 0, 0, 0),
        (0, 0, 5, 4, 5, 4, 0, 0, 0, 0),
        (1, 0, 4, 5, 4, 5, 0, 0, 0, 0),
        (0, 0, 4, 5, -1, 5, 0, 0, 0, 0),
        (0, 0, 4, 5, 6, 7, 3, 0, 0, 0),  # neither in the region nor around it
        (0, 0, 4, 5, 6, 7, 0, -1, 0, 0),
        (0, 0, 4, 5, 3, 7, 1, 0, 0, 0),
        (0, 0, 4, 5, 3, 7, -2, 0, 0, 0),
        (0, 0, 4, 5, 3, 7, -(2**63), 0, 0, 0),
        (0, 0, 4, 5, 0, 7, -1, 0, 0, 0),
        (0, 0, 4, 5, 2**40, 7, 0, 0, 0, 0),
    ]
    out = np.full((len(plans), 4, 5, 3), 77, np.uint8)
    made = job([data] * len(plans), out, plans=np.array(plans))
    assert made.sizes[:, 0].tolist() == [4, 4] + [0] * (len(plans) - 2)
    whole = decode_image(data).permute(1, 2, 0).numpy()
    assert (out[0] == whole).all() and (out[2:] == 77).all()
    assert (out[1, 1:3] == whole[:2]).all() and not out[1, ::3].any()


def test_a_region_with_as_many_pixels_as_its_window_is_no_row():
    data = encode(PHOTO)
    out = np.full((1, 4, 4, 3), 77, np.uint8)
    made = job([data], out, plans=np.array([(9, 9, 2, 8, 2, 8, -1, 3, 0, 0)]))
    assert made.done == crop_jobs.resizes_in_core("bilinear")
    if made.done:
        assert (out[0, 1:3] == decode_image(data)[:, 9:11, 12:16].permute(1, 2, 0).numpy()).all()
        assert not out[0, ::3].any()


# Jobs


def job(images, out=None, **options):
    """A job that was run: centred, unless another crop is given."""
    images = list(images)
    out = np.full((len(images), 24, 20, 3), 77, np.uint8) if out is None else out
    if "plans" not in options:
        options.setdefault("centred", (0, 30))
    made = jpeg.CropJob(
        options.pop("buffer", None),
        images,
        out.reshape(-1),
        out.shape,
        **{"max_pixels": 1 << 30, "resizes": True, **options},
    )
    assert made.done == 0
    assert optional_module("jobs").run([made]) == 1
    return made


def test_plain_pictures_are_the_cores():
    made = job(EVERY_KIND.values(), ignores_exif=False)
    found = {
        name
        for name, size in zip(EVERY_KIND, made.sizes.tolist(), strict=True)
        if size == [75, 101]
    }
    assert found == CORE_KINDS and made.done == len(found)
    assert (made.sizes[[name not in found for name in EVERY_KIND]] == 0).all()
    assert job([EVERY_KIND["EXIF"]]).done == 1


@pytest.mark.parametrize("orientation", [0, 1, 2, 5, 8, 9])
def test_only_turned_pictures_are_left_to_python(orientation):
    for order in (
        b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0%c\0\0\0\0\0\0\0",
        b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0%c\0\0\0\0\0\0",
    ):
        data = encode(PHOTO, exif=order % orientation)
        is_turned = 2 <= orientation <= 8
        assert read_header(data).orientation == (orientation if is_turned else 1)
        assert job([data], ignores_exif=False).done == (not is_turned)


@NEEDS_AVX2
@pytest.mark.parametrize("normalize", [None, NORMAL])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_the_cores_pixels_are_pythons(mode, interpolation, normalize):
    normalize = (
        None
        if normalize is None
        else tuple(each[: 3 if mode == "RGB" else 1] for each in normalize)
    )
    values = [*EVERY_KIND.values(), encode(draw(200, 30, 5)), encode(draw(1, 9, 6))]
    keys = np.arange(len(values), dtype=np.uint64) * np.uint64(2**59)
    for crop in (
        RandomResizedCrop((24, 31), interpolation=interpolation, horizontal_flip=0.5, seed=-3),
        ResizedCenterCrop((24, 20), 26, interpolation),
        ResizedCenterCrop((24, 31), "pad", interpolation),
        ResizedCenterCrop((350, 131), "pad", interpolation),
    ):
        reader = Image(mode=mode, crop=crop, normalize=normalize)._reader("x")
        found = reader.from_values(values, [()] * len(values), keys)
        with pure_python():
            assert torch.equal(found, reader.from_values(values, [()] * len(values), keys))


def test_spans_are_read_when_the_job_runs_and_only_inside_the_buffer():
    data = JPEG_KINDS["4:2:0"]
    buffer, spans = bytearray(len(data) + 20), np.zeros((7, 2), np.int64)
    out = np.empty((7, 24, 20, 3), np.uint8)
    made = jpeg.CropJob(
        buffer, spans, out.reshape(-1), out.shape, centred=(0, 30), max_pixels=1 << 30, resizes=True
    )
    buffer[9 : 9 + len(data)] = data
    most = 2**63 - 1
    spans[:] = [
        [9, len(data)],
        [9, most],
        [most, 1],
        [-1, 9],
        [9, -1],
        [0, 0],
        [len(buffer) + 1, 0],
    ]
    optional_module("jobs").run([made])
    assert made.sizes.tolist() == [[75, 101], *[[0, 0]] * 6]
    alone = np.empty((1, 24, 20, 3), np.uint8)
    job([data], alone)
    assert made.done == 1 and np.array_equal(out[0], alone[0])


def test_limits_are_pythons():
    data = JPEG_KINDS["4:2:0"]
    assert job([data], max_pixels=75 * 101).done == 1
    assert job([data], max_pixels=75 * 101 - 1).done == 0
    assert job([data], max_pixels=120 * 161, centred=(0, 120)).done == 1
    assert job([data], max_pixels=120 * 161 - 1, centred=(0, 120)).done == 0
    assert job([data], resizes=False).done == 0
    given = np.array([[5, 6, 24, 20, 24, 20, 0, 0, 0, 0]], np.int64)
    assert job([data], resizes=False, plans=given).done == 1
    for wrong in ([52, 0, 24], [0, 82, 24], [-1, 0, 24], [0, 0, 0]):
        given[0, :3] = wrong
        assert job([data], plans=given).done == 0


@pytest.mark.parametrize(
    "options",
    [
        {"images": [b""]},
        {"out": np.empty(2 * 9 * 9 * 3 + 1, np.uint8)},
        {"sizes": (0, 9, 9, 3)},
        {"sizes": (2, 9, 9, 4), "out": np.empty(2 * 9 * 9 * 4, np.uint8)},
        {"sizes": (2, 9, -9, 3)},
        {"sizes": (2, 2**62, 2**62, 3)},
        {"table": np.zeros((3, 255), np.float32), "out": np.empty(2 * 9 * 9 * 12, np.uint8)},
        {"table": np.zeros((2, 256), np.float32), "out": np.empty(2 * 9 * 9 * 12, np.uint8)},
        {"keys": np.zeros(1, np.uint64), "drawn": (0, (0.1, 1), (1, 1), 0)},
        {"plans": np.zeros((2, 9), np.int64)},
        {"plans": np.zeros((1, 10), np.int64)},
        {"buffer": b"", "images": np.zeros((2, 3), np.int64)},
        {"table": np.zeros((3, 256), np.float32)},
    ],
)
def test_a_job_checks_its_arguments(options):
    given = {"buffer": None, "images": [b"", b""], "out": np.empty(2 * 9 * 9 * 3, np.uint8)}
    given |= {"sizes": (2, 9, 9, 3), "max_pixels": 99, "centred": (9, 9)}
    jpeg.CropJob(**given)
    with pytest.raises(ValueError, match=r"^expected images, memory, keys, plans and a table for "):
        jpeg.CropJob(**given | options)


def test_changed_bytes_never_write_outside_their_row():
    rng = random.Random(8)
    for name, data in JPEG_KINDS.items():
        for _ in range(60):
            damaged = bytearray(data)
            for _ in range(rng.choice([1, 1, 5])):
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            out = np.full((3, 24, 20, 3), 77, np.uint8)
            plans = np.array(
                [[rng.randrange(45), rng.randrange(61), 30, 40, 24, 20, 0, 0, 1, 1]] * 3
            )
            plans[[0, 2], 2] = 0
            made = job([damaged] * 3, out, plans=plans)
            assert (out[[0, 2]] == 77).all() and (made.sizes[[0, 2]] == 0).all(), name


# Crops in torchvision's transforms


@NEEDS_AVX2
@pytest.mark.skipif(not leading_crops._KNOWS_UINT8, reason="an older torchvision resizes otherwise")
@pytest.mark.parametrize(
    "steps",
    [
        (v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()),
        (v2.RandomResizedCrop(24, interpolation=v2.InterpolationMode.BICUBIC), v2.ToDtype(torch.float32, scale=True)),
        (v2.Resize(30), v2.CenterCrop((24, 20)), v2.ToDtype(torch.float32, scale=True), v2.Normalize(*NORMAL)),
        (v2.Resize((40, 33), interpolation=3), v2.CenterCrop(24)),
        (v2.RandomCrop(24), v2.RandomVerticalFlip()),
        (v2.CenterCrop(24),),
    ],
)  # fmt: skip
def test_torchvisions_crops_are_the_cores(monkeypatch, steps):
    """Draws and pixels are those of the transforms, and the core has made them."""
    crop = find_leading_crop(v2.Compose(steps), 3)
    values = [StoredImage(data, "RGB") for data in EVERY_KIND.values()]
    done = []

    def counted(job):
        sizes = crop_jobs.run_job(job)
        done.append(job.done)
        return sizes

    monkeypatch.setattr(leading_crops, "run_job", counted)
    torch.manual_seed(3)
    found = crop.batch(values, None)
    assert done == [len(JPEG_KINDS)] and type(found) is tv_tensors.Image
    monkeypatch.undo()
    torch.manual_seed(3)
    with pure_python():
        assert torch.equal(found, crop.batch(values, None))


# With the records


@NEEDS_AVX2
@pytest.mark.parametrize("normalize", [None, NORMAL])
def test_a_batch_is_cropped_in_the_call_that_reads_its_records(tmp_path, monkeypatch, normalize):
    """Kinds that the core does not do, records that lack the image and sizes in records included."""
    names = [*EVERY_KIND, None, *JPEG_KINDS]
    images = [None if name is None else EVERY_KIND[name] for name in names]
    spec = Image(
        crop=RandomResizedCrop((24, 31), horizontal_flip=0.5),
        normalize=normalize,
        shape=(75, None, 3),
        default_value=EVERY_KIND["PNG"],
    )
    records = [
        encode_example({"h": 75} | ({} if data is None else {"image": data})) for data in images
    ]
    records[3] += encode_example({"h": 75})  # not canonical: parsed by protobuf
    given = [EVERY_KIND["PNG"] if data is None else data for data in images]
    keys = np.arange(len(given), dtype=np.uint64) * np.uint64(2**58)
    reader = spec._reader("image")
    wanted = reader.from_values(given, [(75, None, 3)] * len(given), keys)
    path = str(tmp_path / "a.tfrecord")
    with TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    centre = Image(
        crop=ResizedCenterCrop(24, 30), normalize=normalize, default_value=EVERY_KIND["PNG"]
    )
    centred = centre._reader("image").from_values(given, [()] * len(given))
    with monkeypatch.context() as patch:
        patch.setattr(image_columns, "run_job", None)  # there is no second call
        batch = ExampleParser({"image": spec}).batch(records, keys)["image"]
        samples = TFRecordDataset(path, {"image": centre}).__getitems__(range(len(given)))
    assert type(batch) is tv_tensors.Image and torch.equal(batch, wanted)
    order = torch.contiguous_format if normalize else torch.channels_last
    assert batch.is_contiguous(memory_format=order)
    for sample, row in zip(samples, centred, strict=True):
        assert type(sample["image"]) is tv_tensors.Image and torch.equal(sample["image"], row)
    sized = {"image": Image(crop=centre.crop, shape=("h", "w", 3))}
    good = encode_example({"h": 75, "w": 101, "image": given[0]})
    bad = encode_example({"h": 76, "w": 101, "image": given[0]})
    assert ExampleParser(sized).batch([good, good])["image"].shape == (2, 3, 24, 24)
    with pytest.raises(ParseError, match=r"\(76, 101, 3\), got \(75, 101, 3\)") as caught:
        ExampleParser(sized).batch([good, bad, good])
    assert caught.value.position == 1
    with pytest.raises(
        LimitExceededError, match=r"^feature 'image' \(Image\): expected a batch of"
    ):
        ExampleParser({"image": spec}, max_batch_bytes=9000).batch(records, keys)
