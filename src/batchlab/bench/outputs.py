"""Measured runs as files that others read: our table of requests, vLLM's detailed result, and a run to validate."""

from __future__ import annotations

import contextlib
import csv
import json
import tempfile
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from batchlab.bench.figures import Result
from batchlab.clients.identity import prompt_runs
from batchlab.errors import InputError
from batchlab.files import whole_file
from batchlab.simulation import Run
from batchlab.units import NS_IN_S
from batchlab.validate.traced import sections_of


def write_table(result: Result, file: IO[bytes], path: str) -> None:
    """The columns of `run --requests`, and what a client adds: sent, ttft_from_send, chunks, status, counted.

    What an interrupted run left has `partial` in its metadata, which CSV has none of.
    """
    import pyarrow as pa

    from batchlab.metrics.table import ending_of, write

    table = result.summary.table()
    outcomes = [result.outcomes[k] for k in np.argsort([r.arrival for r in result.requests], kind="stable")]
    first = [o.chunks[0][0] - o.sent if o.chunks else None for o in outcomes]
    more: list[tuple[str, Any, list[Any]]] = [
        ("sent", pa.int64(), [o.sent for o in outcomes]),
        ("ttft_from_send", pa.int64(), first),
        ("chunks", pa.int64(), [len(o.chunks) for o in outcomes]),
        ("status", pa.int64(), [o.status for o in outcomes]),
        ("counted", pa.string(), [o.counted if o.chunks else None for o in outcomes]),
    ]
    for name, kind, values in more:
        table = table.append_column(pa.field(name, kind), pa.array(values, kind))
    if result.measured.cut is not None:
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), "partial": "true"})
    write(file, ending_of(path), table.schema, iter(table.combine_chunks().to_batches()))


def vllm_result(result: Result, document: Mapping[str, Any]) -> dict[str, Any]:
    """What `vllm bench serve --save-result --save-detailed` writes: in s from the sending, gaps between chunks."""
    outcomes = result.outcomes
    done = [o.result == "completed" for o in outcomes]
    rate = document["throughput"]["request_rate"]
    times = [[at for at, _ in o.chunks] for o in outcomes]
    return {
        **({} if result.measured.cut is None else {"partial": True}),
        "backend": result.target.backend,
        "model_id": result.target.model,
        "num_prompts": len(outcomes),
        "request_rate": document["load"]["requested_rate"],
        "max_concurrency": result.plan.max_concurrency or result.plan.clients,
        "duration": result.measured.elapsed / NS_IN_S,
        "completed": sum(done),
        "request_throughput": rate,
        "output_throughput": document["throughput"]["output_token_rate"],
        "input_lens": [r.prompt for r in result.requests],
        "output_lens": [o.tokens if ok else 0 for o, ok in zip(outcomes, done, strict=True)],
        "start_times": [o.sent / NS_IN_S for o in outcomes],
        "ttfts": [(o.chunks[0][0] - o.sent) / NS_IN_S if o.chunks else 0.0 for o in outcomes],
        "itls": [[(b - a) / NS_IN_S for a, b in pairwise(t)] for t in times],
        "errors": [o.reason for o in outcomes],
    }


@contextlib.contextmanager
def run_folder(folder: Path) -> Iterator[None]:
    """A folder to write a run into; a run that is there is replaced at the end. Raises InputError.

    One that was made for it and is empty at the end is removed.
    """
    new = False
    try:
        new = not folder.exists()
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(folder, None, None, f"cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        if new:
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()


def write_run(result: Result, folder: Path, run: Run) -> None:
    """A folder that `validate` and `calibrate` read. run: what the server runs with, which a client cannot see.

    A client does not know when the engine took a request in: queued_ts is when it was sent, so the way there and back
    counts as time of the engine. Only completed requests are in it. Of their tokens is said which are shared, where
    the server counts as many as were meant. The folder is one of `run_folder`. Raises InputError.
    """
    outcomes = result.outcomes
    done = [position for position, o in enumerate(outcomes) if o.result == "completed"]
    with whole_file(folder / "requests.jsonl") as file:
        for position in sorted(done, key=lambda position: outcomes[position].sent):
            file.write(json.dumps(_row(result, run, position)) + "\n")
    meta = {
        **({} if result.target.version is None else {"vllm_version": result.target.version}),
        "scenario": sections_of(run.header()),
        "loop": "open" if result.plan.clients is None else "closed",
        "left_out": len(outcomes) - len(done),
    }
    with whole_file(folder / "meta.json") as file:
        json.dump(meta, file, indent=1)
    looks = [s for s in result.series if None not in (s.running, s.waiting, s.kv_cache_usage)]
    if not looks:
        (folder / "timeseries.csv").unlink(missing_ok=True)  # of the run that this one replaces
    else:
        with whole_file(folder / "timeseries.csv") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["t", "running", "waiting", "kv_cache_pct"])
            for s in looks:
                rows.writerow([s.t / NS_IN_S, s.running, s.waiting, 100 * (s.kv_cache_usage or 0.0)])


def _row(result: Result, run: Run, position: int) -> dict[str, Any]:
    """A completed request, as `requests.jsonl` has it."""
    request, o = result.requests[position], result.outcomes[position]
    prompt = request.prompt if o.prompt is None else o.prompt
    row = {
        "request_id": request.id,
        "input_toks": prompt,
        "output_toks": o.tokens,
        "arrival_time": o.sent / NS_IN_S,
        "queued_ts": o.sent / NS_IN_S,
        "first_token_ts": o.chunks[0][0] / NS_IN_S,
        "last_token_ts": o.chunks[-1][0] / NS_IN_S,
        "max_tokens": max(o.tokens, request.output if result.plan.exact else request.max_tokens),
        "priority": request.priority,
    }
    if prompt == request.prompt and not result.plan.text:
        row["prompt_runs"] = prompt_runs(run.requests, o.position, run.requests[o.position])
    return row
