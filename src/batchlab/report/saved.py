"""Saved answers of `sweep`, `tune` and `capacity`, as what a page tells of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from batchlab import policies
from batchlab.compare import endings, said
from batchlab.errors import InputError, one_line
from batchlab.files import ODD, unreadable
from batchlab.metrics.objectives import ATTAINMENT, Objective, parse
from batchlab.plan.capacity import over
from batchlab.plan.columns import Column, columns_of, meanings
from batchlab.plan.recommend import most_of
from batchlab.report import words
from batchlab.report.cells import RATE, is_number, number_of, parsed, refuse_odd_cells, switch_of
from batchlab.trace.read import NotStrictJson, parse_json
from batchlab.units import counted

EXPECTED_TABLE = "a table that batchlab sweep or tune wrote (.parquet) expected"
LATENCIES = ("ttft.p99", "itl.p99")
GAIN = "output_token_rate"
MOST_ROWS = 20_000
MOST_LISTED = 40
TOGETHER = "all targets of a request at once"
"""The name of the curve of `attainment`."""
OWN = (
    "objectives",
    "axes",
    "slo",
    "varied",
    "flags",
    "command",
    "met",
    "caveats",
    "rate_of",
    "targets",
    "targets_of_groups",
)
"""Of a table's metadata, what the page tells beside its settings."""
MOST_CHARS = 200
"""Of a setting's value."""
MOST_DIGITS = 12
"""Characters of a number that somebody wrote; longer ones were computed."""
LOAD = ("requests", "span", "prompt_mean", "output_mean", "e2el")
PRICES = ("per_million_output_tokens", "per_million_tokens")


def sweep(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The rows of a sweep's or a tuning's table. Raises InputError for what is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise InputError(path, None, None, f"{EXPECTED_TABLE} ({one_line(str(error))})") from error
    about = {
        key.decode(errors=ODD): value.decode(errors=ODD)
        for key, value in (table.schema.metadata or {}).items()
        if key != b"ARROW:schema"
    }
    names = table.column_names
    if "batchlab" not in about or "error" not in names:
        raise InputError(path, None, None, EXPECTED_TABLE)
    for name in ("unit", "totals.preemptions"):
        if name not in names:
            raise InputError(path, f"column {name}", None, f"is missing: {EXPECTED_TABLE}")
    if table.num_rows > MOST_ROWS:
        raise InputError(path, None, None, f"{table.num_rows:,} runs are too many to draw: at most {MOST_ROWS:,}")
    keys = endings(names[: names.index("error")])
    rows = table.to_pylist()
    axes = _axes(path, about)
    columns = [axis["column"] for axis in axes]
    shown = columns_of(rows)
    refuse_odd_cells(path, rows, [*columns, *(column.name for column in shown)])
    good = [row for row in rows if row["error"] is None and all(row.get(name) is not None for name in columns)]
    unit = _unit(good)
    rate_key = next((key for key in keys if key.rpartition(".")[2] == RATE), None)
    objectives = parse(about["slo"]).objectives if about.get("slo") else ()
    stated = _stated(about)
    fronts = [
        front([row[axis["column"]] * (-1 if axis["more"] else 1) for row in good], [row[columns[0]] for row in good])
        for axis in axes[1:]
    ]
    of = about["rate_of"] if about.get("rate_of") in ("requests", "sessions") else ""
    listed = _listed(good, fronts, rows[0] if "axes" in about and rows else None)
    shown = _traded(axes, unit, of) if "axes" in about else shown
    return {
        "name": Path(path).name,
        "tuned": "axes" in about,
        "scenario": about.get("scenario", ""),
        "slo": about.get("slo", ""),
        "unit": unit,
        "axes": [{**axis, "label": _label(axis["column"], unit, of)} for axis in axes],
        "failed": [f"{_settings(row, keys)}: {one_line(row['error'])}" for row in rows if row["error"] is not None],
        "rows": [_point(row, keys, columns, row is rows[0] and "axes" in about) for row in good],
        "fronts": fronts,
        "listed": listed,
        "columns": [(column.heading, column.kind) for column in shown],
        "cells": [[good[place].get(column.name) for column in shown] for place in listed[:MOST_LISTED]],
        "meanings": "" if "axes" in about else meanings(shown, words.within(about, unit)),
        "of": of or rate_key or "",
        "attained": [] if rate_key is None else _attained_by_series(good, keys, rate_key, objectives),
        "advice": _advice(rows, axes[0]["column"], about) if "axes" in about else None,
        "about": _about(stated),
        "facts": _facts(stated),
    }


def _advice(rows: Sequence[dict[str, Any]], column: str, about: Mapping[str, str]) -> dict[str, Any] | None:
    """What a tuning recommends: what is maximised before and after, the flags to copy, and what is uncertain."""
    row = next((row for row in rows if row.get("recommended")), None)
    if row is None:
        return None
    before, after = (value if isinstance(value := one.get(column), int | float) else None for one in (rows[0], row))
    change = f"{100 * (after / before - 1):+.0f} %" if before and after is not None and row is not rows[0] else ""
    caveats = parsed(about.get("caveats", "[]"))
    return {
        "before": before,
        "after": after,
        "change": change.replace("-", "−"),
        "own": row is rows[0],
        "met": bool(row.get("met")),
        "most": most_of(column, row),
        "flags": next(
            (one_line(about[key]) for key in ("command", "flags") if about.get(key) not in (None, "null")), ""
        ),
        "caveats": [one_line(str(text)) for text in caveats] if isinstance(caveats, list) else [],
    }


def _about(told: Mapping[str, Any]) -> str:
    """What it is of, on a line: policy, model and GPU, load; as far as it says so."""
    cost, load = told.get("cost"), told.get("load")
    parts = [f"policy {told['policy']}"] if told.get("policy") else []
    if isinstance(cost, dict):
        parts.append(" on ".join(str(cost[key]) for key in ("llm", "gpu") if cost.get(key)) or str(cost.get("model")))
    if isinstance(load, dict):
        parts += [str(load["source"])] if load.get("source") else []
        parts += [counted(load["requests"], "request")] if isinstance(load.get("requests"), int) else []
        prompt, output = (load.get(f"{name}_mean") for name in ("prompt", "output"))
        if is_number(prompt) and is_number(output):
            parts.append(f"prompt mean {prompt:,.1f}, output mean {output:,.1f} tokens")
    return one_line(" · ".join(parts))


def _axes(path: str | os.PathLike[str], about: Mapping[str, str]) -> list[dict[str, Any]]:
    """What is traded: first what one wants more of, then each latency (or share) that it costs."""
    try:
        given = json.loads(about.get("axes", "[]"))
        stated = [{"column": str(one["column"]), "more": one["better"] == "more"} for one in given]
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(path, "metadata, axes", about["axes"], "a table of batchlab tune expected") from error
    return stated or [{"column": GAIN, "more": True}, *({"column": name, "more": False} for name in LATENCIES)]


def _label(column: str, unit: str, of: str) -> str:
    """An axis's name, with its unit where it has one that is not a time's. of: what a capacity counts."""
    per = "s" if unit == "ns" else unit
    rates = {GAIN: "Output tokens", "goodput": "Goodput: requests", "capacity": f"Capacity: {of or 'requests'}"}
    return f"{rates[column]} per {per}" if column in rates else words.figure(column.removeprefix("slo."))


def _traded(axes: Sequence[Mapping[str, Any]], unit: str, of: str) -> list[Column]:
    """What a tuning's table shows of each run: first what one wants more of, then what it costs."""
    kinds: list[Literal["rate", "share", "time"]] = [
        "rate" if place == 0 else "share" if axis["more"] else "time" for place, axis in enumerate(axes)
    ]
    found = [
        Column(_label(axis["column"], unit, of), axis["column"], kind) for axis, kind in zip(axes, kinds, strict=True)
    ]
    return [*found, Column("Preemptions", "totals.preemptions", "count")]


def _unit(rows: Sequence[dict[str, Any]]) -> str:
    units = {row["unit"] for row in rows}
    return units.pop() if len(units) == 1 else "the clock's unit"


def _point(row: dict[str, Any], keys: Mapping[str, str], columns: Sequence[str], first: bool) -> dict[str, Any]:
    return {
        "settings": _settings(row, keys),
        "mark": "as it is" if first else _best(row, columns[0]) if row.get("recommended") else "",
        "met": row.get("met"),
        "values": [row[name] for name in columns],
    }


def _best(row: Mapping[str, Any], column: str) -> str:
    """What the one of a tuning is that is singled out: recommended, if it meets the objectives."""
    return "recommended" if row.get("met") else f"most {most_of(column, row)}"


def _listed(rows: Sequence[dict[str, Any]], fronts: Sequence[Sequence[int]], own: Any) -> list[int]:
    """The rows of the table: those that no other one beats, and of a tuning the scenario as it is."""
    if own is None:
        return sorted({place for front in fronts for place in front})
    return [place for place, row in enumerate(rows) if row is own or row.get("pareto") or row.get("recommended")]


def _attained_by_series(
    rows: Sequence[dict[str, Any]], keys: Mapping[str, str], rate: str, objectives: Sequence[Objective]
) -> list[dict[str, Any]]:
    """The curves of all that is varied beside the rate."""
    others = {key: name for key, name in keys.items() if key != rate}
    series: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if isinstance(row[rate], int | float):
            series.setdefault(_settings(row, others), []).append(row)
    found = []
    for name, own in series.items():
        runs = [
            _Tried(
                row[rate],
                bool(row.get("met")),
                {one.figure: row.get(f"attained.{one.figure}") for one in objectives},
                {one.figure: row.get(f"slo.{one.figure}") for one in objectives},
                row.get(ATTAINMENT),
            )
            for row in own
        ]
        for curve in _curves(runs, objectives):
            full = ", ".join(part for part in (curve["name"], name) if part)
            found.append({**curve, "name": full, "of": curve["name"], "series": name})
    return found


@dataclass(frozen=True)
class _Tried:
    """A run at a rate. attained, values: by an objective's figure. attainment: the share within all targets."""

    rate: float
    met: bool
    attained: Mapping[str, Any]
    values: Mapping[str, Any]
    attainment: float | None


def _curves(runs: Sequence[_Tried], objectives: Sequence[Objective]) -> list[dict[str, Any]]:
    """For each objective the share within its bound at each rate, and whether it is met there."""
    found = []
    single = [one for one in objectives if one.metric != ATTAINMENT]
    for one in single:
        points = [
            [number_of(run.rate), number_of(share), one.met_by(run.values.get(one.figure))]
            for run in runs
            if (share := run.attained.get(one.figure)) is not None
        ]
        found.append({"name": one.text, "points": sorted(points)})
    if len(single) != 1 or len(objectives) > 1:
        least = ", ".join(one.text for one in objectives if one.metric == ATTAINMENT)
        points = [
            [number_of(run.rate), number_of(run.attainment), run.met] for run in runs if run.attainment is not None
        ]
        found.append({"name": f"{TOGETHER} ({least})" if least else TOGETHER, "points": sorted(points)})
    return [curve for curve in found if curve["points"]]


def _settings(row: dict[str, Any], keys: Mapping[str, str]) -> str:
    return one_line(", ".join(f"{name} = {said(key, row[key])}" for key, name in keys.items()))


def front(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """The points that no other one beats: at most the cost and at least the gain, and better in one. By rising cost.

    Of points that are equal in both none beats another.
    """
    found: list[int] = []
    for place in sorted(range(len(costs)), key=lambda place: (costs[place], -gains[place])):
        last = found[-1] if found else None
        if last is None or gains[place] > gains[last] or (costs[place], gains[place]) == (costs[last], gains[last]):
            found.append(place)
    return found


# Capacity

KNOWN = {"settings": "engine", "cost_model": "cost"}
"""Parts of the document that have the names of a scenario's sections on the page."""
EXPECTED = ("slo", "of", "unit", "capacity", "interval", "answer", "binds", "samples", "changes")

OTHERS = {
    "an experiment": ("varied", "reading"),
    "batchlab run": ("scenario", "runs"),
    "a comparison": ("scenario", "variants"),
    "a sweep or a tuning": ("scenario", "rows"),
    "batchlab bench": ("url", "loop"),
    "a summary": ("engine", "termination"),
}
"""Other documents that commands print, by keys that no other one has."""
TAKEN = (
    "a RUN is a trace, a scenario (.toml), a table that sweep or tune wrote (.parquet), "
    "or the JSON that batchlab capacity --json prints"
)


def capacity(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `capacity --json` printed. Raises InputError for anything else."""
    try:
        document = parse_json(Path(path).read_bytes())
    except OSError as error:
        raise unreadable(path, error, "what capacity --json prints is needed") from error
    except NotStrictJson as error:
        raise InputError(path, None, error.value, error.expected) from error
    if not isinstance(document, dict) or any(name not in document for name in EXPECTED):
        known = document if isinstance(document, dict) else {}
        kind = next((name for name, keys in OTHERS.items() if all(key in known for key in keys)), None)
        told = "the JSON that batchlab capacity --json prints expected"
        raise InputError(path, None, None, told if kind is None else f"the JSON of {kind} has no page: {TAKEN}")
    try:
        return {"name": Path(path).name, **_told(document)}
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise InputError(
            path, None, None, f"not what batchlab capacity --json prints: {one_line(str(error))}"
        ) from error


def _told(document: Mapping[str, Any]) -> dict[str, Any]:
    samples = document["samples"]
    probes = [
        {"sample": one["sample"], "rate": probe["rate"], "met": kind == "met", "missed": list(probe["missed"])}
        for one in samples
        for kind in ("met", "missed")
        if (probe := one[kind]) is not None
    ]
    changes = [{name: one[name] for name in ("name", "before", "after", "rate")} for one in document["changes"]]
    rates = [document["capacity"], *(one["rate"] for one in (*probes, *changes))]
    if not all(rate is None or (is_number(rate) and rate >= 0) for rate in rates):
        raise ValueError("a rate is no number")
    texts = [document[name] for name in ("of", "unit", "answer")]
    if not all(isinstance(text, str) for text in (*texts, document["binds"] or "", *(one["name"] for one in changes))):
        raise ValueError("a name is no text")
    answer = next(one for one in samples if one["sample"] == document["answer"])
    met, cost = answer["met"], document.get("cost")
    caveats = ("caveats", "caveats_of_changes")
    own = (*EXPECTED, *caveats, "cost", "objectives", "rates_per")
    told = {KNOWN.get(key, key): value for key, value in document.items() if key not in own}
    return {
        **{name: document[name] for name in ("slo", "of", "unit", "capacity", "answer", "binds")},
        "interval": document["interval"] and [number_of(end) for end in document["interval"]],
        "over": over([one["sample"] for one in samples]),
        "probes": probes,
        "changes": changes,
        "load": met and {name: number_of(met[name]) for name in LOAD},
        "cost": cost and {name: number_of(cost[name]) for name in (*PRICES, "gpu_price", "gpus")},
        "notes": [one_line(str(text)) for name in caveats for text in document.get(name) or ()],
        "attained": _tried(answer, document["slo"]),
        "about": _about(told),
        "facts": _facts(_usable(told)),
    }


def _usable(told: Mapping[str, Any]) -> dict[str, Any]:
    """The same; of KV blocks also how many of them are usable, where the policy keeps some."""
    engine, policy = told.get("engine"), told.get("policy")
    if not isinstance(engine, dict):
        return dict(told)
    blocks = engine.get("num_gpu_blocks")
    kept = getattr(policies.find(policy), "reserved_blocks", 0) if policy in policies.names() else 0
    if not kept or not isinstance(blocks, int):
        return dict(told)
    return {**told, "engine": {**engine, "num_gpu_blocks": f"{blocks} ({blocks - kept} usable)"}}


def _tried(answer: Mapping[str, Any], slo: str) -> list[dict[str, Any]]:
    """The curves of the sample that the answer is of, over all rates that were tried."""
    runs = [
        _Tried(number_of(run["rate"]), switch_of(run["met"]), run["attained"], run["values"], run["attainment"])
        for run in answer.get("tried") or ()
    ]
    return _curves(runs, parse(slo).objectives)


def _stated(about: Mapping[str, str]) -> dict[str, Any]:
    """What a table's metadata says beside what the page tells of it: settings by their own keys, and the rest."""
    found = {key: parsed(value) for key, value in about.items() if key not in OWN}
    settings = found.pop("settings", None)
    named = {KNOWN.get(key, key): value for key, value in found.items()}
    return {**named, **(settings if isinstance(settings, dict) else {})}


def _rounded(key: str, value: Any) -> str:
    """A setting as a person writes it; of what was computed, such as a mean, six digits."""
    return f"{value:.6g}" if isinstance(value, float) and len(repr(value)) > MOST_DIGITS else said(key, value)


def _facts(told: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """What was set, by dotted key, each on one line."""
    found: dict[str, str] = {}
    for key, value in told.items():
        if isinstance(value, dict):
            found |= _facts(value, f"{above}{key}.")
        elif value not in (None, "", []):
            text = ", ".join(said("", one) for one in value) if isinstance(value, list) else _rounded(key, value)
            found[one_line(f"{above}{key}")] = one_line(text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}…")
    return found
