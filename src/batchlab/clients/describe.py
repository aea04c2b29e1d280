"""What a workload is like: figures of its arrivals, lengths and shared prompts."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from batchlab.clients.columns import Columns, Integers
from batchlab.clients.request import Request
from batchlab.clients.rows import HASH_TOKENS
from batchlab.units import NS_IN_S

PERCENTILES = (1, 10, 25, 50, 75, 90, 95, 99)
NS_IN_MINUTE = 60 * NS_IN_S
Run = tuple[int, int, int]
"""Segment, start and length of some tokens of a request."""


def figures(columns: Columns, clock_unit: str) -> dict[str, Any]:
    """Figures as JSON can hold them; None where there is none. Percentiles by numpy's linear interpolation.

    Rates are requests per second where the clock counts ns, else per unit of the clock. The mean rate is
    (n - 1) / span: the gaps over the time that they fill. `cv_of_gaps`: standard deviation (population) over mean of
    the gaps between arrivals, 1 for a Poisson process; `burstiness` is 1 / cv^2, the shape of a gamma process with
    that variation. Where turns of sessions wait for an answer, arrivals are those known before the run; `rate_of` is
    `sessions` where these are first turns only, and the rate and the peak count them.
    """
    arrival = np.sort(starts(columns))
    span = int(arrival[-1] - arrival[0])
    per_second = NS_IN_S if clock_unit == "ns" else 1
    gaps = np.diff(arrival)
    cv = float(gaps.std() / gaps.mean()) if len(gaps) and span else None
    found: dict[str, Any] = {
        "requests": len(columns),
        "arrivals": len(arrival),
        "unit": clock_unit,
        "span": span,
        "request_rate": (len(arrival) - 1) / span * per_second if span else None,
        "rate_of": "sessions" if _are_sessions(columns) else "requests",
        "peak_per_minute": _peak_per_minute(arrival) if clock_unit == "ns" else None,
        "cv_of_gaps": cv,
        "burstiness": 1 / cv**2 if cv else None,
        "prompt": _lengths(columns.prompt),
        "output": _lengths(columns.output),
        "prompt_to_output": float(columns.prompt.sum() / columns.output.sum()),
        "shared": shared_tokens(columns),
        "classes": _classes(columns),
    }
    if columns.origin is not None:
        found["source"] = {
            "file": columns.origin.file,
            "format": columns.origin.format,
            "sha256": columns.origin.sha256,
        }
        found["steps"] = list(columns.origin.steps)
        found["max_tokens_rule"] = columns.origin.rule
    return found


def columns_of(requests: Sequence[Request]) -> Columns:
    """Requests as columns; of those that are written out without what they share (see `shared_runs`)."""
    if isinstance(requests, Columns):
        return requests
    arrival, prompt, output = (
        np.array([getattr(request, name) for request in requests], np.int64) for name in ("arrival", "prompt", "output")
    )
    return Columns(arrival, prompt, output)


def starts(columns: Columns) -> Integers:
    """The arrivals that are known before a run: where turns wait for an answer, those of the others."""
    if columns.sessions is None or columns.sessions.think is None:
        return columns.arrival
    return columns.arrival[columns.sessions.think < 0]


def _are_sessions(columns: Columns) -> bool:
    """Whether each arrival that is known before a run begins a session, whose other turns wait for answers."""
    if columns.sessions is None or columns.sessions.think is None:
        return False
    return bool((columns.sessions.previous[columns.sessions.think < 0] < 0).all())


def _lengths(values: Integers) -> dict[str, Any]:
    figures: dict[str, Any] = {"total": int(values.sum()), "mean": float(values.mean()), "min": int(values.min())}
    for percent, value in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True):
        figures[f"p{percent}"] = float(value)
    return {**figures, "max": int(values.max())}


def _peak_per_minute(arrival: Integers) -> int:
    """Most arrivals within a minute, wherever it begins."""
    ends = np.searchsorted(arrival, arrival + NS_IN_MINUTE, side="left")
    return int((ends - np.arange(len(arrival))).max())


def shared_tokens(columns: Columns) -> dict[str, Any] | None:
    """Prompt tokens that an earlier request had already, as an unbounded prefix cache would find; None if unknown."""
    if columns.hashes is not None:
        return _shared_hashes(*columns.hashes, columns.prompt)
    if columns.sessions is None:
        generated = columns.origin is not None and columns.origin.file is None
        return _share(0, int(columns.prompt.sum()), None) if generated else None
    sessions = columns.sessions
    first = np.zeros(len(columns), bool)  # of its class, which then brings the prefix itself
    first[np.unique(sessions.kind, return_index=True)[1]] = True
    repeated = np.where(sessions.previous >= 0, columns.prompt - sessions.new, np.where(first, 0, sessions.prefix))
    return _share(int(repeated.sum()), int(columns.prompt.sum()), int((sessions.previous < 0).sum()))


def shared_runs(requests: Sequence[Request]) -> dict[str, Any] | None:
    """The same of requests that are written out, which may begin with what others were asked or answered."""
    if not any(request.tokens for request in requests):
        return None
    before = Beginnings()
    repeated = 0
    for request in sorted(requests, key=lambda request: request.arrival):
        if request.tokens is not None:
            own = request.tokens.prompt
            repeated += before.common(own)
            before.add([*own, (request.tokens.output_segment, 0, request.output)])
    return _share(repeated, sum(request.prompt for request in requests), None)


class Beginnings:
    """All that was told, as a tree of runs: a run is looked up once, however many have begun alike."""

    def __init__(self) -> None:
        self._longest: dict[tuple[int, int, int], int] = {}
        """Place in the tree, segment and start -> the longest run that was told there."""
        self._after: dict[tuple[int, Run], int] = {}
        """Place and a run -> the place behind it; the root is 0."""

    def add(self, runs: Iterable[Run]) -> None:
        """These tokens were told."""
        place = 0
        for run in _joined(runs):
            key = (place, *run[:2])
            self._longest[key] = max(run[2], self._longest.get(key, 0))
            place = self._after.setdefault((place, run), len(self._after) + 1)

    def common(self, runs: Iterable[Run]) -> int:
        """How many of these tokens, from the first on, have been told in one piece."""
        place, common = 0, 0
        for run in _joined(runs):
            common += min(run[2], self._longest.get((place, *run[:2]), 0))
            if (place, run) not in self._after:  # a longer run goes on with other tokens: runs are joined
                break
            place = self._after[place, run]
        return common


def _joined(runs: Iterable[Run]) -> list[Run]:
    """The same tokens in as few runs as there can be, so that equal tokens are equal runs."""
    joined: list[Run] = []
    for segment, start, length in runs:
        if joined and joined[-1][0] == segment and sum(joined[-1][1:]) == start:
            joined[-1] = (segment, joined[-1][1], joined[-1][2] + length)
        elif length:
            joined.append((segment, start, length))
    return joined


def _shared_hashes(offsets: Integers, values: Integers, prompt: Integers) -> dict[str, Any]:
    """Blocks count while all before them in the prompt were there too."""
    counts = np.diff(offsets)
    _, first = np.unique(values, return_index=True)
    is_new = np.zeros(len(values), bool)
    is_new[first] = True
    owner = np.repeat(np.arange(len(counts)), counts)
    news = np.cumsum(is_new)
    before = np.concatenate(([0], news))[offsets[:-1]]
    repeated = news - before[owner] == 0
    tokens = np.full(len(values), HASH_TOKENS, np.int64)
    tokens[offsets[1:] - 1] = prompt - HASH_TOKENS * (counts - 1)
    return _share(int(tokens[repeated].sum()), int(prompt.sum()), None)


def _share(tokens: int, total: int, sessions: int | None) -> dict[str, Any]:
    return {"tokens": tokens, "share": tokens / total, "sessions": sessions}


def _classes(columns: Columns) -> list[dict[str, Any]] | None:
    if columns.groups is None:
        return None
    names, groups = columns.groups
    found = []
    for index, name in enumerate(names):
        chosen = groups == index
        count = int(chosen.sum())
        means = {
            key: float(values[chosen].mean()) if count else None
            for key, values in (("prompt_mean", columns.prompt), ("output_mean", columns.output))
        }
        found.append({"name": name, "requests": count, "share": count / len(columns), **means})
    return found
