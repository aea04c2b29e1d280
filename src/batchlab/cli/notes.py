"""Remarks for whoever reads the terminal."""

import shutil
import signal
import sys
import textwrap

from batchlab.errors import one_line
from batchlab.interrupts import ENDING


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


def note_interrupted(interrupt: KeyboardInterrupt) -> int:
    """A remark on the signal that ends a command; ended by signal N, it exits with 128 + N, which no answer is."""
    for further in ENDING:  # they would end it in another way while Python takes itself down
        signal.signal(further, signal.SIG_IGN)
    number = signal.Signals(interrupt.args[0] if interrupt.args else signal.SIGINT)
    if sys.stderr.isatty():
        print(file=sys.stderr)  # the terminal has shown ^C
    note("interrupted" if number == signal.SIGINT else f"stopped by {number.name}")
    return 128 + number
