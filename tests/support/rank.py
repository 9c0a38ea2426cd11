"""A program as one rank of torchrun, for `jobs.torchrun`: rank.py SCRIPT ARGUMENTS.

Before Python 3.12, a forked DataLoader worker hangs if a thread of another library makes its Python
state during it (https://github.com/python/cpython/issues/112275). gloo's threads do, to free the
tensors of a collective that has just ended: so a fork waits until they are done. Of 320 forks in
Lightning jobs, two had such a thread in them without the pause, which began 0.2 ms after the last
one; with it, none.
"""

import os
import runpy
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    if sys.version_info < (3, 12):
        os.register_at_fork(before=lambda: time.sleep(0.05))
    runpy.run_path(sys.argv[0], run_name="__main__")
