"""The command ``tfrecord``: from arguments to an exit status; and its verbs ``cache`` and ``completion``."""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Any, NoReturn

from index_tools._terminal import Verb, error_text, escape, format_size, pluralize
from torch_tfrecord import TFRecordError, __version__
from torch_tfrecord.errors import needs_extra

__all__ = ["CACHE", "COMPLETION", "entry_point", "main"]

# verb: the module that has it, in capitals; and what it does
_VERBS = {
    "show": ("show", "show records as readable text, and the features to read them with"),
    "stats": ("stats", "count and measure the features of TFRecord files"),
    "gallery": ("gallery", "look at records in the browser, or as a sheet of pictures"),
    "index": ("index", "build the indexes of TFRecord files"),
    "verify": ("verify", "check every record of TFRecord files"),
    "salvage": ("verify", "copy the good records of a damaged file"),
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
    "cache": ("main", "show or clear the disk cache of remote data"),
    "doctor": ("doctor", "report what runs compiled, what decodes images, and what is missing"),
    "completion": ("main", "print the code that completes this command in your shell"),
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
        if "_ARGCOMPLETE" in os.environ:  # the shell asks what may follow; this does not return
            import argcomplete

            argcomplete.autocomplete(parser)
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


# The disk cache of remote data.

_CACHE = """\
Prints how much of its cap a cache uses, of how many files, and how much of what was read came from
it, up to half a minute ago. --clear removes all of it, also while programs use it: they fetch
again what they need.

The folder is the one given as cache_dir=; without it that of the user's cache, which cache_bytes=
alone uses.

examples:
  tfrecord cache
  tfrecord cache /scratch/cache --clear"""


def _run_cache(folder: str | None, clear: bool, as_json: bool) -> int:
    from torch_tfrecord.files import Access
    from torch_tfrecord.remote import cache_info

    folder = folder or os.path.join(Access.user_cache(), "remote")
    info, name = cache_info(folder, clears=clear), escape(folder)
    if as_json:
        print(json.dumps({"folder": folder, **(vars(info) if info else {})}))
        return 0
    if info is None:
        print(f"{name}: no cache")
        return 0
    files = pluralize(info.num_files, "remote file")
    content = f"{format_size(info.disk_bytes)} on the disk, of {files}"
    if clear:
        print(f"{name}: removed {content}")
        return 0
    print(f"{name}: {content}, at most {format_size(info.max_bytes)}")
    total = info.hit_bytes + info.fetched_bytes
    share = f", {100 * info.hit_bytes / total:.0f} % of it from the cache" if total else ""
    print(f"read through it: {format_size(total)}{share}")
    return 0


CACHE = Verb(
    _CACHE,
    _run_cache,
    "--json",
    {
        "folder": {
            "nargs": "?",
            "metavar": "DIR",
            "help": "the cache's folder (default: in the user's cache)",
        },
        "--clear": {"action": "store_true", "help": "remove all copies"},
    },
)


# Completion in a shell.

_COMPLETION = """\
The shell then completes verbs, options and paths. Needs pip install argcomplete.

examples:
  eval "$(tfrecord completion bash)"                                        # in ~/.bashrc
  eval "$(tfrecord completion zsh)"                                         # in ~/.zshrc
  tfrecord completion fish > ~/.config/fish/completions/tfrecord.fish"""


def _run_completion(shell: str) -> int:
    with needs_extra("completion", "tools", "argcomplete"):
        from argcomplete.shell_integration import shellcode
    print(shellcode(["tfrecord"], shell=shell))
    return 0


COMPLETION = Verb(_COMPLETION, _run_completion, own={"shell": {"choices": ("bash", "zsh", "fish")}})
