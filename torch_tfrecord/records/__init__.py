"""TFRecord files: framing, compression, indexes, reading and writing."""

__all__: list[str] = []
