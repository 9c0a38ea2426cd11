"""Read and write TFRecord files in Ray, Dask, Spark and polars, without TensorFlow.

Each module needs the package that it is for, and is imported when you use it:
``from torch_tfrecord.engines.ray import read_tfrecords``.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
