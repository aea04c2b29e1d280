"""Requests and iterations of a trace as columns, for CSV, Arrow and Parquet. docs/export.md defines them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import IO, Any

import pyarrow as pa

from batchlab.events import End, Event, Header, Iteration, Observer
from batchlab.export.spans import Spans
from batchlab.metrics.fold import Summary
from batchlab.metrics.table import writer_of

ROWS = 1 << 14
"""Rows of a record batch: so many iterations are in memory at once."""


def _tokens(phase: str) -> Callable[[Iteration], int]:
    return lambda it: sum(tokens for _, kind, tokens in it.scheduled if kind == phase)


def _kv(name: str) -> Callable[[Iteration], int | None]:
    return lambda it: None if it.kv is None else it.kv[name]


COLUMNS: dict[str, Callable[[Iteration], int | str | None]] = {
    "iteration": lambda it: it.iteration,
    "start": lambda it: it.start,
    "end": lambda it: it.end,
    "arrived": lambda it: len(it.arrived),
    "rejected": lambda it: sum(rejection.retry_at is None for rejection in it.rejected),
    "retries": lambda it: sum(rejection.retry_at is not None for rejection in it.rejected),
    "dropped": lambda it: len(it.dropped),
    "preempted": lambda it: len(it.preempted),
    "admitted": lambda it: len(it.admitted),
    "batch": lambda it: len(it.scheduled),
    "prefill_tokens": _tokens("prefill"),
    "decode_tokens": _tokens("decode"),
    "cached_tokens": lambda it: sum(tokens for _, tokens in it.cached),
    "padding": lambda it: it.padding,
    "unused": lambda it: it.unused,
    "first_tokens": lambda it: len(it.first_token),
    "completed": lambda it: len(it.completed),
    "queue": lambda it: it.queue_length,
    "active": lambda it: it.active if isinstance(it.active, int) else len(it.active),
    "kv_free": _kv("free"),
    "kv_free_after": _kv("free_after"),
    "kv_moved": _kv("moved"),
    "idle": lambda it: it.idle,
    "note": lambda it: it.note,
}
"""The columns of the iterations."""
TEXTS = ("idle", "note")


class IterationRows:
    """An observer that writes a row an iteration, some thousand at a time; `close` writes the rest."""

    def __init__(self, file: IO[bytes], ending: str) -> None:
        self._file, self._ending = file, ending
        self._schema: Any = None
        self._writer: Any = None
        self._rows: list[Iteration] = []

    def __call__(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, Header):
            fields = [(name, pa.string() if name in TEXTS else pa.int64()) for name in COLUMNS]
            about = {"engine": event.engine, "unit": event.clock["unit"]}
            self._schema = pa.schema(fields, metadata=about)
            self._writer = writer_of(self._file, self._ending, self._schema)
        elif isinstance(event, Iteration):
            self._rows.append(event)
            if len(self._rows) == ROWS:
                self._flush()

    def close(self) -> None:
        """The last event has come."""
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """No more will come, and nothing is kept: else the writer would complain when its file is gone."""
        if self._writer is not None:
            with contextlib.suppress(pa.ArrowException, OSError, ValueError):
                self._writer.close()

    def _flush(self) -> None:
        columns = [pa.array(map(value, self._rows), self._schema.field(name).type) for name, value in COLUMNS.items()]
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
