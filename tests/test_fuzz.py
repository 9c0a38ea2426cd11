"""Some of the inputs of fuzz/, with a fixed seed, and all of its corpus; for hours it is run by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

ENGINE = Path(__file__).parent.parent / "fuzz" / "engine.py"
COUNTS = {
    "columns": 1500,
    "compressed": 1500,
    "dataset_json": 250,
    "examples": 750,
    "frames": 1000,
    "images": 500,
    "paths": 250,
    "sequences": 500,
    "sidecars": 200,
    "states": 250,
    "tensors": 1500,
    "writers": 500,
}


def fuzz(*arguments, tmp_path):
    return subprocess.run(
        [sys.executable, ENGINE, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=250,
        cwd=tmp_path,
        check=False,
    )


def test_every_target_is_counted():
    assert sorted(COUNTS) == sorted(path.stem for path in ENGINE.parent.glob("targets/*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("target", COUNTS)
def test_random_inputs(target, tmp_path):
    done = fuzz(target, "--count", COUNTS[target], "--seed", 1, tmp_path=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert ", 0 finds" in done.stdout


@pytest.mark.slow
def test_a_wrong_oracle_is_found_and_made_small(tmp_path):
    code = (
        "import engine, sys; from pathlib import Path; engine.CORPUS = Path(sys.argv[1]); import targets.tensors as t;"
        "t.check = lambda data: data.index(b'\\x08'); t.seeds = lambda: [b'abc\\x08def' * 9];"
        "t.mutate = lambda rng, data: data.replace(b'\\x08', b'') if rng.random() < 0.5 else data;"
        "done, finds = engine.run('tensors', count=20); assert done == 20 and len(finds) == 1, finds;"
        "(kept,) = engine.CORPUS.glob('tensors/ValueError-*'); assert kept.read_bytes() == b''"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ENGINE.parent)!r}); {code}", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
