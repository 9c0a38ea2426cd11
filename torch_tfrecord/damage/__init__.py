"""Damaged files: what to skip, where records go on, and what can be saved."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
