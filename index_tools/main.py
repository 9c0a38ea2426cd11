"""The command ``tfrecord``: from arguments to an exit status."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from index_tools._terminal import EXIT_STATUS, OneLineParser, error_text
from torch_tfrecord import __version__
from torch_tfrecord.errors import TFRecordError

__all__ = ["entry_point", "main"]

_VERBS = {
    "index": "build the indexes of TFRecord files",
    "verify": "check every record of TFRecord files",
    "show": "show records as readable text, and the features to read them with",
    "from-images": "write an image folder as TFRecord shards",
    "rlds-to-lerobot": "write RLDS episodes as a LeRobot dataset",
    "cache": "show or clear the disk cache of remote data",
    "doctor": "report what runs compiled, what decodes images, and what is missing",
}

_MODULES = {"from-images": "from_images", "rlds-to-lerobot": "lerobot_export"}  # if other names

_SIGNAL_STATUS = 128  # shells report this plus the signal's number for a process ended by a signal

_EXAMPLES = """\
examples:
  tfrecord from-images photos/ data/train --num-shards 16
  tfrecord verify data/
  tfrecord show data/train-00000-of-00016.tfrecord
  tfrecord index 'data/train-*' --jobs 8
  tfrecord rlds-to-lerobot bridge/0.1.0 bridge_lerobot --fps 5
  tfrecord cache
  tfrecord doctor"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb.

    Args:
        argv: The arguments without the program's name; None uses those of the process.

    Returns:
        0 all well, 1 bad data, 2 wrong use (also a file that cannot be opened or written), 130
        interrupted.
    """
    try:
        arguments = sys.argv[1:] if argv is None else list(argv)
        options = _parser(arguments).parse_args(arguments)
        status: int = options.command(options)
        return status
    except SystemExit as exit_request:  # of argparse: --help, --version, wrong arguments
        return exit_request.code if isinstance(exit_request.code, int) else 2
    except KeyboardInterrupt:
        return _fail("interrupted", _SIGNAL_STATUS + signal.SIGINT)
    except TFRecordError as error:
        return _fail(error_text(error), 1)
    except BrokenPipeError:  # `tfrecord show ... | head`: nobody reads the output any more
        return _SIGNAL_STATUS + signal.SIGPIPE
    except (OSError, ValueError, ImportError) as error:
        return _fail(error_text(error), 2)


def entry_point() -> NoReturn:
    """The console script: set up the process's streams and signals, then run `main`."""
    # On a terminal that cannot show a character, print an escape instead of a traceback.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _end_on_signal)
    status = main()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = _SIGNAL_STATUS + signal.SIGPIPE
    if status == _SIGNAL_STATUS + signal.SIGPIPE:
        # otherwise Python's last flush fails
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


def _end_on_signal(number: int, frame: object) -> NoReturn:
    sys.exit(_SIGNAL_STATUS + number)  # an exception, so that writers remove half-written files


def _fail(text: str, status: int) -> int:
    print(f"tfrecord: {text}", file=sys.stderr)
    return status


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="tfrecord",
        description="Index, verify and show TFRecord files, make them from images, and check the installation.",
        epilog=f"{_EXAMPLES}\n\n{EXIT_STATUS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB", title="verbs")
    wanted = next((argument for argument in arguments if argument in _VERBS), None)
    for name, summary in _VERBS.items():
        if name == wanted:  # do not import the others: torch alone takes seconds
            module = _MODULES.get(name, name)
            importlib.import_module(f"index_tools.{module}").add_parser(verbs, summary)
        else:
            verbs.add_parser(name, help=summary)
    return parser
