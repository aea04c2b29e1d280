"""CSV by the million rows. Takes only files that are right beyond doubt, and gives what `rows.Rows` would give."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from batchlab.clients.columns import Columns, Integers
from batchlab.clients.numbers import MOST_PRIORITY, NS_DIGITS
from batchlab.clients.rows import Layout, in_time_order
from batchlab.settings import LATEST, MOST_TOKENS

_STAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?$"


class _Doubt(Exception):
    """Something is unusual or wrong; the slow reader will say which."""


def read(data: bytes, layout: Layout) -> Columns | None:
    """The requests, or None where anything at all is out of the ordinary."""
    if b'"' in data or data.count(b"\r") != data.count(b"\r\n"):
        return None
    header = data.split(b"\n", 1)[0].decode().rstrip("\r").split(",")
    wanted = list(layout.names.values())
    if len(set(header)) != len(header) or not set(wanted) <= set(header):
        return None
    try:
        table = pacsv.read_csv(
            io.BytesIO(data),
            parse_options=pacsv.ParseOptions(quote_char=False, ignore_empty_lines=False),
            convert_options=pacsv.ConvertOptions(
                include_columns=list(dict.fromkeys(wanted)), column_types=dict.fromkeys(wanted, pa.string())
            ),
        )
        return _columns(table, layout) if table.num_rows else None
    except (_Doubt, pa.ArrowException):
        return None


def _columns(table: Any, layout: Layout) -> Columns:
    cells = {name: table.column(column) for name, column in layout.names.items()}
    lengths = {
        name: _whole(cells[name], 1, MOST_TOKENS) for name in ("prompt", "output", "max_tokens") if name in cells
    }
    if "max_tokens" in lengths and (lengths["max_tokens"] < lengths["output"]).any():
        raise _Doubt
    columns = Columns(
        _arrivals(cells["arrival"], layout),
        lengths["prompt"],
        lengths["output"],
        lengths.get("max_tokens"),
        priority=_whole(cells["priority"], 0, MOST_PRIORITY) if "priority" in cells else None,
        ids=_ids(cells["id"]) if "id" in cells else None,
    )
    return in_time_order(columns) if layout.sort else columns


def _arrivals(cells: Any, layout: Layout) -> Integers:
    if layout.unit == "stamp":
        times = _stamps(cells)
    elif layout.unit == "unit":
        times = _whole(cells, 0, LATEST)
    else:
        times = _times(cells, NS_DIGITS[layout.unit])
    if not layout.sort and (np.diff(times) < 0).any():
        raise _Doubt
    if layout.from_zero:
        times = times - times.min()
    if times.max() > LATEST:
        raise _Doubt
    return times


def _stamps(cells: Any) -> Integers:
    _match(cells, _STAMP)
    return _numpy(pc.cast(pc.cast(cells, pa.timestamp("ns")), pa.int64()))


def _times(cells: Any, digits: int) -> Integers:
    """Decimal times in units of 10^-digits."""
    whole_digits = 18 - digits  # what surely fits
    if not digits:
        return _whole(cells, 0, LATEST)
    _match(cells, rf"^[0-9]{{1,{whole_digits}}}(\.[0-9]{{1,{digits}}})?$")
    parts = pc.extract_regex(cells, r"^(?P<whole>[0-9]+)(?P<point>\.?)(?P<fraction>[0-9]*)$")
    whole, fraction = pc.struct_field(parts, "whole"), pc.struct_field(parts, "fraction")
    fine = pc.cast(pc.utf8_rpad(fraction, digits, "0"), pa.int64())
    found: Integers = _numpy(pc.cast(whole, pa.int64())) * 10**digits + _numpy(fine)
    return found


def _whole(cells: Any, least: int, most: int) -> Integers:
    _match(cells, "^[0-9]{1,18}$")
    values = _numpy(pc.cast(cells, pa.int64()))
    if values.min() < least or values.max() > most:
        raise _Doubt
    return values


def _ids(cells: Any) -> list[str]:
    ids: list[str] = cells.to_pylist()
    if not all(ids) or len(set(ids)) != len(ids):
        raise _Doubt
    return ids


def _match(cells: Any, pattern: str) -> None:
    if cells.null_count or not pc.all(pc.match_substring_regex(cells, pattern)).as_py():
        raise _Doubt


def _numpy(cells: Any) -> Integers:
    found: Integers = cells.to_numpy()
    return found
