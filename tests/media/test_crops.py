"""Crops drawn before decoding: the draw against torchvision's own code, and what arguments are
taken.
"""

import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import _geometry, functional

from torch_tfrecord import Image, RandomResizedCrop, ResizedCenterCrop, encode_image
from torch_tfrecord.random_stream import RandomStream

SIZES = st.integers(1, 700)
KEYS = st.integers(0, 2**64 - 1)


class TorchOnOurStream:
    """What make_params calls of torch, its numbers being those of a stream of ours, in double
    precision.
    """

    exp = staticmethod(torch.exp)

    def __init__(self, random):
        self.random = random

    def empty(self, _):
        def uniform(low, high):
            number = self.random.below(1 << 53) / (1 << 53)
            return torch.tensor(
                [float(low) + number * (float(high) - float(low))], dtype=torch.float64
            )

        return SimpleNamespace(uniform_=uniform)

    def randint(self, low, high, size):
        return torch.tensor([low + self.random.below(high - low)])


@pytest.fixture(scope="module")
def stats():
    """Not at the top: importing it takes two seconds, in every process that collects the tests."""
    from scipy import stats

    return stats


def torchvisions_region(monkeypatch, crop, height, width, key):
    theirs = v2.RandomResizedCrop(crop.size, scale=crop.scale, ratio=crop.ratio)
    theirs._log_ratio = torch.tensor([math.log(limit) for limit in crop.ratio], dtype=torch.float64)
    with monkeypatch.context() as patch:
        patch.setattr(_geometry, "torch", TorchOnOurStream(RandomStream(crop.seed, key)))
        patch.setattr(_geometry, "query_size", lambda _: (height, width))
        params = theirs.make_params([])
    return params["top"], params["left"], params["height"], params["width"]


@pytest.mark.daily
@settings(max_examples=300, deadline=None)
@given(
    SIZES,
    SIZES,
    KEYS,
    st.sampled_from([(0.08, 1.0), (0.5, 0.5), (0.9, 1.0), (1.5, 2.0)]),
    st.sampled_from([(3 / 4, 4 / 3), (1.0, 1.0), (2.0, 3.0), (0.1, 0.2)]),
)
def test_the_arithmetic_is_torchvisions(height, width, key, scale, ratio):
    crop = RandomResizedCrop(224, scale, ratio, seed=5)
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert crop.plan(height, width, key)[:4] == torchvisions_region(
            monkeypatch, crop, height, width, key
        )


@pytest.mark.daily
def test_the_distribution_is_torchvisions(stats):
    generator = torch.Generator().manual_seed(3)  # torchvision draws from the global state
    count, height, width = 3000, 375, 500
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(1 << 40, (1,), generator=generator)))
        image = torch.empty(3, height, width)
        transform = v2.RandomResizedCrop(224)
        drawn = [transform.make_params([image]) for _ in range(count)]
    theirs = np.array(
        [[params[name] for name in ("top", "left", "height", "width")] for params in drawn]
    )
    ours = np.array([RandomResizedCrop(224).plan(height, width, key)[:4] for key in range(count)])
    for column in range(4):
        assert stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-3
    assert stats.ks_2samp(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]).pvalue > 1e-3
    assert stats.ks_2samp(ours[:, 3] / ours[:, 2], theirs[:, 3] / theirs[:, 2]).pvalue > 1e-3


@given(SIZES, SIZES, KEYS, st.integers(-5, 2**70))
def test_a_plan_lies_in_the_image_and_follows_from_seed_and_key(height, width, key, seed):
    crop = RandomResizedCrop((20, 30), horizontal_flip=0.5, seed=seed)
    plan = crop.plan(height, width, key)
    assert plan.top >= 0 and plan.top + plan.height <= height and plan.height > 0
    assert plan.left >= 0 and plan.left + plan.width <= width and plan.width > 0
    assert plan[4:6] == (20, 30) and (plan.window_top, plan.window_left) == (0, 0)
    assert plan == crop.plan(height, width, key)
    assert plan[:4] == RandomResizedCrop((20, 30), seed=seed).plan(height, width, key)[:4]


def test_seeds_and_keys_decide():
    plans = {
        RandomResizedCrop(224, seed=seed).plan(375, 500, key)[:4]
        for seed in range(20)
        for key in range(20)
    }
    assert len(plans) == 400


PINNED = [(150, 242, 129, 164, False), (10, 45, 312, 276, True), (43, 144, 322, 290, False)]


def test_these_plans_for_ever():
    crop = RandomResizedCrop(224, horizontal_flip=0.5, seed=1)
    assert [
        (*plan[:4], plan.across) for plan in (crop.plan(375, 500, key) for key in (0, 1, 2**64 - 1))
    ] == PINNED


@pytest.mark.parametrize("probability", [0.0, 0.25, 1.0])
def test_flips_come_with_their_probability(stats, probability):
    crop = RandomResizedCrop(8, horizontal_flip=probability)
    flips = sum(crop.plan(40, 50, key).across for key in range(2000))
    assert stats.binomtest(flips, 2000, probability).pvalue > 1e-3


@settings(max_examples=30, deadline=None)
@given(
    st.integers(20, 60),
    st.integers(20, 60),
    st.sampled_from([(24, 25), (8, 8), ((10, 20), (30, 20)), ((7, 5), 9)]),
)
def test_the_centre_is_torchvisions(height, width, sizes):
    size, resize = sizes
    plan = ResizedCenterCrop(size, resize).plan(height, width, 0)
    assert plan[:4] == (0, 0, height, width)
    assert not plan.across
    places = torch.arange(height * width).reshape(1, height, width)
    resized = functional.resize(places, resize, interpolation=InterpolationMode.NEAREST)
    assert plan[4:6] == tuple(resized.shape[1:])
    places = torch.arange(resized.numel()).reshape(resized.shape)
    first = functional.center_crop(places, size).flatten()[0]
    assert divmod(int(first), resized.shape[2]) == (plan.window_top, plan.window_left)


def resize_with_pad_pil(image, height, width):
    """As in openpi_client/image_tools.py."""
    cur_width, cur_height = image.size
    ratio = max(cur_width / width, cur_height / height)
    resized_height, resized_width = int(cur_height / ratio), int(cur_width / ratio)
    resized_image = image.resize((resized_width, resized_height), PillowImage.BILINEAR)
    zero_image = PillowImage.new(resized_image.mode, (width, height), 0)
    pad_height = max(0, int((height - resized_height) / 2))
    pad_width = max(0, int((width - resized_width) / 2))
    zero_image.paste(resized_image, (pad_width, pad_height))
    return zero_image, (resized_height, resized_width, -pad_height, -pad_width)


@pytest.mark.parametrize("size", [(224, 224), (30, 90), (91, 31)])
@pytest.mark.parametrize(
    "stored", [(180, 320), (180, 321), (256, 256), (41, 20), (20, 300), (211, 97)]
)
def test_padded_pictures_are_those_of_openpi(stored, size):
    pixels = np.random.default_rng(3).integers(0, 256, (*stored, 3), np.uint8)
    pixels[::3] //= 8  # rough ones, and dark lines
    data = encode_image(torch.from_numpy(pixels).permute(2, 0, 1), "png")
    wanted, plan = resize_with_pad_pil(PillowImage.fromarray(pixels), *size)
    crop = ResizedCenterCrop(size, "pad")
    assert crop.plan(*stored, key=0) == (0, 0, *stored, *plan, False, False)
    (found,) = Image(crop=crop)._reader("x").from_values([data], [()])
    wanted = torch.from_numpy(np.array(wanted)).permute(2, 0, 1)
    # Pillow rounds weights less.
    assert (found.int() - wanted.int()).abs().max() <= 1
    top, left = -plan[2], -plan[3]
    inside = found[:, top : top + plan[0], left : left + plan[1]]
    assert torch.equal(
        inside, functional.resize(torch.from_numpy(pixels).permute(2, 0, 1), plan[:2])
    )
    assert inside.sum() == found.sum()


def test_all_sizes_are_padded_as_by_openpi():
    for height in range(1, 500, 7):
        for width in range(1, 700, 3):
            ratio = max(width / 224, height / 224)
            resized = max(int(height / ratio), 1), max(int(width / ratio), 1)
            begins = [-divmod(224 - side, 2)[0] for side in resized]
            plan = ResizedCenterCrop(224, "pad").plan(height, width, 0)
            assert plan[4:8] == (*resized, *begins)


@pytest.mark.parametrize(
    ("crop", "code"),
    [
        (RandomResizedCrop(224), "RandomResizedCrop((224, 224))"),
        (RandomResizedCrop([4, 5], seed=3), "RandomResizedCrop((4, 5), seed=3)"),
        (
            RandomResizedCrop(
                (4,), (0.5, 1), (1, 2), PillowImage.BICUBIC, False, horizontal_flip=1
            ),
            "RandomResizedCrop((4, 4), scale=(0.5, 1.0), ratio=(1.0, 2.0), interpolation='bicubic', antialias=False, "
            "horizontal_flip=1.0)",
        ),
        (
            ResizedCenterCrop(224, 256, InterpolationMode.NEAREST_EXACT),
            "ResizedCenterCrop((224, 224), 256, interpolation='nearest-exact')",
        ),
        (
            ResizedCenterCrop(4, (5, 6), antialias=None),
            "ResizedCenterCrop((4, 4), (5, 6), antialias=False)",
        ),
        (ResizedCenterCrop(224, "pad"), "ResizedCenterCrop((224, 224), 'pad')"),
    ],
)
def test_crops_print_as_code_compare_and_pickle(crop, code):
    assert repr(crop) == code
    assert eval(code) == crop == pickle.loads(pickle.dumps(crop))
    assert len({crop, eval(code)}) == 1


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: RandomResizedCrop("224"), TypeError, "size must be an int or (height, width), got '224'"),
        (lambda: RandomResizedCrop((1, 2, 3)), TypeError, "size must be an int or (height, width), got (1, 2, 3)"),
        (lambda: RandomResizedCrop(True), TypeError, "size must be an int or (height, width), got True"),
        (lambda: RandomResizedCrop((4, 0)), ValueError, "size must be at least 1, got (4, 0)"),
        (lambda: RandomResizedCrop(4, 0.5), TypeError, "scale must be (least, greatest), got 0.5"),
        (lambda: RandomResizedCrop(4, ("a", 1)), TypeError, "scale must be a number, got str"),
        (lambda: RandomResizedCrop(4, (0, 1)), ValueError, "scale must be (least, greatest), both above 0, got (0, 1)"),
        (
            lambda: RandomResizedCrop(4, ratio=(2, 1)),
            ValueError,
            "ratio must be (least, greatest), both above 0, got (2, 1)",
        ),
        (
            lambda: RandomResizedCrop(4, interpolation="lanczos"),
            ValueError,
            "interpolation must be one of 'nearest', 'nearest-exact', 'bilinear', 'bicubic', got 'lanczos'",
        ),
        (lambda: RandomResizedCrop(4, antialias="yes"), TypeError, "antialias must be True or False, got 'yes'"),
        (lambda: RandomResizedCrop(4, horizontal_flip=1.5), ValueError, "horizontal_flip must be from 0 to 1, got 1.5"),
        (
            lambda: RandomResizedCrop(4, horizontal_flip=math.nan),
            ValueError,
            "horizontal_flip must be from 0 to 1, got nan",
        ),
        (lambda: RandomResizedCrop(4, seed=0.5), TypeError, "'float' object cannot be interpreted as an integer"),
        (lambda: ResizedCenterCrop(224, 200), ValueError, "resize must not be below size (224, 224), got 200"),
    ],
)  # fmt: skip
def test_wrong_arguments(make, kind, text):
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value) == text
