"""What to read from a record: the specs."""

__all__: list[str] = []
