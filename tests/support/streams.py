"""A double of an accelerator: its streams do their work only when somebody looks, as late as the
events between them allow.
"""

import threading
import weakref

import torch

POISON = 0xEE


class Stream:
    """Work in order; a wait makes another stream work first, up to the event."""

    def __init__(self):
        self.work, self.num_done = [], 0
        self.lock = threading.RLock()

    def run(self, end=None):
        with self.lock:
            while self.num_done < (len(self.work) if end is None else end):
                self.num_done += 1
                self.work[self.num_done - 1]()
                self.work[self.num_done - 1] = None


class Event:
    def __init__(self, stream):
        self.stream, self.place = stream, len(stream.work)

    def query(self):
        return self.stream.num_done >= self.place

    def run(self):
        self.stream.run(self.place)


class DoubleDevice:
    """`Streams` whose memory is the host's.

    Pinned memory is given out again as soon as Python has forgotten it, and overwritten at once: no
    allocator that knows of copies helps. Device memory is poison until the copy is done.
    """

    def __init__(self, device):
        self.device = device
        self.side, self.training = Stream(), Stream()
        self.copies, self.pinned_by, self.waits = [], [], 0
        self.opened_by = set()
        self.num_blocks, self.free = 0, []
        self.lock = threading.RLock()

    def open(self):
        self.opened_by.add(threading.get_ident())

    def pinned(self, size):
        assert size % 16 == 0 and self.opened_by
        self.pinned_by.append(threading.get_ident())
        with self.lock:
            fits = [number for number, array in enumerate(self.free) if len(array) == size]
            if fits:
                array = self.free.pop(fits[0])
            else:
                self.num_blocks += 1
                array = torch.empty(size, dtype=torch.uint8).numpy()
        array[:] = POISON
        view = array[:]  # which the tensor's storage holds, whatever Python object it has
        weakref.finalize(view, self.free.append, array).atexit = False
        return torch.from_numpy(view)

    def copy(self, hosts):
        blocks = []
        for host in hosts:
            block = torch.full_like(host, POISON)
            # its memory, not the tensor: whoever began the copy must keep that
            self.side.work.append(_copying(host.numpy().ctypes.data, host.nbytes, block))
            blocks.append(block)
        self.copies.append([host.nbytes for host in hosts])
        return blocks, Event(self.side)

    def run(self, function):
        self.side.run()  # as torchcodec, which waits for its stream
        function()
        return Event(self.side)

    def is_idle(self):
        return self.training.num_done == len(self.training.work)

    def wait(self, event, blocks, before=None):
        assert threading.get_ident() in self.opened_by
        if before is not self.training:
            self.waits += 1
            self.training.work.append(event.run)
        return self.training

    def use(self, function):
        """What a training step launches: it sees a batch once the stream comes to it."""
        self.training.work.append(function)


def _copying(address, size, block):
    import ctypes

    def work():
        ctypes.memmove(block.data_ptr(), address, size)

    return work
