"""Measures one case and prints one JSON line: python benchmarks/measure.py CASE quick|plain COUNT TIMES

Every repetition is a process of its own, forked when the load is ready, so that its peak memory is what the run takes
beyond the input. CPU seconds count, not the clock: the machine may be busy. The best repetition is printed.
"""

import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cases import CASES, HERE, Case

from batchlab import Summary, TraceWriter, load, simulate
from batchlab.simulation import Run


def prepare(case: Case, count: int) -> Run:
    """The case as a run, with so many requests."""
    settings = {**case.settings, "workload.generate.num_prompts": count}
    (run,) = load(HERE / case.scenario, settings, [] if case.policy is None else [case.policy]).runs
    return run


def see_batch(run: Run) -> list[Any]:
    """Where the batch appears once the run has begun: the door's bounds are asked for with it."""
    seen: list[Any] = []
    asked = getattr(run.policy, "open_door", None)
    if asked is not None:
        run.policy.open_door = lambda limits, batch: (seen.append(batch), asked(limits, batch))[1]
    return seen


def simulated(run: Run, what: str, plain: bool, folder: str) -> dict[str, Any]:
    """Run it to the end, with its summary. plain: somebody looks at every iteration."""
    seen = [] if plain else see_batch(run)
    summary = Summary()
    began = time.process_time()
    with contextlib.ExitStack() as stack:
        observers: list[Any] = [summary, *([lambda event: None] if plain else [])]
        if what == "trace" and not plain:
            file = stack.enter_context(open(Path(folder, "trace.jsonl"), "w", encoding="utf-8"))
            observers.append(TraceWriter(file, summary))
        simulate(run, observers)
        document = summary.document(with_requests=False)
        if what == "table" and not plain:
            began = time.process_time()
            with open(Path(folder, "requests.parquet"), "wb") as out:
                summary.write_table(out, "requests.parquet")
    return {
        "seconds": time.process_time() - began,
        "iterations": document["iterations"],
        "rate": document["throughput"]["request_rate"],
        "running": document["slots"]["opened"] / document["iterations"],
        "preemptions": document["totals"]["preemptions"],
        "taken_apart": seen[0].plain_steps if seen else None,
    }


def read(path: Path) -> dict[str, Any]:
    """Read a file of requests."""
    began = time.process_time()
    (run,) = load(path).runs
    return {"seconds": time.process_time() - began, "requests": len(run.requests)}


def write_rows(run: Run, form: str, folder: str) -> Path:
    """The load as a file, with a scenario that reads it. The path of the scenario."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    table = pa.table({name: getattr(run.requests, name) for name in ("arrival", "prompt", "output")})
    if form == "parquet":
        pq.write_table(table, Path(folder, "load.parquet"))
    else:
        with open(Path(folder, "load.csv"), "wb") as file:
            file.write(b"arrival,prompt,output\n")  # pyarrow would quote them, and quotes make reading slow
            pa.csv.write_csv(table, file, pa.csv.WriteOptions(include_header=False))
    return write_scenario(folder, form)


def write_scenario(folder: str, form: str) -> Path:
    """A scenario that reads load.<form>."""
    head = (HERE / "steady.toml").read_text(encoding="utf-8").partition("[workload.generate]")[0]
    columns = "{ " + ", ".join(f'{name} = "{name}"' for name in ("arrival", "prompt", "output")) + " }"
    path = Path(folder, "load.toml")
    path.write_text(
        f'{head}[workload]\nfile = "load.{form}"\nformat = "{form}"\ntime_unit = "ns"\ncolumns = {columns}\n',
        encoding="utf-8",
    )
    return path


def in_a_fork(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it returns, with the memory that it took in bytes: its peak beyond what was there before."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            before = peak()
            found = work()
            found["bytes"] = peak() - before
            os.write(send, json.dumps(found).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(send)
    with open(receive, "rb") as result:
        text = result.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"a repetition ended with status {status}")
    return json.loads(text)


def peak() -> int:
    """Most memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(name: str, mode: str, count: int, times: int) -> dict[str, Any]:
    """The best of several repetitions, and the least memory."""
    case = CASES[name]
    run = prepare(case, count)
    with tempfile.TemporaryDirectory() as folder:
        if case.what in ("csv", "parquet") and mode == "quick":
            path = write_rows(run, case.what, folder)
            del run
            found = [in_a_fork(lambda: read(path)) for _ in range(times)]
        else:
            found = [in_a_fork(lambda: simulated(run, case.what, mode == "plain", folder)) for _ in range(times)]
    best = min(found, key=lambda one: one["seconds"])
    best["bytes"] = min(one["bytes"] for one in found)
    return {"case": name, "mode": mode, "requests": count, **best}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
