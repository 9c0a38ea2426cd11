"""A transform of the columns of a batch of steps."""

import pickle

import numpy as np
import pytest
import torch
from rlds_episodes import LENGTHS, action, pixels, write_episodes
from torch.utils.data import DataLoader, default_collate

from torch_tfrecord import Mixture, collate, make_dataloader
from torch_tfrecord.tfds import RLDSDataset

STEPS = [(number, at) for number, length in enumerate(LENGTHS) for at in range(length)]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    directory = write_episodes(tmp_path_factory.mktemp("batches") / "drawn" / "1.0.0")
    RLDSDataset(directory)
    return directory


def prepare(batch):
    """As recipes do: pictures to [B, H, W, C], the actions scaled, texts in capitals."""
    assert all(type(image) is torch.Tensor for image in (batch["observation"]["image"],))
    return {
        "observation": {"image": batch["observation"]["image"][:, -1].permute(0, 2, 3, 1) // 2},
        "actions": batch["action"] * 2,
        "steps": batch["_frame_index"].numpy() + 1,
        "prompt": [text.upper() for text in batch["task"]["language_instruction"]],
    }


def check(batch, places):
    assert sorted(batch) == ["actions", "observation", "prompt", "steps"]
    for row, (number, at) in enumerate(places):
        expected = pixels(number, at).permute(1, 2, 0) // 2
        assert torch.equal(batch["observation"]["image"][row], expected)
        assert torch.equal(batch["actions"][row, 0], action(number, at) * 2)
        assert batch["prompt"][row] == f"TASK {number} Ü"
        assert int(batch["steps"][row]) == at + 1


def test_every_way_gives_the_changed_columns(drawn):
    ds = RLDSDataset(drawn, batch_transform=prepare, action_horizon=2)
    rows = [44, 0, 20, 5, 20]
    for make in (collate, default_collate):
        check(make(ds.__getitems__(rows)), [STEPS[row] for row in rows])
    check(ds[rows], [STEPS[row] for row in rows])
    check(collate([ds[row] for row in rows]), [STEPS[row] for row in rows])
    assert ds[3]["observation"]["image"].shape == (32, 40, 3)
    assert ds[3]["prompt"] == "TASK 0 Ü"
    again = pickle.loads(pickle.dumps(ds))
    check(collate(again[2:9].__getitems__([0, 6])), [STEPS[2], STEPS[8]])


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: make_dataloader(ds, batch_size=8, shuffle=False),
        lambda ds: make_dataloader(ds, batch_size=8, shuffle=False, num_workers=2),
        lambda ds: DataLoader(ds, batch_size=8, collate_fn=collate),
        lambda ds: DataLoader(ds, batch_size=8, num_workers=1),
    ],
)
def test_loaders(drawn, make):
    batches = [*make(RLDSDataset(drawn, batch_transform=prepare))]
    assert sum(len(batch["prompt"]) for batch in batches) == len(STEPS)
    for number, batch in enumerate(batches):
        check(batch, STEPS[8 * number : 8 * number + 8])


def test_it_is_called_once_a_batch_in_the_thread_that_iterates(drawn):
    import threading

    calls = []

    def note(batch):
        calls.append((threading.current_thread(), len(batch["_len"])))
        return prepare(batch)

    ds = RLDSDataset(drawn, batch_transform=note)
    for batch in make_dataloader(ds, batch_size=16, num_threads=2):
        batch["actions"].zero_()
    assert [size for _, size in calls] == [16, 16, 16, 1]
    assert {thread for thread, _ in calls} == {threading.main_thread()}


def test_a_step_transform_sees_its_samples(drawn):
    ds = RLDSDataset(
        drawn, batch_transform=prepare, step_transform=lambda sample: sample["actions"] + 1
    )
    expected = torch.stack([action(*STEPS[row])[None] * 2 + 1 for row in (7, 8)])
    assert torch.equal(collate(ds.__getitems__([7, 8])), expected)
    assert torch.equal(ds[7], expected[0])


def test_samples_of_a_batch_that_was_taken_are_not_its_memory(drawn):
    ds = RLDSDataset(drawn, batch_transform=prepare)
    samples = ds.__getitems__([10, 11])
    batch = collate(samples)
    batch["actions"].zero_()
    assert torch.equal(samples[1]["actions"][0], action(*STEPS[11]) * 2)


def test_episodes_with_different_columns_and_mixtures(drawn):
    def by_number(episode):
        extra = {"odd": episode["reward"]} if episode["episode_metadata"]["success"] else {}
        return {**episode, **extra}

    ds = RLDSDataset(
        drawn, episode_transform=by_number, batch_transform=prepare, decode_images=True
    )
    with pytest.raises(ValueError, match="expected the keys"):
        collate(ds.__getitems__([0, 5]))
    check(collate(ds.__getitems__([0, 1])), STEPS[:2])
    ds = RLDSDataset(drawn, batch_transform=prepare)
    mixture = Mixture([ds, ds], shuffle=False)
    batch = next(iter(DataLoader(mixture, batch_size=6, collate_fn=collate)))
    assert batch["observation"]["image"].shape == (6, 32, 40, 3)


@pytest.mark.parametrize(
    ("transform", "error", "text"),
    [
        (lambda batch: batch["action"], TypeError, "must return a dict, got Tensor"),
        (lambda batch: None, TypeError, "must return a dict, got NoneType"),
        (
            lambda batch: {"a": {"b": batch["action"][:2]}},
            ValueError,
            r"batch_transform\['a'\]\['b'\]: expected a value for each of 4 samples, got 2",
        ),
        (lambda batch: {"a": 1.0}, ValueError, "got float"),
        (lambda batch: {"a": torch.tensor(4)}, ValueError, "got Tensor"),
        (lambda batch: {"a": "four"}, ValueError, "got str"),
        (lambda batch: {"a": np.zeros((3, 4))}, ValueError, "got 3 of them"),
        (lambda batch: batch["nothing"], KeyError, "nothing"),
    ],
)
def test_wrong_transforms(drawn, transform, error, text):
    with pytest.raises(error, match=text) as caught:
        RLDSDataset(drawn, batch_transform=transform).__getitems__([0, 1, 2, 3])
    assert any("episode 0, step 0" in note for note in caught.value.__notes__)


def test_it_must_be_callable(drawn):
    with pytest.raises(TypeError, match="batch_transform"):
        RLDSDataset(drawn, batch_transform=3)
    assert "batch_transform=prepare" in repr(RLDSDataset(drawn, batch_transform=prepare))
