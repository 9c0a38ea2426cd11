"""Mixtures of streams, of anything that can be iterated."""

from collections.abc import Mapping

from torch.utils.data import IterableDataset

from torch_tfrecord import Mixture


class Stream(IterableDataset):
    """The items of an iterable, without a length or positions."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def as_stream(dataset):
    return (
        Stream(dataset)
        if hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
        else dataset
    )


def stream_mixture(datasets, *arguments, **options):
    if isinstance(datasets, Mapping):
        datasets = {name: as_stream(dataset) for name, dataset in datasets.items()}
    else:
        datasets = [*map(as_stream, datasets)]
    return Mixture(datasets, *arguments, **options)
