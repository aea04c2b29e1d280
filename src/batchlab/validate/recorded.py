"""A measured run of vLLM as a folder: requests.jsonl, meta.json and perhaps timeseries.csv. docs/accuracy.md."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from batchlab.clients.columns import Columns
from batchlab.clients.formats import LLMSERVINGSIM
from batchlab.clients.request import Request, TokenIdentity
from batchlab.clients.workload import ColumnMap, FileTable
from batchlab.costs.measured import Row, read
from batchlab.errors import InputError
from batchlab.files import read_text
from batchlab.metrics.looks import missed
from batchlab.settings import MOST_TOKENS
from batchlab.units import NS_IN_S

LENGTHS = ("input_toks", "output_toks")
MORE = ("max_tokens", "priority", "prompt_runs")
"""What a client may know beside."""
TIMES = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
KWARGS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "long_prefill_token_threshold")
SCHEDULER = (
    "async_scheduling",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "scheduler_reserve_full_isl",
)
MOST_RANKS = 1024
MOST_PRIORITY = 2**31
VLLM = "vLLM "
SCHEMA = 1
"""`schema_version` of meta.json."""
SECTIONS = ("engine", "queue", "run")
"""Of a scenario: what serves."""
NO_BLOCKS = (
    "the number of KV blocks is not recorded: KV memory is modelled only with --set num_gpu_blocks=N, or "
    "gpu_memory_utilization where the cost knows the GPU"
)
STAGES = "must be 1: vLLM's pipeline stages are not modelled"
LATEST = 2.0**33
"""Largest time stamp in seconds, far beyond today."""


@dataclass(frozen=True)
class Recorded:
    """What was measured, times in s from the first arrival on."""

    folder: Path
    rules: str | None
    """Of the engine, such as "vLLM 0.32.0"; None if its version is not known."""
    engine: dict[str, Any]
    """[engine], of policy vllm where it names no other."""
    ranks: int
    """Engines, under data parallelism."""
    lockstep: bool
    """Whether these wait for each other in every step: they share the experts of a mixture-of-experts model."""
    tensor_parallel: int | None
    """GPUs that share each layer, if known."""
    requests: Sequence[Request]
    """The load: as sent, or as planned."""
    sent: list[float]
    queued: list[float]
    first: list[float]
    last: list[float]
    series: list[Row]
    """Rows of timeseries.csv: t in s, running, waiting, kv_cache_pct."""
    notes: list[str]
    itl: dict[str, Any] | None = None
    """Figures of the gaps between tokens in ns, where the time of every token is known."""
    sections: Mapping[str, Any] = field(default_factory=dict)
    """[queue], [run] and [workload] but for its requests, where they are not the default."""
    taken_in: bool = True
    """Whether `queued` was measured: a client does not know when the engine took a request in."""
    simulated: bool = False
    """Whether no engine was measured: the trace is one of batchlab's own."""

    @property
    def vllm_version(self) -> str | None:
        """None where it is not known, or another engine served."""
        rules = self.rules or ""
        return rules.removeprefix(VLLM) if rules.startswith(VLLM) else None

    @property
    def output(self) -> list[int]:
        """Tokens that each request got."""
        return [request.output for request in self.requests]


def recorded(folder: Path, workload: Path | None = None) -> Recorded:
    """Read a run. workload: a file with planned arrivals, and perhaps block hashes. Raises InputError.

    `arrival_time` is of the client's clock and all else of the engine's. What shifts one against the other is not
    recorded: the request that was taken in soonest after its arrival is taken to have waited 0 s for that.
    """
    meta = _meta(folder / "meta.json")
    rows = _requests(folder / "requests.jsonl")
    shift = max(row["arrival_time"] - row["queued_ts"] for row in rows)
    start = min(row["arrival_time"] for row in rows)
    arrival = np.array([round((row["arrival_time"] - start) * NS_IN_S) for row in rows], np.int64)
    lengths = [np.array([row[name] for row in rows], np.int64) for name in LENGTHS]
    columns = Columns(arrival, lengths[0], lengths[1], ids=[str(row["request_id"]) for row in rows])
    notes: list[str] = []
    if workload is not None:
        columns = _planned(workload, columns)
    _add_more(columns, rows)
    of_server: list[str] = []
    sections, ranks, lockstep, tensor = _served_by(meta, folder / "meta.json", of_server)
    engine = sections.pop("engine")
    if engine.get("enable_prefix_caching") and columns.hashes is None and columns.identities is None:
        notes.append(
            "which prompts share tokens is not recorded: prefix-cache hits between requests are not modelled, only "
            "those of preempted requests on their own blocks"
        )
    path = folder / "timeseries.csv"
    series = read(path, ("t", "running", "waiting", "kv_cache_pct")) if path.exists() else []
    queued, first, last = ([row[name] + shift - start for row in rows] for name in TIMES[1:])
    sent = (arrival / NS_IN_S).tolist()
    looks = [(row["running"], row["waiting"]) for row in series]
    notes += missed(looks, zip(sent, last, strict=True), max(last))
    version = meta.get("vllm_version")
    if version is not None and not isinstance(version, str):
        raise InputError(folder / "meta.json", "vllm_version", version, "must be a text")
    return Recorded(
        folder,
        None if version is None else f"{VLLM}{version}",
        engine,
        ranks,
        lockstep,
        tensor,
        columns,
        sent,
        queued,
        first,
        last,
        series,
        [*notes, *of_server],
        sections=sections,
        taken_in=not meta.get("scenario"),
    )


def _add_more(columns: Columns, rows: Sequence[dict[str, Any]]) -> None:
    """What a client may have recorded of the requests beside their lengths."""
    columns.max_tokens = np.array([row.get("max_tokens", row["output_toks"]) for row in rows], np.int64)
    if any("priority" in row for row in rows):
        columns.priority = np.array([row.get("priority", 1) for row in rows], np.int64)
    if columns.hashes is None and any("prompt_runs" in row for row in rows):
        segments: dict[int, int] = {}  # numbered anew: nobody's output is one of them
        columns.identities = []
        for position, row in enumerate(rows):
            runs = row.get("prompt_runs", [])
            own = tuple((segments.setdefault(segment, len(segments)), first, length) for segment, first, length in runs)
            columns.identities.append(TokenIdentity(own, -2 * position - 2) if own else None)


def _requests(path: Path) -> list[dict[str, Any]]:
    rows = []
    ids: dict[str, int] = {}
    for number, line in enumerate(read_text(path, "a JSON object on each line is needed").splitlines(), 1):
        place = f"line {number}"
        try:
            row = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise InputError(path, place, line, f"not a JSON object on one line: {error}") from None
        if not isinstance(row, dict):
            raise InputError(path, place, line, "must be a JSON object")
        for name in ("request_id", *LENGTHS, *TIMES):
            if name not in row:
                raise InputError(path, f"{place}, key {name!r}", None, "is missing")
        for name in LENGTHS:
            if type(row[name]) is not int or not 1 <= row[name] <= MOST_TOKENS:
                raise InputError(path, f"{place}, key {name!r}", row[name], "must be an integer from 1 to 2^40")
        for name in TIMES:
            value = row[name]
            if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= LATEST:
                raise InputError(path, f"{place}, key {name!r}", value, "must be a time stamp in s")
        _check_more(path, place, row)
        if not row["queued_ts"] <= row["first_token_ts"] <= row["last_token_ts"]:
            raise InputError(path, place, None, "queued_ts, first_token_ts and last_token_ts must not fall")
        id = str(row["request_id"])
        if id in ids:
            raise InputError(path, place, id, f"must be unique; line {ids[id]} has it too")
        ids[id] = number
        rows.append(row)
    if not rows:
        raise InputError(path, None, None, "has no requests")
    return rows


def _check_more(path: Path, place: str, row: dict[str, Any]) -> None:
    """Raises InputError for a wrong one of MORE."""
    limit, priority, runs = (row.get(name) for name in MORE)
    if "max_tokens" in row and (type(limit) is not int or not row["output_toks"] <= limit <= MOST_TOKENS):
        raise InputError(path, f"{place}, key 'max_tokens'", limit, "must be an integer from output_toks to 2^40")
    if "priority" in row and (type(priority) is not int or abs(priority) > MOST_PRIORITY):
        raise InputError(path, f"{place}, key 'priority'", priority, "must be an integer from -2^31 to 2^31")
    if "prompt_runs" in row:
        good = isinstance(runs, list) and all(_is_run(run) for run in runs)
        if not good or sum(run[2] for run in runs or ()) != row["input_toks"]:
            expected = "must be a list of [segment, start, length], integers, as long together as input_toks"
            raise InputError(path, f"{place}, key 'prompt_runs'", runs, expected)


def _is_run(run: Any) -> bool:
    whole = isinstance(run, list) and len(run) == 3 and all(type(number) is int for number in run)
    return whole and 0 <= run[1] <= MOST_TOKENS and 1 <= run[2] <= MOST_TOKENS


def _planned(path: Path, measured: Columns) -> Columns:
    """The requests of a workload file, which must be those that were measured, in the same order."""
    if path.suffix == ".jsonl":
        table = FileTable(file=str(path), format="mooncake")
    else:
        table = FileTable(file=str(path), format="csv", columns=ColumnMap(**LLMSERVINGSIM), time_unit="ns")
    found = table.read(Path(), "ns")
    if len(found) != len(measured):
        raise InputError(path, None, None, f"has {len(found):,} requests, the measured run {len(measured):,}")
    for name in ("prompt", "output"):
        differing = np.nonzero(getattr(found, name) != getattr(measured, name))[0]
        if len(differing):
            row = int(differing[0])
            value, expected = getattr(found, name)[row], getattr(measured, name)[row]
            raise InputError(path, f"request {row}, {name}", int(value), f"the measured run has {expected}")
    start = found.arrival.min()
    return Columns(found.arrival - start, found.prompt, found.output, ids=measured.ids, hashes=found.hashes)


def _meta(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(path, "a JSON object is needed"))
    except (ValueError, RecursionError) as error:
        raise InputError(path, None, None, f"not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError(path, None, None, "must be a JSON object")
    if found.get("schema_version", SCHEMA) != SCHEMA:
        raise InputError(path, "schema_version", found["schema_version"], f"must be {SCHEMA}: no other is known here")
    return found


def _served_by(meta: Mapping[str, Any], path: Path, notes: list[str]) -> tuple[dict[str, Any], int, bool, int | None]:
    """Sections of a scenario, engines, whether these go in step, and GPUs that share each layer, if known."""
    given = _table(meta, "scenario", path)
    if not given:
        engine = _engine(meta, path, notes)
        return {"engine": engine}, *_parallel(meta, path, notes)
    sections = {name: _table(given, name, path) for name in SECTIONS if name in given}
    if "engine" not in sections:
        raise InputError(path, "scenario.engine", None, "is missing")
    notes.append(
        "measured by a client: the engine's settings are those of its scenario, and the way to the server counts"
    )
    if meta.get("left_out"):
        notes.append(f"{meta['left_out']} requests that were not completed are left out, and their load with them")
    if meta.get("loop") == "closed":
        notes.append(
            "its clients waited for answers: each request is sent when it was, however long the predicted take"
        )
    if "num_gpu_blocks" not in sections["engine"]:
        notes.append(NO_BLOCKS)
    return sections, 1, False, None


def _engine(meta: Mapping[str, Any], path: Path, notes: list[str]) -> dict[str, Any]:
    """The settings of policy vllm that the run was made with; what is not recorded stays at vLLM's default."""
    kwargs = _table(meta, "engine_kwargs", path)
    resolved = _table(meta, "resolved_config", path)
    scheduler = _table(resolved, "scheduler_config", path)
    cache = _table(meta, "kv_cache", path)
    engine = {name: kwargs[name] for name in KWARGS if kwargs.get(name) is not None}
    engine |= {name: scheduler[name] for name in SCHEDULER if scheduler.get(name) is not None}
    engine.setdefault("async_scheduling", True)
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        if name not in engine:
            raise InputError(path, f"engine_kwargs.{name}", None, "is missing")
    if cache.get("num_gpu_blocks") is None:
        notes.append(NO_BLOCKS)
        return engine
    for name in ("num_gpu_blocks", "block_size", "enable_prefix_caching"):
        if cache.get(name) is not None:
            engine[name] = cache[name]
    return engine


def _parallel(meta: Mapping[str, Any], path: Path, notes: list[str]) -> tuple[int, bool, int]:
    """Engines, whether they go in step, and GPUs that share each layer."""
    kwargs = _table(meta, "engine_kwargs", path)
    ranks = _whole(kwargs, "data_parallel_size", path)
    tensor = _whole(kwargs, "tensor_parallel_size", path)
    if _whole(kwargs, "pipeline_parallel_size", path) > 1:
        raise InputError(path, "engine_kwargs.pipeline_parallel_size", kwargs["pipeline_parallel_size"], STAGES)
    own = _table(_table(meta, "resolved_config", path), "parallel_config", path)
    experts = kwargs.get("enable_expert_parallel") is True
    lockstep = ranks > 1 and (experts or own.get("is_moe_model") is True)
    if experts and tensor > 1:
        both = "with tensor_parallel_size above 1 is not modelled: the experts lie on the GPUs of one engine"
        raise InputError(path, "engine_kwargs.enable_expert_parallel", True, both)
    if lockstep:
        notes.append(f"{ranks} engines share the experts and wait for each other in every step")
    elif ranks > 1:
        notes.append(f"{ranks} engines are simulated one by one, as those of a dense model run")
    if ranks > 1:
        notes.append("which engine had which request is not recorded: they are taken to go to them in turn")
    return ranks, lockstep, tensor


def _whole(kwargs: Mapping[str, Any], name: str, path: Path) -> int:
    value = kwargs.get(name, 1)
    if type(value) is not int or not 1 <= value <= MOST_RANKS:
        raise InputError(path, f"engine_kwargs.{name}", value, f"must be an integer from 1 to {MOST_RANKS}")
    return value


def _table(data: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    found = data.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InputError(path, name, found, "must be a JSON object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")
