"""Requests from what [workload.generate] says, in arrays from the first draw on."""

from pathlib import Path
from typing import Any

import numpy as np

from batchlab.clients.arrivals import arrival_times
from batchlab.clients.columns import ORACLE, Columns, Integers, Origin
from batchlab.clients.distributions import Distribution
from batchlab.clients.draws import Stream
from batchlab.clients.generate import PROCESSES, ClassTable, GenerateTable
from batchlab.clients.lengths import values
from batchlab.clients.sessions import Sessions
from batchlab.errors import InputError
from batchlab.settings import LATEST, MOST_TOKENS


def build(table: GenerateTable, folder: Path, clock_unit: str) -> Columns:
    """The requests, by arrival. Raises InputError."""
    kinds = table.kinds
    kind = _kind_of_arrivals(table)
    turns = _drawn(table, "turns", kind, 1)
    first = np.cumsum(turns) - turns
    arrivals = int(np.searchsorted(first, table.num_prompts))  # as many sessions as begin within num_prompts
    kind, turns, first = kind[:arrivals], turns[:arrivals], first[:arrivals]
    turns[-1] = table.num_prompts - first[-1]
    kind = np.repeat(kind, turns)
    prefix = np.array([k.shared_prefix for k in kinds], np.int64)[kind]
    is_first = np.zeros(table.num_prompts, bool)
    is_first[first] = True
    new, output = _lengths(table, kind, is_first, folder)
    gap = np.where(is_first, 0, _drawn(table, "turn_gap", kind, 0))
    _refuse_beyond(new, MOST_TOKENS, "a prompt would be longer than 2^40 tokens")
    _refuse_beyond(output, MOST_TOKENS, "an output would be longer than 2^40 tokens")
    if int(gap.max()) * int(turns.max()) > LATEST:  # before it is added up
        raise InputError(None, "workload.generate", None, f"a turn could come after 2^62 {clock_unit}")
    prompt = prefix + _since(new + np.where(is_first, 0, _before(output)), first, turns)
    arrival = np.repeat(arrival_times(table, arrivals, clock_unit), turns) + _since(gap, first, turns)
    _refuse_beyond(prompt, MOST_TOKENS, "a prompt would be longer than 2^40 tokens")
    _refuse_beyond(arrival, LATEST, f"a turn would come after 2^62 {clock_unit}")
    sessions = None
    if table.in_sessions or prefix.any():
        previous = np.where(is_first, -1, np.arange(-1, len(kind) - 1))
        think = _drawn(table, "think_time", kind, 0)
        waits = np.array([k.think_time is not None for k in kinds])[kind] & ~is_first
        sessions = Sessions(previous, prefix, kind, new, np.where(waits, think, -1) if waits.any() else None)
    names = None if table.classes is None else [named.name for named in table.classes]
    columns = Columns(
        arrival,
        prompt,
        output,
        priority=np.array([k.priority for k in kinds], np.int64)[kind],
        deadline=_deadlines(kinds, kind),
        groups=None if names is None else (names, kind),
        sessions=sessions,
    )
    _limit(columns, kinds, kind)
    if table.in_sessions:
        columns = columns.take(np.argsort(arrival, kind="stable"))
        columns.numbers = None  # ids by arrival, as everywhere
    goodput = {getattr(k, "name", None): k.goodput for k in kinds if k.goodput is not None}
    columns.origin = Origin(None, None, "generated", (_said(table, clock_unit),), _rule(kinds), goodput)
    return columns


def _kind_of_arrivals(table: GenerateTable) -> Integers:
    """The class of each arrival of the process, for as many as could be needed."""
    if table.classes is None:
        return np.zeros(table.num_prompts, np.int64)
    ends = np.cumsum([named.weight for named in table.classes])
    shares = Stream(table.seed, "class").uniform(table.num_prompts) * ends[-1]
    found: Integers = np.minimum(np.searchsorted(ends, shares, side="right"), len(ends) - 1).astype(np.int64)
    return found


def _drawn(table: GenerateTable, key: str, kind: Integers, otherwise: int) -> Integers:
    """One value of each class's `turns`, `turn_gap` or `think_time`, where it has any."""
    found = np.full(len(kind), otherwise, np.int64)
    distributions = [getattr(k, key) for k in table.kinds]
    if any(distributions):
        shares = Stream(table.seed, key).uniform(len(kind))
        _fill(found, distributions, kind, shares)
    return found


def _lengths(table: GenerateTable, kind: Integers, is_first: Any, folder: Path) -> tuple[Integers, Integers]:
    """New prompt tokens and output tokens of each request."""
    new, output = np.empty(len(kind), np.int64), np.empty(len(kind), np.int64)
    for fill, name in ((new, "prompt"), (output, "output")):
        distributions = [getattr(k, name) for k in table.kinds]
        if any(distributions):
            shares = Stream(table.seed, name).uniform(len(kind))
            _fill(fill, distributions, kind, shares)
            if name == "prompt" and table.in_sessions:
                later = [k.next_prompt or k.prompt for k in table.kinds]
                _fill(fill, later, np.where(is_first, -1, kind), shares)
    if any(k.lengths for k in table.kinds):
        shares = Stream(table.seed, "rows").uniform(len(kind))
        for index, k in enumerate(table.kinds):
            if k.lengths is not None:
                chosen = np.flatnonzero(kind == index)
                rows = k.lengths.read(folder)
                picked = k.lengths.pick(len(rows), shares[chosen])
                new[chosen], output[chosen] = rows.prompt[picked], rows.output[picked]
    return new, output


def _fill(found: Integers, distributions: list[Distribution | None], kind: Integers, shares: Any) -> None:
    """Where a request's class has a distribution, its value at the request's share."""
    for index, distribution in enumerate(distributions):
        if distribution is not None:
            chosen = kind == index
            found[chosen] = values(distribution, shares[chosen])


def _before(column: Integers) -> Integers:
    """Each request's value of the request before it."""
    return np.concatenate(([0], column[:-1]))


def _since(column: Integers, first: Integers, turns: Integers) -> Integers:
    """Running sums that begin anew with each session."""
    sums = np.cumsum(column)
    found: Integers = sums - np.repeat(sums[first] - column[first], turns)
    return found


def _deadlines(kinds: list[ClassTable], kind: Integers) -> Integers | None:
    if all(k.deadline is None for k in kinds):
        return None
    return np.array([k.deadline or 0 for k in kinds], np.int64)[kind]


def _limit(columns: Columns, kinds: list[ClassTable], kind: Integers) -> None:
    """max_tokens of the classes that have one; an engine cuts what would be longer, so the output is cut too."""
    if any(k.max_tokens is not None for k in kinds):
        limits = np.array([k.max_tokens or 0 for k in kinds], np.int64)[kind]
        above = (limits > 0) & (columns.output > limits)
        if above.any():
            position = int(np.argmax(above))
            place = f"classes[{kind[position]}].max_tokens" if columns.groups is not None else "max_tokens"
            message = f"is below an output that is drawn, {columns.output[position]}: give its distribution a max"
            raise InputError(None, f"workload.generate.{place}", int(limits[position]), message)
        columns.max_tokens = np.where(limits > 0, limits, columns.output)


def _rule(kinds: list[ClassTable]) -> str:
    given = [k.max_tokens is not None for k in kinds]
    return "max_tokens as given" if all(given) else f"where not given, {ORACLE}" if any(given) else ORACLE


def _said(table: GenerateTable, clock_unit: str) -> str:
    """The process in words."""
    per = "s" if clock_unit == "ns" else clock_unit
    settings = []
    for key in PROCESSES[table.arrivals]:
        unit = f"/{per}" if key.endswith("rate") else f" {clock_unit}" if key.endswith(("time", "period")) else ""
        settings.append(f"{key} {getattr(table, key):g}{unit}")
    what = f"arrivals {table.arrivals}" + (f" ({', '.join(settings)})" if settings else "")
    sessions = " of sessions" if table.in_sessions else ""
    return f"{what}{sessions}, seed {table.seed}"


def _refuse_beyond(column: Integers, most: int, message: str) -> None:
    if column.max() > most or column.min() < 0:
        raise InputError(None, "workload.generate", None, message)
