"""Declared draws: one of several features, and features that some samples lack."""

import pickle
import shutil
from collections import Counter

import pytest
import torch
from batches import assert_same
from rlds_episodes import LENGTHS, action, pixels, state

from torch_tfrecord import (
    Image,
    Mixture,
    RandomResizedCrop,
    collate,
    encode_image,
    make_dataloader,
    tfds,
)
from torch_tfrecord.rlds import step_samples
from torch_tfrecord.tfds import Mask, OneOf, RLDSDataset, RLDSEpisodes, UniformGoals
from torch_tfrecord.tfds import features as f

TEXTS = ["language_instruction", "language_instruction_2", "language_instruction_3"]
IMAGE = f.Image((32, 40, 3), encoding_format="png")
FEATURES = {
    "steps": f.Dataset(
        {
            "observation": {"left": IMAGE, "right": IMAGE, "state": f.Tensor((2,), "float32")},
            "action": f.Tensor((3,), "float32"),
            **{name: f.Text() for name in TEXTS},
        }
    ),
}
STEPS = [(number, at) for number, length in enumerate(LENGTHS) for at in range(length)]


def right(episode, step):
    return pixels(episode + 1000, step)


@pytest.fixture(scope="module")
def two_cameras(tmp_path_factory):
    episodes = [
        {
            "steps": [
                {
                    "observation": {
                        "left": encode_image(pixels(number, step), "png"),
                        "right": encode_image(right(number, step), "png"),
                        "state": state(number, step),
                    },
                    "action": action(number, step),
                    **{name: f"{name} of {number}" for name in TEXTS},
                }
                for step in range(length)
            ]
        }
        for number, length in enumerate(LENGTHS)
    ]
    directory = tmp_path_factory.mktemp("draws") / "two" / "1.0.0"
    tfds.write(directory, {"train": episodes}, FEATURES, name="two", num_shards=2)
    RLDSDataset(directory)
    return directory


def features(image=None, text=None, **others):
    return {
        "steps": {
            "observation": {"image": image or OneOf(["left", "right"]), "state": True},
            "language_instruction": text or OneOf(TEXTS),
            "action": True,
            **others,
        }
    }


def seen(batch):
    """By episode and step, the camera that a batch has, and the text."""
    found = {}
    for row, place in enumerate(
        zip(batch["_traj_index"].tolist(), batch["_frame_index"].tolist(), strict=True)
    ):
        image = batch["observation"]["image"][row, -1]
        options = {"left": pixels(*place), "right": right(*place), "none": torch.zeros(3, 32, 40)}
        camera = [name for name, option in options.items() if torch.equal(image, option)]
        assert len(camera) == 1
        found[place] = camera[0], batch["task"]["language_instruction"][row]
    return found


def whole(dataset, **options):
    batches = make_dataloader(dataset, batch_size=7, **options)
    return {place: value for batch in batches for place, value in seen(batch).items()}


def test_a_sample_has_one_of_the_features(two_cameras):
    ds = RLDSDataset(two_cameras, features=features(), goals=UniformGoals(), window_size=2)
    ds.set_epoch(0)
    cameras = Counter()
    for (number, at), sample in zip(STEPS, ds, strict=True):
        observation, task = sample["observation"], sample["task"]
        assert sorted(observation) == ["image", "pad_mask", "state", "timestep"]
        make = {True: pixels, False: right}[
            torch.equal(observation["image"][1], pixels(number, at))
        ]
        cameras[make] += 1
        # the window and the goal are of the same camera
        assert torch.equal(observation["image"][0], make(number, max(at - 1, 0)))
        assert torch.equal(observation["image"][1], make(number, at))
        assert torch.equal(task["image"], make(number, task["timestep"]))
        assert task["language_instruction"] in [f"{name} of {number}" for name in TEXTS]
        assert sample["language_instruction"] == task["language_instruction"]
    assert min(cameras.values()) > 10
    batch = collate(ds.__getitems__(range(len(ds))))
    alone = collate([ds[position] for position in range(len(ds))])
    assert seen(batch) == seen(alone)


def test_seed_epoch_and_step_decide(two_cameras):
    def drawn(epoch=0, seed=0, **options):
        ds = RLDSDataset(two_cameras, features=features(OneOf(["left", "right"], seed)), **options)
        ds.set_epoch(epoch)
        return seen(collate(ds.__getitems__(range(len(ds)))))

    first = drawn()
    assert first == drawn()
    assert first != drawn(epoch=1)
    assert first != drawn(seed=1)
    # Cameras and texts are drawn apart.
    assert len({(camera, text[:22]) for camera, text in first.values()}) == 6
    kept = drawn(keep={"2": [[3, 9]]}, keep_key="{_traj_index}")
    assert kept == {place: first[place] for place in kept}


@pytest.mark.parametrize("options", [{}, {"num_threads": 1}, {"num_workers": 2}])
def test_loaders_draw_alike_and_resume(two_cameras, options):
    ds = RLDSDataset(two_cameras, features=features(Mask(0.3, OneOf(["left", "right"]))))
    reference = whole(ds, seed=3, num_threads=2)
    assert {camera for camera, _ in reference.values()} == {"left", "right", "none"}
    loader = make_dataloader(ds, batch_size=7, seed=3, **options)
    iterator = iter(loader)
    found = seen(next(iterator)) | seen(next(iterator))
    states = loader.state_dict()
    del iterator
    again = make_dataloader(ds, batch_size=7, seed=3, **options)
    again.load_state_dict(states)
    for batch in again:
        found |= seen(batch)
    assert found == reference


def test_only_the_drawn_frames_are_read(two_cameras, monkeypatch):
    read = []
    from torch_tfrecord.rlds.step_samples import StepBatch

    original = StepBatch._stored

    def noted(windows, number, column, frames):
        if column.decoding.image is not None:
            read.append(column.decoding.path)
        return original(windows, number, column, frames)

    monkeypatch.setattr(StepBatch, "_stored", noted)
    ds = RLDSDataset(two_cameras, features=features())
    ds.set_epoch(0)
    cameras = [camera for camera, _ in seen(collate(ds.__getitems__(range(30)))).values()]
    assert sorted(name.rpartition("/")[2] for name in read) == sorted(cameras)


@pytest.mark.parametrize("kind", ["whole", "cropped", "of unknown size"])
@pytest.mark.parametrize("options", [{}, {"window_size": 3, "goals": UniformGoals(2)}])
def test_masked_pictures_are_neither_read_nor_decoded(
    two_cameras, tmp_path, monkeypatch, kind, options
):
    crop = RandomResizedCrop(6) if kind == "cropped" else True
    if kind == "of unknown size":
        two_cameras = shutil.copytree(two_cameras, tmp_path / "1.0.0")
        tree = two_cameras / "features.json"
        text = tree.read_text()
        assert text.count('"32"') == text.count('"40"') == 2
        tree.write_text(text.replace('"32"', '"-1"').replace('"40"', '"-1"'))
    given = features(Mask(0.5, OneOf(["left", "right"])))
    ds = RLDSDataset(two_cameras, features=given, decode_images=crop, **options)
    ds.set_epoch(1)
    at = range(7, 27)  # of one episode
    alone = [ds[position] for position in at]
    there = [bool(sample["observation"]["pad_mask_dict"]["image"].all()) for sample in alone]
    read, num_decoded = Counter(), 0
    real, decoded = step_samples.read_frames, Image._decoded

    def noted(windows):
        read.update((first, stop) for _, first, stop in windows)
        return real(windows)

    def counted(spec, values, *arguments):
        nonlocal num_decoded
        num_decoded += len(values)
        return decoded(spec, values, *arguments)

    monkeypatch.setattr(step_samples, "read_frames", noted)
    monkeypatch.setattr(Image, "_decoded", counted)
    together = ds.__getitems__(at)
    assert_same(list(together), alone)
    size, is_known = options.get("window_size", 1), kind != "of unknown size"
    expected = Counter(
        (max(step - size + 1, 0), step + 1)
        for step, is_there in zip(range(1, 21), there, strict=True)
        if is_there or not is_known
    )
    # Goals are not masked.
    goals = [sample["task"]["timestep"] for sample in alone] if "goals" in options else []
    expected.update((goal, goal + 1) for goal in goals)
    assert read == expected
    assert num_decoded == sum((stop - first) * n for (first, stop), n in expected.items())
    assert 4 < sum(there) < 16


def test_masks(two_cameras):
    given = features(Mask(0.5, OneOf(["left"])), Mask(0.4, OneOf(TEXTS)), action=Mask(0.25))
    ds = RLDSDataset(two_cameras, features=given, window_size=2, action_horizon=3)
    ds.set_epoch(4)
    batch = collate(ds.__getitems__(range(len(ds))))
    there = batch["observation"]["pad_mask_dict"]["image"]
    assert there.dtype == torch.bool
    for row, place in enumerate(STEPS):
        image = batch["observation"]["image"][row, 1]
        assert torch.equal(image, pixels(*place) if there[row] else torch.zeros_like(image))
    text = batch["pad_mask_dict"]["language_instruction"]
    assert [bool(each) for each in batch["task"]["language_instruction"]] == text.tolist()
    has_action = batch["pad_mask_dict"]["action"]
    plain = collate(RLDSDataset(two_cameras, action_horizon=3).__getitems__(range(len(ds))))
    assert torch.equal(batch["action"], plain["action"] * has_action[:, None, None])
    for mask, most, least in ((there, 36, 14), (text, 40, 18), (has_action, 45, 25)):
        assert least < int(mask.sum()) < most
    sample = ds[2]
    assert sample["pad_mask_dict"]["action"] == has_action[2]
    encoded = RLDSDataset(two_cameras, features=given, decode_images=False)
    encoded.set_epoch(4)
    images = [encoded[at]["observation"]["image"][0] for at in range(len(ds))]
    assert [image != b"" for image in images] == there.tolist()
    for share in (0, 1):
        given = features(Mask(share, OneOf(["left", "right"])))
        cameras = {camera for camera, _ in whole(RLDSDataset(two_cameras, features=given)).values()}
        assert cameras == ({"left", "right"} if not share else {"none"})


def test_an_episode_transform_moves_what_is_drawn(two_cameras):
    def restructure(episode):
        drawn = episode["observation"].pop("image")
        with pytest.raises(NotImplementedError):
            drawn.read(0, 1)
        return {
            "observation": {"image": drawn},
            "language_instruction": episode["language_instruction"],
        }

    given = features(Mask(0.3, OneOf(["left", "right"])))
    plain = RLDSDataset(two_cameras, features=given)
    moved = RLDSDataset(two_cameras, features=given, episode_transform=restructure)
    assert whole(plain, seed=1) == whole(moved, seed=1)
    assert sorted(moved[0]["observation"]) == ["image", "pad_mask", "pad_mask_dict", "timestep"]


def test_an_episode_transform_moves_another_draw_in_each_episode(two_cameras):
    def swap(episode):
        observation = episode["observation"]
        if observation["state"][0, 0] % 200 >= 100:
            observation["left"], observation["right"] = observation["right"], observation["left"]
        return episode

    given = {
        "steps": {
            "observation": {"left": Mask(0.3), "right": Mask(0.6), "state": True},
            "action": True,
        }
    }
    ds = RLDSDataset(two_cameras, features=given, episode_transform=swap)
    ds.set_epoch(2)
    batch = collate(ds.__getitems__(range(len(ds))))
    for row, (number, at) in enumerate(STEPS):
        names = ("left", "right") if number % 2 == 0 else ("right", "left")
        for name, make in zip(names, (pixels, right), strict=True):
            image = batch["observation"][name][row, 0]
            is_there = batch["observation"]["pad_mask_dict"][name][row]
            assert torch.equal(image, make(number, at) if is_there else torch.zeros_like(image))
    assert_same(batch, collate([ds[position] for position in range(len(ds))]))


def test_lists_of_features_name_the_first(two_cameras):
    names = [OneOf(["steps/observation/left", "steps/observation/right"]), "steps/action"]
    ds = RLDSDataset(two_cameras, features=names)
    assert sorted(ds[0]["observation"]) == ["left", "pad_mask", "timestep"]
    everything = RLDSDataset(
        two_cameras,
        features=["steps", {"steps": {"observation": {"image": OneOf(["left", "right"])}}}],
    )
    assert sorted(everything[0]["observation"]) == ["image", "pad_mask", "state", "timestep"]


def test_datasets_pickle_and_mix(two_cameras):
    ds = pickle.loads(pickle.dumps(RLDSDataset(two_cameras, features=features())))
    other = RLDSDataset(two_cameras, features=features(OneOf(["left", "right"], seed=5)))
    mixture = Mixture({"a": ds, "b": other}, [("a", 1.0), ("b", 1.0)])
    passes = [
        [seen(batch) for batch in make_dataloader(mixture, batch_size=8, seed=2, **options)]
        for options in ({}, {"num_workers": 1})
    ]
    assert passes[0] == passes[1]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: OneOf("left"), TypeError, "OneOf takes a list of names, got 'left'"),
        (lambda: OneOf([]), ValueError, "at least one name"),
        (lambda: Mask(1.5), ValueError, "from 0 to 1, got 1.5"),
        (lambda: Mask(0.5, "left"), TypeError, "of must be a OneOf"),
    ],
)
def test_wrong_declarations(make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize(
    ("chosen", "error", "text"),
    [
        (features(OneOf(["left", "middle"])), KeyError, "steps/observation/middle"),
        (features(OneOf(["state"]), state=True), KeyError, "no feature 'steps/state'"),
        ([Mask(0.5)], TypeError, "takes the place of True"),
        (
            {"image": OneOf(["steps/observation/left"]), "steps": {"action": True}},
            ValueError,
            "under steps",
        ),
        ({"steps": {"observation": {"state": OneOf(["left"])}, "action": True}}, None, ""),
        (
            ["steps", {"steps": {"action": OneOf(["language_instruction"])}}],
            ValueError,
            "is there, too",
        ),
    ],
)
def test_wrong_choices(two_cameras, chosen, error, text):
    if error is None:
        assert RLDSDataset(two_cameras, features=chosen)[0]["observation"]["state"].shape[1:] == (
            3,
            32,
            40,
        )
        return
    with pytest.raises(error, match=text):
        RLDSDataset(two_cameras, features=chosen)


def test_draws_belong_to_samples_of_steps(two_cameras):
    with pytest.raises(TypeError, match="must be names"):
        RLDSEpisodes(two_cameras, features=features())
    with pytest.raises(ValueError, match="decode_on"):
        RLDSDataset(two_cameras, features=features(Mask(0.1, OneOf(["left"]))), decode_on="auto")


def values_of_draws(batch):
    """By episode and step, all that was drawn for it."""
    there = batch["observation"]["pad_mask_dict"]["image"].flatten().tolist()
    goals = batch["task"]["timestep"].tolist()
    return {
        place: (*value, is_there, goal)
        for (place, value), is_there, goal in zip(seen(batch).items(), there, goals, strict=True)
    }


def cropped(batch):
    """By episode and step, the bytes of its picture."""
    places = zip(batch["_traj_index"].tolist(), batch["_frame_index"].tolist(), strict=True)
    pictures = [image.numpy().tobytes() for image in batch["observation"]["image"]]
    return dict(zip(places, pictures, strict=True))


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 2)])
@pytest.mark.parametrize("is_cropped", [False, True])
def test_other_ranks_resume_with_the_same_draws(two_cameras, before, after, is_cropped):
    given = features(Mask(0.3, OneOf(["left", "right"])), Mask(0.2, OneOf(TEXTS)))
    crop = RandomResizedCrop(4, scale=(0.1, 0.5), horizontal_flip=0.5) if is_cropped else True
    ds = RLDSDataset(two_cameras, features=given, goals=UniformGoals(), decode_images=crop)
    drawn_values = cropped if is_cropped else values_of_draws

    def loaders(num_ranks):
        options = {"batch_size": 4, "seed": 3, "world_size": num_ranks, "drop_last": False}
        found = [make_dataloader(ds, rank=rank, **options) for rank in range(num_ranks)]
        for loader in found:
            loader.set_epoch(1)
        return found

    reference = {}
    for batch in loaders(1)[0]:
        reference |= drawn_values(batch)
    assert sorted(reference) == STEPS
    found, states = {}, []
    for loader in loaders(before):
        batches = iter(loader)
        for _ in range(2):
            found |= drawn_values(next(batches))
        states.append(loader.state_dict())
    assert len(found) == 8 * before
    again = []
    for loader in loaders(after):
        loader.load_state_dict(states[0])
        for batch in loader:
            values = drawn_values(batch)
            again.extend(values)
            found |= values
    # Every step once, but for those that are given twice so that each rank has as many.
    assert len(again) - (len(STEPS) - 8 * before) in range(after)
    assert found == reference
