"""Storages behind a ``scheme://``: who may read there, by which client, and many requests at
once.
"""

__all__: list[str] = []
