"""A measured run of vLLM as a folder: requests.jsonl, meta.json and perhaps timeseries.csv. docs/accuracy.md."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from batchlab.clients.columns import Columns
from batchlab.clients.formats import LLMSERVINGSIM
from batchlab.clients.request import Request
from batchlab.clients.workload import ColumnMap, FileTable
from batchlab.costs.measured import Row, read
from batchlab.errors import InputError
from batchlab.files import read_text
from batchlab.settings import MOST_TOKENS
from batchlab.units import NS_IN_S

LENGTHS = ("input_toks", "output_toks")
TIMES = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
KWARGS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "long_prefill_token_threshold")
SCHEDULER = (
    "async_scheduling",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "scheduler_reserve_full_isl",
)
MOST_RANKS = 1024
SCHEMA = 1
"""`schema_version` of meta.json."""
STAGES = "must be 1: vLLM's pipeline stages are not modelled"
LATEST = 2.0**33
"""Largest time stamp in seconds, far beyond today."""


@dataclass(frozen=True)
class Recorded:
    """What was measured, times in s from the first arrival on."""

    folder: Path
    version: str
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
    requests = Columns(arrival, lengths[0], lengths[1], ids=[str(row["request_id"]) for row in rows])
    sent = (arrival / NS_IN_S).tolist()
    notes: list[str] = []
    if workload is not None:
        requests = _planned(workload, requests)
    engine = _engine(meta, folder / "meta.json", notes)
    version = str(meta.get("vllm_version", "unknown"))
    if engine.get("enable_prefix_caching") and requests.hashes is None:
        notes.append(
            "which prompts share tokens is not recorded: prefix-cache hits between requests are not modelled, only "
            "those of preempted requests on their own blocks"
        )
    path = folder / "timeseries.csv"
    series = read(path, ("t", "running", "waiting", "kv_cache_pct")) if path.exists() else []
    times = [[row[name] + shift - start for row in rows] for name in TIMES[1:]]
    ranks, lockstep, tensor = _parallel(meta, folder / "meta.json", notes)
    return Recorded(
        folder, version, engine, ranks, lockstep, tensor, requests, sent, times[0], times[1], times[2], series, notes
    )


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
        notes.append(
            "the number of KV blocks is not recorded: KV memory is modelled only with --set num_gpu_blocks=N, or "
            "gpu_memory_utilization where the cost knows the GPU"
        )
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
