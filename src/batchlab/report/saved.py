"""Saved answers of `sweep` and `capacity`, as what a page tells of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchlab.compare import said
from batchlab.errors import InputError, one_line
from batchlab.files import unreadable
from batchlab.metrics.objectives import parse
from batchlab.trace.read import NotStrictJson, parse_json

RATE = "request_rate"
LATENCIES = ("ttft.p99", "itl.p99")
GAIN = "output_token_rate"
MOST_ROWS = 20_000


def sweep(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The rows of a sweep's table. Raises InputError for what is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(path, None, None, f"a table of batchlab sweep expected ({one_line(str(error))})") from error
    about = {
        key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items() if key != b"ARROW:schema"
    }
    names = table.column_names
    if "batchlab" not in about or "error" not in names:
        raise InputError(path, None, None, "a table of batchlab sweep expected")
    if table.num_rows > MOST_ROWS:
        raise InputError(path, None, None, f"{table.num_rows:,} runs are too many to draw: at most {MOST_ROWS:,}")
    keys = names[: names.index("error")]
    rows = table.to_pylist()
    good = [
        row for row in rows if row["error"] is None and all(row.get(name) is not None for name in (GAIN, *LATENCIES))
    ]
    return {
        "name": Path(path).name,
        "scenario": about.get("scenario", ""),
        "slo": about.get("slo", ""),
        "keys": keys,
        "unit": _unit(good),
        "failed": [f"{_settings(row, keys)}: {one_line(row['error'])}" for row in rows if row["error"] is not None],
        "rows": [_point(row, keys, about.get("slo", "")) for row in good],
        "fronts": {name: front([row[name] for row in good], [row[GAIN] for row in good]) for name in LATENCIES},
        "rate_key": next((key for key in keys if key.rpartition(".")[2] == RATE), None),
    }


def _unit(rows: Sequence[dict[str, Any]]) -> str:
    units = {row["unit"] for row in rows}
    return units.pop() if len(units) == 1 else "the clock's unit"


def _point(row: dict[str, Any], keys: Sequence[str], slo: str) -> dict[str, Any]:
    rate = next((key for key in keys if key.rpartition(".")[2] == RATE), None)
    return {
        "settings": _settings(row, keys),
        "series": _settings(row, [key for key in keys if key != rate]) or "all",
        "rate": None if rate is None else row[rate],
        "met": row.get("met"),
        "shares": _shares(row, slo),
        **{name: row[name] for name in (GAIN, *LATENCIES, "totals.preemptions", "request_rate")},
    }


def _shares(row: dict[str, Any], slo: str) -> dict[str, float]:
    """How much of each objective's bound is used: above 1 it is missed."""
    values = {o: row.get(f"slo.{o.figure}") for o in (parse(slo).objectives if slo else ())}
    return {o.text: float(value / o.bound) for o, value in values.items() if value is not None and o.bound}


def _settings(row: dict[str, Any], keys: Sequence[str]) -> str:
    return one_line(", ".join(f"{key.rpartition('.')[2]} = {said(key, row[key])}" for key in keys))


def front(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """The points that no other one beats: at most the cost and at least the gain, and better in one. By rising cost."""
    best = float("-inf")
    found = []
    for place in sorted(range(len(costs)), key=lambda place: (costs[place], -gains[place])):
        if gains[place] > best:
            best = gains[place]
            found.append(place)
    return found


def capacity(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `capacity --json` printed. Raises InputError for anything else."""
    try:
        document = parse_json(Path(path).read_bytes())
    except OSError as error:
        raise unreadable(path, error, "what capacity --json prints is needed") from error
    except NotStrictJson as error:
        raise InputError(path, None, error.value, error.expected) from error
    expected = ("slo", "of", "unit", "capacity", "interval", "answer", "binds", "samples", "changes")
    if not isinstance(document, dict) or any(name not in document for name in expected):
        raise InputError(path, None, None, "the JSON that batchlab capacity --json prints expected")
    try:
        probes = [
            {"sample": one["sample"], "rate": probe["rate"], "met": kind == "met", "missed": list(probe["missed"])}
            for one in document["samples"]
            for kind in ("met", "missed")
            if (probe := one[kind]) is not None
        ]
        changes = [{name: one[name] for name in ("name", "before", "after", "rate")} for one in document["changes"]]
        rates = [document["capacity"], *(one["rate"] for one in (*probes, *changes))]
        if not all(rate is None or (isinstance(rate, int | float) and rate >= 0) for rate in rates):
            raise ValueError("a rate is no number")
        interval = document["interval"] and [float(end) for end in document["interval"]]
        return {
            "name": Path(path).name,
            **{name: document[name] for name in expected[:4]},
            "interval": interval,
            "answer": document["answer"],
            "binds": document["binds"],
            "probes": probes,
            "changes": changes,
        }
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            path, None, None, f"not what batchlab capacity --json prints: {one_line(str(error))}"
        ) from error
