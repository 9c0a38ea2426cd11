from collections.abc import Iterable

class Job:
    seconds: float

def run(jobs: Iterable[Job]) -> int: ...
