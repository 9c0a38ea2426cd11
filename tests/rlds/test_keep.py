"""Kept ranges of steps: which positions there are, that windows stay, and what is said of wrong
ranges and keys.
"""

import json
import pickle

import numpy as np
import pytest
import torch
from rlds_episodes import FEATURES, LENGTHS, action, pixels, state, write_episodes

from torch_tfrecord import Mixture, ParseError, tfds
from torch_tfrecord.tfds import RLDSDataset, dataset_statistics

# openpi's form: ranges may overlap, be empty, go past the episode or be out of order; episodes 1
# and 3 are left out.
KEEP = {
    "episode 0": [[3, 100], [0, 1]],
    "episode 2": [[10, 12], [11, 13], [30, 30], [38, 41], [7, 5]],
    "other": [[0, 9]],
}
NAME = "{episode_metadata/name}"
KEPT = [(0, 0), (0, 3), (0, 4), (2, 10), (2, 11), (2, 12), (2, 38), (2, 39)]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    directory = write_episodes(tmp_path_factory.mktemp("keep") / "drawn" / "1.0.0")
    RLDSDataset(directory)
    return directory


def test_positions_are_the_kept_steps_and_windows_are_whole(drawn):
    ds = RLDSDataset(drawn, keep=KEEP, keep_key=NAME, window_size=3, action_horizon=2)
    assert len(ds) == len(KEPT)
    assert [ds.locate(position) for position in range(len(ds))] == KEPT
    assert ds.locate(-1) == (2, 39)
    with pytest.raises(IndexError, match="position 8 is out of range for 8 steps"):
        ds[8]
    for sample, (number, at) in zip(ds, KEPT, strict=True):
        seen = [max(at + past, 0) for past in (-2, -1, 0)]
        assert (
            sample["observation"]["state"].tolist()
            == torch.stack([state(number, each) for each in seen]).tolist()
        )
        assert torch.equal(
            sample["observation"]["image"], torch.stack([pixels(number, each) for each in seen])
        )
        done = [at, min(at + 1, LENGTHS[number] - 1)]
        assert torch.equal(sample["action"], torch.stack([action(number, each) for each in done]))
        assert (sample["_traj_index"], sample["_frame_index"], sample["_len"]) == (
            number,
            at,
            LENGTHS[number],
        )


def test_a_file_is_as_its_dict(drawn, tmp_path):
    path = tmp_path / "keep.json"
    path.write_text(json.dumps(KEEP))
    for keep in (path, str(path)):
        ds = RLDSDataset(drawn, keep=keep, keep_key=NAME)
        assert [ds.locate(position) for position in range(len(ds))] == KEPT


def test_without_padding_a_kept_step_needs_its_window(drawn):
    ds = RLDSDataset(drawn, keep=KEEP, keep_key=NAME, window_size=2, action_horizon=2, pad=None)
    assert [ds.locate(position) for position in range(len(ds))] == [
        place for place in KEPT if place[1] in (3, 10, 11, 12, 38)
    ]


def test_splits_slices_and_pickles(drawn):
    # episodes count from the split's first
    ds = RLDSDataset(drawn, "train[2:]", keep=KEEP, keep_key=NAME)
    assert [ds.locate(position) for position in range(len(ds))] == [
        (number - 2, at) for number, at in KEPT if number == 2
    ]
    part = pickle.loads(pickle.dumps(ds))[1:4]
    assert [part.locate(position) for position in range(len(part))] == [(0, 11), (0, 12), (0, 38)]
    assert torch.equal(part[-1]["action"][0], action(2, 38))
    assert "5 positions in 2 episodes" in repr(ds)


def test_a_mixture_counts_kept_steps(drawn):
    kept = RLDSDataset(drawn, keep=KEEP, keep_key=NAME)
    mixture = Mixture(
        {"kept": kept, "all": RLDSDataset(drawn)},
        balance_weights=True,
        stop="all_exhausted",
        shuffle=False,
    )
    found = [sample["_frame_index"] for sample in map(mixture.__getitem__, range(len(mixture)))]
    from_kept = [at for number, at in enumerate(found) if mixture.locate(number)[0] == 0]
    assert from_kept[:8] == [at for _, at in KEPT]


def test_ranges_that_hold_whole_chunks(drawn):
    """As Cosmos does (DROIDLeRobotDataset._append_index_records): steps from `first` to below `end
    - chunk`.
    """
    chunk = 3
    kept = {"episode 0": [[0, 5]], "episode 2": [[4, 9], [20, 22], [30, 40]]}
    shorter = {key: [[first, end - chunk] for first, end in ranges] for key, ranges in kept.items()}
    ds = RLDSDataset(drawn, keep=shorter, keep_key=NAME, action_horizon=chunk)
    expected = [
        (int(key[-1]), at)
        for key, ranges in kept.items()
        for first, end in ranges
        for at in range(first, end - chunk)
    ]
    assert [ds.locate(position) for position in range(len(ds))] == expected
    assert all(sample["action_pad_mask"].all() for sample in ds)


# Keys.


def droid(episode):
    """As in DROID: two paths; one of them bytes."""
    name = episode["episode_metadata"]["name"].replace(" ", "/")
    episode["episode_metadata"] = {
        "recording_folderpath": f"gs://raw/{name}/MP4",
        "file_path": f"gs://raw/{name}.h5".encode(),
    }
    return episode


def test_the_default_key_is_that_of_droid(tmp_path):
    f = tfds.features
    metadata = {"recording_folderpath": f.Text(), "file_path": f.Tensor((), "string")}
    directory = write_episodes(
        tmp_path / "droid" / "1.0.1",
        features=FEATURES | {"episode_metadata": metadata},
        change=droid,
    )
    ds = RLDSDataset(
        directory,
        keep={"gs://raw/episode/3/MP4--gs://raw/episode/3.h5": [[1, 3]]},
        features=["steps/action"],
    )
    assert [ds.locate(position) for position in range(len(ds))] == [(3, 1), (3, 2)]


def test_keys_from_a_function(drawn):
    asked = []

    def key(metadata):
        asked.append(metadata)
        return (
            metadata["episode_metadata"]["name"]
            if metadata["episode_metadata"]["success"]
            else None
        )

    # 1 and 3 were no success
    ds = RLDSDataset(drawn, keep=KEEP | {"episode 1": [[0, 1]]}, keep_key=key)
    assert [ds.locate(position) for position in range(len(ds))] == KEPT
    assert [each["_traj_index"] for each in asked] == [0, 1, 2, 3]


def test_the_number_of_an_episode_is_a_key_that_reads_nothing(drawn, monkeypatch):
    monkeypatch.setattr("torch_tfrecord.rlds.episode_store.EpisodeStore.episode", None)
    ds = RLDSDataset(drawn, keep={"<03>": [[0, 2]]}, keep_key="<{_traj_index:02d}>")
    assert [ds.locate(position) for position in range(len(ds))] == [(3, 0), (3, 1)]


def test_values_that_are_not_text_are_written_as_python_does(drawn):
    ds = RLDSDataset(
        drawn, keep={"False {2}": [[0, 1]]}, keep_key="{episode_metadata/success} {{2}}"
    )
    assert [ds.locate(position) for position in range(len(ds))] == [(1, 0), (3, 0)]


# Errors.


def test_no_episode_is_found(drawn, tmp_path):
    path = tmp_path / "keep.json"
    path.write_text('{"a": [[0, 1]], "b": [], "c": []}')
    expected = "no episode of this split has one of the 3 keys, such as 'a', 'b'; keep_key='{_traj_index}' says how"
    with pytest.raises(ParseError, match=expected) as caught:
        RLDSDataset(drawn, keep=path, keep_key="{_traj_index}")
    assert str(caught.value).startswith(f"{path}: ")
    assert len(RLDSDataset(drawn, keep={}, keep_key="{_traj_index}")) == 0


@pytest.mark.parametrize("ranges", [3, [1, 2], [[1, 2, 3]], [[0, 2.5]], [[True, 2]], "ab"])
def test_what_are_no_ranges(drawn, tmp_path, ranges):
    with pytest.raises(
        ValueError, match=r"keep: 'episode 2': expected a list of \[first step, end\], got "
    ):
        RLDSDataset(drawn, keep={"episode 2": ranges}, keep_key=NAME)
    path = tmp_path / "keep.json"
    path.write_text(json.dumps({"episode 2": ranges}))
    with pytest.raises(
        ParseError, match=r"keep\.json: 'episode 2': expected a list of \[first step, end\], got "
    ):
        RLDSDataset(drawn, keep=path, keep_key=NAME)


def test_files_that_hold_no_dict(drawn, tmp_path):
    path = tmp_path / "keep.json"
    path.write_text("[[0, 1]]")
    with pytest.raises(
        ParseError, match=r"keep\.json: expected a dict of ranges for each episode's key, got list"
    ):
        RLDSDataset(drawn, keep=path)
    path.write_text("{")
    with pytest.raises(ParseError, match=r"keep\.json: expected JSON"):
        RLDSDataset(drawn, keep=path)
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        RLDSDataset(drawn, keep=tmp_path / "none.json")
    with pytest.raises(
        ValueError, match="keep: expected a dict of ranges for each episode's key, got list"
    ):
        RLDSDataset(drawn, keep=[[0, 1]])


def test_wrong_keys(drawn):
    with pytest.raises(
        KeyError,
        match="keep_key: no feature 'episode_metadata/recording_folderpath' in the episodes'",
    ):
        RLDSDataset(drawn, keep=KEEP)
    with pytest.raises(
        KeyError,
        match=r"keep_key: no feature 'steps/action' .*there are _traj_index, episode_metadata/n",
    ):
        RLDSDataset(drawn, keep=KEEP, keep_key="{steps/action}")
    with pytest.raises(
        ValueError, match=r"keep_key must be text with features in braces, got '\{a'"
    ):
        RLDSDataset(drawn, keep=KEEP, keep_key="{a")
    with pytest.raises(TypeError, match="keep_key must be text or a function, got 3"):
        RLDSDataset(drawn, keep=KEEP, keep_key=3)
    with pytest.raises(TypeError, match="keep_key must return a str or None, got int"):
        RLDSDataset(drawn, keep=KEEP, keep_key=lambda metadata: 3)


# Statistics.


def test_statistics_of_kept_steps(drawn, tmp_path):
    options = {"keep": KEEP, "keep_key": NAME, "index_dir": tmp_path}
    rows = np.array([action(*place).numpy() for place in KEPT], np.float64)
    for _ in range(2):  # computed, and from the cache
        found = dataset_statistics(drawn, **options)
        assert (found["num_transitions"], found["num_trajectories"]) == (len(KEPT), 2)
        for name, expected in {
            "mean": rows.mean(0),
            "max": rows.max(0),
            "q01": np.quantile(rows, 0.01, 0),
        }.items():
            np.testing.assert_allclose(found["action"][name], expected, rtol=1e-12, atol=1e-12)
        assert found["proprio"]["max"] == [239.0, -1.0]
    other = dataset_statistics(drawn, **options | {"keep": KEEP | {"episode 0": [[2, 5]]}})
    assert other["num_transitions"] == len(KEPT)
    assert other["action"]["mean"] != found["action"]["mean"]
    assert dataset_statistics(drawn, index_dir=tmp_path)["num_transitions"] == sum(LENGTHS)
    assert len(list(tmp_path.glob("dataset_statistics_*"))) == 3
    with pytest.raises(ValueError, match="the split has no steps"):
        dataset_statistics(drawn, **options | {"keep": {}})
