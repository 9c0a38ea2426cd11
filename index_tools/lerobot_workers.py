"""The processes that write the groups of a LeRobot dataset."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection

import torch

from index_tools.lerobot_group import EpisodeGroups, episodes_path
from torch_tfrecord.progress import ProgressBar

__all__ = ["write_groups"]


def write_groups(job: EpisodeGroups, num_workers: int) -> None:
    """Write the groups that are missing."""
    missing = [number for number in range(len(job)) if not episodes_path(job.out, number).exists()]
    num_done = int(job.frames[-1]) - sum(map(job.num_frames, missing))
    with ProgressBar(
        total=int(job.frames[-1]), initial=num_done, desc="exporting", unit="frame"
    ) as bar:
        if not missing:
            return
        try:
            with contextlib.closing(
                _in_processes(job, missing, min(num_workers, len(missing)))
            ) as done:
                for number in done:
                    bar.update(job.num_frames(number))
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a worker process died, perhaps because memory ran out; run it again, with fewer workers: it continues"
            ) from error


def _in_processes(
    job: EpisodeGroups, numbers: Sequence[int], num_workers: int
) -> Generator[int, None, None]:
    """Write groups in a fork server's children; yield the number of each that is done."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    # The children wait at a pipe for the end of this process, or until it gives up.
    waiting, alive = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(num_workers, context, _start_worker, (job, waiting))
    try:
        for future in as_completed([pool.submit(_write_group, number) for number in numbers]):
            yield future.result()
    except BaseException:
        alive.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        alive.close()
        waiting.close()


_jobs: list[EpisodeGroups] = []  # of this worker process: one


def _start_worker(job: EpisodeGroups, waiting: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the parent decides
    threading.Thread(target=_end_with, args=(waiting,), daemon=True).start()
    os.environ.setdefault("SVT_LOG", "1")  # errors only
    torch.set_num_threads(1)
    _jobs.append(job)


def _end_with(waiting: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        waiting.recv_bytes()
    os._exit(1)  # at once: what is not complete has no name


def _write_group(number: int) -> int:
    _jobs[-1].write(number)
    return number
