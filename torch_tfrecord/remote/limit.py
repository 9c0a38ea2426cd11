"""How many requests may be in flight: as many as make a storage faster, found out while it is used."""

from __future__ import annotations

from time import monotonic

__all__ = ["AdaptiveLimit"]

_REQUEST_BYTES = 1 << 16  # what a request counts beside its bytes: of small ones more are served, not more bytes
_GAIN = 1.05  # that a larger number must bring
_LOSS = 0.7
_RAISE, _LOWER = 1.5, 0.75
_LEAST_SECONDS = 0.1
_CALM_SECONDS = 1.0  # between two refusals that count
_PROBE_WINDOWS = 30  # after which a larger number is tried again


class AdaptiveLimit:
    """Climbs while more requests at once bring more bytes a second, goes back where they do not, halves when refused.

    No fixed number is right: one connection of a storage far away gives little, and a hundred to a disk next door are
    slower than one. Not safe from threads: whoever calls holds a lock.

    Args:
        first, least, most: The number at first, and what it stays between.

    Attributes:
        number: Requests that may be in flight now.
    """

    def __init__(self, first: int = 32, least: int = 4, most: int = 256) -> None:
        self.number, self._least, self._most = first, least, most
        self._begin: float | None = None
        self._count = self._bytes = 0
        self._best_rate, self._best_number = 0.0, first
        self._windows = 0
        self._refused_at = -_CALM_SECONDS

    def finished(self, num_bytes: int, is_busy: bool) -> None:
        """Note a request that came back.

        Args:
            num_bytes: Of it.
            is_busy: Whether others wait for their turn: else the number is not what limits.
        """
        if not is_busy:
            self._begin = None
            return
        now = monotonic()
        if self._begin is None:
            self._begin, self._count, self._bytes = now, 0, 0
            return
        self._count += 1
        self._bytes += num_bytes
        seconds = now - self._begin
        if seconds >= _LEAST_SECONDS and self._count >= 2 * self.number:
            self._learn((self._bytes + _REQUEST_BYTES * self._count) / seconds)
            self._begin = None

    def _learn(self, rate: float) -> None:
        self._windows += 1
        if rate > _GAIN * self._best_rate:
            self._best_rate, self._best_number, self._windows = rate, self.number, 0
            self._set(self.number * _RAISE)
        elif self.number > self._best_number:
            self._set(self._best_number)
        elif rate < _LOSS * self._best_rate and self._windows % 2 == 0:  # the storage, or the link, is not what it was
            self._best_rate = rate
            self._set(self.number * _LOWER)
            self._best_number = self.number
        elif self._windows >= _PROBE_WINDOWS:
            self._best_rate, self._windows = rate, 0
            self._set(self.number * _RAISE)

    def refused(self) -> None:
        """The storage asks for fewer requests."""
        now = monotonic()
        if now - self._refused_at >= _CALM_SECONDS:
            self._refused_at, self._best_rate = now, 0.0
            self._set(self.number / 2)
            self._best_number = self.number
        self._begin = None

    def _set(self, number: float) -> None:
        self.number = max(self._least, min(self._most, int(number)))
