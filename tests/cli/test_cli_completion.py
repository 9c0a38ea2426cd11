"""Covers index_tools/main. The shell asks by its own protocol; what follows is completed."""

import os
import subprocess
import sys

import pytest

from index_tools.main import main


@pytest.mark.parametrize(
    ("shell", "begin"),
    [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --command tfrecord")],
)
def test_code_for_each_shell(shell, begin, capsys):
    assert main(["completion", shell]) == 0
    assert begin in capsys.readouterr().out


def complete(line, tmp_path):
    """What bash would offer for this line."""
    out = tmp_path / "offers"
    variables = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "IFS": "\n"}
    variables |= {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(out)}
    variables |= {"_ARGCOMPLETE_SHELL": "bash", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "index_tools"]
    subprocess.run(command, env={**os.environ, **variables}, check=False, timeout=60)
    return [offer.strip() for offer in out.read_text().split("\n") if offer.strip()]


def test_verbs_and_options(tmp_path):
    assert complete("tfrecord ver", tmp_path) == ["verify"]
    assert {"--manifest", "--columns"} <= {*complete("tfrecord index --", tmp_path)}
    assert complete("tfrecord completion f", tmp_path) == ["fish"]


def test_a_shell_that_is_unknown(capsys):
    assert main(["completion", "csh"]) == 2
    assert "invalid choice: 'csh'" in capsys.readouterr().err
