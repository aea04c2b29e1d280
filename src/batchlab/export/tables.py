"""Requests and iterations of a trace as columns, for CSV, Arrow and Parquet. docs/export.md defines them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import IO, Any

import pyarrow as pa

from batchlab.events import End, Event, Header, Iteration, Observer
from batchlab.export.spans import Spans
from batchlab.files import encodable
from batchlab.metrics.fold import Summary
from batchlab.metrics.table import column, writer_of
from batchlab.steps import Step, Steps

ROWS = 1 << 14
"""Rows of a record batch: so many iterations are in memory at once."""


def _tokens(phase: str) -> Callable[[Step], int]:
    return lambda step: sum(tokens for _, kind, tokens in step.line.scheduled if kind == phase)


def _kv(name: str) -> Callable[[Step], int | None]:
    return lambda step: None if step.line.kv is None else step.line.kv[name]


COLUMNS: dict[str, Callable[[Step], int | str | None]] = {
    "iteration": lambda step: step.line.iteration,
    "start": lambda step: step.start,
    "end": lambda step: step.end,
    "arrived": lambda step: len(step.line.arrived),
    "rejected": lambda step: sum(rejection.retry_at is None for rejection in step.line.rejected),
    "retries": lambda step: sum(rejection.retry_at is not None for rejection in step.line.rejected),
    "dropped": lambda step: len(step.line.dropped),
    "preempted": lambda step: len(step.line.preempted),
    "admitted": lambda step: len(step.line.admitted),
    "batch": lambda step: len(step.line.scheduled),
    "prefill_tokens": _tokens("prefill"),
    "decode_tokens": _tokens("decode"),
    "cached_tokens": lambda step: sum(tokens for _, tokens in step.line.cached),
    "padding": lambda step: step.line.padding,
    "unused": lambda step: step.line.unused,
    "first_tokens": lambda step: 0 if step.out is None else len(step.out.first_token),
    "completed": lambda step: 0 if step.out is None else len(step.out.completed),
    "queue": lambda step: step.line.queue_length,
    "active": lambda step: step.line.active if isinstance(step.line.active, int) else len(step.line.active),
    "kv_free": _kv("free"),
    "kv_free_after": _kv("free_after"),
    "kv_moved": _kv("moved"),
    "idle": lambda step: step.line.idle,
    "note": lambda step: step.line.note,
}
"""The columns of the iterations."""
TEXTS = ("idle", "note")


class IterationRows:
    """An observer that writes a row an iteration, some thousand at a time; `close` writes the rest."""

    def __init__(self, file: IO[bytes], ending: str) -> None:
        self._file, self._ending = file, ending
        self._schema: Any = None
        self._writer: Any = None
        self._steps = Steps()
        self._rows: list[Step] = []

    def __call__(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, Header):
            fields = [(name, pa.string() if name in TEXTS else pa.int64()) for name in COLUMNS]
            about = {"engine": encodable(event.engine), "unit": event.clock["unit"]}
            self._schema = pa.schema(fields, metadata=about)
            self._writer = writer_of(self._file, self._ending, self._schema)
        elif isinstance(event, Iteration):
            self._steps.take(event)
            self._rows += self._steps.over
            if len(self._rows) >= ROWS:
                self._flush()

    def close(self) -> None:
        """The last event has come."""
        self._rows += self._steps.left()
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """No more will come, and nothing is kept: else the writer would complain when its file is gone."""
        if self._writer is not None:
            with contextlib.suppress(pa.ArrowException, OSError, ValueError):
                self._writer.close()

    def _flush(self) -> None:
        kinds = zip(COLUMNS.values(), self._schema.types, strict=True)
        columns = [column([value(row) for row in self._rows], kind) for value, kind in kinds]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        self._rows = []


def write(what: str, file: IO[bytes], ending: str, tell: Callable[[list[Observer]], End]) -> End:
    """Write `requests` or `iterations` of what `tell` tells."""
    if what == "iterations":
        rows = IterationRows(file, ending)
        try:
            end = tell([rows])
            rows.close()
        except BaseException:
            rows.abandon()
            raise
        return end
    summary = Summary()
    end = tell([Spans(lambda item: None), summary])  # the first says what is wrong with a trace that is
    summary.write_table(file, f"requests{ending}")
    return end
