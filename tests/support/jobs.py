"""Programs of the tests in processes of their own, alone or as the ranks of torchrun."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RANK_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def run_job(*command, timeout=240, environment=(), **options):
    """Run a Python program, outside any rank and with one thread for each process.

    One that hangs says where: each of its processes prints the stacks of its threads into the
    AssertionError.
    """
    variables = {name: value for name, value in os.environ.items() if name not in RANK_NAMES}
    variables |= {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **dict(environment)}
    command = [sys.executable, *map(str, command)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=variables, **pipes, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            _abort(process)
            out, err = process.communicate()
            stacks = "\n".join(
                line for line in err.splitlines() if not line.startswith("Extension modules")
            )
            raise AssertionError(
                f"{command} took more than {timeout} s:\n{stacks[-30000:]}"
            ) from None
    if not process.returncode:  # others may warn there, but nothing fails in silence
        assert "Traceback" not in err and "Exception ignored" not in err, err
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def torchrun(num_ranks, script, *arguments, **options):
    """`run_job` on ranks of this machine."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", num_ranks)
    return run_job(*launcher, Path(__file__).with_name("rank.py"), script, *arguments, **options)


def _abort(process):
    """End a job and what it has started: PYTHONFAULTHANDLER prints the stacks at SIGABRT, in forked
    workers, too.
    """
    import psutil  # comes with Accelerate

    started = psutil.Process(process.pid).children(recursive=True)
    # a launcher would end the other ranks when it sees that one ended
    process.send_signal(signal.SIGSTOP)
    for child in started:  # parents first: they do not notice that their workers ended
        child.send_signal(signal.SIGABRT)
        time.sleep(0.5)
    process.send_signal(signal.SIGABRT)
    process.send_signal(signal.SIGCONT)
