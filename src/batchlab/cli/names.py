"""Requests' ids as people see them: on one line, and not too long."""

from rich.cells import cell_len, set_cell_size

from batchlab.errors import fingerprint, one_line

MOST_CELLS = 48
"""Of an id in a table: an engine's own ids, a UUID with a word before it, are whole."""
LEAST_TAIL = 16
"""Cells from which on the end of a name is shown, too."""


def shown_id(id: str, most: int = MOST_CELLS) -> str:
    """The id in at most so many cells, 8 or more. Of a longer one its head and tail, and digits that tell it apart."""
    return shortened(one_line(id), most, fingerprint(id))


def shortened(name: str, most: int, mark: str) -> str:
    """A name in at most so many cells; of a longer one its head, its tail if there is room, and the mark."""
    if cell_len(name) <= most:
        return name
    room = most - len(f"..~{mark}")
    kept = room // 2 if most >= LEAST_TAIL else 0
    tail = name[len(name) - kept :]
    while cell_len(tail) > kept:
        tail = tail[1:]
    return f"{set_cell_size(name, room - kept)}..{tail}~{mark}"
