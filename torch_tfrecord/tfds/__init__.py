"""Read and write TensorFlow Datasets (TFDS) directories of TFRecord files without TensorFlow."""

import lazy_loader

__getattr__, __dir__, _ = lazy_loader.attach_stub(__name__, __file__)
__all__ = [
    "DatasetInfo",
    "Mask",
    "Normalize",
    "OneOf",
    "RLDSDataset",
    "RLDSEpisodes",
    "ReadInstruction",
    "SplitInfo",
    "UniformGoals",
    "dataset_statistics",
    "even_splits",
    "features",
    "info",
    "load",
    "write",
]
