"""Whether looks at a server's gauges saw the load at all, by what its clients know."""

from collections.abc import Iterable

EXPECTED = 5
"""Looks that should have found a request before it is said that they did not: by chance all of these fall between
requests in fewer than e^-5 of the runs, 0.7 %."""
FOUND = 0.1
"""The share of these, at most, that did."""


def missed(
    looks: Iterable[tuple[float | None, float | None]], spans: Iterable[tuple[float, float]], elapsed: float
) -> list[str]:
    """One line where the gauges missed the load, else none.

    looks: running and waiting as the server said, None where it did not. spans: of each request that got a token, when
    it was sent and when its last token came. elapsed: of the whole load, in the same unit.
    """
    told = [running + (waiting or 0) for running, waiting in looks if running is not None]
    ordered = sorted(spans)
    busy, until = 0.0, 0.0
    for sent, last in ordered:
        busy += max(0.0, last - max(sent, until))
        until = max(until, last)
    if not told or not busy:
        return []
    share = min(1.0, busy / elapsed)
    found = sum(count > 0 for count in told)
    if len(told) * share < EXPECTED or found > FOUND * len(told) * share:
        return []
    mean = sum(last - sent for sent, last in ordered) / elapsed
    return [
        f"the server's gauges missed the load: {found:,} of {len(told):,} looks found a request, yet some were in "
        f"flight for {100 * share:.0f} % of the time, {mean:,.1f} in the mean: looks fell on quiet moments, so "
        "running, waiting and KV use come out too low"
    ]
