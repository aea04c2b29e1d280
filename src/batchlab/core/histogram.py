"""How often each value occurred, in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

ERROR = 2.0**-11
"""Most relative distance of a value from the middle of its bucket."""

# For this file alone: where it is compiled these are C constants, which nobody else can import.
EXACT_VALUES = 4096  # so many different values are kept exactly
FINE_BITS = 10  # beyond, values share a bucket with those that agree in so many binary digits after the first
LARGEST = 1 << 62
SMALL = 1 << 31  # the product of two smaller numbers fits 64 bits, added to one below LARGEST too
MIX = 0x9E3779B1


class Histogram:
    """Counts of non-negative integers.

    Exact for up to 4096 different values. When there are more, every value from 2^11 on is known only by its bucket,
    whose middle stands for it: at most ERROR away, relatively. Whether that has happened depends on which
    values occurred, not on their order. Count, sum and largest value are exact in any case.
    """

    def __init__(self) -> None:
        self.count = 0
        self.largest = 0
        self.exact = True
        self._total = 0  # a Python integer: the sum but for what is in `_part`
        self._part = 0
        self._different = 0
        self._mask = 2 * EXACT_VALUES - 1
        self._keys = array("q", [-1]) * (2 * EXACT_VALUES)  # open addressing; -1: free
        self._times = array("q", bytes(16 * EXACT_VALUES))
        self._buckets = array("q")

    def add(self, value: int, times: int) -> None:
        """The value occurred so many times more."""
        if times < 1:
            return
        self.count += times
        if value > self.largest:
            self.largest = value
        if value < SMALL and times < SMALL and self._part < LARGEST:
            self._part += value * times
        else:
            self._carry(value, times)
        if not self.exact:
            self._buckets[bucket_of(value)] += times
            return
        place = (((value ^ (value >> 31)) & 0x7FFFFFFF) * MIX >> 15) & self._mask  # stays below 2^63
        while self._keys[place] != value:
            if self._keys[place] < 0:
                self._keys[place] = value
                self._different += 1
                break
            place = (place + 1) & self._mask
        self._times[place] += times
        if self._different > EXACT_VALUES:
            self._coarsen()

    @property
    def total(self) -> int:
        """The sum of all values, each as often as it occurred."""
        return self._total + self._part

    def items(self) -> Iterator[tuple[int, int]]:
        """(value, times) in rising order; values are the middles of their buckets unless `exact`."""
        if self.exact:
            found = [(key, times) for key, times in zip(self._keys, self._times, strict=True) if key >= 0]
            yield from sorted(found)
        else:
            for bucket, times in enumerate(self._buckets):
                if times:
                    yield middle_of(bucket), times

    def _carry(self, value: int, times: int) -> None:
        """What 64 bits may not hold goes into a Python integer."""
        self._total += self._part + value * times
        self._part = 0

    def _coarsen(self) -> None:
        self.exact = False
        self._buckets = array("q", bytes(8 * (bucket_of(LARGEST) + 1)))
        for place in range(self._mask + 1):
            if self._keys[place] >= 0:
                self._buckets[bucket_of(self._keys[place])] += self._times[place]


def bucket_of(value: int) -> int:
    """The bucket of a value: itself below 2^11, then 2^10 buckets for each power of two."""
    shift = 0
    rest = value >> (FINE_BITS + 1)
    while rest > 255:
        rest >>= 8
        shift += 8
    while rest > 0:
        rest >>= 1
        shift += 1
    return (shift << FINE_BITS) + (value >> shift)


def middle_of(bucket: int) -> int:
    """The middle of a bucket's values, rounded down."""
    shift = (bucket >> FINE_BITS) - 1
    if shift <= 0:
        return bucket
    lowest = (bucket - (shift << FINE_BITS)) << shift
    width = 1  # a variable: where this is compiled a literal has 32 bits
    width <<= shift
    return lowest + (width - 1) // 2
