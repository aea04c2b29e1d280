"""Requests' ids as people see them: on one line, and not too long."""

from rich.cells import cell_len

from batchlab.errors import fingerprint, one_line
from batchlab.export.names import shortened

MOST_CELLS = 48
"""Of an id in a table: an engine's own ids, a UUID with a word before it, are whole."""


def shown_id(id: str, most: int = MOST_CELLS) -> str:
    """The id in at most so many cells, 8 or more. Of a longer one its head and tail, and digits that tell it apart."""
    name, mark = one_line(id), f"~{fingerprint(id)}"
    return name if cell_len(name) <= most else shortened(name, most - len(mark), cell_len) + mark
