"""``tfrecord doctor``: what this installation can do, and how to get what is missing."""

from __future__ import annotations

import argparse

from index_tools._arguments import Verbs, add_verb
from index_tools.installation import installation_report

__all__ = ["add_parser"]

_DESCRIPTION = """\
Prints which parts of the library run compiled, what decodes images, whether DataLoader workers send
batches through shared memory, the versions of the packages used, and how to install what is missing.
Include it in bug reports. Without the console script: python -m index_tools doctor.

examples:
  tfrecord doctor
  tfrecord doctor > report.txt"""


def add_parser(verbs: Verbs, summary: str) -> None:
    """Add the verb to the command line."""
    add_verb(verbs, "doctor", summary, _DESCRIPTION, _run)


def _run(options: argparse.Namespace) -> int:
    print(installation_report())
    return 0
