"""Train in PyTorch from TFRecord files, without TensorFlow.

`__init__.pyi` says where each name is from, to type checkers and to this module. A name is imported when it is first
used: torch takes seconds, and the command line mostly does without.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
