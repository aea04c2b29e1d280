"""Remarks for whoever reads the terminal."""

import shutil
import sys
import textwrap

from batchlab.errors import one_line


def note(text: str) -> None:
    """A remark on stderr: a terminal gets it wrapped between words."""
    line = f"batchlab: {one_line(text)}"
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    print(line, file=sys.stderr)


def note_cut(trace: str, what: str = "this is what it says") -> None:
    """A remark on a trace that breaks off. what: is told up to there."""
    note(f"{trace} has no end line: the run was killed, or the file was cut; {what} up to there")
