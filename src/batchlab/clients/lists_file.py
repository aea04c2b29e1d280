"""Results of `vllm bench serve --save-result --save-detailed`: one JSON object with a list for each field."""

import json
from pathlib import Path
from typing import Any

from batchlab.clients.columns import Columns
from batchlab.clients.layout import Layout
from batchlab.clients.numbers import Literal
from batchlab.clients.readers import why_not_json
from batchlab.clients.rows import Rows
from batchlab.clients.source import decoded, opened, without_mark
from batchlab.errors import InputError


def read(path: Path, layout: Layout) -> Columns:
    """The requests that were sent, in the file's order. Failed ones have output 0. Raises InputError."""
    with opened(path, "a JSON result of vllm bench serve --save-detailed") as file:
        text = decoded(path, without_mark(file.read()))
    try:
        document = json.loads(text, parse_float=Literal, object_pairs_hook=_no_twins)
    except (ValueError, RecursionError) as error:
        place = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else None
        raise InputError(path, place, None, f"not a JSON document: {why_not_json(error)}") from None
    if not isinstance(document, dict):
        raise InputError(path, None, None, "must be one JSON object, as vllm bench serve --save-detailed writes it")
    lists = {name: _list(path, document, key) for name, key in layout.names.items()}
    counts = {key: len(lists[name]) for name, key in layout.names.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{key} has {count}" for key, count in counts.items())
        raise InputError(path, None, None, f"its lists must have the same length: {said}")
    rows = _Entries(path, layout)
    for index, values in enumerate(zip(*lists.values(), strict=True)):
        row = dict(zip(lists, values, strict=True))
        for name, value in row.items():
            if isinstance(value, str) and not isinstance(value, Literal):
                raise InputError(path, rows.place(index, name), value, "must be a number, not a text")
        rows.add(index, row)
    if not counts or not next(iter(counts.values())):
        raise InputError(path, None, None, "has no requests; at least one is needed")
    return rows.columns()


class _Entries(Rows):
    """Rows that are told apart by their place in the lists."""

    def place(self, line: int, name: str) -> str:
        return f"{self.layout.names[name]}[{line}]"

    def before(self, line: int) -> str:
        return f"entry {line}"


def _list(path: Path, document: dict[str, Any], key: str) -> list[Any]:
    if key not in document:
        lists = [name for name, value in document.items() if isinstance(value, list)]
        why = "; was it run with --save-detailed?"
        if key == "start_times":
            why = "; older versions of vLLM write none: take the lengths alone, with [workload.generate] lengths"
        raise InputError(path, None, None, f"has no list {key!r}{why}; its lists: {', '.join(lists) or 'none':.160}")
    value = document[key]
    if not isinstance(value, list):
        raise InputError(path, key, value, "must be a list, one value for each request")
    return value


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found
