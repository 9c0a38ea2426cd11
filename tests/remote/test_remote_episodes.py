"""Robots from a bucket: equal values, and tables of episodes once and together."""

import json
import multiprocessing
from itertools import islice
from pkgutil import resolve_name

import pytest
from batches import assert_same
from range_server import Fault, range_server
from rlds_episodes import write_episodes
from torch.utils.data import DataLoader

from torch_tfrecord import (
    CorruptRecordError,
    RandomResizedCrop,
    RemoteError,
    collate,
    make_dataloader,
    tfds,
)
from torch_tfrecord.tfds import RLDSDataset

LENGTHS = (40, 60, 33, 52)
BATCH = [3, 91, 20, 140, 35, 112, 61, 175]  # no two steps that follow one another
VERSION = "arm/1.0.0"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """A folder with a directory of episodes, and their indexes beside them."""
    folder = tmp_path_factory.mktemp("bucket")
    write_episodes(folder / VERSION, LENGTHS, name="arm")
    RLDSDataset(folder / VERSION)
    return folder


@pytest.fixture(autouse=True)
def new_machine(tmp_path, monkeypatch):
    """Nothing is kept on it yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))


@pytest.fixture
def server(bucket):
    with range_server(bucket) as url:
        yield url


def opened(server, **options):
    storage = {"endpoint_url": str(server), "key": "a", "secret": "b"}
    return RLDSDataset("s3://arm/1.0.0", storage_options=storage, **{"action_horizon": 4} | options)


def sent(server):
    """Requests and bytes for the data since the last call."""
    found = [one for one in server.requests() if ".tfrecord" in one[1] and one[0] == "GET"]
    num_bytes = server.stats()["bytes_sent"]
    server.reset()
    return len(found), num_bytes


def read(dataset, positions=BATCH):
    return collate(dataset.__getitems__(positions))


@pytest.mark.parametrize("options", [{}, {"window_size": 3, "goals": tfds.UniformGoals()}])
def test_equal_values_locally_and_from_a_bucket(bucket, server, options):
    near, far = RLDSDataset(bucket / VERSION, **options), opened(server, **options)
    for dataset in (near, far):
        dataset.set_epoch(2)
    everything = range(len(near))
    assert_same(read(far, everything)["observation"], read(near, everything)["observation"])


def test_an_index_beside_the_data_in_the_bucket_is_taken(bucket, server):
    """Times of a bucket are not those of the files."""
    size = sum(path.stat().st_size for path in (bucket / VERSION).glob("*.tfrecord*"))
    far = opened(server)
    assert sent(server)[1] < size / 4
    assert list(far.num_steps) == list(LENGTHS)
    assert list(opened(server, index="require").num_steps) == list(LENGTHS)


def test_tables_come_once_and_those_of_a_batch_at_once(bucket, server):
    far = opened(server)
    assert make_dataloader(far, 8).num_threads >= 8
    sent(server)
    read(far)
    first = sent(server)[0]
    read(far)
    again = sent(server)[0]
    assert again < first
    read(far)
    assert sent(server)[0] == again
    with range_server(bucket, latency=0.3) as url:
        far = opened(url)
        url.reset()
        [*far._store.episodes(range(len(LENGTHS)))]
        assert url.stats()["most_at_once"] >= len(LENGTHS)


def test_masked_pictures_are_not_asked_for(bucket, server):
    masks = {"image": tfds.Mask(0.5), "wrist_image": tfds.Mask(0.4)}
    chosen = {"steps": {"observation": {"state": True, **masks}, "action": True}}
    near, far = RLDSDataset(bucket / VERSION, features=chosen), opened(server, features=chosen)
    for dataset in (near, far):
        dataset.set_epoch(3)
    read(far)  # the short columns
    sent(server)
    batch = read(far)
    there = batch["observation"]["pad_mask_dict"]
    assert sent(server)[0] == sum(int(each.sum()) for each in there.values())
    assert all(0 < int(each.sum()) < len(BATCH) for each in there.values())
    assert_same(batch["observation"], read(near)["observation"])


def run(dataset, num_ranks, most=None, state=None):
    """The batches of all ranks, or the first ones of each, and the state then."""
    found = []
    for rank in range(num_ranks):
        ranks = {"rank": rank, "world_size": num_ranks}
        loader = make_dataloader(dataset, 8, seed=3, drop_last=False, **ranks)
        if state is None:
            loader.set_epoch(1)
        else:
            loader.load_state_dict(json.loads(state))
        batches = iter(loader)
        found += islice(batches, most)
        states = json.dumps(loader.state_dict())
    return found, states


def by_step(batches):
    """By episode and step, all that was drawn for it."""
    found = {}
    for batch in batches:
        seen, task = batch["observation"], batch["task"]
        for row, number in enumerate(batch["_traj_index"].tolist()):
            found[number, int(batch["_frame_index"][row])] = (
                seen["camera"][row].numpy().tobytes(),
                {name: bool(mask[row]) for name, mask in seen["pad_mask_dict"].items()},
                seen["state"][row].tolist(),
                task["camera"][row].numpy().tobytes(),
                int(task["timestep"][row]),
                task["language_instruction"][row],
            )
    return found


def test_more_ranks_resume_with_the_draws_of_a_local_run(bucket, server):
    camera = tfds.Mask(0.3, tfds.OneOf(["image", "wrist_image"]))
    seen = {"camera": camera, "state": tfds.Mask(0.2)}
    steps = {"observation": seen, "language_instruction": tfds.Mask(0.4), "action": True}
    options = {
        "features": {"steps": steps},
        "goals": tfds.UniformGoals(),
        "decode_images": RandomResizedCrop(8, scale=(0.1, 0.5), horizontal_flip=0.5),
    }
    near, far = (
        RLDSDataset(bucket / VERSION, action_horizon=4, **options),
        opened(server, **options),
    )
    runs = []
    for dataset in (near, far):
        first, state = run(dataset, 2, most=5)
        rest, _ = run(dataset, 3, state=state)
        assert len(by_step(first)) == 2 * 5 * 8
        runs.append([*first, *rest])
    assert_same(*runs)
    whole = by_step(run(near, 1)[0])
    assert len(whole) == sum(LENGTHS)
    assert by_step(runs[1]) == whole
    # Pictures, masked pictures and texts: there are some of each.
    kinds = {
        (values[1]["camera"], values[1]["state"], values[5] != "") for values in whole.values()
    }
    assert len(kinds) == 8


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.daily)])
def test_workers(bucket, server, method):
    near, far = RLDSDataset(bucket / VERSION, action_horizon=4), opened(server)
    read(far)  # the parent has connections
    options = {"num_workers": 2, "collate_fn": collate, "batch_size": 32}
    context = multiprocessing.get_context(method)
    loader = DataLoader(far, multiprocessing_context=context, **options)
    for batch, expected in zip(loader, DataLoader(near, 32, collate_fn=collate), strict=True):
        assert_same(batch, expected)


def test_frames_of_all_cameras_come_together(bucket):
    with range_server(bucket, latency=0.3) as url:
        options = {"decode_images": ["wrist_image"], "action_horizon": 4}
        near, far = RLDSDataset(bucket / VERSION, **options), opened(url, **options)
        read(far)
        url.reset()
        assert_same(read(far), read(near))
        assert url.stats()["most_at_once"] > len(BATCH)


@pytest.mark.parametrize(
    "options", [{"num_threads": 3}, pytest.param({"num_workers": 1}, marks=pytest.mark.daily)]
)
def test_with_a_cache_the_second_epoch_asks_for_nothing(bucket, server, tmp_path, options):
    near = RLDSDataset(bucket / VERSION, action_horizon=4)
    far = opened(server, cache_dir=tmp_path / "cache", cache_bytes=64 << 20, episode_bytes=0)
    if "num_workers" in options:
        options["multiprocessing_context"] = multiprocessing.get_context("spawn")
    for epoch in range(2):
        loaders = [make_dataloader(each, 16, seed=3, **options) for each in (near, far)]
        for loader in loaders:
            loader.set_epoch(epoch)
        sent(server)
        for expected, batch in zip(*loaders, strict=True):
            assert_same(batch, expected)
    assert sent(server)[0] == 0
    other = opened(server, cache_dir=tmp_path / "cache")
    sent(server)
    assert_same(read(other), read(near))
    assert sent(server)[0] == 0


def test_damage_in_the_cache_is_fetched_again_once(bucket, server, tmp_path, monkeypatch):
    client, times = "torch_tfrecord.remote.obstore_store.ObstoreStore.read_range", [0]
    original = resolve_name(client)

    def damaging(*asked):
        data = bytearray(original(*asked))
        if times[0] and ".tfrecord" in asked[1]:
            times[0] -= 1
            data[:] = bytes(byte ^ 1 for byte in data)
        return memoryview(data)

    monkeypatch.setattr(client, damaging)
    near, far = RLDSDataset(bucket / VERSION), opened(server, cache_dir=tmp_path / "cache")
    far._store.episode(1)
    for sector in (tmp_path / "cache").glob("*/*/*/*"):
        sector.unlink()
    times[0] = 1
    assert_same(read(far, [46])["observation"], read(near, [46])["observation"])
    assert times == [0]


def test_arguments_of_the_cache_are_checked_first():
    with pytest.raises(TypeError, match="cache_dir must be str"):
        RLDSDataset("s3://nowhere/1.0.0", cache_dir=3)
    with pytest.raises(ValueError, match="cache_bytes"):
        RLDSDataset("s3://nowhere/1.0.0", cache_bytes=3)


def damaged(bucket, tmp_path, offset_of):
    """A copy of the bucket in which a byte of the first file is another."""
    path = next((bucket / VERSION).glob("*00000-of*"))
    content = bytearray(path.read_bytes())
    content[offset_of(content)] ^= 1
    for found in bucket.rglob("*"):
        if found.is_file():
            copy = tmp_path / "copy" / found.relative_to(bucket)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content if found == path else found.read_bytes())
    return tmp_path / "copy"


def test_damage_is_noticed_and_named(bucket, tmp_path):
    near = RLDSDataset(bucket / VERSION)
    [begin, size, _] = (
        near._store.episode(1).steps["observation"]["image"].values.places[7].tolist()
    )
    folder = damaged(bucket, tmp_path, lambda _: begin + size - 3)
    with range_server(folder) as url:
        far = opened(url)
        assert read(far, [46, 48])["_frame_index"].tolist() == [6, 8]
        with pytest.raises(CorruptRecordError, match=r"step 7: expected checksum") as caught:
            read(far, [46, 47, 48])
        assert caught.value.path.startswith("s3://arm/1.0.0/arm-train")
        assert caught.value.position == 1
        assert caught.value.offset is not None


def test_a_file_that_was_replaced(bucket, server):
    far = opened(server)
    read(far)
    server.reset([Fault("changed")])
    with pytest.raises(CorruptRecordError, match="another one in its place"):
        read(far)


def test_requests_that_fail_are_sent_again_and_then_an_error(bucket, server, monkeypatch):
    monkeypatch.setattr("torch_tfrecord.remote.transfers.MOST_ATTEMPTS", 2)
    near, far = RLDSDataset(bucket / VERSION, action_horizon=4), opened(server)
    server.reset([Fault("reset", 2), Fault("500", 5), Fault("short", 30)])
    assert_same(read(far), read(near))
    server.reset([Fault("500", times=1000)])
    with pytest.raises(RemoteError, match=r"arm-train.*bytes \d+ to \d+.*500.*2 attempts"):
        read(far)


def test_statistics_and_kept_steps(bucket, server):
    storage = {"endpoint_url": str(server), "key": "a", "secret": "b"}
    given = {"keep": {"episode 1": [[3, 9]]}, "keep_key": "{episode_metadata/name}"}
    near, far = RLDSDataset(bucket / VERSION, **given), opened(server, **given)
    assert [*map(far.locate, range(len(far)))] == [*map(near.locate, range(len(near)))]
    found = tfds.dataset_statistics("s3://arm/1.0.0", storage_options=storage)
    assert found == tfds.dataset_statistics(bucket / VERSION)
