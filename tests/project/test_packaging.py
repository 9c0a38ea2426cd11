"""What is built and published: the check of the wheels, pinned actions, licences, what
pyproject.toml says.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torch_tfrecord
from torch_tfrecord.native import optional_module

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
pytestmark = pytest.mark.skipif(
    not (ROOT / "setup.py").is_file(), reason="not beside an installed package"
)
PACKAGES = ("torch_tfrecord", "index_tools")
PARTS = ("columns", "examples", "frames", "inflate", "jpeg", "memory", "shared")


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def check_wheel(tmp_path, pure):
    environment = os.environ | {"TORCH_TFRECORD_PURE_PYTHON": pure, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "check_wheel.py"), str(ROOT)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )


@pytest.mark.daily
@pytest.mark.skipif(
    any(optional_module(name) is None for name in PARTS), reason="needs every compiled part"
)
def test_the_check_of_the_wheels_passes_a_whole_build(tmp_path):
    done = check_wheel(tmp_path, "0")
    assert (done.stderr, done.stdout, done.returncode) == ("", "the wheel is whole\n", 0)


@pytest.mark.daily
def test_the_check_of_the_wheels_refuses_what_is_not_compiled(tmp_path):
    done = check_wheel(tmp_path, "1")
    missing = dict.fromkeys(PARTS, "TORCH_TFRECORD_PURE_PYTHON is set")
    assert (done.stderr, done.returncode) == (f"expected every part compiled, got {missing}\n", 1)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_and_name_their_version(path):
    used = re.findall(r"uses: *(.*)", path.read_text(encoding="utf-8"))
    assert used
    assert [
        line for line in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)
    ] == []


def test_the_versions_of_python_agree():
    project = read("pyproject.toml")
    versions = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert versions == ["3.10", "3.11", "3.12", "3.13", "3.14"]
    assert f'requires-python = ">={versions[0]}"' in project
    built = " ".join(f"cp{version.replace('.', '')}-*" for version in versions) + " cp314t-*"
    assert f'build = "{built}"' in project
    tested = ", ".join(f'"{version}"' for version in versions)
    assert f"python: [{tested}]" in read(".github/workflows/tests.yml")


def test_the_oldest_versions_tested_are_those_required():
    oldest = dict(re.findall(r"'([A-Za-z]+)==([\d.]+)\.\*'", read(".github/workflows/tests.yml")))
    assert set(oldest) == {"torch", "torchvision", "torchcodec", "numpy", "protobuf", "Pillow"}
    required = dict(re.findall(r'^  "([A-Za-z]+)>=([\d.]+)', read("pyproject.toml"), re.MULTILINE))
    assert oldest == {name: required[name] for name in oldest}


def test_each_extra_whose_promises_are_checked_has_its_packages():
    table = read(".ci/promises.py").split("EXTRAS = {")[1].split("\n}")[0]
    promised = dict(re.findall(r'"(\w+)": \{(.*?)\}', table))
    project = read("pyproject.toml")
    for extra, packages in promised.items():
        (line,) = re.findall(rf"^{extra} = (.*)$", project, re.MULTILINE)
        if "torch-tfrecord[arrow]" in line:
            line += promised["arrow"]
        for package in re.findall(r'"(\w+)"', packages):
            assert f'"{package.replace("_", "-")}' in line, (extra, package)
    names = " ".join(["none", *promised])
    assert f"set -- {names}\n" in read(".ci/environment")
    assert f"names=({names})\n" in read(".ci/run")
    assert "for versions in current oldest newest; do\n" in read(".ci/daily")


def test_versions_agree():
    assert re.findall(r"^version: (.*)$", read("CITATION.cff"), re.MULTILINE) == [
        torch_tfrecord.__version__
    ]
    assert 'version = { attr = "torch_tfrecord.__version__" }' in read("pyproject.toml")


def test_every_folder_with_code_is_installed():
    listed = re.findall(
        r'^  "(torch_tfrecord[\w.]*|index_tools)",$', read("pyproject.toml"), re.MULTILINE
    )
    packages = [
        path.parent.relative_to(ROOT)
        for name in PACKAGES
        for path in (ROOT / name).rglob("__init__.py")
    ]
    assert sorted(listed) == sorted(".".join(path.parts) for path in packages)


def test_the_readme_installs_into_the_clone():
    # From within it Python finds the source folder first, which has a compiled core only with `-e`.
    installs = re.findall(r"^pip install .*$", read("README.md"), re.MULTILINE)
    assert installs == ["pip install -e '.[examples]'", "pip install -e '.[test]'"]


def test_the_licences_of_what_is_inside_the_wheels_are_shipped():
    assert 'license-files = ["LICENSE", "docs/licenses/*.txt"]' in read("pyproject.toml")
    # as its licence asks
    assert "based in part on the work of the Independent JPEG Group" in read("docs/install.md")
    assert "The Modified (3-clause) BSD License" in read("docs/licenses/libjpeg-turbo-LICENSE.txt")
    assert "The Independent JPEG Group's JPEG software" in read(
        "docs/licenses/libjpeg-turbo-README.ijg.txt"
    )


def test_pre_commit_runs_what_ci_runs():
    config = read(".pre-commit-config.yaml")
    hooks = [re.sub(r" --\S+", "", entry) for entry in re.findall(r"entry: (.*)", config)]
    in_ci = re.findall(r"- run: (ruff .*|mypy)", read(".github/workflows/tests.yml"))
    assert hooks == [re.sub(r"( --check)?( \.)?$", "", command) for command in in_ci]
