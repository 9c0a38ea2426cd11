"""torchvision's transforms that begin with a crop: what decodes whole images first is the
oracle.
"""

import os
from pathlib import Path

import pytest
import torch
from batches import assert_same
from image_kinds import EVERY_KIND, JPEG_KINDS, PHOTO, draw, encode, exif
from torch import nn
from torch.utils.data import DataLoader, Subset, default_collate
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    ImageDecodeError,
    NestedExample,
    ParseError,
    RandomResizedCrop,
    SequenceFeatures,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    collate,
    encode_example,
    encode_sequence_example,
    make_dataloader,
)
from torch_tfrecord.media import image as image_columns
from torch_tfrecord.media.leading_crops import find_leading_crop

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FEATURES = {"image": Image(key="image/encoded"), "label": FixedLenFeature((), torch.int64)}
TO_FLOAT = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
USUAL = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), *TO_FLOAT])
SMALL = [
    encode(draw(height, width), kind)
    for height, width in [(101, 75), (30, 31), (5, 90)]
    for kind in ("jpeg", "png")
]
IMAGES = [*EVERY_KIND.values(), *SMALL]
LARGE = [*EVERY_KIND.values()]  # all of 75 x 101

# The folder of your photographs, at which every transform is tried, too.
PHOTOS = os.environ.get("PHOTOS")


def write(path, images):
    with TFRecordWriter(path) as writer:
        for number, image in enumerate(images):
            writer.write({"image/encoded": image, "label": number})
    return path


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write(tmp_path_factory.mktemp("records") / "all", IMAGES)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return write(tmp_path_factory.mktemp("records") / "large", LARGE)


def whole(*_):
    """In the place of `Image._leading`: no transform begins with a crop."""


def with_state(load, seed=7):
    """What a run gives, and torch's random state after it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        found = load()
        return found, torch.get_rng_state()


def refuse(*args, **options):
    raise AssertionError("a whole image was decoded")


def assert_equal(load, monkeypatch, decodes=False):
    """The same values, types, memory and draws as of the run that decodes whole images."""
    with monkeypatch.context() as patch:
        patch.setattr(Image, "_leading", whole)
        expected, expected_state = with_state(load)
    with monkeypatch.context() as patch:
        if not decodes:
            patch.setattr(image_columns, "decode_image", refuse)
        found, state = with_state(load)
    assert_same(found, expected)
    for left, right in zip(_tensors(found), _tensors(expected), strict=True):
        assert left.is_contiguous() >= right.is_contiguous()
    assert torch.equal(state, expected_state)


def _tensors(batches):
    return [
        value
        for batch in batches
        if isinstance(batch, dict)
        for value in batch.values()
        if torch.is_tensor(value)
    ]


def batches_of(path, transform, features=FEATURES, size=7):
    ds = TFRecordDataset(path, features, transform=transform)
    return [
        collate(ds.__getitems__(list(range(len(ds)))[begin : begin + size]))
        for begin in range(0, len(ds), size)
    ]


# Every transform, every kind of image


CROPS = {
    "resized": [v2.RandomResizedCrop(24)],
    "resized, of other shapes": [
        v2.RandomResizedCrop((20, 33), scale=(0.5, 2.0), ratio=(0.2, 5.0))
    ],
    "resized, which never fits": [v2.RandomResizedCrop(24, scale=(1.5, 2.0), ratio=(2.0, 3.0))],
    "resized, narrow": [v2.RandomResizedCrop((7, 24), ratio=(0.3, 0.35))],
    "resized, enlarged": [v2.RandomResizedCrop((120, 130), scale=(0.01, 0.1))],
    "centre": [v2.CenterCrop(24)],
    "centre, odd": [v2.CenterCrop((4, 29))],
    "centre, padded": [v2.CenterCrop((80, 40))],
    "scaled centre": [v2.Resize(28), v2.CenterCrop((24, 23))],
    "scaled to both sides": [
        v2.Resize((40, 30), interpolation=InterpolationMode.BICUBIC),
        v2.CenterCrop(24),
    ],
    "scaled and padded": [v2.Resize(28, antialias=False), v2.CenterCrop(32)],
    "scaled to a longest side": [v2.Resize(28, max_size=30), v2.CenterCrop(24)],
    "padded if needed": [v2.RandomCrop(50, pad_if_needed=True)],
    "padded": [v2.RandomCrop((5, 30), padding=(1, 2, 3, 4), fill=(9, 8, 7))],
    "padded with one colour for images": [
        v2.RandomCrop((5, 30), padding=2, fill={tv_tensors.Image: 99, "others": 3})
    ],
    "padded by its edge": [v2.RandomCrop(30, padding=4, pad_if_needed=True, padding_mode="edge")],
    "nested": [v2.Compose([v2.Compose([v2.RandomResizedCrop(24)])])],
    "behind what does nothing": [
        v2.ToImage(),
        v2.Identity(),
        v2.ToDtype(torch.uint8),
        v2.RandomResizedCrop(24),
    ],
    **{
        f"{getattr(mode, 'value', mode)} antialias={antialias}": [
            v2.RandomResizedCrop(24, interpolation=mode, antialias=antialias)
        ]
        for mode in (
            InterpolationMode.NEAREST,
            InterpolationMode.NEAREST_EXACT,
            InterpolationMode.BILINEAR,
            InterpolationMode.BICUBIC,
            2,
        )
        for antialias in (True, False, None)
    },
}
FOLLOWING = {
    "nothing": [],
    "flip": [v2.RandomHorizontalFlip()],
    "flips": [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(0.3), v2.RandomHorizontalFlip(0.7)],
    "usual": [v2.RandomHorizontalFlip(), *TO_FLOAT],
    "flip last": [*TO_FLOAT, v2.RandomVerticalFlip()],
    "unscaled": [v2.ToDtype(torch.float32)],
    "by type": [
        v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
        v2.Normalize([0.5], [2.0]),
    ],
    "in place": [
        v2.ConvertImageDtype(),
        v2.Identity(),
        v2.Normalize(MEAN, STD, inplace=True),
        v2.ToImage(),
    ],
    "plain tensors": [v2.RandomHorizontalFlip(), *TO_FLOAT, v2.ToPureTensor()],
    "plain bytes": [v2.ToPureTensor()],
    "float16": [
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float16, scale=True),
        v2.Normalize(MEAN, STD),
    ],
    "bfloat16": [v2.ToDtype(torch.bfloat16, scale=True)],
    "float64": [
        v2.ToDtype(torch.float64, scale=True),
        v2.Normalize(MEAN, STD),
        v2.RandomHorizontalFlip(),
    ],
    "int32": [v2.ToDtype(torch.int32, scale=True)],
    "and back": [*TO_FLOAT, v2.ToDtype(torch.uint8, scale=True)],
}


@pytest.mark.parametrize("name", CROPS)
def test_every_crop(records, monkeypatch, name):
    transform = v2.Compose([*CROPS[name], v2.RandomHorizontalFlip()])
    assert find_leading_crop(transform, 3).is_all
    assert_equal(lambda: batches_of(records, transform), monkeypatch)


@pytest.mark.parametrize("name", FOLLOWING)
def test_what_follows(records, monkeypatch, name):
    transform = v2.Compose([v2.RandomResizedCrop((24, 20)), *FOLLOWING[name]])
    assert find_leading_crop(transform, 3).is_all
    assert_equal(lambda: batches_of(records, transform), monkeypatch)


@pytest.mark.parametrize("size", [24, (75, 101), (75, 8)])
def test_cut_out_without_padding(large, monkeypatch, size):
    assert_equal(lambda: batches_of(large, v2.RandomCrop(size)), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
def test_mirrored_edges(large, monkeypatch, mode):
    transform = v2.RandomCrop(80, padding=6, padding_mode=mode)
    assert_equal(lambda: batches_of(large, transform), monkeypatch)


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_upright(tmp_path, monkeypatch, kind):
    path = write(
        tmp_path / "turned", [encode(PHOTO, kind, exif=exif(number)) for number in range(1, 9)]
    )
    for upright in (True, False):
        features = {**FEATURES, "image": Image(key="image/encoded", apply_orientation=upright)}
        assert_equal(lambda given=features: batches_of(path, USUAL, given), monkeypatch)


@pytest.mark.skipif(PHOTOS is None, reason="set PHOTOS to a folder of photographs")
def test_photographs(tmp_path, monkeypatch):
    paths = sorted(
        path for path in Path(PHOTOS).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")
    )
    path = write(tmp_path / "photographs", [path.read_bytes() for path in paths])
    for steps in CROPS.values():
        assert_equal(
            lambda given=steps: batches_of(path, v2.Compose([*given, *FOLLOWING["usual"]])),
            monkeypatch,
        )


# Every way in


def loader(path, transform, **options):
    return DataLoader(TFRecordDataset(path, FEATURES, transform=transform), batch_size=5, **options)


def stream(path, transform, batch_size=None, **options):
    ds = TFRecordIterableDataset(
        path, FEATURES, transform=transform, batch_size=batch_size, **options
    )
    return DataLoader(
        ds, batch_size=None if batch_size else 4, collate_fn=collate if batch_size is None else None
    )


def chained(path, transform, **options):
    return make_dataloader(
        path, 5, FEATURES, label_key="label", transform=transform, seed=3, **options
    )


WAYS = {
    "collate": lambda path, transform: loader(path, transform, shuffle=True, collate_fn=collate),
    "torch's collate": lambda path, transform: loader(path, transform, shuffle=True),
    "a collate_fn": lambda path, transform: loader(
        path, transform, collate_fn=lambda batch: default_collate(batch[::-1])
    ),
    "workers": lambda path, transform: loader(
        path, transform, shuffle=True, collate_fn=collate, num_workers=2
    ),
    "threads": lambda path, transform: make_dataloader(
        path, 5, FEATURES, transform=transform, num_threads=2, num_epochs=2
    ),
    "many threads": lambda path, transform: make_dataloader(
        path, 21, FEATURES, transform=transform, num_threads=4
    ),
    "no threads": lambda path, transform: make_dataloader(
        path, 5, FEATURES, transform=transform, num_threads=0
    ),
    "label_key": lambda path, transform: chained(path, transform, num_threads=2),
    "label_key, workers": lambda path, transform: chained(path, transform, num_workers=2),
    "a dataset": lambda path, transform: make_dataloader(
        Subset(TFRecordDataset(path, FEATURES, transform=transform), range(3, 18)),
        5,
        label_key="label",
        num_threads=2,
    ),
    "torch's Subset": lambda path, transform: DataLoader(
        Subset(TFRecordDataset(path, FEATURES, transform=transform), range(3, 18)),
        5,
        collate_fn=collate,
    ),
    "one by one": lambda path, transform: map(
        TFRecordDataset(path, FEATURES, transform=transform).__getitem__, (3, -1, 3)
    ),
    "a slice": lambda path, transform: DataLoader(
        TFRecordDataset(path, FEATURES, transform=transform)[2:9], 3
    ),
    "stream of batches": lambda path, transform: stream(path, transform, 5),
    "shuffled stream": lambda path, transform: stream(
        path, transform, 5, shuffle=True, shuffle_buffer_size=6
    ),
    "stream of samples": stream,
    "shuffled stream of samples": lambda path, transform: stream(
        path, transform, shuffle=True, shuffle_buffer_size=6
    ),
}
JITTERED = v2.Compose(
    [v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4), *TO_FLOAT]
)


@pytest.mark.daily
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["usual", "jittered"])
def test_every_way_in(records, monkeypatch, way, name):
    transform = {"usual": USUAL, "jittered": JITTERED}[name]
    # In threads whole images are decoded ahead, where what follows has to be done sample after
    # sample.
    decodes = (
        name == "jittered" and WAYS[way](records, transform).__class__.__name__ == "RecordLoader"
    )
    assert_equal(lambda: list(WAYS[way](records, transform)), monkeypatch, decodes)


def test_draws_of_the_training_between_batches(records, monkeypatch):
    def load():
        return [(batch["image"], torch.rand(2)) for batch in WAYS["threads"](records, USUAL)]

    assert_equal(load, monkeypatch)


def test_a_transform_may_change_at_any_time(records, monkeypatch):
    def load():
        transform = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(0.0)])
        ds = TFRecordDataset(records, FEATURES, transform=transform)
        first = collate(ds.__getitems__([0, 1]))
        transform.transforms[0].size = [30, 31]
        transform.transforms[1].p = 1.0
        second = collate(ds.__getitems__([0, 1]))
        transform.transforms.insert(0, v2.RandomVerticalFlip())
        return [first, second, collate(ds.__getitems__([0, 1]))]

    assert_equal(load, monkeypatch, decodes=True)


def test_a_transform_that_changes_while_a_batch_waits(records, monkeypatch):
    def load():
        transform = v2.Compose([v2.RandomResizedCrop(24)])
        ds = TFRecordDataset(records, FEATURES, transform=transform)
        loaded = ds._load_samples([4, 2])
        transform.transforms[:] = [v2.RandomVerticalFlip(), v2.Resize((10, 12))]
        return [collate(ds._transform_samples(loaded))]

    assert_equal(load, monkeypatch, decodes=True)


def test_users_functions_are_called_once_a_sample_in_order(records):
    seen = []
    transform = v2.Compose(
        [v2.CenterCrop(4), lambda sample: seen.append(int(sample["label"])) or sample]
    )
    TFRecordDataset(records, FEATURES, transform=transform).__getitems__([3, 1, 2])
    assert seen == [3, 1, 2]


def test_images_given_on_are_contiguous_and_nobody_elses(large):
    kept = []
    transform = v2.Compose(
        [v2.RandomCrop(20), lambda sample: kept.append(sample["image"]) or sample]
    )
    TFRecordDataset(large, FEATURES, transform=transform).__getitems__([0, 1, 5])
    assert all(type(image) is tv_tensors.Image and image.is_contiguous() for image in kept)
    copies = [image.clone() for image in kept]
    kept[0].zero_()
    assert torch.equal(kept[1], copies[1]) and torch.equal(kept[2], copies[2])


# What is left alone


class MyCrop(v2.RandomResizedCrop):
    pass


class MyCompose(v2.Compose):
    pass


def hooked():
    crop = v2.RandomResizedCrop(24)
    crop.register_forward_hook(lambda *_: None)
    return crop


def changed():
    crop = v2.RandomResizedCrop(24)
    crop.make_params = lambda _: {"top": 0, "left": 0, "height": 2, "width": 2}
    return crop


OTHERS = {
    "nothing": None,
    "a function": lambda sample: USUAL(sample),
    "a subclass": MyCrop(24),
    "a subclass of Compose": MyCompose([v2.RandomResizedCrop(24)]),
    "hooks": hooked(),
    "a method of its own": changed(),
    "hooks first": v2.Compose([hooked()]),
    "v1": v1.RandomResizedCrop(24),
    "v1's Compose": v1.Compose([v2.RandomResizedCrop(24)]),
    "Sequential": nn.Sequential(v2.RandomResizedCrop(24)),
    "flipped first": v2.Compose([v2.RandomHorizontalFlip(), v2.RandomResizedCrop(24)]),
    "a function first": v2.Compose([dict, v2.RandomResizedCrop(24)]),
    "Resize alone": v2.Resize(24),
    "Resize, then another": v2.Compose([v2.Resize(24), v2.RandomCrop(20)]),
    "resized to a random size": v2.RandomResize(20, 30),
    "float first": v2.Compose([v2.ToDtype(torch.float32), v2.RandomResizedCrop(24)]),
    "RandomApply": v2.RandomApply([v2.RandomResizedCrop(24)]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_transforms(name):
    assert find_leading_crop(OTHERS[name], 3) is None


@pytest.mark.parametrize(
    "following",
    [
        v2.ColorJitter(),
        v2.RandomErasing(),
        v2.RandomRotation(5),
        v2.Grayscale(),
        MyCrop(4),
        dict,
        v1.Normalize([0], [1]),
    ],
)
def test_what_follows_and_is_not_known(following):
    assert not find_leading_crop(v2.Compose([v2.CenterCrop(4), following]), 3).is_all
    # Behind it others would take another tensor for the image.
    assert not find_leading_crop(
        v2.Compose([v2.CenterCrop(4), v2.ToPureTensor(), v2.Identity()]), 3
    ).is_all


@pytest.mark.parametrize(
    "features",
    [
        {"image": Image(key="image/encoded"), "again": Image(key="image/encoded")},
        {"image": Image("unchanged", key="image/encoded")},
        {"image": Image(key="image/encoded", crop=RandomResizedCrop(30))},
        {"image": Image(key="image/encoded", normalize=(MEAN, STD))},
        {"image": Image(key="image/encoded", shape=("label", None, None))},
        {"label": FixedLenFeature((), torch.int64)},
        None,
    ],
)
def test_other_features(records, features):
    ds = TFRecordDataset(records, features, transform=v2.RandomResizedCrop(24))
    assert ds._maker.crop is None


def test_a_picture_within_another_example_is_cropped_too(tmp_path):
    picture = JPEG_KINDS["gray"]
    with TFRecordWriter(tmp_path / "nested") as writer:
        writer.write({"image": picture, "other": encode_example({"image": picture})})
    features = {"image": Image(), "other": NestedExample({"image": Image()})}
    ds = TFRecordDataset(tmp_path / "nested", features, transform=v2.CenterCrop(5))
    for sample in (ds[0], ds.__getitems__([0])[0]):
        assert sample["image"].shape == sample["other"]["image"].shape == (3, 5, 5)


def test_sequence_examples(tmp_path):
    with TFRecordWriter(tmp_path / "steps") as writer:
        writer.write(encode_sequence_example({}, {"image": [[JPEG_KINDS["gray"]]] * 2}))
    features = SequenceFeatures({}, {"image": Image()})
    ds = TFRecordDataset(tmp_path / "steps", features, transform=v2.CenterCrop(5))
    assert ds.__getitems__([0])[0][1]["image"].shape == (2, 3, 5, 5)


# Errors


def failure(load, monkeypatch, is_cropped):
    """Class, text, notes of the error; and torch's random state after it."""
    with monkeypatch.context() as patch, torch.random.fork_rng():
        if not is_cropped:
            patch.setattr(Image, "_leading", whole)
        torch.manual_seed(7)
        with pytest.raises(Exception) as caught:
            load()
        error = caught.value
        return (
            type(error),
            str(error),
            getattr(error, "__notes__", []),
            torch.get_rng_state().tolist(),
        )


DAMAGED = {
    "cut": JPEG_KINDS["4:2:0"][:-200],
    "no image": b"no image",
    "a cut PNG": EVERY_KIND["PNG"][:-30],
    "a damaged PNG": EVERY_KIND["PNG"][:-40] + b"\1\2\3" + EVERY_KIND["PNG"][-37:],
    "a progressive one, cut": EVERY_KIND["progressive"][:900],
}


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("transform", [USUAL, JITTERED])
def test_a_damaged_image(tmp_path, monkeypatch, name, transform):
    images = [*LARGE[:3], DAMAGED[name], LARGE[3], b"another"]
    path = write(tmp_path / "damaged", images)

    for load in (
        lambda: TFRecordDataset(path, FEATURES, transform=transform).__getitems__(range(6)),
        lambda: list(chained(path, transform, num_threads=2, shuffle=False)),
        lambda: list(TFRecordIterableDataset(path, FEATURES, transform=transform, batch_size=3)),
        lambda: list(TFRecordIterableDataset(path, FEATURES, transform=transform)),
        lambda: list(TFRecordIterableDataset(path, FEATURES, transform=transform, cycle_length=2)),
        lambda: TFRecordDataset(path, FEATURES, transform=transform)[3],
    ):
        expected = failure(load, monkeypatch, is_cropped=False)
        assert expected[0] is ImageDecodeError and expected[1].startswith(
            f"{path}: record 3 at byte "
        )
        assert failure(load, monkeypatch, is_cropped=True) == expected


@pytest.mark.parametrize(
    ("transform", "kind"),
    [
        (v2.RandomCrop(200), ValueError),
        (v2.RandomResizedCrop(20, ratio=(0.001, 0.001)), RuntimeError),  # a width of 0
        (v2.Compose([v2.CenterCrop(10), v2.Normalize(MEAN, STD)]), TypeError),
        (
            v2.Compose(
                [v2.CenterCrop(10), v2.ToDtype(torch.float32), v2.Normalize([1, 2], [1, 2])]
            ),
            RuntimeError,
        ),
        (
            v2.Compose([v2.RandomResizedCrop(10), v2.ToDtype({tv_tensors.Mask: torch.int64})]),
            ValueError,
        ),
        (v2.RandomResizedCrop(10, interpolation=InterpolationMode.BOX), NotImplementedError),
        (
            v2.Compose([v2.RandomResizedCrop(10), v2.ColorJitter(), v2.Normalize(MEAN, STD)]),
            TypeError,
        ),
    ],
)
def test_errors_of_transforms(large, monkeypatch, transform, kind):
    for load in (
        lambda: TFRecordDataset(large, FEATURES, transform=transform).__getitems__([2, 0]),
        lambda: list(TFRecordIterableDataset(large, FEATURES, transform=transform, batch_size=3)),
        lambda: list(TFRecordIterableDataset(large, FEATURES, transform=transform)),
        lambda: TFRecordDataset(large, FEATURES, transform=transform)[0],
    ):
        expected = failure(load, monkeypatch, is_cropped=False)
        assert expected[0] is kind
        assert failure(load, monkeypatch, is_cropped=True) == expected


def test_errors_of_users_functions_are_raised_as_they_are(large, monkeypatch):
    calls = []

    def fail(sample):
        calls.append(1)
        raise ParseError("mine")

    ds = TFRecordDataset(large, FEATURES, transform=v2.Compose([v2.CenterCrop(4), fail]))
    expected = failure(lambda: ds.__getitems__([3]), monkeypatch, is_cropped=False)
    assert expected[:2] == (ParseError, "mine")
    assert failure(lambda: ds.__getitems__([3]), monkeypatch, is_cropped=True) == expected
    assert len(calls) == 2


@pytest.mark.parametrize(
    "spec",
    [
        Image(key="image/encoded", max_pixels=5000),
        Image(key="image/encoded", shape=(75, 100, 3)),
        Image(key="missing"),
    ],
)
def test_errors_of_features(large, monkeypatch, spec):
    ds = TFRecordDataset(large, {**FEATURES, "image": spec}, transform=USUAL)
    expected = failure(lambda: ds.__getitems__([2, 0]), monkeypatch, is_cropped=False)
    assert "record 2 at byte" in expected[1]
    assert failure(lambda: ds.__getitems__([2, 0]), monkeypatch, is_cropped=True) == expected


# Threads
