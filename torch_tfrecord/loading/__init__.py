"""Columns become samples and batches of a map-style dataset, through threads or workers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
