"""A side in a process of its own, in the environment it is installed in."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from side import Job

__all__ = ["SideFailedError", "SideProcess"]

_HERE = Path(__file__).parent


class SideFailedError(Exception):
    """A side's process ended with an error; the text has the end of what it printed."""


class SideProcess:
    """Talks to `serve.py`; one command at a time, and it is idle in between."""

    def __init__(self, python: str, job: Job) -> None:
        self.job = job
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [python, str(_HERE / "serve.py"), json.dumps(asdict(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=_HERE,
        )
        self._answer()

    def check(self, most: float) -> dict[str, Any]:
        """Run the warm-up epoch, for at most about `most` seconds if it can be cut off, and sum up its outputs."""
        return self._ask(f"check {most}")

    def round(self, least: float, most: float) -> dict[str, Any]:
        """Run epochs for at least `least` seconds and at most about `most`."""
        return self._ask(f"round {least} {most}")

    def end(self) -> dict[str, Any]:
        """Stop; gives the peak memory."""
        memory = self._ask("end")
        self.close()
        return memory

    def close(self) -> None:
        """Make sure that the process is gone."""
        if self._process.poll() is None:
            try:
                self._process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
        self._log.close()

    def _ask(self, command: str) -> dict[str, Any]:
        stdin = self._process.stdin
        if stdin is not None:
            stdin.write(f"{command}\n")
            stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        stdout = self._process.stdout
        line = stdout.readline() if stdout is not None else ""
        if not line:
            self._process.wait()
            self._log.seek(0)
            text = self._log.read()[-3000:]
            raise SideFailedError(f"{self.job.side} ({self.job.variant}) on {self.job.workload_name}:\n{text}")
        answer: dict[str, Any] = json.loads(line)
        return answer
