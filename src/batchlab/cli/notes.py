"""Remarks for whoever reads the terminal."""

import sys

from batchlab.errors import one_line


def note(text: str) -> None:
    """A remark on stderr."""
    print(f"batchlab: {one_line(text)}", file=sys.stderr)


def note_cut(trace: str, what: str = "this is what it says") -> None:
    """A remark on a trace that breaks off. what: is told up to there."""
    note(f"{trace} has no end line: the run was killed, or the file was cut; {what} up to there")
