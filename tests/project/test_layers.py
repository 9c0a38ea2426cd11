"""The rooms: what each module may import, what it shows, and what importing it does."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import for_each

import torch_tfrecord
from torch_tfrecord import tfds

PACKAGE = Path(torch_tfrecord.__file__).parent
TESTS = Path(__file__).parents[1]

# The core: a module imports only from its own room and from those above it; the root's modules,
# which are not in a room, from the root and from `native`.
CORE = ["native", "files", "order", "protobuf", "records", "columns", "loading"]
# An extension imports from the core, and from the extensions named here.
EXTENSIONS = {
    "remote": [],
    "compression": [],
    "manifests": ["remote"],
    "damage": [],
    "media": [],
    "lengths": [],
    "mixing": [],
    "streams": ["tables"],
    "tables": ["compression", "media"],
    "tfds": ["media", "remote", "rlds", "tables"],
    "rlds": ["media", "tfds"],
    "engines": ["tables"],
    "train": ["lengths", "mixing", "tables"],
}
ROOMS = [*CORE, *EXTENSIONS]


def imported_modules(path: Path) -> set[str]:
    """Modules of the package that a file imports, anywhere in it; "" is the root."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] == "torch_tfrecord"
        ):
            assert node.level == 0, f"{path.name}: relative import"
            found.add((node.module or "").removeprefix("torch_tfrecord").lstrip("."))
        if isinstance(node, ast.Import):
            names = [
                alias.name for alias in node.names if alias.name.split(".")[0] == "torch_tfrecord"
            ]
            found |= {name.removeprefix("torch_tfrecord").lstrip(".") for name in names}
    return found


def modules() -> list[str]:
    """Names below the package; a sub-package has the name of its folder."""
    files = [path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")]
    names = [".".join(file.parts).removesuffix("__init__").rstrip(".") for file in files]
    return [name for name in names if name]


def source_of(name: str) -> Path:
    path = PACKAGE.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def room_of(name: str) -> str:
    """The room of a module; "" is the root."""
    return name.split(".")[0] if name.split(".")[0] in ROOMS else ""


def test_every_folder_is_a_room():
    assert {path.name for path in PACKAGE.iterdir() if list(path.glob("*.py"))} == set(ROOMS)


def covers(path: Path) -> list[str]:
    """What a test says that it tests: its docstring's line `Covers folder/module,
    folder/module.`
    """
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    listed = ", ".join(re.findall(r"^Covers ([^.]*)\.$", text, re.MULTILINE))
    return [name.replace("/", ".") for name in re.split(r",\s+", listed) if name]


@pytest.mark.slow
def test_every_module_has_its_tests():
    """Those of its name, or those that say that they cover it."""
    paths = [*TESTS.rglob("test_*.py")]
    said = {name for path in paths for name in covers(path)}
    assert sorted(name for name in said - set(modules()) if room_of(name)) == []
    tested = {path.stem.removeprefix("test_") for path in paths} | {
        name.split(".")[-1] for name in said
    }
    own = {name for name in modules() if source_of(name).name != "__init__.py"}
    assert sorted(name for name in own if name.split(".")[-1] not in tested) == []


@pytest.mark.slow
@for_each("name", modules())
def test_imports_only_from_rooms_above(name):
    room = room_of(name)
    if room in CORE:
        allowed = {"", *CORE[: CORE.index(room) + 1]}
    elif room:
        allowed = {"", *CORE, room, *EXTENSIONS[room]}
    else:
        allowed = {"", "native"}
    found = imported_modules(source_of(name))
    assert {other for other in found if room_of(other) not in allowed} == set()


# Who reads a file that it has written itself, in its own form.
OWN_FILES = {"streams.iterations", "records.record_file", "shared_memory"}


@for_each("name", [name for name in modules() if room_of(name) not in ("files", "remote")])
def test_bytes_of_data_come_from_files(name):
    """No other room reads by offset, or knows a storage's client."""
    tree = ast.parse(source_of(name).read_text(encoding="utf-8"))
    used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert name in OWN_FILES or not used & {"os.pread", "os.preadv", "os.read"}
    imported = {
        (getattr(node, "module", None) or node.names[0].name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert not imported & {"fsspec", "obstore", "s3fs", "gcsfs", "aiohttp"}


def shown_by(room: str) -> dict[str, str]:
    """What a room's door shows -> the module that it comes from."""
    stub = PACKAGE / room / "__init__.pyi"
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    return {
        alias.name: f"{room}.{node.module or alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_each_door_shows_what_is_used():
    """As the stub says, which type checkers read; nothing that no other room uses."""
    used = set()
    for path in [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "index_tools").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").count(".") == 1:
                used |= {(node.module.split(".")[1], alias.name) for alias in node.names}
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "attached":
                used.add(tuple(map(ast.literal_eval, node.args)))
    root = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    used |= {
        (node.module, alias.name)
        for node in root.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for room in ROOMS:
        if room == "native":
            continue
        shown = shown_by(room)
        public = tfds.__all__ if room == "tfds" else []
        assert sorted(name for name in shown if (room, name) not in used) == sorted(
            name for name in public if (room, name) not in used
        )
        door = importlib.import_module(f"torch_tfrecord.{room}")
        for name, module in shown.items():
            found = importlib.import_module(f"torch_tfrecord.{module}")
            assert getattr(door, name) is getattr(found, name, found)


@pytest.mark.slow
def test_no_module_imports_itself_through_others():
    doors = {room: shown_by(room) for room in ROOMS if room != "native"}
    known = set(modules())
    imports = {}
    for name in known:
        tree = ast.parse(source_of(name).read_text(encoding="utf-8"))
        imports[name] = imported_modules(source_of(name)) & known - set(doors)
        for node in ast.walk(tree):
            room = (getattr(node, "module", None) or "").removeprefix("torch_tfrecord.")
            if isinstance(node, ast.ImportFrom) and room in doors:
                imports[name] |= {doors[room][alias.name] for alias in node.names}
    while free := {name for name, others in imports.items() if not others}:
        imports = {name: others - free for name, others in imports.items() if name not in free}
    assert imports == {}


@pytest.mark.slow  # the engines need their packages
@for_each("name", modules())
def test_all_is_sorted_and_true(name):
    module = importlib.import_module(f"torch_tfrecord.{name}")
    is_door = name in ROOMS and name != "native"
    assert module.__all__ == sorted(module.__all__, key=None if is_door else _constants_first)
    assert [item for item in module.__all__ if not hasattr(module, item)] == []


def test_the_roots_stub_holds_imports_and_one_sorted_list():
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    assert {type(node) for node in tree.body} == {ast.ImportFrom, ast.AnnAssign, ast.Assign}
    assert [ast.unparse(node) for node in tree.body if isinstance(node, ast.AnnAssign)] == [
        "__version__: str"
    ]
    assert torch_tfrecord.__all__ == sorted(torch_tfrecord.__all__)  # as lazy_loader sorts
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert {node.level for node in imports} == {1}
    assert {alias.name for node in imports for alias in node.names} == set(torch_tfrecord.__all__)
    listed = next(
        ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)
    )
    assert listed == sorted(listed, key=_constants_first)
    assert set(listed) == set(torch_tfrecord.__all__)
    for node in imports:
        for alias in node.names:
            module = importlib.import_module(
                "torch_tfrecord" + (f".{node.module}" if node.module else "")
            )
            assert getattr(torch_tfrecord, alias.name) is getattr(module, alias.name)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="no_such_name"):
        torch_tfrecord.no_such_name  # noqa: B018


def _constants_first(name: str) -> tuple[int, str]:
    # As ruff sorts: CONSTANTS, then Classes, then functions.
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_every_public_name_is_documented():
    for name in torch_tfrecord.__all__:
        assert (getattr(torch_tfrecord, name).__doc__ or "").strip(), name


@pytest.mark.parametrize("folder", ["index_tools", "examples", "benchmarks"])
def test_those_outside_use_the_package(folder):
    root = PACKAGE.parent / folder
    if not root.is_dir():
        pytest.skip("not beside an installed package")
    if folder == "examples":
        for path in root.glob("*.py"):
            assert imported_modules(path) <= {""}, f"{path.name} must import from the root only"


@pytest.mark.slow
def test_import_has_no_effects():
    # Without warnings, output, threads, a change to the random states, or torchcodec, which only
    # some images need.
    code = (
        "import random, sys, threading, numpy, torch, torchvision\n"
        "before = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()\n"
        "threads = threading.active_count()\n"
        "import torch_tfrecord\n"
        "assert threading.active_count() == threads\n"
        "assert 'torchcodec' not in sys.modules\n"
        "assert before == (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


WITHOUT_TORCH = [
    "import torch_tfrecord",
    "import index_tools.main",
    "import index_tools.index",
]


@pytest.mark.slow
@pytest.mark.parametrize("code", WITHOUT_TORCH)
def test_what_does_without_torch(code):
    code += "; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], timeout=120).returncode == 0


@pytest.mark.slow
def test_what_does_without_torchvision(tmp_path):
    """It takes a second: who reads no picture does not wait for it."""
    code = f"""
import sys, torch
from torch.utils.data import DataLoader
from torch_tfrecord import (
    FixedLenFeature, PaddedCollate, TFRecordDataset, TFRecordIterableDataset, TFRecordWriter, VarLenFeature,
    infer_features, make_dataloader,
)
path = {str(tmp_path / "rows")!r}
with TFRecordWriter(path, write_index=True) as writer:
    for number in range(9):
        writer.write({{"x": number, "many": [0.5] * 3, "text": "a"}})
features = {{"x": FixedLenFeature((), torch.int64), "many": VarLenFeature(torch.float32)}}
ds = TFRecordDataset(path, features)
assert ds[1]["x"] == 1 and len(next(iter(DataLoader(ds, batch_size=4)))["x"]) == 4
for loader in (
    make_dataloader(path, 4, features),
    make_dataloader(path, 4, features, collate_fn=PaddedCollate()),
    DataLoader(TFRecordIterableDataset(path, features, batch_size=4), batch_size=None),
):
    assert sum(len(batch["x"]) for batch in loader) == 9
assert 'torchvision' not in sys.modules
"""
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], timeout=120).returncode == 0


FORBIDDEN = {"pickle", "marshal", "shelve"}


@pytest.mark.slow
@for_each("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_that_executes_data(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not FORBIDDEN & {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in FORBIDDEN
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"eval", "exec", "np.load", "numpy.load", "torch.load"}, called
        assert not isinstance(node, ast.Assert), (
            f"{path.name}:{node.lineno}: assert checks nothing under -O"
        )
