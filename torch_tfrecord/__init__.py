"""Read TFRecord files in PyTorch, without TensorFlow.

`__init__.pyi` tells type checkers and this module where each name comes from. A name is imported
when it is first used: importing torch takes seconds, and the command line mostly does not need it.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
