"""``tfrecord completion``: what a shell needs to complete this command."""

from __future__ import annotations

import argparse
import os

from index_tools._terminal import Verb
from torch_tfrecord.errors import needs_extra

__all__ = ["COMPLETION", "complete"]

_DESCRIPTION = """\
The shell then completes verbs, options and paths. Needs pip install argcomplete.

examples:
  eval "$(tfrecord completion bash)"                                        # in ~/.bashrc
  eval "$(tfrecord completion zsh)"                                         # in ~/.zshrc
  tfrecord completion fish > ~/.config/fish/completions/tfrecord.fish"""


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell, if it is asking what may follow; then this does not return."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)


def _run(shell: str) -> int:
    with needs_extra("completion", "tools", "argcomplete"):
        from argcomplete.shell_integration import shellcode
    print(shellcode(["tfrecord"], shell=shell))
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


COMPLETION = Verb(_DESCRIPTION, _add_arguments, _run)
