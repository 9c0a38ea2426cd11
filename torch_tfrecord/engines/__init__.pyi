from .parts import open_dataset, schema_of

__all__ = ["open_dataset", "schema_of"]
