"""The command ``tfrecord``: from arguments to an exit status."""

from __future__ import annotations

import argparse
import functools
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Any, NoReturn

from index_tools._terminal import Verb, error_text, escape
from index_tools.completion import complete
from torch_tfrecord import TFRecordError, __version__

__all__ = ["entry_point", "main"]

# verb: the module that has it, in capitals; and what it does
_VERBS = {
    "show": ("show", "show records as readable text, and the features to read them with"),
    "stats": ("stats", "count and measure the features of TFRecord files"),
    "gallery": ("gallery", "look at records in the browser, or as a sheet of pictures"),
    "index": ("index", "build the indexes of TFRecord files"),
    "verify": ("index", "check every record of TFRecord files"),
    "salvage": ("salvage", "copy the good records of a damaged file"),
    "reshard": ("reshard", "write the records as another number of shards, also shuffled"),
    "split": ("reshard", "split the records into sets: training, validation, test"),
    "merge": ("reshard", "write the records as one file"),
    "head": ("reshard", "copy the first records"),
    "sample": ("reshard", "copy some records, drawn at random"),
    "convert": ("convert", "convert to TFRecord and back: images, Parquet, CSV, JSON lines, tar"),
    "from-images": ("from_images", "write an image folder as TFRecord shards"),
    "reencode": ("reencode", "write the pictures of records in another encoding"),
    "replay": ("show", "show the records of a step of a training run"),
    "bench": ("bench", "find what bounds a loader on this machine"),
    "cache": ("cache", "show or clear the disk cache of remote data"),
    "doctor": ("doctor", "report what runs compiled, what decodes images, and what is missing"),
    "completion": ("completion", "print the code that completes this command in your shell"),
}

_EXIT_STATUS = """exit status:
  0    all well
  1    bad data: a damaged file, record or index
  2    wrong use, or a file that does not exist or cannot be opened or written: nothing is wrong with the data
  130  interrupted; no file is left half-written"""

_SIGNAL_STATUS = 128  # shells report this plus the signal's number for a process ended by a signal

_EXAMPLES = """\
examples:
  tfrecord convert photos/ data/train --num-shards 16
  tfrecord show data/train-00000-of-00016.tfrecord
  tfrecord stats data/
  tfrecord gallery data/
  tfrecord verify data/
  tfrecord salvage damaged.tfrecord good.tfrecord
  tfrecord reshard 'data/train-*' shuffled/train --num-shards 64 --shuffle
  tfrecord index 'data/train-*' --jobs 8
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
        arguments = [*map(_expanded, sys.argv[1:] if argv is None else argv)]
        parser = _parser(arguments or os.environ.get("COMP_LINE", "").split())
        complete(parser)
        options = vars(parser.parse_args(arguments))
        run: Callable[..., int] = options.pop("run")
        return run(**options)
    except SystemExit as exit_request:  # argparse's: --help, --version, wrong arguments
        return exit_request.code if isinstance(exit_request.code, int) else 2
    except KeyboardInterrupt:
        return _fail("interrupted", _SIGNAL_STATUS + signal.SIGINT)
    except TFRecordError as error:
        return _fail(error_text(error), 1)
    except BrokenPipeError:  # `tfrecord show ... | head`: nobody reads the output any more
        return _SIGNAL_STATUS + signal.SIGPIPE
    except (OSError, ValueError, ImportError) as error:
        return _fail(error_text(error), 2)


def _expanded(argument: str) -> str:
    """An argument with ``~`` expanded also where shells leave it: in quotes, after ``--name=``."""
    option, sign, path = argument.partition("=") if argument[:2] == "--" else ("", "", argument)
    return option + sign + os.path.expanduser(path)


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


class _OneLineParser(argparse.ArgumentParser):
    """Reports wrong arguments in one line; argparse itself would print the whole usage first."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, escape(f"{self.prog}: {message} (see {self.prog} --help)") + "\n")


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    form = functools.partial(
        dict[str, Any], formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser = _OneLineParser(
        prog="tfrecord",
        description="Look at TFRecord files, measure, check, split, shuffle and convert them.",
        **form(epilog=f"{_EXAMPLES}\n\n{_EXIT_STATUS}"),
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB", title="verbs")
    wanted = next((argument for argument in arguments if argument in _VERBS), None)
    for name, (module, summary) in _VERBS.items():
        one = verbs.add_parser(name, help=summary, **form())
        if name == wanted:  # do not import the others: torch alone takes seconds
            verb: Verb = resolve_name(f"index_tools.{module}:{name.replace('-', '_').upper()}")
            one.description = f"{summary[0].upper()}{summary[1:]}."
            one.epilog = f"{verb.description}\n\n{_EXIT_STATUS}"
            verb.add_arguments(one)
            one.set_defaults(run=verb.run)
    return parser
