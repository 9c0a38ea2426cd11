from typing import Any

__all__: list[str]

class RowLayout:
    def __init__(self, items: list[tuple[Any, ...]]) -> None: ...
    def encode(
        self, row: dict[Any, Any], memory: bytearray, framed: bool = False
    ) -> memoryview | None: ...

def encode_columns(
    columns: list[tuple[Any, ...]], lengths: Any, memory: bytearray
) -> memoryview: ...
