"""From samples and columns to batches."""

__all__: list[str] = []
