"""Of times: the clock counts ns, people read ms and s. And of counts: one request, two requests."""

NS_IN_MS = 10**6
NS_IN_S = 10**9
SCALES = ((NS_IN_S, "s"), (NS_IN_MS, "ms"), (10**3, "us"))


def duration(time: float, unit: str) -> str:
    """A time in the clock's unit; ns in whatever unit fits."""
    if unit == "ns":
        for scale, name in SCALES:
            if time >= scale:
                return f"{time / scale:,.3f} {name}"
        return f"{time:,.0f} ns"
    number = f"{time:,}" if isinstance(time, int) else f"{time:,.1f}"
    return f"{number} {unit}{'' if time == 1 else 's'}"


def counted(count: int, noun: str) -> str:
    """So many of them: 1 request, 2 requests."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def were(count: int) -> str:
    """The verb of so many."""
    return "was" if count == 1 else "were"
