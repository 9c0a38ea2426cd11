"""Parse records into samples and batch columns."""

__all__: list[str] = []
