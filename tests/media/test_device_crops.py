"""Pictures that the device decodes, by a double of it: torchcodec decodes them on the CPU.

Covers media/device_crops. On a GPU itself: tests/loading/test_gpu.py.
"""

import gc
import itertools
import time

import pytest
import torch
from pictures import CASES, KINDS, SIZES, jpeg
from streams import DoubleDevice

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    ImageDecodeError,
    Mixture,
    RandomResizedCrop,
    TFRecordDataset,
    TFRecordWriter,
    make_dataloader,
    tfds,
)
from torch_tfrecord.errors import warn_once
from torch_tfrecord.loading import device as device_module
from torch_tfrecord.loading.pinned import DeviceShare
from torch_tfrecord.media import device_crops
from torch_tfrecord.native import optional_module

pytestmark = [
    pytest.mark.skipif(device_crops.device_decoder() is None, reason="needs torchcodec 0.17"),
    pytest.mark.skipif(optional_module("jpeg") is None, reason="needs the compiled core"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("crops") / "a.tfrecord")
    with TFRecordWriter(path, write_index=True) as writer:
        for n in range(60):
            kind = ["", "gray", "", "restarts", "bytes after"][n % 5]
            writer.write({"n": n, "image": jpeg(n, kind)})
    return path


@pytest.fixture(autouse=True)
def _double(monkeypatch):
    monkeypatch.setattr(device_module, "accelerator_of", DoubleDevice)
    warn_once.cache_clear()


def batches(source, batch_size=12, device="cuda", num_threads=None, **image):
    """The pictures, as the training's stream sees them, and the loader's stats."""
    image.setdefault("crop", RandomResizedCrop(96, horizontal_flip=0.5))
    features = {"n": FixedLenFeature((), torch.int64), "image": Image(**image)}
    loader = make_dataloader(
        source, batch_size, features, device=device, shuffle=False, num_threads=num_threads
    )
    seen = []
    for batch in loader:
        if device is None:
            seen.append(batch["image"])
            continue
        training = loader._prefetcher.accelerator.training
        training.work.append(lambda batch=batch: seen.append(batch["image"].clone()))
        training.run()
    return seen, loader.stats()


@pytest.mark.parametrize("name", CASES)
def test_pixels_are_nearly_those_of_the_host(path, name):
    expected, _ = batches(path, device=None, **CASES[name])
    found, stats = batches(path, decode_on="device", **CASES[name])
    assert stats["on_device"] == 12
    # Rounded once, where the host rounds after each axis.
    bound = 1 if name != "normalized" else 1 / 255 / 0.2 + 1e-6
    for one, two in zip(found, expected, strict=True):
        assert type(one) is type(two) and one.shape == two.shape and one.dtype == two.dtype
        difference = (one.double() - two.double()).abs()
        assert difference.max() <= bound
        assert difference.mean() <= bound / 3


def test_what_the_device_does_not_take_the_host_decodes(tmp_path):
    path = str(tmp_path / "kinds.tfrecord")
    with TFRecordWriter(path) as writer:
        for n, kind in itertools.product(range(3), KINDS):
            writer.write({"n": n, "image": jpeg(n, kind)})
    kept = {}
    for decode_on in ("cpu", "device"):
        (found,), stats = batches(path, 24, decode_on=decode_on)
        kept[decode_on] = found.int().unflatten(0, (3, len(KINDS)))
        assert stats.get("on_device") == (None if decode_on == "cpu" else 12)
    difference = (kept["cpu"] - kept["device"]).abs().amax((0, 2, 3, 4)).tolist()
    assert [difference[KINDS.index(kind)] for kind in KINDS[1:5]] == [0] * 4
    assert max(difference) == 1


def test_a_damaged_picture_is_the_error_of_its_record(tmp_path):
    path = str(tmp_path / "cut.tfrecord")
    with TFRecordWriter(path) as writer:
        for n in range(8):
            writer.write({"n": n, "image": jpeg(n, "cut" if n == 5 else "")})
    with pytest.raises(ImageDecodeError, match=r"cut\.tfrecord: record 5\b"):
        batches(path, 4, decode_on="device")


def test_a_device_that_fails_is_left_alone(path, monkeypatch):
    asked = []

    def fails(images, **options):
        asked.append(len(images))
        raise RuntimeError("no such engine\nand a traceback")

    options = {"num_threads": 2}
    expected, _ = batches(path, 3, **options)
    monkeypatch.setattr(device_crops, "device_decoder", lambda: fails)
    with pytest.warns(RuntimeWarning, match=r"the device fails \(no such engine\)") as warned:
        found, _ = batches(path, 3, decode_on="device", **options)
    assert all(map(torch.equal, found, expected))
    texts = [str(warning.message) for warning in warned]
    assert "decodes all others, too" in texts[-1]
    assert len(asked) < 15  # of 20: those under way when it failed for the third time


def test_pictures_that_the_device_finds_bad_are_read_again(path, monkeypatch):
    decode = device_crops.device_decoder()
    monkeypatch.setattr(
        device_crops,
        "device_decoder",
        lambda: lambda images, **options: [image[:, 1:] for image in decode(images, **options)],
    )
    expected, _ = batches(path, 30)
    with pytest.warns(RuntimeWarning, match=r"expected \[3, .*\] pixels"):
        found, _ = batches(path, 30, decode_on="device")
    assert all(map(torch.equal, found, expected))


def test_rows_that_are_copied_are_decoded_by_the_host(path):
    def mixture(decode_on):
        features = {"image": Image(crop=RandomResizedCrop(64), decode_on=decode_on)}
        ds = TFRecordDataset(path, features)
        return Mixture([ds, ds[:20]], [2, 1])

    expected = [batch["image"] for batch in make_dataloader(mixture("cpu"), 10)]
    loader = make_dataloader(mixture("device"), 10, device="cuda")
    seen = []
    with pytest.warns(RuntimeWarning, match="copied, as by a mixture"):
        for batch in loader:
            loader._prefetcher.accelerator.training.run()
            seen.append(batch["image"].clone())
    assert all(map(torch.equal, seen, expected))


@pytest.mark.parametrize(
    "options",
    [{}, {"device": "cuda", "transform": lambda sample: sample}],
    ids=["host", "transform"],
)
def test_a_loader_without_a_device_says_so(path, options):
    features = {"image": Image(crop=RandomResizedCrop(64), decode_on="device")}
    with pytest.warns(RuntimeWarning, match="the CPU decodes these pictures"):
        next(iter(make_dataloader(path, 10, features, **options)))


def test_whole_images_of_one_size(tmp_path):
    path = str(tmp_path / "whole.tfrecord")
    with TFRecordWriter(path) as writer:
        for n in range(0, 50, 5):
            writer.write({"n": n, "image": jpeg(n)})
    for mode, number in (
        ("RGB", 5),
        ("L", None),
    ):  # the last is too small to be made in pinned memory
        expected, _ = batches(path, 5, crop=None, mode=mode)
        found, stats = batches(path, 5, crop=None, mode=mode, decode_on="device")
        assert stats.get("on_device") == number
        assert all(map(torch.equal, found, expected))


def test_frames_of_robots(tmp_path):
    """Windows without padding are decoded on the device, the others by the host."""
    high, wide = SIZES[1]
    features = tfds.features.FeaturesDict({"steps": tfds.features.Dataset({
        "observation": {"image": tfds.features.Image((high, wide, 3), encoding_format="jpeg")},
        "action": tfds.features.Scalar("float32"),
    })})  # fmt: skip
    episodes = [
        {"steps": [{"observation": {"image": jpeg(5 * step + 1)}, "action": float(step)} for step in range(9)]}
        for _ in range(3)
    ]  # fmt: skip
    tfds.write(tmp_path / "drawn" / "1.0.0", {"train": episodes}, features, name="drawn")
    for options in ({}, {"window_size": 2, "pad": None}, {"window_size": 2}):
        seen = {}
        for decode_on in ("cpu", "device"):
            ds = tfds.RLDSDataset(tmp_path / "drawn" / "1.0.0", decode_on=decode_on, **options)
            loader = make_dataloader(ds, 6, device="cuda", shuffle=False)
            found = seen.setdefault(decode_on, [])
            for batch in loader:
                loader._prefetcher.accelerator.training.run()
                found.append(batch["observation"]["image"].clone())
            count = loader.stats().get("on_device", 0)
            assert count == 0 if decode_on == "cpu" else count > 0
        assert all(map(torch.equal, seen["cpu"], seen["device"]))


def test_auto_gives_each_side_what_its_rate_earns():
    share = DeviceShare()
    share.num_threads = 6  # two of which feed the device and train
    assert share.of(100, "auto") == 100  # the device is not known yet
    share.took("device", 10, 0.01)
    share.took("host", 10, 0.04)  # by each of four threads
    assert share.of(100, "auto") == 50
    share.took("device", 1000, 3.0)
    assert 40 < share.of(100, "auto") < 50
    for _ in range(2000):  # nobody waits
        share.waited(False)
    assert share.of(100, "auto") == 0 and share.of(100, "device") == 100
    for _ in range(4):
        share.waited(True)
    assert 40 < share.of(100, "auto") < 50


def test_auto_is_right_in_each_batch(path):
    expected, _ = batches(path, 6)
    for one, two in zip(batches(path, 6, decode_on="auto")[0], expected, strict=True):
        assert (one.int() - two.int()).abs().max() <= 1


def test_an_early_end_frees_everything(path):
    features = {"image": Image(crop=RandomResizedCrop(224), decode_on="device")}
    loader = make_dataloader(path, 6, features, device="cuda", num_epochs=None, num_threads=2)
    device = loader._prefetcher.accelerator
    for _ in range(3):
        for number, _batch in enumerate(loader):
            device.training.run()
            if number == 12:
                break
    del loader, _batch
    device.side.work.clear()  # what a stream has done, it forgets
    for _ in range(1000):  # threads end
        gc.collect()
        if len(device.free) == device.num_blocks:
            return
        time.sleep(0.01)
    pytest.fail(f"{device.num_blocks} blocks, of which {len(device.free)} are free")


def test_too_old_a_torchcodec_is_told_once(monkeypatch):
    monkeypatch.setattr(device_crops.importlib.metadata, "version", lambda name: "0.16.1")
    device_crops.device_decoder.cache_clear()
    try:
        with pytest.warns(
            RuntimeWarning, match=r"torchcodec 0\.17 or newer, and got: torchcodec 0\.16\.1"
        ):
            assert device_crops.device_decoder() is None
        assert device_crops.device_decoder() is None
    finally:
        device_crops.device_decoder.cache_clear()
