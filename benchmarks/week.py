"""45 million requests, a week of days and nights: written as Parquet once, read as a stream, run to the end."""

import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import peak, write_scenario

from batchlab import Summary, load, simulate

COUNT = 45_000_000
WEEK_NS = 7 * 24 * 3600 * 10**9
PART = 1 << 20


def write(path: Path, count: int = COUNT) -> None:
    """Arrivals whose rate rises and falls by three fifths each day, log-normal lengths; seed 1."""
    rng = np.random.default_rng(1)
    schema = pa.schema([("arrival", pa.int64()), ("prompt", pa.int32()), ("output", pa.int32())])
    now = 0.0
    day = WEEK_NS / 7
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, count, PART):
            size = min(PART, count - start)
            even = now + np.cumsum(rng.exponential(WEEK_NS / count, size))  # at an even rate
            now = float(even[-1])
            # the rate 1 + 0.6 cos(2 pi t / day) at t, from t + 0.6 day / 2 pi * sin(2 pi t / day) = even, by iteration
            arrival = even.copy()
            for _ in range(30):
                arrival = even - 0.6 * day / (2 * np.pi) * np.sin(2 * np.pi * arrival / day)
            arrival = np.maximum.accumulate(arrival)
            prompt = np.clip(rng.lognormal(np.log(512) - 0.32, 0.8, size), 1, 2000)
            output = np.clip(rng.lognormal(np.log(128) - 0.32, 0.8, size), 1, 1000)
            writer.write_table(
                pa.table([arrival.astype(np.int64), prompt.astype(np.int32), output.astype(np.int32)], schema=schema)
            )


def main(count: int = COUNT) -> dict[str, Any]:
    """Seconds of CPU to read, to run and to sum up, and the peak memory of all."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "load.parquet"), count)
        size = Path(folder, "load.parquet").stat().st_size
        before, clock = peak(), time.perf_counter()
        times = [time.process_time()]
        (run,) = load(write_scenario(folder, "parquet")).runs
        times.append(time.process_time())
        summary = Summary()
        simulate(run, [summary])
        times.append(time.process_time())
        document = summary.document(with_requests=False)
        times.append(time.process_time())
        reading, running, summing = (later - earlier for earlier, later in pairwise(times))
    return {
        "requests": len(run.requests),
        "file_bytes": size,
        "read": reading,
        "run": running,
        "document": summing,
        "clock": time.perf_counter() - clock,
        "peak_bytes": peak(),
        "peak_before": before,
        "iterations": document["iterations"],
        "max_queue_length": document["totals"]["max_queue_length"],
        "results": document["results"],
    }


if __name__ == "__main__":
    print(json.dumps(main()))
