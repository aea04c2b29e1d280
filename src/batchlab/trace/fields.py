"""The fields of each kind of line and their types: the trace format as a table of small checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from batchlab.errors import nearest, shorten

SCHEMA_VERSION = 1
MAX_LISTED_IDS = 256
MOST_TOKENS = 1 << 40
"""Largest length, limit or count."""
LEAST, LARGEST = -(1 << 63), (1 << 63) - 1
"""Between these lie all other integers, such as times: 64 bits hold them."""
POWERS: dict[float, str] = {MOST_TOKENS: "2^40", LARGEST: "2^63 - 1"}
ENDED = ("completed", "rejected", "cancelled", "expired", "failed")
RESULTS = (*ENDED, "waiting", "active", "retrying", "pending")

Problems = list[tuple[str, str]]
"""(path of the field, what is wrong with it)."""
Check = Callable[[str, Any, Problems], None]


def check_line(obj: dict[str, Any]) -> Problems:
    """Everything that is wrong with the form of one line."""
    problems: Problems = []
    kind = obj.get("type")
    if not isinstance(kind, str) or kind not in LINES:
        given = "missing" if "type" not in obj else shorten(kind)
        hint = nearest(kind, LINES) if isinstance(kind, str) else ""
        return [("type", f"{given}: one of {', '.join(LINES)} expected{hint}")]
    LINES[kind]("", obj, problems)
    return problems


def _integer(least: int | None = None, null: bool = False, most: float = LARGEST) -> Check:
    expected = "an integer" + ("" if least is None else f" >= {least}") + (" or null" if null else "")
    lowest = LEAST if least is None else least

    def check(path: str, value: Any, out: Problems) -> None:
        if value is None and null:
            return
        if type(value) is not int:
            out.append((path, f"{shorten(value)}: {expected} expected"))
        elif not lowest <= value <= most:
            within = f"at most {POWERS[most]}" if value > most else "-2^63 or more" if least is None else expected
            out.append((path, f"{shorten(value)}: {within} expected"))

    return check


def _count(least: int = 1, null: bool = False) -> Check:
    return _integer(least, null, MOST_TOKENS)


def _text(null: bool = False, empty: bool = False) -> Check:
    expected = ("a string" if empty else "a string that is not empty") + (" or null" if null else "")

    def check(path: str, value: Any, out: Problems) -> None:
        if value is None and null:
            return
        if not isinstance(value, str) or not (value or empty):
            out.append((path, f"{shorten(value)}: {expected} expected"))

    return check


def _one_of(*choices: Any) -> Check:
    expected = " or ".join(shorten(choice) for choice in choices)

    def check(path: str, value: Any, out: Problems) -> None:
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            out.append((path, f"{shorten(value)}: {expected} expected"))

    return check


def _list_of(item: Check) -> Check:
    def check(path: str, value: Any, out: Problems) -> None:
        if not isinstance(value, list):
            out.append((path, f"{shorten(value)}: a list expected"))
            return
        for place, entry in enumerate(value):
            item(f"{path}[{place}]", entry, out)

    return check


def _counts(names: tuple[str, ...] | None = None) -> Check:
    def check(path: str, value: Any, out: Problems) -> None:
        if not isinstance(value, dict):
            out.append((path, f"{shorten(value)}: an object expected"))
            return
        for name, count in value.items():
            if names is not None and name not in names:
                out.append((f"{path}.{name}", f"unknown: one of {', '.join(names)} expected"))
            _count()(f"{path}.{name}", count, out)

    return check


def _record(
    required: dict[str, Check],
    optional: dict[str, Check] | None = None,
    free: bool = False,
    together: tuple[str, ...] = (),
) -> Check:
    """An object with these fields; `free` lets any other field stand beside them, `together`: all of these or none."""
    fields = {**required, **(optional or {})}

    def check(path: str, value: Any, out: Problems) -> None:
        if not isinstance(value, dict):
            out.append((path, f"{shorten(value)}: an object expected"))
            return
        prefix = f"{path}." if path else ""
        for name in required:
            if name not in value:
                out.append((prefix + name, "missing"))
        for name in together:
            if name not in value and any(other in value for other in together):
                out.append((prefix + name, f"missing: {', '.join(together)} stand together"))
        for name, entry in value.items():
            if name in fields:
                fields[name](prefix + name, entry, out)
            elif not free:
                out.append((prefix + name, f"unknown field{nearest(name, fields)}"))

    return check


def _ids(unique: bool) -> Check:
    def check(path: str, value: Any, out: Problems) -> None:
        if not isinstance(value, list):
            out.append((path, f"{shorten(value)}: a list of ids expected"))
        elif not all(isinstance(entry, str) and entry for entry in value):
            out.append((path, f"{shorten(value)}: ids that are strings and not empty expected"))
        elif unique and len(set(value)) < len(value):
            out.append((path, f"{shorten(value)}: each id only once expected"))

    return check


def _ids_or_number(path: str, value: Any, out: Problems) -> None:
    if type(value) is int:
        if value <= MAX_LISTED_IDS:
            out.append((path, f"{shorten(value)}: up to {MAX_LISTED_IDS} a list of ids expected"))
        else:
            _COUNT_OR_ZERO(path, value, out)
        return
    _ids(unique=True)(path, value, out)
    if isinstance(value, list) and len(value) > MAX_LISTED_IDS:
        out.append((path, f"{len(value)} ids: above {MAX_LISTED_IDS} their number expected"))


_TOKENS, _COUNT_OR_ZERO = _count(), _count(0)


def _batch_entry(path: str, value: Any, out: Problems) -> None:
    if not isinstance(value, list) or len(value) != 3:
        out.append((path, f"{shorten(value)}: [id, phase, tokens] expected"))
        return
    name, phase, tokens = value
    if not isinstance(name, str) or not name:
        out.append((f"{path}[0]", f"{shorten(name)}: an id expected"))
    if phase not in ("prefill", "decode"):
        out.append((f"{path}[1]", f"{shorten(phase)}: 'prefill' or 'decode' expected"))
    if type(tokens) is not int or not 1 <= tokens <= MOST_TOKENS:
        _TOKENS(f"{path}[2]", tokens, out)


def _cached_entry(path: str, value: Any, out: Problems) -> None:
    if not isinstance(value, list) or len(value) != 2:
        out.append((path, f"{shorten(value)}: [id, tokens] expected"))
        return
    _text()(f"{path}[0]", value[0], out)
    _COUNT_OR_ZERO(f"{path}[1]", value[1], out)


def _filled_entry(path: str, value: Any, out: Problems) -> None:
    if not isinstance(value, list) or len(value) != 2:
        out.append((path, f"{shorten(value)}: [id, block] expected"))
        return
    _text()(f"{path}[0]", value[0], out)
    _text()(f"{path}[1]", value[1], out)


def _boolean(path: str, value: Any, out: Problems) -> None:
    if type(value) is not bool:
        out.append((path, f"{shorten(value)}: true or false expected"))


def _queue_order(path: str, value: Any, out: Problems) -> None:
    if isinstance(value, dict) and value.get("order") == "policy":
        _record({"order": _text()})(path, value, out)
    else:
        _record(_QUEUE)(path, value, out)


def _or_null(check: Check) -> Check:
    return lambda path, value, out: None if value is None else check(path, value, out)


_BLOCKS_LEFT = _integer(most=MOST_TOKENS)

_REQUEST: dict[str, Check] = {
    "id": _text(),
    "arrival": _integer(0),
    "prompt": _count(),
    "max_tokens": _count(),
    "priority": _integer(),
}

_REQUEST_OPTIONS: dict[str, Check] = {
    "deadline": _integer(1),
    "cancel_at": _integer(0),
    "sent": _integer(),
    "group": _text(),
    "after": _text(),
    "think_time": _integer(0),
    "held_until": _integer(1),
    "output": _count(),
    "blocks": _list_of(_text()),
}

_QUEUE: dict[str, Check] = {
    "order": _one_of("arrival", "priority"),
    "aging": _integer(1, null=True),
    "shed": _boolean,
}

_BLOCKS: dict[str, Check] = {
    "num_gpu_blocks": _count(),
    "block_size": _count(),
    "enable_prefix_caching": _boolean,
}

_HEADER_OPTIONS: dict[str, Check] = {
    "queue": _queue_order,
    "deadlines": _one_of("keep", "drop"),
    "retry": _or_null(_record({"limit": _count(), "wait": _count(), "factor": _count()})),
    "steps_in_flight": _count(),
    "batching": _one_of("iteration", "request"),
    "holds": _one_of("computed", "prompt", "max"),
    "requests": _list_of(_record(_REQUEST, _REQUEST_OPTIONS)),
    "recorded": _record({"epoch": _integer(), "monotonic": _integer()}),
}

_HEADER: dict[str, Check] = {
    "type": _one_of("header"),
    "schema": _one_of(SCHEMA_VERSION),
    "batchlab": _text(),
    "engine": _text(),
    "rules": _text(),
    "settings": _record({}, free=True),
    "limits": _record(
        {
            "max_num_seqs": _count(null=True),
            "max_num_batched_tokens": _count(null=True),
            "max_queue": _count(0, null=True),
        },
        {"max_model_len": _count(null=True), **_BLOCKS},
        together=tuple(_BLOCKS),
    ),
    "clock": _record(
        {
            "unit": _one_of("iteration", "cost unit", "ns"),
            "cost": _record({"model": _text()}, free=True),
            "idle": _one_of("step", "jump"),
        }
    ),
    "max_iterations": _count(0, null=True),
    "max_tokens_rule": _one_of("given", "output", "mixed"),
    "source": _record(
        {
            "name": _text(null=True, empty=True),
            "sha256": _text(null=True),
            "requests": _count(0, null=True),
        },
        {"steps": _list_of(_text())},
    ),
}

_ITERATION: dict[str, Check] = {
    "type": _one_of("iteration"),
    "iteration": _count(0),
    "start": _integer(0),
    "end": _integer(0),
    "arrived": _ids(unique=False),
    "rejected": _list_of(_record({"id": _text(), "reason": _text()}, {"retry_at": _integer(0)})),
    "preempted": _list_of(
        _record(
            {
                "id": _text(),
                "mode": _one_of("keep", "recompute", "swap"),
                "place": _one_of("front", "back", "key"),
                "computed": _count(0),
            }
        )
    ),
    "admitted": _ids(unique=False),
    "scheduled": _list_of(_batch_entry),
    "prefill_done": _ids(unique=False),
    "first_token": _ids(unique=False),
    "completed": _ids(unique=False),
    "queue": _ids_or_number,
    "active": _ids_or_number,
    "unused": _integer(null=True, most=MOST_TOKENS),
    "idle": _text(null=True),
}

_ITERATION_OPTIONS: dict[str, Check] = {
    "dropped": _list_of(
        _record(
            {"id": _text(), "result": _one_of("cancelled", "expired", "failed"), "reason": _text()}, {"at": _integer(0)}
        )
    ),
    "cached": _list_of(_cached_entry),
    "filled": _list_of(_filled_entry),
    "delivers": _count(0, null=True),
    "discarded": _ids(unique=False),
    "note": _text(),
    "padding": _integer(1),
    "kv": _record({"free": _BLOCKS_LEFT, "free_after": _BLOCKS_LEFT, "moved": _count(0)}),
}

_SUM, _SUM_OR_NULL = _integer(0, most=math.inf), _integer(0, null=True, most=math.inf)
"""Sums over all iterations have no bound of their own."""

_END: dict[str, Check] = {
    "type": _one_of("end"),
    "termination": _one_of("all_terminal", "iteration_limit"),
    "iterations": _count(0),
    "time": _integer(0),
    "results": _counts(RESULTS),
    "totals": _record(
        {
            "max_queue_length": _SUM,
            "preemptions": _SUM,
            "rejections": _counts(),
            "unused_budget": _integer(null=True, most=math.inf),
            "prefill_tokens": _SUM,
            "decode_tokens": _SUM,
            "recomputed_tokens": _SUM,
            "cached_tokens": _SUM,
            "moved_blocks": _SUM,
            "retries": _SUM,
            "decode_stalls": _SUM_OR_NULL,
            "preempted_decode_stalls": _SUM_OR_NULL,
        }
    ),
}

LINES: dict[str, Check] = {
    "header": _record(_HEADER, _HEADER_OPTIONS),
    "request": _record({"type": _one_of("request"), **_REQUEST}, _REQUEST_OPTIONS),
    "iteration": _record(_ITERATION, _ITERATION_OPTIONS),
    "end": _record(_END),
}
