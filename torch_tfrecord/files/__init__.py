"""Bytes of local files by ranges, the options of reading, files that appear complete or not at all."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
