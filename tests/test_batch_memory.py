import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from torch_tfrecord.batch_memory import empty_bytes, empty_tensor
from torch_tfrecord.native import optional_module

compiled = pytest.mark.skipif(
    optional_module("memory") is None, reason="kept by the compiled core alone"
)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 1 << 20])
def test_memory_of_any_size_is_ours_alone(size):
    first, second = empty_bytes(size), empty_bytes(size)
    first[:], second[:] = 1, 2
    assert first.dtype == np.uint8 and len(first) == len(second) == size and first.flags.writeable
    assert (first == 1).all() and (second == 2).all()
    assert first.ctypes.data % 16 == 0


@compiled
def test_memory_is_used_again_once_no_tensor_looks_at_it():
    first = empty_tensor((300, 301), torch.float32)
    address = first.data_ptr()
    view = first[1:]
    del first
    gc.collect()
    other = empty_tensor((300, 301), torch.float32)
    assert other.data_ptr() != address
    view.fill_(7)
    del view
    gc.collect()
    again = empty_tensor((301, 300), torch.float32)  # the other is still held
    assert again.data_ptr() == address
    assert again.shape == (301, 300) and again.is_contiguous()
    del again
    assert empty_tensor((900, 901), torch.float32).data_ptr() != address  # too small for that


def test_threads_never_share_a_block():
    failures = []

    def work(number):
        for round_ in range(300):
            block = empty_bytes(65_536 + 4096 * (round_ % 3))
            block[:] = number
            other = empty_bytes(65_536)
            other[:] = number + 100
            if not ((block == number).all() and (other == number + 100).all()):
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


KEPT = """
import numpy as np
from torch_tfrecord.batch_memory import empty_bytes

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

before = resident()
blocks = [empty_bytes(40 << 20) for _ in range(10)]
for block in blocks:
    block[:] = 1
assert resident() - before > 390 << 20
del block
blocks.clear()
print((resident() - before) >> 20)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_more_than_128_mib_are_kept():
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 130


def test_too_much_memory_is_a_memory_error():
    with pytest.raises((MemoryError, ValueError)):
        empty_bytes(1 << 62)
    native = optional_module("memory")
    if native is not None:
        with pytest.raises(ValueError, match="at least 0"):
            native.Block(-1)
