"""Memory in which a DataLoader worker makes its batches and the trainer reads them, without a copy and used again.

Each worker has one file without a name (``memfd_create``): nothing stands in /dev/shm, whose size does not matter, and
the system takes the memory back however both processes end. Both map it once. Pieces of it hold the columns of batches;
in front of each stands how many hold it: the worker that fills it, a message under way, the trainer's tensors. At 0 the
worker takes it again. So who keeps a batch keeps its pieces, and the file grows.

The trainer opens the file through /proc/<pid>/fd. Where there is no such thing (not Linux, no compiled core) batches
leave a worker by torch's own way.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import sys
import threading
import warnings
import weakref
from bisect import bisect_right, insort
from collections import deque
from typing import Any, NamedTuple

from torch_tfrecord.native import optional_module

__all__ = ["MemoryName", "WorkerMemory", "attach", "worker_memory"]

# Of addresses, not of memory: a file has as many pages as were used. Less where the system limits addresses.
_SIZES = (1 << 36, 1 << 34, 1 << 32, 1 << 30)
_PAGE = 1 << 12
_TOKEN_BYTES = 16
# How many pieces are asked at each allocation whether somebody still holds them.
_POLLED = 8
# A piece that nobody took for so many allocations goes back to the system; looked for from time to time.
_IDLE, _TRIMMED_EACH = 256, 32


class MemoryName(NamedTuple):
    """How another process finds a worker's memory: as `attach` opens it."""

    pid: int
    fd: int
    size: int
    token: bytes


class _Block:
    """Room for a piece: where it begins, its bytes with header, and which parts of the data were sent."""

    __slots__ = ("capacity", "last_used", "sent", "start")

    def __init__(self, start: int, capacity: int) -> None:
        self.start, self.capacity = start, capacity
        self.last_used = 0
        self.sent: list[tuple[int, int]] = []


class WorkerMemory:
    """The memory of one worker process, for its batches. Safe from several threads.

    Raises:
        OSError: The system gives none.
    """

    def __init__(self) -> None:
        self._native: Any = optional_module("shared")
        if self._native is None or not hasattr(os, "memfd_create") or not hasattr(os, "posix_fallocate"):
            raise OSError("needs Linux and the compiled core")
        os.listdir(f"/proc/{os.getppid()}/fd")  # whether processes of this user see each other's files there
        self._fd = os.memfd_create("torch_tfrecord")
        token = os.urandom(_TOKEN_BYTES)
        try:
            self._mapping = self._map()
            os.posix_fallocate(self._fd, 0, _PAGE)
            self._mapping.forget(0, _PAGE)  # whether the system takes memory back: not every sandbox does
            os.posix_fallocate(self._fd, 0, _PAGE)
            os.pwrite(self._fd, token, 0)
        except BaseException:
            os.close(self._fd)
            raise
        self._address, self._header_bytes = int(self._mapping.address), int(self._native.HEADER_BYTES)
        self.pid = os.getpid()
        self.name = MemoryName(self.pid, self._fd, self._mapping.size, token)
        self._lock = threading.Lock()
        self._end = _PAGE
        self._clock = 0
        self._held: deque[_Block] = deque()
        self._free: list[_Block] = []  # the last one used last
        self._gaps: list[tuple[int, int]] = []  # addresses without memory, sorted
        self._starts: list[int] = []
        self._blocks: dict[int, _Block] = {}

    def _map(self) -> Any:
        for size in _SIZES:
            try:
                os.ftruncate(self._fd, size)
                return self._native.Mapping(self._fd, size)
            except OSError as error:
                failed = error
        raise failed

    def piece(self, num_bytes: int) -> Any | None:
        """Writable memory, not cleared, by the buffer protocol; None where there is no more."""
        capacity = _rounded(self._header_bytes + num_bytes)
        with self._lock:
            self._clock += 1
            block = self._take(capacity) or self._grow(capacity)
            if block is None:
                return None
            block.last_used, block.sent = self._clock, []
            self._held.append(block)
            self._mapping.begin(block.start)
            if self._clock % _TRIMMED_EACH == 0:
                self._trim()
        return self._native.Piece(self._mapping, block.start, num_bytes)

    def _take(self, capacity: int) -> _Block | None:
        for number_of_tries in (_POLLED, len(self._held)):
            for _ in range(min(number_of_tries, len(self._held))):
                block = self._held.popleft()
                (self._held if self._mapping.holders(block.start) else self._free).append(block)
            for number in range(len(self._free) - 1, -1, -1):
                if capacity <= self._free[number].capacity <= 2 * capacity:
                    return self._free.pop(number)
            if len(self._held) > 4 * _IDLE:  # somebody keeps all batches: not worth asking each time
                return None
        return None

    def _grow(self, capacity: int) -> _Block | None:
        fitting = [gap for gap in self._gaps if gap[1] - gap[0] >= capacity]
        start = fitting[0][0] if fitting else self._end
        if start + capacity > self._mapping.size:
            return None
        try:
            os.posix_fallocate(self._fd, start, capacity)  # or writing to it may end the process
        except OSError as error:
            _warn(f"{capacity} bytes cannot be had ({error.strerror})")
            return None
        if fitting:
            self._gaps.remove(fitting[0])
            if fitting[0][1] > start + capacity:
                insort(self._gaps, (start + capacity, fitting[0][1]))
        else:
            self._end += capacity
        block = self._blocks[start] = _Block(start, capacity)
        insort(self._starts, start)
        return block

    def _trim(self) -> None:
        """Give back what nobody took for long."""
        idle = [block for block in self._free if self._clock - block.last_used > _IDLE]
        for block in idle:
            self._mapping.forget(block.start, block.capacity)
            self._free.remove(block)
            self._starts.remove(block.start)
            del self._blocks[block.start]
            insort(self._gaps, (block.start, block.start + block.capacity))
        if idle:
            self._gaps = _merged(self._gaps)

    @property
    def num_bytes(self) -> int:
        """What the worker holds of the system's memory, used or not."""
        with self._lock:
            return sum(block.capacity for block in self._blocks.values())

    def send(self, address: int, num_bytes: int) -> tuple[int, int] | None:
        """Where memory lies that a message may hand over as it is: the piece's start, and how far behind it.

        None for memory that is not this worker's, and for what was sent before: nobody else may see what its receiver
        writes there.
        """
        place = address - self._address
        if not 0 <= place < self.name.size:
            return None
        with self._lock:
            block = self._blocks[self._starts[bisect_right(self._starts, place) - 1]]
            begin, sent = place - block.start, block.sent
            end = begin + num_bytes
            if sent and sent[-1][1] == begin and len(sent) == 1:  # columns, one behind the other
                sent[-1] = (sent[-1][0], end)
            elif any(begin < other_end and other < end for other, other_end in sent):
                return None
            else:
                sent.append((begin, end))
        return block.start, begin - self._header_bytes

    def hold(self, start: int) -> tuple[int, int]:
        """Keep a piece for a message's receiver: what `Piece` takes to make it, its start and its bytes."""
        self._mapping.hold(start)
        return start, self._blocks[start].capacity - self._header_bytes

    def release(self) -> None:
        """Give back all that nobody holds: at the worker's end, for the trainer may keep a batch for long."""
        with self._lock:
            for block in self._blocks.values():
                if not self._mapping.holders(block.start):
                    self._mapping.forget(block.start, block.capacity)


def _rounded(size: int) -> int:
    """In steps of an eighth, so that batches of nearly one size take each other's pieces."""
    step = max(_PAGE, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


def _merged(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged = gaps[:1]
    for start, end in gaps[1:]:
        if start == merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


# In the worker.

_MEMORY: WorkerMemory | None = None
_FAILED_IN = 0  # the process in which there is none


def worker_memory() -> WorkerMemory | None:
    """This process' memory for batches, if it is a DataLoader worker and the system has some to share."""
    global _MEMORY, _FAILED_IN
    data = sys.modules.get("torch.utils.data")  # whoever reads records only does without torch
    if data is None or data.get_worker_info() is None:
        return None
    pid = os.getpid()
    if (_MEMORY is None or pid != _MEMORY.pid) and pid != _FAILED_IN:
        try:
            _MEMORY = WorkerMemory()
            _ATTACHED.clear()  # those of the trainer, where this process was forked from it
            multiprocessing.util.Finalize(None, _MEMORY.release, exitpriority=-100)  # after the queue's thread
        except OSError:
            _MEMORY, _FAILED_IN = None, pid
    return _MEMORY


def _warn(reason: str) -> None:
    warnings.warn(
        f"shared memory for batches: {reason}; they leave this worker by torch's own way, which is slower and needs "
        "room in /dev/shm (in containers --shm-size)",
        RuntimeWarning,
        stacklevel=2,
    )


# In the trainer.

_ATTACHED: dict[bytes, tuple[int, Any]] = {}


def attach(name: MemoryName) -> Any:
    """The memory of a worker, mapped; the same as long as the worker lives or anybody holds a piece.

    Raises:
        RuntimeError: The worker is gone.
    """
    known = _ATTACHED.get(name.token)
    return _attach(name) if known is None else known[1]


def _attach(name: MemoryName) -> Any:
    for token, (pid, _) in list(_ATTACHED.items()):
        if not _is_alive(pid):
            _ATTACHED.pop(token, None)
    _, mapping = _ATTACHED.setdefault(name.token, (name.pid, _map(name)))
    for process in multiprocessing.active_children():
        if process.pid == name.pid:  # at the latest when its loader is gone
            weakref.finalize(process, _ATTACHED.pop, name.token, None).atexit = False
    return mapping


def _map(name: MemoryName) -> Any:
    native: Any = optional_module("shared")
    try:
        fd = os.open(f"/proc/{name.pid}/fd/{name.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            mapping = native.Mapping(fd, name.size)
            token = os.pread(fd, _TOKEN_BYTES, 0)
        finally:
            os.close(fd)
    except OSError as error:
        raise _gone(name, error.strerror) from error
    if token != name.token:
        raise _gone(name, "another process has its number")
    return mapping


def _gone(name: MemoryName, reason: object) -> RuntimeError:
    return RuntimeError(f"DataLoader worker (pid {name.pid}) is gone, and a batch with it: {reason}")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
