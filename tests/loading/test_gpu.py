"""Batches on a GPU itself, where there is one: a training that is far behind Python sees the values
of the host, in constant memory.
"""

import multiprocessing
import subprocess
import sys

import pytest
import torch
from batches import assert_same
from pictures import CASES, jpeg
from test_device import BATCHES, FEATURES, OPTIONS, path  # noqa: F401, the last one is a fixture
from torch.utils.data import DataLoader

from torch_tfrecord import (
    DevicePrefetcher,
    FixedLenFeature,
    Image,
    PackedCollate,
    PaddedCollate,
    RaggedTensor,
    RandomResizedCrop,
    ResizedCenterCrop,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    collate,
    encode_image,
    make_dataloader,
)

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

# Some ten milliseconds of a stream's time.
LATE = 20_000_000


def moved(part, to):
    """The values of a batch elsewhere, by torch alone."""
    if type(part) is RaggedTensor:
        return RaggedTensor(to(part.flat_values), [to(row) for row in part.row_splits])
    if isinstance(part, torch.Tensor):
        assert part.device.type == "cuda"
        return to(part)
    if isinstance(part, dict):
        return type(part)((key, moved(value, to)) for key, value in part.items())
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part)(*(moved(each, to) for each in part))
    return type(part)(moved(each, to) for each in part) if type(part) in (list, tuple) else part


def train(loader, step=lambda batch: moved(batch, torch.clone)):
    """The batches as a stream sees them that is late, and other work that takes their memory."""
    seen = []
    for batch in loader:
        torch.cuda._sleep(LATE)
        seen.append(step(batch))
        del batch
        torch.full((1 << 20,), 77, device="cuda")  # whose memory may be that of the batch
    return [moved(batch, torch.Tensor.cpu) for batch in seen]


def assert_all_same(found, expected):
    assert len(found) == len(expected)
    for one, two in zip(found, expected, strict=True):
        assert_same(one, two)


@pytest.mark.parametrize("name", OPTIONS)
def test_batches_are_those_of_the_host(path, name):  # noqa: F811
    options = {"batch_size": 20, "features": {**FEATURES}, **OPTIONS[name]}
    if name == "padded":
        del options["features"]["ragged"], options["features"]["sparse"]
    loader = make_dataloader(path, device="cuda", **options)
    expected = list(make_dataloader(path, **(options | {"pin_memory": False})))
    for _ in range(3):
        loader.set_epoch(0)
        assert_all_same(train(loader), expected)


@pytest.mark.parametrize("name", [*BATCHES])
def test_batches_of_any_loader(name):
    batch = BATCHES[name]
    for found in train(DevicePrefetcher([batch] * 4, "cuda")):
        assert_same(found, batch)


def test_datasets_and_orders_of_any_kind(path):  # noqa: F811
    features = {name: FEATURES[name] for name in ("n", "ids", "wide")}
    ds = TFRecordDataset(path, features)
    for options in (
        {"collate_fn": PackedCollate(16, features=["ids"])},
        {"lengths": [n % 5 for n in range(60)], "max_tokens": 20, "collate_fn": PaddedCollate()},
    ):
        options = {"batch_size": None if "max_tokens" in options else 7, **options}
        expected = list(make_dataloader(ds, **options))
        assert_all_same(train(make_dataloader(ds, device="cuda", **options)), expected)


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_send_to_the_device(path, context):  # noqa: F811
    features = {name: FEATURES[name] for name in ("n", "ids", "ragged", "wide", "name")}
    options = {"num_workers": 2, "multiprocessing_context": context}
    loader = make_dataloader(path, 10, features, device="cuda", **options)
    expected = list(make_dataloader(path, 10, features))
    assert_all_same(train(loader), expected)
    stream = TFRecordIterableDataset(path, features, batch_size=10)
    plain = DataLoader(stream, None, num_workers=1, multiprocessing_context=context)
    loader = DevicePrefetcher(plain, "cuda")
    assert_all_same(train(loader), list(TFRecordIterableDataset(path, features, batch_size=10)))


def test_a_stream_a_second_behind(path):  # noqa: F811
    features = {name: FEATURES[name] for name in ("n", "wide", "image")}
    options = {"shuffle": False, "num_epochs": 20}
    expected = list(make_dataloader(path, 6, features, **options))
    torch.cuda._sleep(100 * LATE)
    batches = iter(make_dataloader(path, 6, features, device="cuda", **options))
    seen = [moved(batch, torch.clone) for batch in batches]
    assert_all_same([moved(batch, torch.Tensor.cpu) for batch in seen], expected)


def test_an_early_end_and_another_stream(path):  # noqa: F811
    features = {name: FEATURES[name] for name in ("n", "wide")}
    expected = list(make_dataloader(path, 6, features))
    torch.cuda._sleep(20 * LATE)
    loader = make_dataloader(path, 6, features, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(20 * LATE)
        batch = next(iter(loader))  # the iteration is gone
        list(make_dataloader(path, 6, features, device="cuda", seed=1))
        assert_same(moved(batch, torch.Tensor.cpu), expected[0])


def test_memory_is_constant(path):  # noqa: F811
    features = {name: FEATURES[name] for name in ("n", "wide", "ids", "name")}
    loader = make_dataloader(path, 20, features, device="cuda", num_epochs=None)
    used = []
    for number, _ in enumerate(loader):
        if number in (2_000, 5_000, 10_000):
            torch.cuda.synchronize()
            host = torch.cuda.host_memory_stats()["allocated_bytes.current"]
            used.append((torch.cuda.max_memory_allocated(), host))
        if number == 10_000:
            break
    device, host = zip(*used, strict=True)
    assert max(device) <= device[0] + (2 << 20)
    # One more pinned block may be needed at some time, but not one after another.
    assert max(host) <= host[0] + (32 << 20)


def _use(device_error):
    try:
        loader = DevicePrefetcher([torch.ones(2)], "cuda")
        (found,) = loader
        device_error.put(found.tolist())
    except RuntimeError as error:
        device_error.put(str(error))


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_forked_process_is_an_error_that_says_spawn(context):
    torch.ones(1, device="cuda")
    context = multiprocessing.get_context(context)
    queue = context.SimpleQueue()
    process = context.Process(target=_use, args=(queue,))
    process.start()
    found = queue.get()
    process.join()
    if context.get_start_method() == "fork":
        assert "cannot be used in a forked process" in found
    else:
        assert found == [1.0, 1.0]


PROGRAM = """
import sys, torch
from torch_tfrecord import FixedLenFeature, make_dataloader
loader = make_dataloader(sys.argv[1], 6, {"n": FixedLenFeature((), torch.int64)}, device="cuda")
batches = iter(loader)
print(next(batches)["n"].sum().item())
"""


def test_a_program_ends_in_the_middle(path):  # noqa: F811
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "") and int(done.stdout) >= 0


def test_collated_by_a_plain_data_loader(path):  # noqa: F811
    features = {name: FEATURES[name] for name in ("n", "wide", "image")}
    ds = TFRecordDataset(path, features)
    plain = DataLoader(ds, 10, collate_fn=collate)
    assert [*map(len, train(DevicePrefetcher(plain, "cuda")))] == [3] * 6
    with pytest.raises(ValueError, match="device 'cuda:99' is not there"):
        DevicePrefetcher(plain, "cuda:99")


def test_pinned_batches_are_kept_until_they_are_copied(path):  # noqa: F811
    """torch knows of your copies from them, though the next batches are made in their memory."""
    features = {name: FEATURES[name] for name in ("n", "wide", "image")}
    options = {"shuffle": False, "num_epochs": 20}
    expected = list(make_dataloader(path, 6, features, **options))
    torch.cuda._sleep(100 * LATE)
    seen = [
        {name: column.to("cuda", non_blocking=True) for name, column in batch.items()}
        for batch in make_dataloader(path, 6, features, pin_memory=True, **options)
    ]
    assert_all_same([moved(batch, torch.Tensor.cpu) for batch in seen], expected)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    found = str(tmp_path_factory.mktemp("pictures") / "a.tfrecord")
    with TFRecordWriter(found, write_index=True) as writer:
        for n in range(512):
            kinds = ["", "gray", "restarts", "progressive", "cmyk", "png", "rgb", "twice"]
            writer.write({"n": n, "image": jpeg(n, kinds[n % 16] if n % 16 < 8 else "")})
    return found


@pytest.mark.parametrize("name", CASES)
def test_pixels_of_pictures_decoded_on_the_device(pictures, name):
    options = {"crop": RandomResizedCrop(96, horizontal_flip=0.5), **CASES[name]}
    seen = {}
    for decode_on in ("cpu", "device"):
        features = {"image": Image(decode_on=decode_on, **options)}
        loader = make_dataloader(pictures, 64, features, device="cuda", seed=1)
        seen[decode_on] = torch.cat([batch["image"].clone() for batch in loader]).cpu()
        assert loader.stats().get("on_device", 0) == (0 if decode_on == "cpu" else 64 * 12 / 16)
    difference = (seen["cpu"].double() - seen["device"].double()).abs()
    scale = 255 * 0.2 if name == "normalized" else 1
    # nvJPEG repeats colours of half the size, libjpeg-turbo smooths them.
    assert difference.mean() * scale < 1.5
    assert difference.flatten(1).mean(1).max() * scale < 6


def test_no_decoded_picture_changes_while_it_is_read(pictures):
    """10^5 of them, beside kernels that read earlier batches, as one that was seen to fail."""
    features = {"image": Image(crop=ResizedCenterCrop(96, 100), decode_on="device")}
    loader = make_dataloader(
        pictures, 128, features, device="cuda", shuffle=False, num_epochs=200, num_threads=8
    )
    sums, kept, weights = [], [], torch.rand(128 * 3 * 96 * 96, device="cuda")

    def checksum(images):
        return torch.dot(images.reshape(-1).float(), weights)

    for number, batch in enumerate(loader):
        first = checksum(batch["image"])
        if number % 3 == 0:
            torch.cuda._sleep(LATE // 4)
        kept.append((batch["image"], first))
        if len(kept) > 2:
            images, before = kept.pop(0)
            sums.append(torch.stack([before, checksum(images)]))
    found = torch.stack(sums).cpu()
    assert torch.equal(found[:, 0], found[:, 1])
    by_epoch = found[: len(found) // 4 * 4, 0].unflatten(0, (-1, 4))
    assert (by_epoch == by_epoch[0]).all() and len(found) > 790


def test_memory_is_constant_while_the_device_decodes(pictures):
    features = {"image": Image(crop=RandomResizedCrop(160), decode_on="device")}
    loader = make_dataloader(pictures, 64, features, device="cuda", num_epochs=None)
    used = []
    for number, _ in enumerate(loader):
        if number in (200, 400, 600):
            torch.cuda.synchronize()
            used.append(torch.cuda.max_memory_allocated())
        if number == 600:
            break
    assert max(used) <= used[0] * 1.1 + (64 << 20)


def test_a_network_learns_the_same_from_both(tmp_path_factory):
    """Pictures of four kinds of stripes: the accuracy of three seeds each."""
    stripes = str(tmp_path_factory.mktemp("stripes") / "a.tfrecord")
    generator = torch.Generator().manual_seed(0)
    with TFRecordWriter(stripes, write_index=True) as writer:
        for n in range(2_000):
            across, down = torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="ij")
            wave = torch.stack([across, down, across + down, across - down])[n % 4]
            image = 128 + 30 * torch.sin(wave / 3 + torch.rand(3, 1, 1, generator=generator) * 6)
            image = image + 90 * torch.randn(3, 96, 96, generator=generator)
            writer.write(
                {"label": n % 4, "image": encode_image(image.clamp(0, 255).byte(), "jpeg")}
            )
    accuracies = {}
    for decode_on in ("cpu", "device"):
        features = {
            "image": Image(crop=RandomResizedCrop(64, scale=(0.3, 1)), decode_on=decode_on),
            "label": FixedLenFeature((), torch.int64),
        }
        ds = TFRecordDataset(stripes, features)
        for seed in range(3):
            torch.manual_seed(seed)
            model = torch.nn.Sequential(
                torch.nn.Conv2d(3, 16, 7, 2), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 5, 2),
                torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
                torch.nn.Linear(16, 4),
            ).cuda()  # fmt: skip
            optimizer = torch.optim.Adam(model.parameters(), 3e-3)
            for batch in make_dataloader(ds[:1600], 64, device="cuda", seed=seed, num_epochs=6):
                logits = model(batch["image"].float() / 128 - 1)
                torch.nn.functional.cross_entropy(logits, batch["label"]).backward()
                optimizer.step()
                optimizer.zero_grad()
            right = [
                (model(batch["image"].float() / 128 - 1).argmax(1) == batch["label"]).float()
                for batch in make_dataloader(ds[1600:], 50, device="cuda")
            ]
            accuracies.setdefault(decode_on, []).append(torch.cat(right).mean().item())
    means = {side: sum(found) / 3 for side, found in accuracies.items()}
    assert min(means.values()) > 0.4  # 0.25 by chance
    assert abs(means["cpu"] - means["device"]) < 0.08
