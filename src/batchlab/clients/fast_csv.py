"""CSV by the million rows. Takes only files that are right beyond doubt, and gives what `rows.Rows` would give."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from batchlab.clients.columns import Columns, Integers
from batchlab.clients.growing import Growing
from batchlab.clients.layout import Layout
from batchlab.clients.numbers import MOST_PRIORITY, NS_DIGITS
from batchlab.clients.rows import MOST_TURN, Codes, from_file
from batchlab.clients.source import BOM
from batchlab.settings import LATEST, MOST_TOKENS

BLOCK = 1 << 24
"""Bytes worked on at a time."""
LENGTHS = ("prompt", "output", "max_tokens")

_STAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(\+00:00)?$"


class _Doubt(Exception):
    """Something is unusual or wrong; the slow reader will say which."""


def read(path: Path, file: IO[bytes], layout: Layout) -> Columns | None:
    """The requests, or None where anything at all is out of the ordinary. The file is read from where it stands."""
    header = file.readline().removeprefix(BOM)
    names = [*layout.names]
    try:
        columns = header.rstrip(b"\r\n").decode().split(",")
        if b'"' in header or b"\0" in header or len(set(columns)) != len(columns):
            return None
        if not set(layout.names.values()) <= set(columns):
            return None
        table = Growing([name for name in names if name != "id"])
        ids: list[str] = []
        sessions = Codes()
        dropped = 0
        for block in _blocks(file, layout.limit):
            found = _block(block, columns, layout, sessions)
            kept = np.logical_and.reduce([found[name] > 0 for name in LENGTHS if name in found])
            if not kept.all():
                dropped += int(len(kept) - kept.sum())
                found = {name: column[kept] for name, column in found.items()}
            table.add({name: column for name, column in found.items() if name != "id"})
            if "id" in found:
                ids += found["id"].tolist()
        return _columns(path, table.columns(), ids, dropped, layout)
    except (_Doubt, pa.ArrowException, UnicodeDecodeError):
        return None


def _blocks(file: IO[bytes], limit: int | None) -> Iterator[bytes]:
    """The rest of the file in blocks of whole lines, no more lines than the limit allows."""
    rest = b""
    while True:
        data = file.read(BLOCK)
        end = data.rfind(b"\n") + 1
        block, rest = (rest + data[:end], data[end:]) if end else (b"", rest + data)
        if not data:
            block, rest = rest, b""
        if limit is not None and block:
            lines = block.count(b"\n")
            if lines >= limit:
                block, data = b"".join(io.BytesIO(block).readlines()[:limit]), b""
            limit -= min(lines, limit)
        if block:
            yield block
        if not data:
            return


def _block(block: bytes, columns: list[str], layout: Layout, sessions: Codes) -> dict[str, Any]:
    """The values of some whole lines, by our names."""
    if b'"' in block or b"\0" in block or block.count(b"\r") != block.count(b"\r\n"):
        raise _Doubt
    wanted = list(dict.fromkeys(layout.names.values()))
    # Threads gain nothing here, and of a command that ends at once after them one in a hundred was aborted by theirs.
    table = pacsv.read_csv(
        io.BytesIO(block),
        read_options=pacsv.ReadOptions(column_names=columns, use_threads=False),
        parse_options=pacsv.ParseOptions(quote_char=False, ignore_empty_lines=False),
        convert_options=pacsv.ConvertOptions(include_columns=wanted, column_types=dict.fromkeys(wanted, pa.string())),
    )
    cells = {name: table.column(column) for name, column in layout.names.items()}
    found: dict[str, Any] = {name: _whole(cells[name], layout.least, MOST_TOKENS) for name in LENGTHS if name in cells}
    if layout.timed:
        found["arrival"] = _arrivals(cells["arrival"], layout.unit)
    if "priority" in cells:
        found["priority"] = _whole(cells["priority"], 0, MOST_PRIORITY)
    if "turn" in cells:
        found["turn"] = _whole(cells["turn"], 0, MOST_TURN)
    if "session" in cells:
        found["session"] = _coded(cells["session"], sessions)
    if "id" in cells:
        found["id"] = np.array(cells["id"].to_pylist(), object)
    return found


def _coded(cells: Any, codes: Codes) -> Integers:
    encoded = cells.combine_chunks().dictionary_encode()
    try:
        return np.array(codes.of(encoded.dictionary.to_pylist()), np.int64)[_numpy(encoded.indices)]
    except ValueError:
        raise _Doubt from None


def _columns(path: Path, found: dict[str, Integers], ids: list[str], dropped: int, layout: Layout) -> Columns:
    if not len(found["prompt"]) or (ids and not all(ids)) or len(set(ids)) != len(ids):
        raise _Doubt
    if "max_tokens" in found and (found["max_tokens"] < found["output"]).any():
        raise _Doubt
    arrival = found["arrival"] if layout.timed else np.zeros(len(found["prompt"]), np.int64)
    if not layout.sort and (np.diff(arrival) < 0).any():
        raise _Doubt
    if layout.from_zero:
        arrival -= arrival.min()
    if arrival.max() > LATEST:
        raise _Doubt
    return from_file(path, arrival, found, ids, dropped, layout)


def _arrivals(cells: Any, unit: str) -> Integers:
    """Times in ns, or as they are where the unit is none of time."""
    if unit == "stamp":
        _match(cells, _STAMP)
        zone = "UTC" if cells[0].as_py().endswith("+00:00") else None  # of all or of none, else Arrow refuses
        return _numpy(pc.cast(pc.cast(cells, pa.timestamp("ns", zone)), pa.int64()))
    digits = 0 if unit == "unit" else NS_DIGITS[unit]
    if not digits:
        return _whole(cells, 0, LATEST)
    _match(cells, rf"^[0-9]{{1,{18 - digits}}}(\.[0-9]{{1,{digits}}})?$")  # 18 digits surely fit
    decimals = pc.cast(cells, pa.decimal128(18, digits)).combine_chunks()
    # A decimal lies there as a 128-bit whole number, here of units of 10^-digits: its lower half is all of it.
    return np.frombuffer(decimals.buffers()[1], np.int64)[2 * decimals.offset :: 2][: len(decimals)].copy()


def _whole(cells: Any, least: int, most: int) -> Integers:
    _match(cells, "^[0-9]{1,18}$")
    values = _numpy(pc.cast(cells, pa.int64()))
    if values.min() < least or values.max() > most:
        raise _Doubt
    return values


def _match(cells: Any, pattern: str) -> None:
    if cells.null_count or not pc.all(pc.match_substring_regex(cells, pattern)).as_py():
        raise _Doubt


def _numpy(cells: Any) -> Integers:
    found: Integers = cells.to_numpy()
    return found
