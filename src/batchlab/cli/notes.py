"""Remarks for whoever reads the terminal."""

import sys

from batchlab.errors import one_line


def note(text: str) -> None:
    """A remark on stderr."""
    print(f"batchlab: {one_line(text)}", file=sys.stderr)
