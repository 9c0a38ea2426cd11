"""A program as one rank of torchrun, for `jobs.torchrun`: rank.py START_METHOD SCRIPT ARGUMENTS.

START_METHOD is that of DataLoader workers before Python 3.12. There a forked one hangs if a thread of another library
made its Python state at that moment (https://github.com/python/cpython/issues/112275), as gloo's threads do to free a
tensor. So "fork" waits until they are done with a collective that has just ended; "forkserver" is safe.
"""

import multiprocessing
import os
import runpy
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    _, start_method, *sys.argv = sys.argv
    script = Path(sys.argv[0])
    sys.path[0] = str(script.parent)
    if sys.version_info < (3, 12):
        multiprocessing.set_start_method(start_method)
        if start_method == "fork":
            os.register_at_fork(before=lambda: time.sleep(0.02))
        else:
            os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
            multiprocessing.set_forkserver_preload([script.stem])  # workers need not import what it imports
    runpy.run_path(str(script), run_name="__main__")
