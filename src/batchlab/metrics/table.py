"""Results as columns: one row for each request, for pyarrow, Parquet, Arrow and CSV. docs/results.md defines them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from batchlab.clients.columns import Columns
from batchlab.clients.request import Request
from batchlab.core.tally import NEVER, RESULTS, Tally
from batchlab.errors import InputError, nearest
from batchlab.files import encodable

ROWS = 1 << 18
"""Rows of a record batch, and of a Parquet row group."""
GIVEN = ("arrival", "prompt", "output", "max_tokens", "priority")
COUNTS = ("emitted", "preemptions", "recomputed_tokens", "attempts")
ENDINGS = (".parquet", ".arrow", ".csv")

Integers = npt.NDArray[np.int64]


def schema_of(requests: Sequence[Request], **about: str) -> Any:
    """Names and types of the columns; about: the file's metadata.

    A group is one only where a request has one, and the sending where a client held one back.
    """
    fields: list[tuple[str, Any]] = [("id", pa.string()), *((name, pa.int64()) for name in GIVEN)]
    if _grouped(requests):
        fields.append(("group", pa.string()))
    if _held(requests):
        fields += [("sent", pa.int64()), ("ttft_from_send", pa.int64())]
    fields += [("result", pa.string()), ("reason", pa.string())]
    fields += [(name, pa.int64()) for name in ("queue_time", "ttft", "e2el")]
    fields += [
        ("tpot", pa.float64()),
        ("ntpot", pa.float64()),
        ("max_itl", pa.int64()),
        *((name, pa.int64()) for name in COUNTS),
    ]
    return pa.schema(fields, metadata={name: encodable(text) for name, text in about.items()})


def batches(schema: Any, requests: Sequence[Request], tally: Tally, positions: Integers) -> Iterator[Any]:
    """Record batches with the requests at these positions, in this order."""
    for start in range(0, len(positions), ROWS):
        part = positions[start : start + ROWS]
        found = {**_given(requests, part, "group" in schema.names), **_became(tally, part)}
        found |= _latencies(tally, part, found["arrival"])
        if "sent" in schema.names:
            sent = np.array([requests[position].comes for position in part], np.int64)
            found |= {"sent": sent, "ttft_from_send": _latencies(tally, part, sent)["ttft"]}
        yield pa.record_batch([column(found[field.name], field.type) for field in schema], schema=schema)


def column(values: Any, kind: Any) -> Any:
    """Values as a pyarrow array; halves of surrogate pairs, which no such file can hold, as escapes."""
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        return pa.array([None if text is None else encodable(text) for text in values], kind)


def ending_of(path: str | Path) -> str:
    """The ending of a file, which says its format. Raises InputError for one that is none of ours."""
    ending = Path(path).suffix
    if ending.lower() not in ENDINGS:
        expected = f"must end in .parquet, .arrow or .csv{nearest(ending.lower(), ENDINGS)}"
        raise InputError(path, None, None, expected)
    return ending.lower()


def writer_of(file: IO[bytes], ending: str, schema: Any) -> Any:
    """A pyarrow writer of record batches in the format that the ending says."""
    if ending == ".parquet":
        return pq.ParquetWriter(file, schema)
    if ending == ".arrow":
        return pa.ipc.new_file(file, schema)
    return pa.csv.CSVWriter(file, schema, write_options=pa.csv.WriteOptions(quoting_style="needed"))


def write(file: IO[bytes], ending: str, schema: Any, rows: Iterator[Any]) -> None:
    """Write record batches as what the ending says, one after another: memory holds one of them."""
    with writer_of(file, ending, schema) as writer:
        for batch in rows:
            writer.write_batch(batch)


def _grouped(requests: Sequence[Request]) -> bool:
    if isinstance(requests, Columns):
        return requests.groups is not None
    return any(request.group is not None for request in requests)


def _held(requests: Sequence[Request]) -> bool:
    return not isinstance(requests, Columns) and any(request.held_until is not None for request in requests)


def _given(requests: Sequence[Request], part: Integers, grouped: bool) -> dict[str, Any]:
    """What the client sent."""
    if not isinstance(requests, Columns):
        chosen = [requests[position] for position in part]
        names = ("id", *GIVEN, *(("group",) if grouped else ()))
        found = {name: [getattr(request, name) for request in chosen] for name in names}
        return {**found, "arrival": np.array(found["arrival"], np.int64)}
    if requests.ids is not None:
        ids: Any = [requests.ids[position] for position in part]
    else:
        ids = pa.array(part if requests.numbers is None else requests.numbers[part]).cast(pa.string())
    columns: dict[str, Any] = {"id": ids}
    for name in GIVEN:
        column = getattr(requests, name)
        columns[name] = np.ones(len(part), np.int64) if column is None else column[part]
    if requests.groups is not None:
        names_of_groups, which = requests.groups
        columns["group"] = pa.array(names_of_groups).take(pa.array(which[part]))
    return columns


def _became(tally: Tally, part: Integers) -> dict[str, Any]:
    """What became of them, but for times."""
    result = np.asarray(tally.result)[part]
    attempts = np.asarray(tally.times_retried)[part] + (result != RESULTS.index("retrying"))
    return {
        "result": pa.array(RESULTS).take(pa.array(result)),
        "reason": [tally.reasons.get(position) for position in part.tolist()] if tally.reasons else [None] * len(part),
        "emitted": np.asarray(tally.tokens)[part],
        "preemptions": np.asarray(tally.times_preempted)[part],
        "recomputed_tokens": np.asarray(tally.recomputed)[part],
        "attempts": np.where(result == RESULTS.index("pending"), 0, attempts),
    }


def _latencies(tally: Tally, part: Integers, arrival: Integers) -> dict[str, Any]:
    """Latencies in the clock's unit, null where they do not apply."""
    columns = (tally.first_scheduled, tally.first_time, tally.last_time, tally.max_itl, tally.tokens)
    scheduled, first, last, gap, tokens = (np.asarray(column)[part] for column in columns)
    done = np.asarray(tally.result)[part] == RESULTS.index("completed")
    return {
        "queue_time": pa.array(scheduled - arrival, mask=scheduled == NEVER),
        "ttft": pa.array(first - arrival, mask=first == NEVER),
        "e2el": pa.array(last - arrival, mask=~done),
        "tpot": pa.array((last - first) / np.maximum(tokens - 1, 1), mask=~done | (tokens < 2)),
        "ntpot": pa.array((last - arrival) / np.maximum(tokens, 1), mask=~done),
        "max_itl": pa.array(gap, mask=gap == NEVER),
    }
