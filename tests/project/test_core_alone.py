"""The core without its extensions: it imports, reads and writes, and passes those of its tests that
need nothing else.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_layers import CORE, EXTENSIONS, PACKAGE, TESTS, shown_by

# An editable installation knows the folders that are left out.
ALONE = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
"""
# A test that calls an extension is no test of the core: it is skipped.
SKIPPED = """
import types
import pytest
import torch_tfrecord
from importlib.machinery import ModuleSpec

class Missing:
    def __init__(self, name):
        self.name = name
    def __call__(self, *arguments, **options):
        pytest.skip(f"needs {self.name}", allow_module_level=True)
    def __getattr__(self, name):
        self.inner(name)()
    def inner(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.name}.{name}")

class MissingModules:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[:2] in NAMES or name.split(".")[0] == "index_tools":
            return ModuleSpec(name, MissingModules, is_package=True)
    @staticmethod
    def create_module(spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = Missing(spec.name).inner
        return module
    @staticmethod
    def exec_module(module):
        pass

sys.meta_path.insert(0, MissingModules)
from torch_tfrecord.loading import MapDataset
torch_tfrecord.TFRecordDataset = MapDataset
"""
# Programs of their own, which use what users do.
IN_PROCESSES = {"test_program_ends.py", "test_worker_ends.py", "test_damaged_states.py"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The package and the tests of its core, without the folders of extensions."""
    folder = tmp_path_factory.mktemp("core")
    left_out = shutil.ignore_patterns(*EXTENSIONS, "__pycache__")
    shutil.copytree(PACKAGE, folder / "torch_tfrecord", ignore=left_out)
    shutil.copy(PACKAGE.parent / "pyproject.toml", folder)
    (folder / "tests").mkdir()
    for name in (*CORE, "support"):
        shutil.copytree(TESTS / name, folder / "tests" / name)
    for name in IN_PROCESSES:
        (folder / "tests" / "loading" / name).unlink()
    shutil.copy(TESTS / "conftest.py", folder / "tests")
    (folder / "tests" / "data").symlink_to(TESTS / "data")
    names = [["torch_tfrecord", room] for room in EXTENSIONS]
    (folder / "conftest.py").write_text(f"{ALONE}NAMES = {names}\n{SKIPPED}")
    return folder


def run(folder: Path, *arguments: str, timeout: int) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-9000:]
    return done.stdout


PROGRAM = """
import torch
from torch.utils.data import DataLoader
import torch_tfrecord as t
from torch_tfrecord.loading import MapDataset

with t.TFRecordWriter("numbers.tfrecord") as writer:
    for number in range(100):
        writer.write({"id": number})
ds = MapDataset("numbers.tfrecord", {"id": t.FixedLenFeature((), torch.int64)})
sampler = t.RecordSampler(ds, seed=3)
batches = [*DataLoader(ds, 10, sampler=sampler, collate_fn=t.collate)]
assert torch.cat([batch["id"] for batch in batches]).tolist() == list(sampler)
assert len([*t.read_records("numbers.tfrecord")]) == 100
"""


@pytest.mark.slow
def test_it_imports_reads_and_writes(folder):
    imports = "\n".join(
        f"import torch_tfrecord.{module}"
        for room in CORE[1:]
        for module in sorted({*shown_by(room).values()})
    )
    run(folder, "-W", "error", "-c", ALONE + imports + PROGRAM, timeout=120)


@pytest.mark.parametrize(
    ("call", "extension"),
    [
        ("next(iter(t.read_records('s3://bucket/a.tfrecord')))", "remote"),
        ("t.Image()", "media"),
        ("t.make_dataloader('a.tfrecord', 4)", "train"),
    ],
)
@pytest.mark.slow
def test_what_needs_an_extension_names_it(folder, call, extension):
    code = f"{ALONE}import torch_tfrecord as t\ntry:\n    {call}\nexcept ImportError as error:\n    print(error)"
    assert f"torch_tfrecord.{extension}" in run(folder, "-c", code, timeout=120)


# One lists the specs of media, too; one has processes of its own that build an index with columns.
OF_USERS = (
    "tests/columns/test_parsing.py::test_wrong_arguments",
    "tests/records/test_sidecar.py::test_processes_at_once",
)


@pytest.mark.daily
def test_its_own_tests_pass(folder):
    left_out = [f"--deselect={name}" for name in OF_USERS]
    options = ("-q", "-p", "no:cacheprovider", "-m", "not daily", *left_out)
    shown = run(folder, "-m", "pytest", *options, timeout=900)
    assert int(shown.rpartition(" passed")[0].split()[-1]) > 1000
