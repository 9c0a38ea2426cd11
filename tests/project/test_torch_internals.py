"""What is used of torch that torch does not document: these tests say first when a new torch changed it.

All of it is in loading/read_ahead.py, but for the map of `default_collate`, which is documented.
"""

import inspect
from pathlib import Path

from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

import torch_tfrecord

# What `_ReadAheadIterator` reads of torch's iterator, and the methods that it replaces.
ATTRIBUTES = ["_collate_fn", "_dataset", "_num_yielded", "_pin_memory", "_pin_memory_device", "_sampler_iter"]
METHODS = ["__next__", "_next_data"]


def test_the_iterator_of_a_loader_without_workers():
    loader = DataLoader([10, 11, 12], batch_size=2)
    iterator = iter(loader)
    assert type(iterator) is _SingleProcessDataLoaderIter
    assert [name for name in ATTRIBUTES if not hasattr(iterator, name)] == []
    assert list(inspect.signature(_SingleProcessDataLoaderIter.__init__).parameters) == ["self", "loader"]
    assert (iterator._dataset, iterator._collate_fn) == (loader.dataset, loader.collate_fn)
    assert (iterator._num_yielded, list(iterator._sampler_iter)) == (0, [[0, 1], [2]])


def test_the_methods_that_are_replaced():
    for name in METHODS:
        assert list(inspect.signature(getattr(_BaseDataLoaderIter, name)).parameters) == ["self"]
    calls = []

    class Iterator(_SingleProcessDataLoaderIter):
        def _next_data(self):
            calls.append(self._num_yielded)
            return super()._next_data()

    assert [batch.tolist() for batch in Iterator(DataLoader([10, 11, 12], batch_size=2))] == [[10, 11], [12]]
    assert calls == [0, 1, 2]  # torch's own __next__ asks here, and counts afterwards


def test_pin_memory_takes_a_batch_and_a_device():
    assert list(inspect.signature(pin_memory).parameters) == ["data", "device"]


def test_no_other_module_looks_inside_torchs_loader():
    package = Path(torch_tfrecord.__file__).parent
    users = [
        path.relative_to(package).as_posix()
        for path in sorted(package.rglob("*.py"))
        if "torch.utils.data._utils" in path.read_text() or "torch.utils.data.dataloader import _" in path.read_text()
    ]
    assert set(users) <= {"loading/read_ahead.py", "batches/collate.py"}
