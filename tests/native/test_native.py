"""With and without the compiled core: the switch, the one warning, an install where there is no
compiler.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

READ_TWICE = """
import sys, warnings
import torch, torchvision
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch_tfrecord as t
    assert not caught, "importing must not warn"
    with t.TFRecordWriter(sys.argv[1]) as writer:
        for number in range(5):
            writer.write({"x": number})
    dataset = t.TFRecordDataset(sys.argv[1], {"x": t.FixedLenFeature((), torch.int64)})
    for _ in range(2):
        assert t.collate(dataset.__getitems__([3, 1]))["x"].tolist() == [3, 1]
from torch_tfrecord.native import has_native
print(has_native(), [str(item.message) for item in caught if item.category is RuntimeWarning])
"""

SLOWER = (
    "torch_tfrecord, imported from {}, runs without its compiled core: everything works, but slower. "
    "Install a C compiler, then {}; or set TORCH_TFRECORD_PURE_PYTHON=1 to silence this warning."
)
FROM_SOURCE = "pip install --force-reinstall --no-deps --no-binary torch-tfrecord torch-tfrecord"
SITE = [path for path in sys.path if path.endswith("-packages")]


def run(path, **environment):
    code = [sys.executable, "-c", READ_TWICE, str(path / "a.tfrecord")]
    done = subprocess.run(
        code,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
        cwd=path,
    )
    return done.stdout.strip()


@pytest.mark.daily
def test_the_switch_forces_the_twin_without_a_warning(tmp_path):
    assert run(tmp_path, TORCH_TFRECORD_PURE_PYTHON="1") == "False []"


@pytest.mark.daily
def test_no_other_value_is_needed_to_have_it(tmp_path):
    printed = run(tmp_path, TORCH_TFRECORD_PURE_PYTHON="0")
    assert printed == "True []" or printed == run(tmp_path, TORCH_TFRECORD_PURE_PYTHON="")


@pytest.mark.daily
@pytest.mark.skipif(not (ROOT / "setup.py").is_file(), reason="not beside an installed package")
def test_an_install_without_a_compiler_works_and_warns_once(tmp_path):
    source, target = tmp_path / "source", tmp_path / "installed"
    for name in ("torch_tfrecord", "index_tools"):
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__")
        )
    shutil.copytree(ROOT / "docs" / "licenses", source / "docs" / "licenses")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(target),
        str(source),
    ]
    subprocess.run(
        pip, env=os.environ | {"CC": "/bin/false"}, capture_output=True, timeout=500, check=True
    )
    assert not list(target.rglob("*.so"))
    printed = run(tmp_path, PYTHONPATH=str(target), TORCH_TFRECORD_PURE_PYTHON="")
    assert printed == f"False {[SLOWER.format(target, FROM_SOURCE)]}"


IN_A_CLONE = """
import warnings
from torch_tfrecord.native import has_native
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    found = has_native(), has_native()
print(found, *(f"{item.lineno} {item.message}" for item in caught))
"""


@pytest.mark.skipif(not (ROOT / "setup.py").is_file(), reason="not beside an installed package")
def test_a_source_folder_without_a_core_says_so_and_how_to_build_it_there(tmp_path):
    clone = tmp_path / "a clone"
    shutil.copytree(
        ROOT / "torch_tfrecord", clone / "torch_tfrecord", ignore=shutil.ignore_patterns("*.so")
    )
    shutil.copy(ROOT / "setup.py", clone)
    done = subprocess.run(
        # Without the site's packages, for an editable install of the package fills in what is
        # missing here.
        [sys.executable, "-S", "-c", IN_A_CLONE],
        env=os.environ | {"TORCH_TFRECORD_PURE_PYTHON": "", "PYTHONPATH": os.pathsep.join(SITE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=clone,
    )
    how = f"pip install -e '{clone}'"
    assert done.stdout == f"(False, False) 6 {SLOWER.format(clone, how)}\n"


@pytest.mark.daily
@pytest.mark.skipif(
    sys.platform != "linux", reason="the sanitizers' libraries are found by Linux's names"
)
@pytest.mark.skipif(not (ROOT / "setup.py").is_file(), reason="not beside an installed package")
@pytest.mark.timeout(900)
def test_nothing_for_the_sanitizers_to_say():
    pytest.importorskip("Cython")
    script = ["bash", str(ROOT / "tests" / "native" / "sanitize.sh")]
    done = subprocess.run(
        script,
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
