from collections.abc import Iterable

class Job:
    seconds: float

class Started:
    def __init__(self, job: Job) -> None: ...
    def finish(self) -> bool: ...

def run(jobs: Iterable[Job]) -> int: ...
