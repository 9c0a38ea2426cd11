"""Records to samples and columns."""

__all__: list[str] = []
