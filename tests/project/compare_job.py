"""benchmarks/compare.py, whose sides are forked from a process that has imported torch: 70 that
import it themselves take five minutes; run by test_benchmarks.py.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import child
import compare
import serve
import torch

import torch_tfrecord  # noqa: F401


class Forked:
    """The part that child.py uses of a Popen object of serve.py."""

    def __init__(self, command, *, stdin, stdout, stderr, text):
        (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
        self.pid, self.returncode = os.fork(), None
        if not self.pid:
            os.close(ours_in)  # so that it ends with us
            for target, fd in enumerate((theirs_in, theirs_out, stderr.fileno())):
                os.dup2(fd, target)
            sys.stdin, sys.argv = open(0), command[1:]  # noqa: SIM115
            code = 1
            try:
                serve.answer(serve.functions)
                code = 0
            finally:
                sys.excepthook(*sys.exc_info()) if code else None
                os._exit(code)
        os.close(theirs_in)
        os.close(theirs_out)
        self.stdin, self.stdout = open(ours_in, "w"), open(ours_out)  # noqa: SIM115

    def wait(self):
        if self.returncode is None:
            self.stdin.close()
            self.stdout.close()
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def poll(self):
        return self.returncode

    def communicate(self, timeout):
        self.wait()


if __name__ == "__main__":
    torch.set_num_threads(1)
    child.subprocess = type("Subprocess", (), {**vars(child.subprocess), "Popen": Forked})
    compare.main()
