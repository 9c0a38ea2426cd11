"""Encoded images: headers, decoding, crops."""

__all__: list[str] = []
