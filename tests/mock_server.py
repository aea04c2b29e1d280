"""The mock server in a test's own process, with round steps."""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator
from typing import Any

from batchlab.core.limits import Limits
from batchlab.costs.linear import Linear
from batchlab.metrics.fold import Summary
from batchlab.order import QueueOrder
from batchlab.policies.chunked import Chunked
from batchlab.serve.engine import Engine
from batchlab.serve.server import Settings, serving
from batchlab.simulation import Run
from batchlab.trace.write import TraceWriter

STEP_MS = 10


def a_run(seats: int = 8, step_ms: int = STEP_MS, budget: int = 4096, **more: Any) -> Run:
    """Chunked prefill with steps of equal time. more: limits of the core, `queue`, `deadlines`, `policy`."""
    own = {name: more.pop(name) for name in ("queue", "deadlines") if name in more}
    policy = more.pop("policy", None) or Chunked(prefill_chunk=budget)
    limits = Limits(max_num_seqs=seats, max_num_batched_tokens=budget, **more)
    return Run(policy, limits, Linear("ns", step_ms * 1_000_000), [], engine="chunked", **own)


class Served:
    """A server that runs. trace: what its engine has told so far."""

    def __init__(self, engine: Engine, port: int, file: io.StringIO) -> None:
        self.engine = engine
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._file = file

    @property
    def trace(self) -> str:
        return self._file.getvalue()

    async def raw(self, data: bytes, half_close: bool = False) -> bytes:
        """Write bytes to a connection of one's own, and read all that comes until it is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        if half_close:
            writer.write_eof()
        found = await reader.read()
        writer.close()
        return found


@contextlib.asynccontextmanager
async def served(
    run: Run | None = None, model: str = "mock", traced: bool = True, **settings: Any
) -> AsyncIterator[Served]:
    """A server for the block; its trace is complete afterwards."""
    file, summary = io.StringIO(), Summary()
    engine = Engine(run or a_run(), [summary, TraceWriter(file, summary)] if traced else [])
    async with serving(engine, Settings(model, **settings)) as (port, _):
        yield Served(engine, port, file)


__all__ = ["QueueOrder", "Served", "a_run", "served"]
