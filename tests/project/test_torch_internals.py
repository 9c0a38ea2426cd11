"""The internals that are used of torch and of other packages: all of them is listed in
`LISTED`.

The tests of torch's loader say first when a new torch changed it.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
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


PACKAGES = ("torch_tfrecord", "index_tools")
# Not documented, though their names do not say so.
UNDOCUMENTED = re.compile(
    r"inspect\.(currentframe|stack)|torch\.multiprocessing\.reductions"
    r"|multiprocessing\.(context|forkserver|popen_|reduction|resource_|spawn|util)"
)
DOCUMENTED = {"os._exit", "_asdict", "_fields", "_make", "_replace"}  # named tuples'
OF_CALLERS = {".f_builtins", ".f_globals", ".f_locals"}
# Tensors have these, and so have classes of ours.
OF_TENSORS = {"_indices", "_lengths", "_offsets", "_ragged_idx", "_values"}


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def names_defined(trees):
    """All names that some modules define."""
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def internals(tree, defined):
    """The internals of other packages that a module uses: a name of a module in full (``torch._C``),
    an attribute of an object without the object (``._workers``).
    """
    origins, found = {}, set()
    for node in ast.walk(tree):
        for alias in getattr(node, "names", ()) if "Import" in type(node).__name__ else ():
            full = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
            if full.partition(".")[0] not in PACKAGES:
                name = alias.asname or alias.name
                origins[name.partition(".")[0]] = (
                    full if alias.asname or "." not in name else name.partition(".")[0]
                )
                found.add(full)

    def full_name(node):
        if isinstance(node, ast.Attribute):
            before = full_name(node.value)
            return before and f"{before}.{node.attr}"
        return origins.get(node.id) if isinstance(node, ast.Name) else None

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            is_ours = node.attr in defined and (
                node.attr not in OF_TENSORS or getattr(node.value, "id", "") in ("self", "cls")
            )
            full = full_name(node)
            if full or not is_ours:
                found.add(full or f".{node.attr}")
        elif isinstance(node, ast.Call):
            called = {
                getattr(one, "id", "") for one in (node.func, *node.args)
            }  # also in a partial
            looks_up = called & {"getattr", "hasattr", "setattr", "delattr"}
            texts = [getattr(one, "value", None) for one in node.args if looks_up]
            texts += [one.arg for one in node.keywords]
            found |= {f".{text}" for text in texts if isinstance(text, str) and text not in defined}
    return {
        name
        for name in found
        if name in OF_CALLERS
        or UNDOCUMENTED.match(name)
        or (any(map(is_private, name.split("."))) and not {name, name[1:]} & DOCUMENTED)
    }


# By module, and why.
LISTED = {
    "torch_tfrecord/torch_internals.py": {
        "torch.utils._pytree": "samples are dicts for torch.export and pin_memory",
        "torch.utils._pytree.SUPPORTED_NODES": "whether they are registered",
        "torch.utils._pytree.register_pytree_node": "how they are",
        "torch.utils.data._utils.collate.collate": "default_collate with more functions",
        "torch.utils.data._utils.collate.default_collate_fn_map": "default_collate's documented map is there alone",
        "._is_profiler_enabled": "whether it records steps",
        "torch._C": "DisableTorchFunctionSubclass: jagged tensors answer in 20 us",
        "torch.nested._internal.nested_tensor.NestedTensor": "torch's function takes three times as long",
        "._metadata_cache": "the longest row, which to_padded_tensor needs",
        "._forward_hooks": "a transform with hooks is not replaced",
        "._forward_pre_hooks": "a transform with hooks is not replaced",
        "._indices": "of sparse tensors that are not coalesced",
        "._is_in_bad_fork": "CUDA does not survive a fork, and torch's error comes late",
        "._lengths": "whether a jagged tensor has gaps",
        "._offsets": "a jagged tensor's parts without torch's operators",
        "._ragged_idx": "which dimension of a jagged tensor is jagged",
        "._values": "parts of jagged and sparse tensors",
    },
    "index_tools/_workers.py": {
        "multiprocessing.forkserver": "its server starts with Ctrl-C ignored",
        "multiprocessing.forkserver.ensure_running": "its server starts with Ctrl-C ignored",
    },
    "torch_tfrecord/loading/transport.py": {
        "multiprocessing.reduction.ForkingPickler": "how a worker's queue sends batches",
        "multiprocessing.reduction.ForkingPickler.register": "how a worker's queue sends batches",
    },
    "torch_tfrecord/errors.py": {
        "sys._getframe": "which line of the user's a warning points to",
    },
    "torch_tfrecord/streams/iterations.py": {
        "multiprocessing.context.get_spawning_popen": "whether a worker is started, or a pickle made",
        "multiprocessing.reduction": "spawned workers share an unnamed file",
        "multiprocessing.reduction.DupFd": "spawned workers share an unnamed file",
    },
    "torch_tfrecord/order/ranks.py": {
        "sys._getframe": "which of Accelerate's loaders calls",
        ".f_globals": "whether a caller is Accelerate's or Lightning's",
        ".f_locals": "which of Accelerate's loaders calls",
        "._combined_loader_states_to_load": "whether it forgot loaders' states",
        "._data_fetcher": "to begin again after the states are loaded",
        "._load_combined_loader_states": "to load the states it forgot",
    },
    "torch_tfrecord/compression/codecs.py": {
        "zlib._Compress": "the type's name, in annotations alone",
    },
    "torch_tfrecord/records/writer.py": {
        "multiprocessing.util": "a worker that ends removes its temporary files",
        "multiprocessing.util.Finalize": "a worker that ends removes its temporary files",
    },
    "torch_tfrecord/shared_memory.py": {
        "multiprocessing.util": "a worker that ends gives its memory back",
        "multiprocessing.util.Finalize": "a worker that ends gives its memory back",
    },
}

ROOT = Path(torch_tfrecord.__file__).parents[1]
SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*"))
    if path.suffix in (".py", ".pyx", ".h")
}
TREES = {path: ast.parse(text) for path, text in SOURCES.items() if path.endswith(".py")}


@pytest.mark.slow
def test_all_use_of_internals_is_listed():
    defined = set(names_defined(TREES.values()))
    found = {path: set(re.findall(r"\b_Py\w+", text)) for path, text in SOURCES.items()}
    found |= {path: internals(tree, defined) for path, tree in TREES.items()}
    assert {path: sorted(names) for path, names in found.items() if names} == {
        path: sorted(names) for path, names in LISTED.items()
    }


LINES = {
    "import torch.utils._pytree": "torch.utils._pytree",
    "import torch\nwith torch._C.DisableTorchFunction(): pass": "torch._C.DisableTorchFunction",
    "import torch as t\nt.Tensor._make_subclass": "torch.Tensor._make_subclass",
    "from torch.autograd import profiler\nprofiler._is_on": "torch.autograd.profiler._is_on",
    "loader._iterator": "._iterator",
    "tensor._values()": "._values",
    "getattr(loader, '_workers')": "._workers",
    "NestedTensor(values, _metadata_cache={})": "._metadata_cache",
    "frame.f_locals": ".f_locals",
    "from multiprocessing import resource_tracker": "multiprocessing.resource_tracker",
    "import os\nself._values, row._replace(number=1), other._part, os._exit": None,
}


@pytest.mark.parametrize("line", LINES)
def test_each_kind_of_use_is_found(line):
    found = internals(ast.parse(line), ["_values", "_part"])
    assert max(found, default=None) == LINES[line]
