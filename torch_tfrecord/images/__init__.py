"""Encoded images: read headers, decode, crop."""

__all__: list[str] = []
