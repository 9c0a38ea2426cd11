"""Feature specs: what to read from a record."""

__all__: list[str] = []
