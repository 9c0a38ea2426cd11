"""What leaves a worker arrives equal, whatever it is, wherever it was made, and however long who
keeps it.
"""

import gc
import multiprocessing
import os
import pickle
import resource
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import assert_same
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors

from torch_tfrecord import RaggedTensor, SparseList, collate, shared_memory
from torch_tfrecord.columns import Nested, as_plain
from torch_tfrecord.loading import transport
from torch_tfrecord.native import optional_module

shares = pytest.mark.skipif(
    optional_module("shared") is None or not hasattr(os, "memfd_create"),
    reason="needs Linux and the compiled core",
)

DTYPES = [
    torch.uint8,
    torch.int64,
    torch.float32,
    torch.bool,
    torch.bfloat16,
    torch.float64,
    torch.uint16,
    torch.int8,
]


@st.composite
def tensors(draw, max_bytes=1 << 18):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 17, 257]), max_size=3))
    size = int(np.prod(shape, dtype=np.int64))
    if size * dtype.itemsize > max_bytes:
        shape, size = [11], 11
    values = torch.from_numpy(
        np.random.default_rng(draw(st.integers(0, 1000))).integers(
            0, 2, size * dtype.itemsize, np.uint8
        )
    )
    tensor = (values if dtype is torch.bool else values * 7).view(dtype)[:size].reshape(shape)
    how = draw(st.sampled_from(["as it is", "transposed", "every second", "expanded"]))
    if how == "transposed" and tensor.dim() > 1:
        tensor = tensor.transpose(0, -1)
    elif how == "every second" and tensor.dim():
        tensor = tensor[::2]
    elif how == "expanded" and tensor.dim() < 3:
        tensor = tensor.expand(3, *tensor.shape)
    return tensor


@st.composite
def columns(draw):
    kind = draw(
        st.sampled_from(
            [
                "dense",
                "jagged",
                "sparse",
                "ragged",
                "sparse list",
                "bytes",
                "str",
                "image",
                "list",
                "none",
            ]
        )
    )
    if kind == "dense":
        return draw(tensors())
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=20))
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    values = torch.arange(int(offsets[-1]))
    if kind == "jagged":
        return as_plain(Nested(values, values.dtype, (offsets,)))
    if kind == "sparse":
        indices = torch.stack([torch.arange(len(values)), values * 2])
        return torch.sparse_coo_tensor(
            indices,
            values + 1,
            (len(values) + 1, 2 * len(values) + 1),
            is_coalesced=True,
            check_invariants=True,
        )
    if kind == "ragged":
        return RaggedTensor(values, (torch.tensor([0, len(lengths)]), offsets))
    if kind == "sparse list":
        return SparseList(torch.arange(3)[None], [b"a", b"", b"c"], (4,))
    if kind == "bytes":
        return [bytes(length) * draw(st.sampled_from([1, 50_000])) for length in lengths]
    if kind == "str":
        return ["é" * length for length in lengths]
    if kind == "image":
        like = draw(st.sampled_from([tv_tensors.Image, tv_tensors.Mask]))
        return like(
            torch.arange(60)
            .view(3, 4, 5)
            .to(draw(st.sampled_from([torch.uint8, torch.uint16, torch.uint64])))
        )
    return None if kind == "none" else [draw(tensors()), draw(tensors())]


def batches():
    inner = st.dictionaries(st.sampled_from("abcdefgh"), columns(), max_size=8)
    return st.one_of(inner, st.tuples(inner, columns()), st.lists(columns(), max_size=3))


class Memory:
    """A worker's memory in this process, and messages through it."""

    def __init__(self):
        self.memory = shared_memory.WorkerMemory()

    def sent(self, batch):
        packer = transport.Packer(self.memory)
        node = packer.node(batch)
        # as DataLoader does: pickle alone loses the dtype of an empty uint16
        return bytes(ForkingPickler.dumps((packer.message(), node)))

    def piece(self, tensor):
        """The tensor, made in the worker's memory."""
        place = torch.frombuffer(
            memoryview(self.memory.piece(max(1, tensor.nbytes))), dtype=torch.uint8
        )
        return place[: tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)

    @staticmethod
    def received(message):
        message, node = pickle.loads(message)
        return transport._unpack(*message, node)


@pytest.fixture(scope="module")
def memory():
    made = Memory()
    yield made
    shared_memory._ATTACHED.clear()
    os.close(made.memory.name.fd)


def moved(part, memory):
    """A batch whose tensors were made in the worker's memory."""
    if type(part) is torch.Tensor and part.layout == torch.strided:
        return memory.piece(part)
    if isinstance(part, dict):
        return {key: moved(value, memory) for key, value in part.items()}
    return (
        type(part)(moved(value, memory) for value in part) if type(part) in (list, tuple) else part
    )


def assert_apart(batch):
    """Writing to one tensor must not spoil another that backward needs."""
    found = (
        [value for value in batch.values() if type(value) is torch.Tensor]
        if isinstance(batch, dict)
        else []
    )
    before = [tensor._version for tensor in found]
    for number, tensor in enumerate(found):
        tensor.copy_(tensor.clone())
        assert [each._version for each in found[number + 1 :]] == before[number + 1 :]


@pytest.mark.daily
@shares
@settings(max_examples=150)
@given(batch=batches(), made_there=st.booleans())
def test_what_arrives_is_what_was_sent(memory, batch, made_there):
    received = memory.received(memory.sent(moved(batch, memory) if made_there else batch))
    assert type(received) is type(batch)
    assert_same(received, batch)
    assert_apart(received)


@pytest.mark.daily
@shares
@settings(max_examples=10)
@given(data=st.data())
def test_kept_and_dropped_in_every_order(memory, data):
    """Messages that wait, batches that are kept: none changes, whatever comes after."""
    waiting, kept = [], []
    for number in range(60):
        value = torch.full((data.draw(st.sampled_from([3, 9_000, 20_000, 70_000])),), number)
        waiting.append(
            (number, memory.sent({"x": memory.piece(value) if data.draw(st.booleans()) else value}))
        )
        if data.draw(st.booleans()):
            sent, message = waiting.pop(0)
            kept.append((sent, memory.received(message)["x"]))
        for _ in range(data.draw(st.integers(0, 2)) if kept else 0):
            if kept:
                kept.pop(data.draw(st.integers(0, len(kept) - 1)))
        assert all((tensor == sent).all() for sent, tensor in kept)
    for sent, message in waiting:
        assert (memory.received(message)["x"] == sent).all()


@pytest.mark.slow
@shares
def test_what_is_sent_twice_is_two(memory):
    values = memory.piece(torch.arange(100_000))
    first, second = (memory.received(memory.sent({"x": values, "again": values})) for _ in range(2))
    received = [first["x"], first["again"], second["x"], second["again"]]
    for number, tensor in enumerate(received):
        tensor.fill_(number)
    assert [int(tensor.sum()) for tensor in received] == [0, 100_000, 200_000, 300_000]


def in_worker(code):
    """Run code where torch says that it is a worker; what it prints."""
    start = (
        "import torch, copy, io, pickle\n"
        "from multiprocessing.reduction import ForkingPickler\n"
        "from torch_tfrecord import collate\n"
        "from torchvision import tv_tensors\n"
        "torch.utils.data._utils.worker._worker_info = object()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", start + code], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.daily
@shares
def test_copies_and_other_pickles_are_plain():
    code = """
batch = collate([{"x": torch.arange(50_000), "i": 1}, {"x": torch.arange(50_000), "i": 2}])
for other in (copy.copy(batch), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
    assert torch.equal(other["x"], batch["x"])
assert type(pickle.loads(pickle.dumps(batch))) is dict and type(copy.deepcopy(batch)) is dict
file = io.BytesIO(); torch.save(batch, file); file.seek(0)
assert torch.equal(torch.load(file, weights_only=False)["x"], batch["x"])
plain = {"mine": batch["x"], "more": 3}  # a collate function that builds on ours
arrived = pickle.loads(ForkingPickler.dumps(plain))
batch["x"][1, 7] = -5
print(int(arrived["mine"][1, 7]), arrived["more"])
image = tv_tensors.Image(torch.arange(12).to(torch.uint16).view(3, 2, 2))
arrived = pickle.loads(ForkingPickler.dumps({"depth": image}))["depth"]
print(type(arrived).__name__, arrived.dtype, arrived.tolist() == image.tolist())
"""
    assert in_worker(code) == "-5 3\nImage torch.uint16 True\n"


class Kept(Dataset):
    """Whoever asks gets the same arrays again."""

    def __init__(self):
        self.made = None

    def __len__(self):
        return 64

    def __getitem__(self, position):
        if self.made is None:
            self.made = torch.arange(50_000)
        return {"x": self.made, "position": position}


def _rearranged(samples):
    batch = collate(samples)
    return {"a": batch["x"], "b": [batch["position"], {"c": batch["x"][:, 5:]}]}


CONTEXTS = [
    (1, "fork"),
    (2, "fork"),
    pytest.param(2, "forkserver", marks=pytest.mark.slow),
    pytest.param(2, "spawn", marks=pytest.mark.slow),
]


@pytest.mark.daily
@pytest.mark.parametrize("collate_fn", [collate, _rearranged], ids=["ours", "one that calls ours"])
@pytest.mark.parametrize(("num_workers", "context"), CONTEXTS)
def test_batches_of_workers(num_workers, context, collate_fn):
    options = {
        "num_workers": num_workers,
        "multiprocessing_context": context,
        "collate_fn": collate_fn,
    }
    before = dict(shared_memory._ATTACHED)
    loader = DataLoader(Kept(), batch_size=2, persistent_workers=True, **options)
    for _ in range(2):
        kept = list(loader)
        assert len(kept) == 32
        for number, batch in enumerate(kept):
            assert type(batch) is dict
            tensors = [batch["x"]] if collate_fn is collate else [batch["a"], batch["b"][1]["c"]]
            tensors[0][:, 4] = -number
            tensors[-1][:, 6] = -number
        for number, batch in enumerate(kept):
            positions = batch["position"] if collate_fn is collate else batch["b"][0]
            assert positions.tolist() == [2 * number, 2 * number + 1]
            x = batch["x" if collate_fn is collate else "a"]
            # torch sends what others made, and two views as two views: column 6 of one is 11 of all
            assert x[:, 4].tolist() == [-number] * 2 and x[0, 12:].tolist() == [*range(12, 50_000)]
    del loader, kept, batch, tensors, x
    gc.collect()
    assert before == shared_memory._ATTACHED


# Processes that are forked while a batch is there.


def _are_unchanged(batch, go, found):
    x = batch["x"].numpy()  # torch's own threads do not survive a fork
    before = x.copy()
    found.put("ready")
    go.wait(60)
    found.put((x == before).all())


def _in_a_grandchild(batch, go, found):
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_are_unchanged, args=(batch, go, found))
    child.start()
    del batch
    child.join()


class Numbers(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, position):
        return {"x": torch.full((50_000,), position)}


@pytest.mark.daily
@pytest.mark.parametrize("work", [_are_unchanged, _in_a_grandchild])
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_forked_process_keeps_the_values_of_its_batch(context, work):
    loader = DataLoader(
        Numbers(), 2, num_workers=2, multiprocessing_context=context, collate_fn=collate
    )
    batches = iter(loader)
    batch = next(batches)
    forks = multiprocessing.get_context("fork")
    go, found = forks.Event(), forks.SimpleQueue()
    child = forks.Process(target=work, args=(batch, go, found))
    child.start()
    assert found.get() == "ready"
    del batch
    gc.collect()
    # nothing of this one is kept
    assert [int(batch["x"][0, 0]) for batch in batches] == [*range(2, 60, 2)]
    go.set()
    assert found.get()
    child.join()


@pytest.mark.daily
def test_a_batch_in_a_queue_of_torchs_keeps_its_values():
    context = torch.multiprocessing.get_context("spawn")
    batches = iter(DataLoader(Numbers(), 2, num_workers=2, collate_fn=collate))
    go, found, queue = context.Event(), context.SimpleQueue(), context.Queue()
    queue.put(next(batches))
    child = context.Process(target=_taken_from, args=(queue, go, found))
    child.start()
    assert found.get() == "ready"
    assert sum(1 for _ in batches) == 29
    go.set()
    assert found.get()
    child.join()


def _taken_from(queue, go, found):
    _are_unchanged(queue.get(), go, found)


@pytest.mark.daily
@shares
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("room", [1 << 29, 70 << 30])
def test_a_limited_address_space(room, context):
    """As `ulimit -v` sets it, which docs/safety.md recommends: torch sends the batches."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, limits[1]))
    try:
        batches = [
            *DataLoader(
                Numbers(), 2, num_workers=2, collate_fn=collate, multiprocessing_context=context
            )
        ]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert [batch["x"][:, ::49_999].tolist() for batch in batches] == [
        [[n] * 2, [n + 1] * 2] for n in range(0, 60, 2)
    ]


@pytest.mark.parametrize(
    "batch",
    [{"x": torch.ones(3), "y": torch.zeros(1 << 17)}, (torch.ones(9000), [torch.ones(1)] * 3)],
)
def test_without_shared_memory_by_torchs_way(batch):
    packer = transport.Packer(None)
    node = packer.node(batch)
    message = packer.message()
    assert message[0] is None and len(message[1]) == 1 and message[1][0].is_shared()
    assert_same(transport._unpack(*message, node), batch)
