"""How often each value occurred: exact while few differ, within a stated error beyond."""

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchlab.core.histogram import ERROR, Histogram, bucket_of, middle_of

MOST_EXACT = 4096  # different values; beyond, percentiles have an error

values = st.one_of(st.integers(0, 5000), st.integers(0, 2**62 - 1), st.integers(0, 61).map(lambda bits: 2**bits))
entries = st.lists(st.tuples(values, st.integers(1, 2**31 + 5)), max_size=60)


def histogram_of(pairs: Any) -> Histogram:
    found = Histogram()
    for value, times in pairs:
        found.add(value, times)
    return found


@settings(derandomize=True, max_examples=300, deadline=None, database=None)
@given(entries, st.randoms(use_true_random=False))
def test_few_different_values_are_counted_exactly(pairs: list[tuple[int, int]], rng: Random) -> None:
    expected: Counter[int] = Counter()
    for value, times in pairs:
        expected[value] += times
    for _ in range(2):
        found = histogram_of(pairs)
        assert found.exact and list(found.items()) == sorted(expected.items())
        assert found.count == sum(expected.values())
        assert found.total == sum(value * times for value, times in expected.items())
        assert found.largest == max(expected, default=0)
        rng.shuffle(pairs)


def test_nothing_occurred_no_times() -> None:
    found = histogram_of([(5, 0), (7, -1)])
    assert (found.count, found.total, found.largest, list(found.items())) == (0, 0, 0, [])


@pytest.mark.parametrize("spread", [4097, 10**5, 10**9, 2**62])
@pytest.mark.parametrize("start", [0, 2**20, 2**61])
def test_many_different_values_are_known_within_the_error(spread: int, start: int) -> None:
    rng = Random(f"{spread} {start}")
    top = min(start + spread, 2**62)
    pairs = [(rng.randrange(start, top), rng.choice([1, 1, 7, 2**30])) for _ in range(9000)]
    pairs += [(start + n, 1) for n in range(MOST_EXACT + 1)]
    expected: Counter[int] = Counter()
    for value, times in pairs:
        expected[value] += times
    rows = []
    for order in (pairs, pairs[::-1], sorted(pairs), rng.sample(pairs, len(pairs))):
        found = histogram_of(order)
        assert not found.exact
        assert found.count == sum(expected.values()) and found.largest == max(expected)
        assert found.total == sum(value * times for value, times in expected.items())
        rows.append(list(found.items()))
    assert rows[1:] == rows[:-1]  # whatever came first
    assert [value for value, _ in rows[0]] == sorted({value for value, _ in rows[0]})
    assert sum(times for _, times in rows[0]) == found.count
    exact, rough = written_out(expected), written_out(dict(rows[0]))
    for percent in (0, 1, 50, 90, 99, 100):
        rank = percent * (found.count - 1) // 100
        assert abs(exact(rank) - rough(rank)) <= ERROR * exact(rank)


def written_out(counts: dict[int, int]) -> Any:
    """The value at a rank."""
    ordered = sorted(counts.items())
    ends = np.cumsum([times for _, times in ordered])
    return lambda rank: ordered[int(np.searchsorted(ends, rank, side="right"))][0]


def test_whether_it_is_exact_depends_on_how_many_differ() -> None:
    for count, exact in ((MOST_EXACT, True), (MOST_EXACT + 1, False)):
        for step in (1, 3, 2**15, 2**31, 2**49):
            assert histogram_of([(n * step, 2) for n in range(count)]).exact is exact


def test_sums_beyond_64_bits_are_exact() -> None:
    pairs = [(2**62 - n, 2**62 // 3 - n) for n in range(3)] + [(2**31 - 1, 2**31 - 1)] * 9
    found = histogram_of(pairs[:2])
    assert found.total == sum(value * times for value, times in pairs[:2]) > 2**63
    several = histogram_of([(2**62 - 1, 2**31)] * 50 + [(2**30, 2**31 - 1)] * 50 + [(2**31, 2**31)] * 50)
    assert several.total == 50 * ((2**62 - 1) * 2**31 + 2**30 * (2**31 - 1) + 2**62)


@settings(derandomize=True, max_examples=500, deadline=None, database=None)
@given(st.integers(0, 2**62))
def test_buckets_are_in_order_and_stand_for_what_is_near(value: int) -> None:
    bucket = bucket_of(value)
    middle = middle_of(bucket)
    assert bucket_of(middle) == bucket and abs(middle - value) <= ERROR * value
    assert bucket_of(value + 1) in (bucket, bucket + 1)
    if value < 2**11:
        assert bucket == middle == value


def test_no_bucket_is_left_out() -> None:
    for bucket in range(bucket_of(2**62) + 1):
        assert bucket_of(middle_of(bucket)) == bucket
