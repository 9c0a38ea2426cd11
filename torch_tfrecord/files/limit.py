"""How many requests may be in flight: as many as make a storage faster, found out while it is
used.
"""

from __future__ import annotations

from time import monotonic

__all__ = ["AdaptiveLimit"]

# what a request counts beside its bytes: of small ones more are served, not more bytes
_REQUEST_BYTES = 1 << 16
_GAIN = 1.05  # that a larger number must bring
_UP, _DOWN = 1.5, 0.67
_FIRST, _LEAST = 128, 4  # requests
_LEAST_SECONDS = 0.1  # that a number is measured for, twice where it brings nothing: other processes are busy, too
_CALM_SECONDS = 1.0  # between two refusals that count
_REST_WINDOWS = 20  # before the next trials


class AdaptiveLimit:
    """Tries more requests at once while they bring more bytes a second, and fewer where they bring
    as much.

    No fixed number is right: one connection of a storage far away gives little, and a hundred to a
    disk next door are slower than one. Halves when the storage refuses. Not safe from threads:
    whoever calls holds a lock.

    Args:
        most: The most requests.

    Attributes:
        number: Requests that may be in flight now.
    """

    def __init__(self, most: int = 256) -> None:
        self.number, self._most = _FIRST, most
        self._begin: float | None = None
        self._count = self._bytes = 0
        self._best_rate, self._best_number = 0.0, _FIRST
        self._rates: list[float] = []  # of this number
        self._factor = _UP  # of this trial
        self._rests = 2  # windows until the next trial: connections are made in the first ones
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
        if self._rests:
            self._rests -= 1
            if not self._rests:
                self._try(_DOWN if self._best_rate and self._factor > 1 else _UP)
                self._best_rate = rate
            return
        self._rates.append(rate)
        if max(self._rates) > self._best_rate * (_GAIN if self._factor > 1 else 1.0):
            self._best_rate, self._best_number = max(self._rates), self.number
            self._try(self._factor)
        elif len(self._rates) > 1:  # it brings nothing
            self._set(self._best_number)
            self._rests = _REST_WINDOWS

    def _try(self, factor: float) -> None:
        self._factor = factor
        self._set(self._best_number * factor)
        if self.number == self._best_number:  # at an end
            self._rests = _REST_WINDOWS

    def refused(self) -> None:
        """The storage asks for fewer requests."""
        now = monotonic()
        if now - self._refused_at >= _CALM_SECONDS:
            self._refused_at, self._rests = now, _REST_WINDOWS
            self._set(self.number / 2)
            self._best_number = self.number
        self._begin = None

    def _set(self, number: float) -> None:
        self.number = max(_LEAST, min(self._most, int(number)))
        self._rates = []
