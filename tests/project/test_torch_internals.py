"""What is used of torch, and of other packages, that they do not document: all of it is listed in
`LISTED`.

The tests of torch's loader say first when a new torch changed it.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from internals import OURS, internals, internals_in_c, names_defined
from torch.utils.data import DataLoader

import torch_tfrecord
from torch_tfrecord import torch_internals


def test_an_iterator_draws_what_torchs_draws():
    """One number, of the loader's generator: ours, for threads, does the same."""
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    iter(DataLoader([10, 11], generator=generators[0]))
    torch.empty((), dtype=torch.int64).random_(generator=generators[1])
    assert torch.equal(*(generator.get_state() for generator in generators))


@pytest.mark.parametrize("are_checked", [False, True])
def test_checks_of_sparse_tensors_stay_as_you_chose(are_checked):
    checks = torch.sparse.check_sparse_tensor_invariants
    with checks(are_checked):
        torch_internals.choose_sparse_checks.__wrapped__()
        assert checks.is_enabled() == are_checked


def test_a_step_that_nobody_records_is_left_out(monkeypatch):
    batches = iter(DataLoader([10, 11]))
    monkeypatch.setattr(torch.autograd.profiler, "record_function", pytest.fail)
    assert torch_internals.next_batch(batches).tolist() == [10]
    assert torch_internals.next_batch(iter([12])) == 12
    monkeypatch.undo()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert torch_internals.next_batch(batches).tolist() == [11]
    steps = [event.name for event in profile.events() if event.name.startswith("enumerate(")]
    assert len(steps) == 1
    with pytest.raises(StopIteration):
        torch_internals.next_batch(batches)


def test_a_jagged_tensor_is_torchs():
    values, offsets = torch.arange(3), torch.tensor([0, 1, 3])
    ours = torch_internals.jagged(values, offsets, 2)
    torchs = torch.nested.nested_tensor_from_jagged(values, offsets, max_seqlen=2)
    assert torch.equal(ours.to_padded_tensor(-1), torchs.to_padded_tensor(-1))
    for jagged in (ours, torchs):
        assert [part.tolist() for part in torch_internals.jagged_parts(jagged)] == [
            [0, 1, 2],
            [0, 1, 3],
        ]


WAYS = """
import builtins, torch
from torch_tfrecord import PaddedCollate, torch_internals
usual = builtins.__import__
def import_no_internals(name, globals=None, *rest):
    ours = (globals or {}).get("__name__") == "torch_tfrecord.torch_internals"
    if ours and name.startswith("torch.") and "._" in name:
        raise ImportError(name)
    return usual(name, globals, *rest)
PaddedCollate
builtins.__import__ = import_no_internals
jagged = torch_internals.jagged(torch.arange(3), torch.tensor([0, 1, 3]), 2)
print([row.tolist() for row in jagged.unbind()])
print(PaddedCollate()([{"x": torch.arange(1)}, {"x": torch.arange(2)}]))
"""


def test_documented_ways_take_their_places():
    """In a release of torch that lacks what it does not document."""
    done = subprocess.run([sys.executable, "-c", WAYS], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()) == (0, [
        "[[0], [1, 2]]",
        "{'x': tensor([[0, 0],",
        "        [0, 1]])}",
    ]), done.stderr  # fmt: skip


# By module, what `internals` finds: where it was last seen, and why it is used.
TORCH, PYTHON = "torch 2.15", "Python 3.11"
LISTED = {
    "torch_tfrecord/torch_internals.py": {
        "torch.utils._pytree": (
            TORCH,
            "samples are dicts for torch.export and pin_memory; `register_pytree_node`",
        ),
        "torch.utils.data._utils.collate.collate": (TORCH, "default_collate with more functions"),
        "torch.utils.data._utils.collate.default_collate_fn_map": (
            TORCH,
            "the documented map of default_collate is in there alone",
        ),
        "torch._C": (TORCH, "DisableTorchFunctionSubclass: jagged tensors answer in 20 us"),
        "torch.autograd.profiler._is_profiler_enabled": (TORCH, "whether it records steps"),
        "torch.nested._internal.nested_tensor.NestedTensor": (
            TORCH,
            "torch's function takes three times as long",
        ),
        "_metadata_cache=": (TORCH, "the longest row, which to_padded_tensor needs"),
        "._forward_hooks": (TORCH, "a transform with hooks is not replaced"),
        "._forward_pre_hooks": (TORCH, "a transform with hooks is not replaced"),
        "._indices": (TORCH, "of sparse tensors that are not coalesced"),
        "._is_in_bad_fork": (TORCH, "CUDA does not survive a fork, and torch's error comes late"),
        "._lengths": (TORCH, "whether a jagged tensor has gaps"),
        "._offsets": (TORCH, "a jagged tensor's parts without torch's operators"),
        "._ragged_idx": (TORCH, "which dimension of a jagged tensor is jagged"),
        "._values": (TORCH, "parts of jagged and sparse tensors"),
        "._num_yielded": (TORCH, "a batch without a step of the profiler"),
        "._workers": (TORCH, "which worker was killed"),
    },
    "index_tools/_workers.py": {
        "multiprocessing.forkserver": (PYTHON, "its server starts with Ctrl-C ignored"),
        "multiprocessing.forkserver.ensure_running": (
            PYTHON,
            "its server starts with Ctrl-C ignored",
        ),
    },
    "torch_tfrecord/loading/transport.py": {
        "multiprocessing.reduction.ForkingPickler": (PYTHON, "how a worker's queue sends batches"),
        "multiprocessing.reduction.ForkingPickler._extra_reducers": (
            PYTHON,
            "whether ours are registered",
        ),
        "multiprocessing.reduction.ForkingPickler.register": (
            PYTHON,
            "how a worker's queue sends batches",
        ),
    },
    "torch_tfrecord/errors.py": {
        "sys._getframe": (PYTHON, "which line of the user's a warning points to"),
    },
    "torch_tfrecord/streams/iterations.py": {
        "multiprocessing.context.get_spawning_popen": (
            PYTHON,
            "whether a worker is started, or a pickle made",
        ),
        "multiprocessing.reduction": (PYTHON, "spawned workers share an unnamed file"),
        "multiprocessing.reduction.DupFd": (PYTHON, "spawned workers share an unnamed file"),
    },
    "torch_tfrecord/order/ranks.py": {
        "sys._getframe": ("accelerate 1.15", "which of Accelerate's loaders calls"),
        ".f_globals": ("accelerate 1.15", "whether a caller is Accelerate's or Lightning's"),
        ".f_locals": ("accelerate 1.15", "which of Accelerate's loaders calls"),
        "._combined_loader_states_to_load": ("lightning 2.6", "whether it forgot loaders' states"),
        "._data_fetcher": ("lightning 2.6", "to begin again after the states are loaded"),
        "._load_combined_loader_states": ("lightning 2.6", "to load the states it forgot"),
        "._drop_last": ("accelerate 1.15", "whether DataLoaderDispatcher drops the last batch"),
    },
    "torch_tfrecord/order/samplers.py": {
        ".__pl_saved_*": ("lightning 2.6", "Lightning makes a batch sampler again from these"),
    },
    "torch_tfrecord/compression/codecs.py": {
        "zlib._Compress": (PYTHON, "the type's name, in annotations alone"),
    },
    "torch_tfrecord/records/writer.py": {
        "multiprocessing.util": (PYTHON, "a worker that ends removes its temporary files"),
        "multiprocessing.util.Finalize": (PYTHON, "a worker that ends removes its temporary files"),
    },
    "torch_tfrecord/remote/fsspec_store.py": {
        "._*": ("fsspec 2026.9", "an asynchronous file system's coroutines, which have a timeout"),
    },
    "torch_tfrecord/shared_memory.py": {
        "multiprocessing.util": (PYTHON, "a worker that ends gives its memory back"),
        "multiprocessing.util.Finalize": (PYTHON, "a worker that ends gives its memory back"),
    },
    "torch_tfrecord/loading/sample_maker.py": {
        "._of_places": ("ours", "a method of Source"),
    },
    "torch_tfrecord/protobuf/example.py": {
        "._encoder": ("ours", "a method of our specs has this name, too"),
    },
    "torch_tfrecord/samples.py": {
        "._torch_tfrecord_listed": ("ours", "a mark of ours on a tensor"),
        "._torch_tfrecord_ragged": ("ours", "a mark of ours on a tensor"),
    },
}

ROOT = Path(torch_tfrecord.__file__).parents[1]
SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for package in OURS
    for path in sorted((ROOT / package).rglob("*"))
    if path.suffix in (".py", ".pyx", ".h")
}
TREES = {path: ast.parse(text) for path, text in SOURCES.items() if path.endswith(".py")}


@pytest.mark.slow
def test_all_use_of_internals_is_listed():
    defined = set(names_defined(TREES.values()))
    found = {path: internals_in_c(text) for path, text in SOURCES.items() if path not in TREES}
    for path, tree in TREES.items():
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        found[path] = internals(module, tree, defined)
    assert {path: names for path, names in found.items() if names} == {
        path: {*rows} for path, rows in LISTED.items()
    }
    of_torch = {path for path, rows in LISTED.items() for seen, _ in rows.values() if seen == TORCH}
    assert of_torch == {"torch_tfrecord/torch_internals.py"}


LINES = {
    "import torch.utils._pytree": "torch.utils._pytree",
    "from torch.utils.data.dataloader import _BaseDataLoaderIter": "torch.utils.data.dataloader._BaseDataLoaderIter",
    "import torch\nwith torch._C.DisableTorchFunction(): pass": "torch._C",
    "import torch as t\nt.Tensor._make_subclass": "torch.Tensor._make_subclass",
    "from torch.autograd import profiler\nhasattr(profiler, '_is_on')": "torch.autograd.profiler._is_on",
    "import torchvision.transforms.v2.functional._utils": "torchvision.transforms.v2.functional._utils",
    "from torchcodec import _core": "torchcodec._core",
    "loader._iterator": "._iterator",
    "tensor._values()": "._values",
    "getattr(loader, '_workers')": "._workers",
    "NAME = '_workers'\nsetattr(loader, NAME, [])": "._workers",
    "for name in 'ab':\n    setattr(sampler, f'__pl_saved_{name}', 0)": ".__pl_saved_*",
    "NestedTensor(values, _metadata_cache={})": "_metadata_cache=",
    "object.__setattr__(loader, 'sampler', None)": "object.__setattr__('sampler')",
    "import sys\nsys._getframe(1)": "sys._getframe",
    "import inspect\ninspect.stack()": "inspect.stack",
    "from inspect import currentframe": "inspect.currentframe",
    "frame.f_locals": ".f_locals",
    "from multiprocessing import resource_tracker": "multiprocessing.resource_tracker",
    "import multiprocessing as mp\nmp.util.Finalize": "multiprocessing.util",
}


@pytest.mark.parametrize("line", LINES)
def test_each_kind_of_use_is_found(line):
    found = internals("torch_tfrecord", ast.parse(line), ["_values"])
    assert LINES[line] in found
    assert all(name.startswith(LINES[line]) for name in found)


def test_what_is_no_internal_is_not_found():
    text = """
import os, torch
from torch_tfrecord.order import prepared
from torch_tfrecord.order.ranks import _T
def _go_on(self):
    self._values = row._replace(number=self._go_on()), prepared._frames, other._part
    object.__setattr__(self, "shape", torch.Tensor.__len__)
    os._exit(hasattr(row, "_fields"))
"""
    tree = ast.parse(text)
    assert internals("torch_tfrecord", tree, [*names_defined([tree]), "_frames", "_part"]) == set()


@pytest.mark.parametrize(
    ("module", "text", "found"),
    [
        (
            "loading.read_ahead",
            "class ReadAheadLoader:\n def _get_iterator(self): return self._auto_collation, self._order",
            {"._get_iterator", "._auto_collation"},
        ),
        (
            "train.record_loader",
            "class RecordLoader:\n def __init__(self): object.__setattr__(self, 'batch_size', self._order)",
            {"object.__setattr__('batch_size')"},
        ),
    ],
)
def test_what_a_class_takes_from_its_base_is_found(module, text, found):
    defined = ["_dataset", "_pool", "_order", "drop_last"]
    assert internals(f"torch_tfrecord.{module}", ast.parse(text), defined) == found


def test_internals_of_python_in_compiled_code_are_found():
    assert internals_in_c("cdef extern: int _PyObject_IsFreed(object)\nPyList_GET_SIZE(a)") == {
        "_PyObject_IsFreed"
    }
