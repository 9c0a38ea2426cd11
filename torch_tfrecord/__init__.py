"""Read TFRecord files in PyTorch, without TensorFlow.

`__init__.pyi` tells type checkers and this module where each name comes from. A name is imported
when it is first used: importing torch takes seconds, and the command line mostly does not need it.
"""

import lazy_loader

__version__ = "0.1.0"
_found, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    try:
        return _found(name)
    except AttributeError:
        from torch_tfrecord.arguments import nearest

        hint = nearest(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}") from None
