"""Files of buckets and servers: clients, many requests at once, copies on the disk."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
