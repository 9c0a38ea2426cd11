"""The process of one loader: writes its files, or runs it once and says what came out. Started by `conformance.py`, in
the peer's environment.

    python benchmarks/play.py PEER write FOLDER '[[0, 1, 2], [3, 4]]'
    python benchmarks/play.py PEER run '{"folder": ...}' OUTCOME.json
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import pickle
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from loaders import NotOfferedError, Setting, value_of

__all__ = ["play"]

_ERROR_CHARACTERS = 160


def play(adapter: Any, setting: Setting) -> dict[str, Any]:
    """Run a loader as a setting says.

    Returns:
        JSON: "epochs", lists of batches {"ids", "wrong", "draws"}; "error", its text or None;
        "lacks", what the peer does not offer, or None.
    """
    epochs: list[list[dict[str, Any]]] = []
    error = lacks = None
    _seed(setting.seed)
    try:
        if setting.checked and not hasattr(adapter, "CHECK"):
            raise NotOfferedError("we know of no such check")
        loader = adapter.open_loader(setting)
        if setting.load is not None:
            loader.load(pickle.loads(Path(setting.load).read_bytes()))
        for number in range(setting.epochs):
            batches: list[dict[str, Any]] = []
            epochs.append(batches)
            is_last = number == setting.epochs - 1
            for batch in loader.epoch(number):
                batches.append(_summary(batch))
                if len(batches) == setting.kill_after:
                    _kill_a_worker()
                if is_last and len(batches) == setting.stop_after:
                    if setting.save is not None:
                        Path(setting.save).write_bytes(pickle.dumps(loader.state()))
                    break
    except NotOfferedError as missing:
        lacks = str(missing)
    except Exception as raised:
        error = _text_of(raised, setting.folder)
    return {"epochs": epochs, "error": error, "lacks": lacks}


def _seed(seed: int) -> None:
    """As training scripts begin: all global generators."""
    random.seed(seed)
    for name, call in {"numpy.random": "seed", "torch": "manual_seed"}.items():
        with contextlib.suppress(ImportError):
            getattr(importlib.import_module(name), call)(seed)


def _summary(batch: Mapping[str, Any]) -> dict[str, Any]:
    ids = [int(one) for one in batch["id"]]
    wrong = [
        one for one, value in zip(ids, batch["value"], strict=True) if bytes(value) != value_of(one)
    ]
    draws = [_plain(draw) for draw in batch["draw"]] if "draw" in batch else []
    return {"ids": ids, "wrong": wrong, "draws": draws}


def _plain(draw: Any) -> list[str]:
    return [str(each) for each in draw] if isinstance(draw, (list, tuple)) else [str(draw)]


def _kill_a_worker() -> None:
    workers = multiprocessing.active_children()
    if not workers:
        raise NotOfferedError("no worker process is running")
    os.kill(workers[0].pid or 0, signal.SIGKILL)
    wait([workers[0].sentinel], 10)  # on a busy machine its end takes a while
    time.sleep(0.2)  # until the loader is told


def _text_of(raised: Exception, folder: str) -> str:
    """The class and the last line that says something: a worker's error comes with its traceback before."""
    lines = [line.strip() for line in str(raised).splitlines() if line.strip()]
    text = next((line for line in lines if not line.endswith(":")), "")
    if lines and lines[0].startswith("Caught "):
        text = lines[-1]
    elif not text and (frames := traceback.extract_tb(raised.__traceback__)):
        text = frames[-1].line or ""
    text = text.replace(f"{folder}/", "").replace(folder, "")
    if not re.match(r"[\w.]+(Error|Exception): ", text):
        text = f"{type(raised).__name__}: {text}"
    return text if len(text) <= _ERROR_CHARACTERS else f"{text[:_ERROR_CHARACTERS]}..."


def main() -> None:
    peer, what, *arguments = sys.argv[1:]
    adapter = importlib.import_module(f"loaders.{peer}")
    if what == "write":
        folder, shards = arguments
        adapter.write(folder, json.loads(shards))
        return
    setting, outcome = Setting(**json.loads(arguments[0])), Path(arguments[1])
    if setting.world_size > 1:
        import torch.distributed

        torch.distributed.init_process_group("gloo")  # as torchrun's processes do
    outcome.write_text(json.dumps(play(adapter, setting)))


if __name__ == "__main__":
    main()
