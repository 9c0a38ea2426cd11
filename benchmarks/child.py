"""A process that answers lines of JSON, from both ends: each asks for one thing, and it is idle in between.

Peers' interpreters import it: it needs nothing but Python's own library.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Child", "ChildFailedError", "answer"]

_FOLDER = Path(__file__).parent


class ChildFailedError(Exception):
    """A process ended with an error; the text has the end of what it printed."""


class Child:
    """Runs a script of this folder, which calls `answer`.

    Args:
        name: The name of the process, in errors.
        python: Its interpreter.
        script: The file's name.
        arguments: Texts for it.
    """

    def __init__(self, name: str, python: str, script: str, *arguments: str) -> None:
        self._name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [python, str(_FOLDER / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._answer()

    def ask(self, what: str, *arguments: Any) -> Any:
        """The answer, when it is there."""
        if self._process.stdin is not None:
            print(json.dumps([what, *arguments]), file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """Make sure that the process is gone."""
        if self._process.poll() is None:
            try:
                self._process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
        self._log.close()

    def _answer(self) -> Any:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if line:
            return json.loads(line)
        self._process.wait()
        self._log.seek(0)
        raise ChildFailedError(f"{self._name}:\n{self._log.read()[-3000:]}")


def answer(make: Callable[[], Mapping[str, Callable[..., Any]]]) -> None:
    """Answer what is asked, by the functions of these names, until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between our lines
    functions = make()
    print("null", file=answers, flush=True)
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        print(json.dumps(functions[what](*arguments)), file=answers, flush=True)
