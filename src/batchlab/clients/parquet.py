"""Parquet files: read by the batch into arrays of their final size, so that memory holds the columns and no more."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchlab.clients.columns import Columns, Integers
from batchlab.clients.growing import Growing
from batchlab.clients.layout import Layout
from batchlab.clients.numbers import MOST_PRIORITY, NS_DIGITS
from batchlab.clients.rows import MOST_TURN, Codes, from_file
from batchlab.clients.source import refuse_other_files
from batchlab.errors import InputError, nearest
from batchlab.settings import LATEST, MOST_TOKENS

BATCH = 1 << 18
"""Rows read at a time."""
LEAST = -(2**63)
NEEDED = {"id": "an id of its own", "session": "a session"}


def read(path: Path, layout: Layout) -> Columns:
    """The requests in a Parquet file. Raises InputError."""
    refuse_other_files(path, b"PAR1", "a Parquet file")
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            return _read(path, file, layout)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(path, None, None, f"cannot be read as a Parquet file: {reason}") from error


def _read(path: Path, file: Any, layout: Layout) -> Columns:
    schema = file.schema_arrow
    for name, column in layout.names.items():
        if column not in schema.names:
            shown = f"{', '.join(schema.names):.160}{layout.asked(name)}"
            raise InputError(
                path, None, None, f"has no column {column!r}{nearest(column, schema.names)}; it has: {shown}"
            )
        if schema.names.count(column) > 1:
            raise InputError(path, f"column {column!r}", None, "stands twice among the column names")
    total = file.metadata.num_rows if layout.limit is None else min(layout.limit, file.metadata.num_rows)
    if not total:
        raise InputError(path, None, None, "has no rows; at least one request is needed")
    table = Growing([name for name in layout.names if name != "id"], total)
    ids: list[str] = []
    sessions = Codes()
    begun = dropped = 0
    wanted = list(dict.fromkeys(layout.names.values()))
    for batch in file.iter_batches(batch_size=min(BATCH, total), columns=wanted, use_threads=False):
        batch = batch.slice(0, total - begun)
        found, kept = _batch(_Place(path, layout, begun), batch, sessions)
        if "id" in layout.names:
            ids += found.pop("id")
        if kept is not None:
            dropped += int(len(kept) - kept.sum())
            found = {name: column[kept] for name, column in found.items()}
            ids = ids[: len(table)] + [id for id, keep in zip(ids[len(table) :], kept, strict=True) if keep]
        table.add(found)
        begun += len(batch)
        if begun == total:
            break
    return _columns(path, table.columns(), ids, dropped, layout)


class _Place:
    """Where the rows of a batch stand, for messages: rows are counted from 0, as a data frame shows them."""

    def __init__(self, path: Path, layout: Layout, begun: int) -> None:
        self.path = path
        self.layout = layout
        self.begun = begun

    def refuse(self, name: str, row: int, value: object, expected: str) -> InputError:
        return InputError(self.path, f"row {self.begun + row}, column {self.layout.names[name]!r}", value, expected)


def _batch(place: _Place, batch: Any, sessions: Codes) -> tuple[dict[str, Any], Any]:
    """The values of a batch by our names, and which rows stay where not all do."""
    layout = place.layout
    found: dict[str, Any] = {}
    for name, column in layout.names.items():
        cells = batch.column(column)
        if cells.null_count:
            row = int(np.argmax(cells.is_null().to_numpy(zero_copy_only=False)))
            raise place.refuse(name, row, None, "is null; every request needs a value")
        if name == "arrival":
            found[name] = _times(place, cells)
        elif name == "id":
            found[name] = _texts(place, name, cells)
        elif name == "session":
            found[name] = np.array(sessions.of(_texts(place, name, cells)), np.int64)
        elif name == "turn":
            found[name] = _whole(place, name, cells, 0, MOST_TURN)
        elif name == "priority":
            found[name] = _whole(place, name, cells, -MOST_PRIORITY, MOST_PRIORITY)
        else:
            found[name] = _whole(place, name, cells, layout.least, MOST_TOKENS)
    if "max_tokens" in found:
        _refuse(
            place,
            "max_tokens",
            found["max_tokens"] < found["output"],
            cells=found["max_tokens"],
            expected="must be at least the output",
        )
    kept = None
    if layout.drop_empty:
        kept = (found["prompt"] > 0) & (found["output"] > 0)
    return found, None if kept is None or kept.all() else kept


def _whole(place: _Place, name: str, cells: Any, least: int, most: int) -> Integers:
    if not pa.types.is_integer(cells.type):
        raise place.refuse(name, 0, None, f"is of type {cells.type}; whole numbers are needed")
    if cells.type == pa.uint64():
        _refuse(place, name, cells.to_numpy() > np.uint64(most), cells, f"must be at most {most}")
    values: Integers = cells.to_numpy().astype(np.int64, copy=False)
    if values.min() < least:
        _refuse(place, name, values < least, cells, f"must be at least {least}")
    if values.max() > most:
        _refuse(place, name, values > most, cells, f"must be at most {most}")
    return values


def _times(place: _Place, cells: Any) -> Integers:
    """Times in ns; those of the type timestamp in ns since 1970, whatever their own unit."""
    unit = place.layout.unit
    if pa.types.is_timestamp(cells.type):
        if unit != "stamp":
            raise place.refuse("arrival", 0, None, f"is of type {cells.type}: time_unit must be 'timestamp'")
        factor = 10 ** NS_DIGITS[cells.type.unit]
        values = pc.cast(cells, pa.int64()).to_numpy()
        _refuse(place, "arrival", np.abs(values) > LATEST // factor, cells, "lies too far from 1970 for ns")
        found: Integers = values * factor
        return found
    if unit == "stamp":
        raise place.refuse("arrival", 0, None, f"is of type {cells.type}: time_unit must be its unit, not 'timestamp'")
    digits = 0 if unit == "unit" else NS_DIGITS[unit]
    if pa.types.is_floating(cells.type):
        return _floats(place, cells, digits)
    scaled: Integers = _whole(place, "arrival", cells, 0, LATEST // 10**digits) * 10**digits
    return scaled


def _floats(place: _Place, cells: Any, digits: int) -> Integers:
    """Times as floats: the nearest ns to the number that stands there, if that may be rounded."""
    values = cells.to_numpy().astype(np.float64, copy=False)
    _refuse(place, "arrival", ~(values >= 0), cells, "must be a time, not negative")
    _refuse(place, "arrival", values * 10.0**digits > LATEST, cells, "must be at most 2^62")
    if not place.layout.round_times:
        raise place.refuse(
            "arrival", 0, None, f"is of type {cells.type}, no exact time: round_times = true takes the nearest ns"
        )
    seconds = np.floor(values)
    found: Integers = seconds.astype(np.int64) * 10**digits + np.rint((values - seconds) * 10.0**digits).astype(
        np.int64
    )
    return found


def _texts(place: _Place, name: str, cells: Any) -> list[str]:
    if not (pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type) or pa.types.is_integer(cells.type)):
        raise place.refuse(name, 0, None, f"is of type {cells.type}; texts or whole numbers are needed")
    ids = [str(value) for value in cells.to_pylist()]
    if "" in ids:
        raise place.refuse(name, ids.index(""), "", f"is empty; every request needs {NEEDED[name]}")
    return ids


def _refuse(place: _Place, name: str, wrong: Any, cells: Any, expected: str) -> None:
    """Raise for the first row that is wrong, if any is."""
    if wrong.any():
        row = int(np.argmax(wrong))
        value = cells[row]
        raise place.refuse(name, row, value.as_py() if hasattr(value, "as_py") else int(value), expected)


def _columns(path: Path, found: dict[str, Integers], ids: list[str], dropped: int, layout: Layout) -> Columns:
    count = len(found["prompt"])
    if not count:
        raise InputError(path, None, None, f"each of its {dropped:,} rows has a length of 0")
    if len(set(ids)) != len(ids):
        seen: set[str] = set()
        twice = next(id for id in ids if id in seen or seen.add(id))  # type: ignore[func-returns-value]
        raise InputError(path, f"column {layout.names['id']!r}", twice, "must be unique; it stands twice")
    arrival = found["arrival"] if layout.timed else np.zeros(count, np.int64)
    if not layout.sort and (earlier := arrival[1:] < arrival[:-1]).any():
        row = int(np.argmax(earlier)) + 1
        message = (
            f"request {row} is earlier than the one before; rows must be in order of arrival (sort = true sorts them)"
        )
        raise InputError(path, f"column {layout.names['arrival']!r}", None, message)
    if layout.from_zero:
        first, last = int(arrival.min()), int(arrival.max())
        if last - first > LATEST:
            raise InputError(path, f"column {layout.names['arrival']!r}", None, "spans more than 2^62 ns")
        arrival -= first
    return from_file(path, arrival, found, ids, dropped, layout)
