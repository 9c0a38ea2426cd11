"""Memory in which a DataLoader worker makes batches and the main process reads them, reused and
without a copy.

Each worker has one unnamed file (``memfd_create``): it is not in /dev/shm, whose size does not
matter, and the system frees the memory however both processes end. Both map it once. Pieces of it
contain the columns of batches, each with its holders in front of it: the worker that fills it, a
message being sent, the main process's tensors, and the processes forked while there were any, until
they end. Without a holder the worker reuses the piece. If you keep a batch, its pieces stay in use
and the file grows.

The main process opens the file through /proc/<pid>/fd. Where this is not possible (not Linux, no
compiled core, a limited address space: ``ulimit -v``), torch sends the batches itself.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import resource
import sys
import threading
import weakref
from bisect import bisect_right
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_tfrecord.errors import warn
from torch_tfrecord.native import optional_module

if TYPE_CHECKING:
    from torch_tfrecord.native.shared import Mapping, Piece

__all__ = ["MemoryName", "WorkerMemory", "attach", "worker_memory"]

_SIZE = 1 << 36  # address space, not memory: only used pages take memory
_PAGE = 1 << 12
_TOKEN_BYTES = 16
# How many pieces are checked at each allocation for whether they are still held.
_POLLED = 256
# A piece that was not used for this many allocations is returned to the system; checked every
# _TRIMMED_EACH of them.
_IDLE, _TRIMMED_EACH = 256, 32


class MemoryName(NamedTuple):
    """The name by which another process finds a worker's memory: the argument of `attach`."""

    pid: int
    fd: int
    size: int
    token: bytes


class _Block:
    """Room for a piece: where it begins, its bytes including the header, and which parts of the
    data were sent.
    """

    __slots__ = ("capacity", "last_used", "sent", "start")

    def __init__(self, start: int, capacity: int) -> None:
        self.start, self.capacity = start, capacity
        self.last_used = 0
        self.sent: list[tuple[int, int]] = []


class WorkerMemory:
    """The memory of one worker process, for its batches. Safe from several threads.

    Raises:
        OSError: The system does not provide such memory.
    """

    def __init__(self) -> None:
        native = optional_module("shared")
        if native is None or not hasattr(os, "memfd_create") or not hasattr(os, "posix_fallocate"):
            raise OSError("needs Linux and the compiled core")
        if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
            raise OSError("the address space is limited (ulimit -v)")
        self._native = native
        # OSError unless processes of this user see each other's files there
        os.listdir(f"/proc/{os.getppid()}/fd")
        self._fd = os.memfd_create("torch_tfrecord")
        token = os.urandom(_TOKEN_BYTES)
        try:
            os.ftruncate(self._fd, _SIZE)
            self._mapping: Mapping = native.Mapping(self._fd, _SIZE)
            os.posix_fallocate(self._fd, 0, _PAGE)
            # OSError if the system cannot take memory back, as in some sandboxes
            self._mapping.forget(0, _PAGE)
            os.posix_fallocate(self._fd, 0, _PAGE)
            os.pwrite(self._fd, token, 0)
        except BaseException:
            os.close(self._fd)
            raise
        self._address, self._header_bytes = (
            int(self._mapping.address),
            int(self._native.HEADER_BYTES),
        )
        self.pid = os.getpid()
        self.name = MemoryName(self.pid, self._fd, self._mapping.size, token)
        self._lock = threading.Lock()
        self._end = _PAGE
        self._clock = 0
        self._held: deque[_Block] = deque()
        self._free: list[_Block] = []  # the most recently used one last
        self._empty: list[_Block] = []  # whose memory went back to the system
        self._blocks: list[_Block] = []  # all of them, by where they begin

    def piece(self, num_bytes: int) -> Any | None:
        """Writable memory, not cleared, with the buffer protocol; None if there is no more."""
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
        for _ in range(min(_POLLED, len(self._held))):
            block = self._held.popleft()
            (self._held if self._mapping.holders(block.start) else self._free).append(block)
        return _pop_fitting(self._free, capacity)

    def _grow(self, capacity: int) -> _Block | None:
        """A block that gets memory from the system: an empty one, or one after all others."""
        block = _pop_fitting(self._empty, capacity) or _Block(self._end, capacity)
        end = block.start + block.capacity
        if end > self._mapping.size:
            return None
        try:
            # without it, a write may kill the process (SIGBUS)
            os.posix_fallocate(self._fd, block.start, block.capacity)
        except OSError as error:
            if end <= self._end:
                self._empty.append(block)
            warn(
                f"shared memory for batches: cannot allocate {block.capacity} bytes ({error.strerror}); torch sends "
                "this worker's batches itself, which is slower and needs space in /dev/shm (in containers --shm-size)",
                RuntimeWarning,
            )
            return None
        if end > self._end:
            self._end = end
            self._blocks.append(block)
        return block

    def _trim(self) -> None:
        """Return the memory of blocks to the system that were not used for long."""
        for block in [b for b in self._free if self._clock - b.last_used > _IDLE]:
            self._mapping.forget(block.start, block.capacity)
            self._free.remove(block)
            self._empty.append(block)

    def send(self, address: int, num_bytes: int) -> tuple[int, int] | None:
        """The place of memory that a message may send without a copy: the piece's start, and the
        offset from it.

        None for memory that is not this worker's, or was sent before: no other receiver may see
        what the first one writes there.
        """
        place = address - self._address
        if not 0 <= place < self.name.size:
            return None
        with self._lock:
            block = self._block(place)
            begin, sent = place - block.start, block.sent
            end = begin + num_bytes
            if sent and sent[-1][1] == begin and len(sent) == 1:  # columns, one after another
                sent[-1] = (sent[-1][0], end)
            elif any(begin < other_end and other < end for other, other_end in sent):
                return None
            else:
                sent.append((begin, end))
        return block.start, begin - self._header_bytes

    def hold(self, start: int) -> tuple[int, int]:
        """Hold a piece for a message's receiver; returns the arguments for `Piece`: its start and
        its bytes.
        """
        self._mapping.hold(start)
        return start, self._block(start).capacity - self._header_bytes

    def _block(self, place: int) -> _Block:
        """The one that has a place."""
        return self._blocks[bisect_right(self._blocks, place, key=attrgetter("start")) - 1]

    def release(self) -> None:
        """Return everything that is not held to the system, at the worker's end: batches may be
        kept for long.
        """
        with self._lock:
            for block in self._blocks:
                if not self._mapping.holders(block.start):
                    self._mapping.forget(block.start, block.capacity)


def _rounded(size: int) -> int:
    """Rounded up in steps of an eighth, so that batches of similar size can reuse each other's
    pieces.
    """
    step = max(_PAGE, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


def _pop_fitting(blocks: list[_Block], capacity: int) -> _Block | None:
    """The last one that has the capacity, and not more than twice as much."""
    for number in range(len(blocks) - 1, -1, -1):
        if capacity <= blocks[number].capacity <= 2 * capacity:
            return blocks.pop(number)
    return None


# In the worker.

_MEMORY: WorkerMemory | None = None
_FAILED_IN = 0  # pid of the process that could not get any


def worker_memory() -> WorkerMemory | None:
    """This process's memory for batches, if it is a DataLoader worker and the system can share
    memory.
    """
    global _MEMORY, _FAILED_IN
    data = sys.modules.get("torch.utils.data")  # reading records does not need torch
    if data is None or data.get_worker_info() is None:
        return None
    pid = os.getpid()
    if (_MEMORY is None or pid != _MEMORY.pid) and pid != _FAILED_IN:
        try:
            _MEMORY = WorkerMemory()
            _ATTACHED.clear()  # inherited from the main process if this one was forked
            # after the queue's thread
            multiprocessing.util.Finalize(None, _MEMORY.release, exitpriority=-100)
        except OSError:
            _MEMORY, _FAILED_IN = None, pid
    return _MEMORY


# In the main process.

_ATTACHED: dict[bytes, tuple[int, Mapping]] = {}


def attach(name: MemoryName, start: int, num_bytes: int) -> Piece:
    """A piece of a worker's memory, which is held for the caller; the arguments are those of
    `hold`.

    Raises:
        RuntimeError: The worker has ended, or this process has no room for the piece.
    """
    native: Any = optional_module("shared")
    known = _ATTACHED.get(name.token)
    mapping = _attach(name) if known is None else known[1]
    return native.Piece(mapping, start, num_bytes)


def _attach(name: MemoryName) -> Mapping:
    for token, (pid, _) in list(_ATTACHED.items()):
        if not os.path.exists(f"/proc/{pid}"):
            _ATTACHED.pop(token, None)
    _, mapping = _ATTACHED.setdefault(name.token, (name.pid, _map(name)))
    for process in multiprocessing.active_children():
        if process.pid == name.pid:  # unmap it when its loader is gone, at the latest
            weakref.finalize(process, _ATTACHED.pop, name.token, None).atexit = False
    return mapping


def _map(name: MemoryName) -> Mapping:
    native: Any = optional_module("shared")
    worker = f"DataLoader worker (pid {name.pid})"
    try:
        fd = os.open(f"/proc/{name.pid}/fd/{name.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            mapping: Mapping = native.Mapping(fd, name.size)
            token = os.pread(fd, _TOKEN_BYTES, 0)
        finally:
            os.close(fd)
    except FileNotFoundError as error:
        raise RuntimeError(
            f"{worker} has ended before its batch was received: {error.strerror}"
        ) from error
    except OSError as error:
        raise RuntimeError(
            f"{worker}: cannot map {name.size} bytes of its memory: {error.strerror}"
        ) from error
    if token != name.token:
        raise RuntimeError(
            f"{worker} has ended before its batch was received: another process has its pid"
        )
    return mapping
