"""Pictures decoded to a size: crops of frames of any stored size, drawn by seed, epoch and step."""

import numpy as np
import pytest
import torch
from helpers import pure_python
from rlds_episodes import LENGTHS, action, pixels
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from torch_tfrecord import (
    ImageDecodeError,
    ParseError,
    RandomResizedCrop,
    ResizedCenterCrop,
    collate,
    decode_image,
    encode_image,
    make_dataloader,
    tfds,
)
from torch_tfrecord.random_stream import record_keys
from torch_tfrecord.tfds import Mask, OneOf, RLDSDataset, RLDSEpisodes, UniformGoals
from torch_tfrecord.tfds import features as f

SIZES = {"left": (32, 40), "right": (30, 61), "wrist": (50, 25)}
STEPS = [(number, at) for number, length in enumerate(LENGTHS) for at in range(length)]
PADDED = ResizedCenterCrop((24, 28), "pad")
RANDOM = RandomResizedCrop(20, horizontal_flip=0.5, seed=9)


def stored(name, episode, step):
    """An encoded picture: JPEG, and each fifth a PNG, which the core leaves to Python."""
    picture = pixels(episode, step, *SIZES[name])
    return encode_image(picture // 4 * 3, "png" if (episode + step) % 5 == 4 else "jpeg")


@pytest.fixture(scope="module")
def cameras(tmp_path_factory):
    features = {
        "steps": f.Dataset(
            {
                "observation": {
                    **{name: f.Image((None, None, 3)) for name in ("left", "wrist")},
                    "right": f.Image((*SIZES["right"], 3)),
                    "gray": f.Image((None, None, 1)),
                    "depth": f.Image((None, None, 1), "uint16"),
                },
                "action": f.Tensor((3,), "float32"),
            }
        ),
    }
    gray = encode_image(torch.arange(48, dtype=torch.uint8).reshape(1, 6, 8), "png")
    episodes = [
        {
            "steps": [
                {
                    "observation": {
                        **{name: stored(name, number, step) for name in SIZES},
                        "gray": gray,
                        "depth": gray,
                    },
                    "action": action(number, step),
                }
                for step in range(length)
            ]
        }
        for number, length in enumerate(LENGTHS)
    ]
    directory = tmp_path_factory.mktemp("pictures") / "three" / "1.0.0"
    tfds.write(directory, {"train": episodes}, features, name="three", num_shards=2)
    RLDSDataset(directory, features=["steps/action"])
    return directory


def features(**observation):
    return {"steps": {"observation": observation, "action": True}}


def padded(name, place, size=(24, 28)):
    """By torchvision: resized to fit, in the middle of zeros."""
    picture = decode_image(stored(name, *place))
    ratio = max(picture.shape[1] / size[0], picture.shape[2] / size[1])
    picture = functional.resize(picture, [int(side / ratio) for side in picture.shape[1:]])
    (above, before), (below, behind) = (
        [(wanted - side + after) // 2 for wanted, side in zip(size, picture.shape[1:], strict=True)]
        for after in (0, 1)
    )
    return functional.pad(picture, [before, above, behind, below])


def cropped(name, place, key):
    picture = decode_image(stored(name, *place))
    plan = RANDOM.plan(*picture.shape[1:], int(key))
    found = functional.resized_crop(picture, *plan[:4], [20, 20])
    return found.flip(-1) if plan.across else found


def keys_of(epoch, seeds=()):
    return record_keys(np.arange(len(STEPS)), epoch, *seeds)


@pytest.mark.parametrize("is_pure", [False, True])
def test_frames_of_any_size_are_resized_and_padded(cameras, is_pure):
    chosen = features(image=OneOf(["left", "right", "wrist"]), wrist=Mask(0.4))
    with pure_python(is_pure):
        ds = RLDSDataset(
            cameras,
            features=chosen,
            decode_images=PADDED,
            window_size=2,
            goals=UniformGoals(),
        )
        ds.set_epoch(0)
        batch = collate(ds.__getitems__(range(len(ds))))
        alone = collate([ds[position] for position in range(len(ds))])
    image, wrist, goal = (
        batch["observation"]["image"],
        batch["observation"]["wrist"],
        batch["task"]["image"],
    )
    assert type(ds[0]["observation"]["image"]) is tv_tensors.Video
    assert image.shape == (len(ds), 2, 3, 24, 28) and image.dtype == torch.uint8
    for tree in (batch, alone):
        assert torch.equal(tree["observation"]["image"], image)
        assert torch.equal(tree["observation"]["wrist"], wrist)
        assert torch.equal(tree["task"]["image"], goal)
    there = batch["observation"]["pad_mask_dict"]["wrist"]
    drawn = set()
    for row, (number, at) in enumerate(STEPS):
        before = number, max(at - 1, 0)
        fitting = [name for name in SIZES if torch.equal(image[row, 1], padded(name, (number, at)))]
        assert len(fitting) == 1
        drawn |= {*fitting}
        assert torch.equal(image[row, 0], padded(*fitting, before))
        later = number, int(batch["task"]["timestep"][row])
        assert torch.equal(goal[row], padded(*fitting, later))
        for place, found in zip((before, (number, at)), wrist[row], strict=True):
            assert torch.equal(found, padded("wrist", place) * int(there[row]))
    assert drawn == {*SIZES} and 10 < there.sum() < len(STEPS) - 5


def test_random_crops_follow_from_seed_epoch_and_step(cameras):
    ds = RLDSDataset(
        cameras,
        features=features(left=True, right=True),
        decode_images={"left": RANDOM, "right": RANDOM},
        window_size=3,
        pad="zero",
        goals=UniformGoals(),
    )
    for epoch in (0, 3):
        ds.set_epoch(epoch)
        batch = collate(ds.__getitems__(range(len(ds))))
        for name in ("left", "right"):
            for row, (place, key) in enumerate(zip(STEPS, keys_of(epoch), strict=True)):
                for back, found in enumerate(batch["observation"][name][row].flip(0)):
                    before = place[0], place[1] - back
                    wanted = torch.zeros(3, 20, 20)
                    if before[1] >= 0:
                        wanted = cropped(name, before, key)  # the same region for all steps
                    assert torch.equal(found, wanted)
                later = place[0], int(batch["task"]["timestep"][row])
                assert torch.equal(batch["task"][name][row], cropped(name, later, key))
    alone = ds[7]["observation"]["left"][2]
    assert torch.equal(alone, cropped("left", STEPS[7], keys_of(3)[7]))


@pytest.mark.parametrize("options", [{"num_threads": 1}, {"num_threads": 3}, {"num_workers": 2}])
def test_crops_are_the_same_for_all_loaders_and_after_a_resume(cameras, options):
    ds = RLDSDataset(cameras, features=features(left=True, wrist=True), decode_images=RANDOM)

    def seen(batch):
        places = zip(batch["_traj_index"].tolist(), batch["_frame_index"].tolist(), strict=True)
        observation = batch["observation"]
        for row, place in enumerate(places):
            yield place, (observation["left"][row, 0], observation["wrist"][row, 0])

    loader = make_dataloader(ds, batch_size=7, seed=4, **options)
    iterator = iter(loader)
    found = {**dict(seen(next(iterator))), **dict(seen(next(iterator)))}
    states = loader.state_dict()
    del iterator
    again = make_dataloader(ds, batch_size=7, seed=4, **options)
    again.load_state_dict(states)
    for batch in again:
        found |= dict(seen(batch))
    assert sorted(found) == STEPS
    for place, key in zip(STEPS, keys_of(0, (4,)), strict=True):
        left, wrist = found[place]
        assert torch.equal(left, cropped("left", place, key))
        assert torch.equal(wrist, cropped("wrist", place, key))


def test_names_say_which_frames_are_cropped_and_which_stay_encoded(cameras):
    ds = RLDSDataset(
        cameras,
        features=["steps/observation", "steps/action"],
        decode_images={"left": PADDED, "observation/right": True},
    )
    observation = ds[8]["observation"]
    assert torch.equal(observation["left"][0], padded("left", STEPS[8]))
    assert torch.equal(observation["right"][0], decode_image(stored("right", *STEPS[8])))
    assert observation["wrist"] == [stored("wrist", *STEPS[8])]
    assert [type(value) for value in observation["depth"]] == [bytes]


def test_episodes(cameras):
    options = {"features": ["steps/observation/right", "steps/action"]}
    episodes = RLDSEpisodes(cameras, decode_images=PADDED, **options)
    frames = episodes[2]["steps"]["observation"]["right"]
    assert type(frames) is tv_tensors.Video and frames.shape == (40, 3, 24, 28)
    assert all(torch.equal(frames[at], padded("right", (2, at))) for at in range(40))
    with pytest.raises(ValueError, match="whole episodes have no random crop"):
        RLDSEpisodes(cameras, decode_images=RANDOM, **options)


def test_cameras_of_other_kinds_are_cropped_one_by_one(cameras):
    chosen = features(image=OneOf(["left", "gray"]))
    ds = RLDSDataset(cameras, features=chosen, decode_images=RANDOM)
    ds.set_epoch(1)
    images = ds.__getitems__(range(len(ds)))
    channels = set()
    for place, key, sample in zip(STEPS, keys_of(1), images, strict=True):
        image = sample["observation"]["image"]
        channels.add(image.shape[1])
        if image.shape[1] == 3:
            assert torch.equal(image[0], cropped("left", place, key))
        assert image.shape[2:] == (20, 20)
    assert channels == {1, 3}


def test_a_damaged_frame_is_named(tmp_path):
    frames = [stored("left", 0, step) for step in range(3)]
    frames[1] = frames[1][: len(frames[1]) // 2]
    tree = {"steps": f.Dataset({"observation": {"image": f.Image((32, 40, 3))}})}
    for name, given, error, text in (
        ("cut", frames, ImageDecodeError, "whole JPEG image"),
        ("other", [stored("right", 0, step) for step in range(3)], ParseError, r"\(32, 40, 3\)"),
    ):
        directory = tmp_path / name / "1.0.0"
        steps = [{"observation": {"image": frame}} for frame in given]
        tfds.write(directory, {"train": [{"steps": steps}]}, tree, name=name)
        ds = RLDSDataset(directory, decode_images=PADDED)
        where = r"record 0.*feature 'steps/observation/image', step 1: .*"
        with pytest.raises(error, match=where.replace("step 1", r"step [01]") + text):
            ds.__getitems__([0, 1, 2])


@pytest.mark.parametrize(
    ("decode_images", "chosen", "error", "text"),
    [
        (
            {"depth": PADDED},
            None,
            ValueError,
            "'steps/observation/depth' has no crop: it is not one uint8",
        ),
        ({"front": PADDED}, None, ValueError, "'front' is none of"),
        ({"left": 24}, None, TypeError, "crop must be torch_tfrecord.RandomResizedCrop"),
        (
            24,
            ["steps/observation/left"],
            TypeError,
            "crop must be torch_tfrecord.RandomResizedCrop",
        ),
    ],
)
def test_wrong_crops(cameras, decode_images, chosen, error, text):
    with pytest.raises(error, match=text):
        RLDSDataset(cameras, decode_images=decode_images, features=chosen)
