"""``tfrecord replay``: the records of a step of a training run, from the state that it saved."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from index_tools._terminal import Verb, add_json, integer
from index_tools.show import show_record
from torch_tfrecord.shown import shown_value
from torch_tfrecord.train import replay

__all__ = ["REPLAY"]

_DESCRIPTION = """\
STATE is the file of a `loader.state_dict()`, written by json.dump or torch.save. Prints the records of a
step as `tfrecord show` does, those of rank 0 first; the position is that in the dataset. Steps count from 0
in their epoch, before and after a resumption, whatever world sizes the run had, and with the weights that a
Mixture had there. Earlier epochs are as if the last job had read them.

The files must be where they were. The state of a loader over any other dataset than paths, slices and
mixtures of these does not say which files it reads: call loader.records_of(step) in the program.

examples:
  tfrecord replay state.json --step 41203
  tfrecord replay state.pt --step 41203 --json -n 1"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("state", metavar="STATE", help="a saved loader.state_dict()")
    parser.add_argument("--step", type=integer(0), required=True, help="from 0 in its epoch")
    parser.add_argument("--epoch", type=integer(0), help="default: that of the state")
    parser.add_argument(
        "-n",
        dest="num_records",
        type=integer(0),
        metavar="N",
        help="print the first N (default: all)",
    )
    add_json(parser)


def _run(state: str, step: int, epoch: int | None, num_records: int | None, as_json: bool) -> int:
    saved = _read(state)
    if saved["run"]["dataset"] is None:
        raise ValueError(
            f"{state}: the state does not say which records the loader reads (a Subset, an array of lengths, ...): "
            "call loader.records_of(step) in the program"
        )
    try:
        records = replay(saved, step, epoch, num_records)
    except IndexError as error:  # wrong use
        raise ValueError(f"{state}: {error}") from None
    for path, offset, position, payload in records:
        print(show_record(None, as_json, (path, position, offset, payload)))
    return 0


REPLAY = Verb(_DESCRIPTION, _add_arguments, _run)


def _read(path: str) -> Mapping[str, Any]:
    """The state in a file.

    Raises:
        ValueError: It is none that a loader saved.
    """
    with Path(path).open("rb") as file:
        head = file.read(1)
        file.seek(0)
        try:
            found = json.load(file) if head == b"{" else torch.load(file, weights_only=True)
        except Exception as error:  # whatever pickle raises
            raise ValueError(
                f"{path}: expected a state, got {type(error).__name__}: {error}"
            ) from None
    if not isinstance(found, Mapping) or not isinstance(found.get("run"), Mapping):
        raise ValueError(
            f"{path}: expected the state_dict() of a loader that make_dataloader made, got {shown_value(found)}"
        )
    return found
