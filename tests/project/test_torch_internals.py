"""What is used of torch, and of other packages, that they do not document: all of it is listed in
`LISTED`.

The tests of torch's loader say first when a new torch changed it.
"""

import ast
import inspect
from pathlib import Path

import pytest
from internals import OURS, internals, internals_in_c, names_defined
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

import torch_tfrecord

# What `_ReadAheadIterator` reads of torch's iterator, and the methods that it replaces.
ATTRIBUTES = [
    "_collate_fn",
    "_dataset",
    "_num_yielded",
    "_pin_memory",
    "_pin_memory_device",
    "_sampler_iter",
]
METHODS = ["__next__", "_next_data"]


def test_the_iterator_of_a_loader_without_workers():
    loader = DataLoader([10, 11, 12], batch_size=2)
    iterator = iter(loader)
    assert type(iterator) is _SingleProcessDataLoaderIter
    assert [name for name in ATTRIBUTES if not hasattr(iterator, name)] == []
    assert list(inspect.signature(_SingleProcessDataLoaderIter.__init__).parameters) == [
        "self",
        "loader",
    ]
    assert (iterator._dataset, iterator._collate_fn) == (loader.dataset, loader.collate_fn)
    assert (iterator._num_yielded, list(iterator._sampler_iter)) == (0, [[0, 1], [2]])


def test_the_methods_that_are_replaced():
    for name in METHODS:
        assert list(inspect.signature(getattr(_BaseDataLoaderIter, name)).parameters) == ["self"]
    calls = []

    class Iterator(_SingleProcessDataLoaderIter):
        def _next_data(self):
            calls.append(self._num_yielded)
            return super()._next_data()

    assert [batch.tolist() for batch in Iterator(DataLoader([10, 11, 12], batch_size=2))] == [
        [10, 11],
        [12],
    ]
    assert calls == [0, 1, 2]  # torch's own __next__ asks here, and counts afterwards


def test_pin_memory_takes_a_batch_and_a_device():
    assert list(inspect.signature(pin_memory).parameters) == ["data", "device"]


# By module, what `internals` finds: where it was last seen, and why it is used.
TORCH, PYTHON = "torch 2.15", "Python 3.11"
LISTED = {
    "index_tools/_files.py": {
        "multiprocessing.forkserver": (PYTHON, "its server starts with Ctrl-C ignored"),
        "multiprocessing.forkserver.ensure_running": (
            PYTHON,
            "its server starts with Ctrl-C ignored",
        ),
    },
    "torch_tfrecord/loading/collate.py": {
        "torch.utils._pytree": (
            TORCH,
            "samples are dicts for torch.export and pin_memory; `register_pytree_node`",
        ),
        "torch.utils.data._utils.collate": (
            TORCH,
            "the documented map of default_collate is in there alone",
        ),
    },
    "torch_tfrecord/loading/padded_values.py": {
        "torch._C": (
            TORCH,
            "DisableTorchFunctionSubclass: a jagged tensor answers each question in 20 us",
        ),
        "._lengths": (TORCH, "whether a jagged tensor has gaps"),
        "._offsets": (TORCH, "a jagged tensor's parts without torch's operators"),
        "._ragged_idx": (TORCH, "which dimension of a jagged tensor is jagged"),
        "._values": (TORCH, "a jagged tensor's parts without torch's operators"),
    },
    "torch_tfrecord/loading/sample_block.py": {
        "._lengths": (TORCH, "whether a jagged tensor has gaps"),
        "._ragged_idx": (TORCH, "which dimension of a jagged tensor is jagged"),
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
        "torch.multiprocessing.reductions.reduce_tensor": (
            TORCH,
            "how torch sends tensors that are not ours",
        ),
        "torch.UntypedStorage._new_shared": (TORCH, "shared memory without a copy"),
        "._indices": (TORCH, "of sparse tensors that are not coalesced"),
        "._lengths": (TORCH, "whether a jagged tensor has gaps"),
        "._ragged_idx": (TORCH, "which dimension of a jagged tensor is jagged"),
        "._values": (TORCH, "of sparse tensors that are not coalesced"),
    },
    "torch_tfrecord/errors.py": {
        "sys._getframe": (PYTHON, "which line of the user's a warning points to"),
    },
    "torch_tfrecord/images/leading_crops.py": {
        "._forward_hooks": (TORCH, "a transform with hooks is not replaced"),
        "._forward_pre_hooks": (TORCH, "a transform with hooks is not replaced"),
    },
    "torch_tfrecord/loading/read_ahead.py": {
        "torch.utils.data._utils.pin_memory.pin_memory": (TORCH, "what pins a batch of any form"),
        "torch.utils.data.dataloader._SingleProcessDataLoaderIter": (
            TORCH,
            "the iterator that threads take over",
        ),
        "torch.autograd.profiler._is_profiler_enabled": (TORCH, "then torch records the step"),
        "._collate_fn": (TORCH, "of torch's iterator"),
        "._dataset": (TORCH, "of torch's iterator"),
        "._next_data": (TORCH, "of torch's iterator, replaced"),
        "._num_yielded": (TORCH, "of torch's iterator"),
        "._pin_memory": (TORCH, "of torch's iterator"),
        "._pin_memory_device": (TORCH, "of torch's iterator"),
        "._sampler_iter": (TORCH, "of torch's iterator"),
    },
    "torch_tfrecord/loading/record_loader.py": {
        "._workers": (TORCH, "which worker was killed"),
        "object.__setattr__('drop_last')": (
            TORCH,
            "torch forbids it; Accelerate counts the last batch by it",
        ),
        "object.__setattr__('sampler')": (TORCH, "torch forbids it; trainers call its set_epoch"),
    },
    "torch_tfrecord/order/epoch_count.py": {
        "multiprocessing.context.get_spawning_popen": (
            PYTHON,
            "whether a worker is started, or a pickle made",
        ),
        "multiprocessing.reduction": (PYTHON, "spawned workers share an unnamed file"),
        "multiprocessing.reduction.DupFd": (PYTHON, "spawned workers share an unnamed file"),
    },
    "torch_tfrecord/order/prepared.py": {
        "sys._getframe": ("accelerate 1.15", "which of Accelerate's loaders calls"),
        ".f_globals": ("accelerate 1.15", "whether a caller is Accelerate's"),
        ".f_locals": ("accelerate 1.15", "which of Accelerate's loaders calls"),
        "._drop_last": ("accelerate 1.15", "whether DataLoaderDispatcher drops the last batch"),
    },
    "torch_tfrecord/order/ranks.py": {
        ".__pl_saved_*": ("lightning 2.6", "Lightning makes a batch sampler again from these"),
    },
    "torch_tfrecord/files/inflated.py": {
        "zlib._Decompress": (PYTHON, "the type's name, in annotations alone"),
    },
    "torch_tfrecord/records/compression.py": {
        "zlib._Compress": (PYTHON, "the type's name, in annotations alone"),
    },
    "torch_tfrecord/records/writer.py": {
        "multiprocessing.util": (PYTHON, "a worker that ends removes its temporary files"),
        "multiprocessing.util.Finalize": (PYTHON, "a worker that ends removes its temporary files"),
    },
    "torch_tfrecord/files/fsspec_store.py": {
        "._*": ("fsspec 2026.9", "an asynchronous file system's coroutines, which have a timeout"),
    },
    "torch_tfrecord/shared_memory.py": {
        "multiprocessing.util": (PYTHON, "a worker that ends gives its memory back"),
        "multiprocessing.util.Finalize": (PYTHON, "a worker that ends gives its memory back"),
    },
    "torch_tfrecord/tfds/episode_columns.py": {
        "._values": ("ours", "columns of our own have this name, too"),
    },
    "torch_tfrecord/columns/containers.py": {
        "_metadata_cache=": (TORCH, "the longest row, which to_padded_tensor needs"),
        "torch.nested._internal.nested_tensor.NestedTensor": (
            TORCH,
            "torch's function takes three times as long",
        ),
    },
    "torch_tfrecord/columns/stacking.py": {
        "._indices": (TORCH, "of sparse tensors that are not coalesced"),
        "._torch_tfrecord_listed": (TORCH, "a mark of ours on a tensor"),
        "._torch_tfrecord_ragged": (TORCH, "a mark of ours on a tensor"),
        "._values": (TORCH, "of sparse tensors that are not coalesced"),
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


def test_all_use_of_internals_is_listed():
    defined = set(names_defined(TREES.values()))
    found = {path: internals_in_c(text) for path, text in SOURCES.items() if path not in TREES}
    for path, tree in TREES.items():
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        found[path] = internals(module, tree, defined)
    assert {path: names for path, names in found.items() if names} == {
        path: {*rows} for path, rows in LISTED.items()
    }


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
            "read_ahead",
            "class _ReadAheadIterator:\n def _next_data(self): return self._dataset, self._pool",
            {"._next_data", "._dataset"},
        ),
        (
            "record_loader",
            "class RecordLoader:\n def __init__(self): object.__setattr__(self, 'drop_last', self._order)",
            {"object.__setattr__('drop_last')"},
        ),
    ],
)
def test_what_a_class_takes_from_its_base_is_found(module, text, found):
    defined = ["_dataset", "_pool", "_order", "drop_last"]
    assert internals(f"torch_tfrecord.loading.{module}", ast.parse(text), defined) == found


def test_internals_of_python_in_compiled_code_are_found():
    assert internals_in_c("cdef extern: int _PyObject_IsFreed(object)\nPyList_GET_SIZE(a)") == {
        "_PyObject_IsFreed"
    }
