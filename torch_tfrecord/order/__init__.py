"""Which record comes when, and for which rank: arithmetic on positions, epochs, states to resume from."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
