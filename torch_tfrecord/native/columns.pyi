from collections.abc import Callable
from typing import Any

from torch_tfrecord.native.jobs import Job

class Memory:
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Plan:
    def __init__(self, slots: list[tuple[bytes, int, int, bool]]) -> None: ...
    def parse_one(self, record: Any) -> tuple[Memory, list[Memory], bytes | None] | None: ...

class ParseJob(Job):
    def __init__(
        self,
        plan: Plan,
        buffer: Any,
        starts: Any,
        lengths: Any,
        block: Any,
        offsets: Any,
        missing: Any,
    ) -> None: ...
    def finish(
        self, canonical: Callable[[int], bytes] | None = None
    ) -> tuple[list[Memory], list[bool] | None, list[bytes]] | None: ...

class SequencePlan:
    def __init__(self, slots: list[tuple[bytes, int]]) -> None: ...
    def parse(
        self,
        buffer: Any,
        starts: Any,
        lengths: Any,
        contexts: Any,
        borders: Any,
        missing: Any,
        canonical: Callable[[int], bytes] | None = None,
    ) -> tuple[list[tuple[Memory, Memory]], list[bytes]] | None: ...

def copies(buffer: Any, spans: Any, offsets: Any = None) -> list[Any]: ...
def texts(buffer: Any, spans: Any, offsets: Any = None) -> list[Any]: ...
def string_at(record: bytes, block: Memory, place: int, is_text: bool) -> Any: ...
def strings_in(record: bytes, spans: Memory, is_text: bool) -> list[Any]: ...
def hide(wanted: bool) -> None: ...
def show(values: list[Any]) -> None: ...
def varints(buffer: Any, values: Any, level: int) -> bool | None: ...
