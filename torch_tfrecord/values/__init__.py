"""The values a feature can hold: dtypes, tensors, containers."""

__all__: list[str] = []
