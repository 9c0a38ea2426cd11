"""Batches on a device, by a double of its streams: right values in each kind of batch, in the order
of events, from memory that is kept until its copy is done.

Covers loading/pinned.
"""

import copy
import threading
from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import assert_same
from streams import DoubleDevice
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torchvision import tv_tensors

from torch_tfrecord import (
    DevicePrefetcher,
    FixedLenFeature,
    Image,
    PaddedCollate,
    ParseError,
    RaggedFeature,
    RaggedTensor,
    RandomResizedCrop,
    SparseFeature,
    Text,
    TFRecordWriter,
    VarLenFeature,
    encode_image,
    make_dataloader,
)
from torch_tfrecord.loading import device as device_module
from torch_tfrecord.loading import read_ahead
from torch_tfrecord.loading.device import Streams
from torch_tfrecord.loading.pinned import Pins, _Born
from torch_tfrecord.loading.transport import Packer

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)

NUM_RECORDS = 60
FEATURES = {
    "n": FixedLenFeature((), torch.int64),
    "half": FixedLenFeature((), torch.bfloat16, key="x"),
    "x": FixedLenFeature((), torch.float32),
    "wide": FixedLenFeature((2000,), torch.float32),
    "flag": FixedLenFeature((), torch.bool, key="bit"),
    "ids": VarLenFeature(torch.int64),
    "ragged": RaggedFeature(torch.float32, value_key="values", partitions=(
        RaggedFeature.RowLengths("outer"), RaggedFeature.RowLengths("inner"))),
    "sparse": SparseFeature("at", "values", torch.float32, 100, already_sorted=True),
    "name": FixedLenFeature((), bytes),
    "text": Text(key="name"),
    "image": Image(crop=RandomResizedCrop(128)),
}  # fmt: skip


def record(n):
    rows = n % 3
    pixels = np.random.default_rng(n).integers(0, 256, (3, 70, 90), np.uint8)
    return {
        "n": n,
        "x": n / 4,
        "bit": n % 2,
        "wide": np.full(2000, n, np.float32),
        "ids": np.arange(n % 5),
        "values": np.arange(2 * rows, dtype=np.float32),
        "outer": np.array([rows] if rows else [], np.int64),
        "inner": np.full(rows, 2),
        "at": np.arange(2 * rows) * 3,
        "name": b"record %d" % n,
        "image": encode_image(torch.from_numpy(pixels), "jpeg"),
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("device") / "a.tfrecord")
    with TFRecordWriter(path, write_index=True) as writer:
        for n in range(NUM_RECORDS):
            writer.write(record(n))
    return path


@pytest.fixture(autouse=True)
def _double(monkeypatch):
    monkeypatch.setattr(device_module, "accelerator_of", DoubleDevice)


def device_of(loader):
    prefetcher = loader if isinstance(loader, DevicePrefetcher) else loader._prefetcher
    # what is no plain tensor, or is empty, is asked to move by itself: here there is no device
    prefetcher.pins.whole = copy.copy
    return prefetcher.accelerator


def kept(part):
    """A copy of all values as they are now."""
    if type(part) is RaggedTensor:
        return RaggedTensor(part.flat_values.clone(), [row.clone() for row in part.row_splits])
    if isinstance(part, torch.Tensor):
        return part.clone()
    if isinstance(part, dict):
        return type(part)((key, kept(value)) for key, value in part.items())
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part)(*map(kept, part))
    return type(part)(map(kept, part)) if type(part) in (list, tuple) else part


def train(loader, most=None, device=None):
    """The batches as a training's own stream sees them, which works only after the last one."""
    device = device or device_of(loader)
    seen = []
    for number, batch in enumerate(loader):
        device.use(lambda number=number, batch=batch: seen.append((number, kept(batch))))
        if number + 1 == most:
            break
        batch = None
        if number % 3 == 2:  # Python is up to three steps ahead
            device.training.run()
    device.training.run()
    assert [number for number, _ in seen] == list(range(len(seen)))
    return [batch for _, batch in seen]


def assert_all_same(found, expected):
    assert len(found) == len(expected)
    for one, two in zip(found, expected, strict=True):
        assert_same(one, two)


OPTIONS = {
    "threads": {},
    "one thread": {"num_threads": 1},
    "no threads": {"num_threads": 0},
    "pairs": {"label_key": "n"},
    "a transform": {"transform": lambda sample: {**sample, "more": sample["x"] + 1}},
    "padded": {"collate_fn": PaddedCollate()},
    "a collate_fn": {
        "collate_fn": lambda samples: [(each["wide"], each["name"]) for each in samples]
    },
    "pinned, too": {"pin_memory": True},
    "small batches": {"batch_size": 2},
}


@pytest.mark.parametrize(
    "name", ["threads", *[pytest.param(name, marks=pytest.mark.slow) for name in [*OPTIONS][1:]]]
)
def test_batches_are_those_of_the_host(path, name):
    options = {"batch_size": 20, "features": {**FEATURES}, **OPTIONS[name]}
    if name == "padded":  # which takes neither
        del options["features"]["ragged"], options["features"]["sparse"]
    loader = make_dataloader(path, device="cuda", **options)
    expected = list(make_dataloader(path, **(options | {"pin_memory": False})))
    found = train(loader)
    assert_all_same(found, expected)
    device = device_of(loader)
    assert device.waits == len(device.copies) <= len(expected)
    if name == "small batches":  # those of a task are copied together
        assert len(device.copies) < len(expected) / 2
    # all that a loader of ours makes is pinned by its threads, all else by one of the prefetcher
    assert threading.get_ident() not in device.pinned_by


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.daily)])
def test_workers_send_to_the_device(path, context):
    features = {name: FEATURES[name] for name in ("n", "ids", "ragged", "wide", "name")}
    options = {"num_workers": 2, "multiprocessing_context": context}
    loader = make_dataloader(path, 10, features, device="cuda", **options)
    assert_all_same(train(loader), list(make_dataloader(path, 10, features)))
    device = device_of(loader)
    assert threading.get_ident() not in device.pinned_by
    assert {len(copied) for copied in device.copies} == {1}  # one copy a batch


Pair = namedtuple("Pair", "left right")
BATCHES = {
    "nested": {"a": (torch.arange(3), [torch.ones(2), b"x"]), "b": {"c": torch.zeros(2, 2)}},
    "named tuple": Pair(torch.arange(3), "text"),
    "ordered": OrderedDict(b=torch.arange(2), a=torch.arange(1.0)),
    "a tensor": torch.arange(100_000),
    "shapes": [torch.tensor(5), torch.empty(0, 3), torch.empty(2, 0), torch.ones(1, 1, 4)],
    "dtypes": [torch.ones(3).to(getattr(torch, name)) for name in (
        "bool", "uint8", "int16", "uint16", "bfloat16", "float16", "float64", "complex64",
        "complex128", "float8_e4m3fn")],
    "odd places": [torch.arange(9, dtype=torch.uint8)[3:], torch.arange(7)[1::2]],
    "channels last": torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "expanded": torch.arange(3)[:, None].expand(3, 4),
    "overlapping": torch.arange(9).as_strided((3, 3), (2, 2)),
    "jagged": torch.nested.nested_tensor([torch.arange(2), torch.arange(3)], layout=torch.jagged),
    "ragged": RaggedTensor(torch.arange(3), (torch.tensor([0, 2]), torch.tensor([0, 1, 3]))),
    "sparse": torch.eye(3).to_sparse(),
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "numbers": {"a": [1, 2.5, None], "b": 3, "c": "text", "d": [["a"], []]},
    "with a gradient": torch.ones(2, requires_grad=True),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_any_loader(name):
    batch = BATCHES[name]
    loader = DevicePrefetcher([batch] * 4, "cuda")
    for found in train(loader):
        assert type(found) is type(batch)
        assert_same(found, batch)
    assert len(loader) == 4
    if name == "channels last":
        assert found.is_contiguous(memory_format=torch.channels_last)
    if name == "ordered":
        assert list(found) == ["b", "a"]


def test_boxes_stay_boxes():
    boxes = tv_tensors.BoundingBoxes([[1, 2, 3, 4]], format="XYWH", canvas_size=(9, 8))
    batch = {"image": tv_tensors.Image(torch.ones(3, 2, 2)), "boxes": [boxes, boxes]}
    loader = DevicePrefetcher([batch], "cuda")
    (found,) = list(loader)
    device_of(loader).training.run()
    assert type(found["image"]) is tv_tensors.Image
    for box in found["boxes"]:
        assert type(box) is tv_tensors.BoundingBoxes and (box == boxes).all()
        assert (box.format.value, box.canvas_size) == ("XYWH", (9, 8))
    assert len(device_of(loader).copies[0]) == 1


def test_objects_move_by_their_own_method():
    packed = pack_sequence([torch.arange(3), torch.arange(2)])
    moved = []

    class Own:
        def to(self, device):
            moved.append(device)
            return "there"

    loader = DevicePrefetcher([{"own": Own(), "x": torch.ones(2)}], "cuda")
    assert next(iter(loader))["own"] == "there"
    assert moved == [torch.device("cuda")]
    loader = DevicePrefetcher([packed], "cuda")
    loader.pins.whole = lambda part: part.to("cpu")
    assert type(next(iter(loader))) is PackedSequence


def test_columns_share_no_version():
    """Else a change in place of one breaks the backward of all."""
    batch = {"x": torch.ones(8), "y": torch.ones(8)}
    loader = DevicePrefetcher([batch], "cuda")
    found = next(iter(loader))
    device_of(loader).training.run()
    weight = torch.ones(8, requires_grad=True)
    loss = (weight * found["x"]).sum()
    found["y"].mul_(2)
    loss.backward()
    assert weight.grad.tolist() == [1.0] * 8 and found["y"].tolist() == [2.0] * 8


def test_depth_is_how_many_are_ahead(path):
    for depth in (1, 3):
        taken = []
        loader = DevicePrefetcher(
            (taken.append(n) or torch.tensor(n) for n in range(9)), "cuda", depth
        )
        batches = iter(loader)
        ahead = [next(batches) is not None and len(taken) - number for number in range(1, 9)]
        # the first one waits for no other
        assert ahead[0] == 0 and max(ahead) == depth and ahead[depth] == depth
    with pytest.raises(ValueError, match="depth must be an integer of at least 1, got 0"):
        DevicePrefetcher([], "cuda", 0)


def test_the_source_is_kept_until_its_event_has_passed():
    loader = DevicePrefetcher(({"x": torch.full((99,), n)} for n in range(50)), "cuda")
    device = device_of(loader)
    batches = [*loader]  # nothing was copied yet
    assert device.side.num_done == 0 and device.num_blocks == 50
    device.side.run()
    assert [batch["x"].unique().tolist() for batch in batches] == [[n] for n in range(50)]
    # now they have passed, and are used again
    assert [*DevicePrefetcher.__iter__(loader)] == []
    loader.loader = [{"x": torch.zeros(99)}] * 9
    for _ in loader:
        device.side.run()
    assert device.num_blocks <= 56  # not 59; how many depends on the thread that packs


def test_an_early_end_keeps_what_is_being_copied(path):
    features = {name: FEATURES[name] for name in ("n", "wide")}
    expected = list(make_dataloader(path, 6, features, num_epochs=1))
    loader = make_dataloader(path, 6, features, device="cuda", shuffle=True)
    batch = next(iter(loader))
    # the iteration is gone, and its copies are still to come, from memory that others could overwrite
    other = make_dataloader(path, 6, features, shuffle=True, seed=1)
    assert len(list(other)) == 10
    device = device_of(loader)
    [device.pinned(size) for copied in device.copies for size in copied]
    device.training.run()
    assert_same(batch, expected[0])


def test_a_record_that_fails_is_the_same_error(tmp_path):
    path = str(tmp_path / "a")
    with TFRecordWriter(path) as writer:
        for n in range(20):
            writer.write({"n": n} if n != 11 else {"m": 1})
    features = {"n": FixedLenFeature((), torch.int64)}
    loader = make_dataloader(path, 5, features, shuffle=False, device="cuda")
    seen, errors, batches = [], [], iter(loader)
    for _ in range(4):
        try:
            batch = next(batches)
            device_of(loader).training.run()
            seen.append(batch["n"].tolist())
        except ParseError as error:
            errors.append(str(error))
    assert seen == [[*range(5)], [*range(5, 10)], [*range(15, 20)]]
    assert len(errors) == 1 and "record 11 at byte" in errors[0]
    left = make_dataloader(path, 5, features, shuffle=False, device="cuda", on_error="skip")
    with pytest.warns(UserWarning, match="record 11"):
        found = train(left)
    kept_numbers = [n for batch in found for n in batch["n"].tolist()]
    assert kept_numbers == [n for n in range(20) if n != 11]


@pytest.mark.parametrize("wrap", [False, True])
def test_the_state_counts_what_was_received(path, wrap):
    features = {"n": FEATURES["n"]}

    def make():
        if wrap:
            return DevicePrefetcher(make_dataloader(path, 7, features), "cuda", depth=3)
        return make_dataloader(path, 7, features, device="cuda")

    plain = make_dataloader(path, 7, features)
    loader = make()
    device = device_of(loader)
    for one, two in zip(plain, loader, strict=True):
        device.training.run()
        assert_same(one, two)
        state = loader.state_dict()
        assert {**state, "run": 0} == {**plain.state_dict(), "run": 0}
    assert loader.epoch == 1 and len(loader) == 9
    resumed = make()
    resumed.load_state_dict({**state})
    begun = iter(resumed)
    resumed.set_epoch(1)
    batch = next(begun)
    device_of(resumed).training.run()
    assert_same(batch, next(iter(plain)))
    assert resumed.stats()["batches"] == 1


def test_the_cpu_gets_the_batches_as_they_are(path):
    batches = [{"x": torch.ones(2)}, object()]
    found = [*DevicePrefetcher(batches, torch.device("cpu"))]
    assert all(one is two for one, two in zip(found, batches, strict=True))
    loader = make_dataloader(path, 20, FEATURES, device="cpu")
    assert_all_same(list(loader), list(make_dataloader(path, 20, FEATURES)))
    assert loader.device == torch.device("cpu")
    assert loader.set_epoch(3) is None and DevicePrefetcher(loader, "cpu").epoch == 3


def test_pinned_batches_are_born_so(path, monkeypatch):
    """`pin_memory=True` without a device: views of pinned blocks, made by the threads."""
    double = DoubleDevice(None)
    double.open()
    monkeypatch.setattr(read_ahead, "pinned_bytes", double.pinned)
    monkeypatch.setattr(read_ahead, "_can_pin", lambda: True)
    loader = make_dataloader(path, 20, FEATURES, pin_memory=True)
    batches = list(loader)
    assert_all_same(batches, list(make_dataloader(path, 20, FEATURES)))
    assert threading.get_ident() not in double.pinned_by
    # where a transform runs, its results are pinned
    double.pinned_by.clear()
    loader = make_dataloader(path, 20, FEATURES, transform=dict, pin_memory=True)
    assert_all_same(list(loader), batches)
    assert set(double.pinned_by) == {threading.get_ident()}


@pytest.mark.parametrize("rows", [20, 60])
def test_columns_of_few_rows_are_born_pinned(tmp_path, rows, monkeypatch):
    """Nothing is copied on the host, whatever a batch has of other kinds."""
    names = [f"x{n}" for n in range(40)]
    path = str(tmp_path / "a")
    with TFRecordWriter(path, write_index=True) as writer:
        for n in range(120):
            writer.write(
                {"name": b"%d" % n, **{name: n if name < "x2" else n / 4 for name in names}}
            )
    features = {
        name: FixedLenFeature((), torch.int64 if name < "x2" else torch.float32) for name in names
    }
    monkeypatch.setattr(Packer, "_copy", None)
    for chosen in (features, {**features, "name": FixedLenFeature((), bytes)}):
        loader = make_dataloader(path, rows, chosen, device="cuda")
        assert_all_same(train(loader), list(make_dataloader(path, rows, chosen)))


def test_small_columns_leave_room_for_large_ones():
    device = DoubleDevice(None)
    device.open()
    born = _Born(Pins(device.pinned), 2)
    arrays = [born(size) for size in (100_000, 5_000, 100_000, 5_000)]
    assert [block.nbytes for block in born.blocks] == [200_000, 10_016]
    assert [len(array) for array in arrays] == [100_000, 5_000, 100_000, 5_000]
    places = [array.ctypes.data for array in arrays]
    starts = [block.data_ptr() for block in born.blocks]
    assert places == [starts[0], starts[1], starts[0] + 100_000, starts[1] + 5_008]


def test_batches_at_equal_places_stay_different():
    """How a batch is cut is kept for later ones with tensors at the same places in their block."""
    device = DoubleDevice(None)
    device.open()
    pins, block = Pins(device.pinned, torch.device("cuda")), device.pinned(64)
    whole = torch.from_numpy(block.numpy())
    items = torch.from_numpy(block.numpy().view(np.int64))
    odd = torch.from_numpy(block.numpy()[1:9].view(np.int16))
    pins.whole = copy.copy
    for turn in range(6):
        items[:] = torch.arange(8) + turn
        batches = [
            {"x": items},
            {"y": items},
            {"x": items.view(torch.float64)},
            {"x": items.view(2, 4)},
            {"x": items[:4]},
            {"x": items[::2]},
            {"x": items.view(2, 4).T},
            {"x": items[:3], "y": items[1:]},
            {"x": items[0], "y": items[4:]},
            {"x": odd, "y": whole[9:]},
            {"x": items, "y": torch.arange(8) + turn},
            {"x": items[:2], "y": torch.full((9,), 1.0 + turn, requires_grad=True)},
            {"x": items[:2], "y": torch.eye(2).to_sparse() * (1 + turn)},
            {"x": items[:2], "y": [b"%d" % turn]},
            ({"x": items[:2]}, items[2:]),
            {"x": items[4:], "y": items[:4], "z": items[2:6]},
            {},
        ]
        # at last more than are kept
        for batch in batches if turn < 3 else [{"x": whole[:size]} for size in range(1, 65)]:
            cut = pins.cut([batch, batch], [block])
            for found in cut.on(cut.blocks):
                assert_same(found, batch)


# torch's devices.


def test_a_device_that_is_not_there():
    if torch.accelerator.is_available():
        pytest.skip("there is one")
    for wanted in ("cuda", "cuda:1"):
        with pytest.raises(ValueError) as caught:
            Streams(torch.device(wanted))
        assert str(caught.value) == (
            f"device {wanted!r} is not there: torch {torch.__version__} finds no accelerator on this machine; expected "
            "one of these, or 'cpu'"
        )
    with pytest.raises(RuntimeError, match="device"):
        DevicePrefetcher([], "gpu")


def test_a_forked_process_is_told_to_spawn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(RuntimeError) as caught:
        Streams(torch.device("cuda"))
    assert str(caught.value) == (
        "device 'cuda' cannot be used in a forked process, since its parent had begun to use it: start processes by "
        "torch.multiprocessing.get_context('spawn'), and make the loader there"
    )


class FakeModule:
    """As much of ``torch.cuda`` as is used, with a list of what was called."""

    def __init__(self):
        self.calls, self.current = [], self.new_stream("current")

    def new_stream(self, name):
        return SimpleNamespace(
            name=name, wait_event=lambda event: self.calls.append(f"{name} waits for {event}")
        )

    def Stream(self, device):
        self.calls.append(f"new stream of {device}")
        return SimpleNamespace(record_event=lambda: self.calls.append("record on side") or "event")

    def stream(self, stream):
        fake = self

        class Context:
            def __enter__(self):
                fake.calls.append("enter side")

            def __exit__(self, *error):
                fake.calls.append("leave side")

        return Context()

    def current_stream(self, device):
        return self.current


def test_the_order_of_calls_on_torchs_streams():
    streams = Streams.__new__(Streams)
    module = FakeModule()
    streams._device, streams._pid, streams._module = torch.device("cpu"), -1, module

    def to(device, non_blocking=False):
        module.calls.append(f"copy to {device}, non_blocking={non_blocking}")
        return SimpleNamespace(
            record_stream=lambda stream: module.calls.append(f"record_stream of {stream.name}")
        )

    streams.open()
    streams.open()
    blocks, event = streams.copy([SimpleNamespace(to=to)])
    waits = streams.wait(event, blocks)
    assert streams.wait(event, blocks, waits) is waits  # the next batch of the same copy
    module.current = module.new_stream("another")
    streams.wait(event, blocks, waits)
    assert module.calls == [
        "new stream of cpu",
        "enter side",
        "copy to cpu, non_blocking=True",
        "record on side",
        "leave side",
        "current waits for event",
        "record_stream of current",
        "another waits for event",
        "record_stream of another",
    ]
    # a device without streams: all is done when it returns
    streams._stream = None
    host = streams.pinned(16)
    blocks, event = streams.copy([host])
    streams.wait(event, blocks)
    assert event is None and blocks[0].data_ptr() == host.data_ptr()
