"""The command line: parse, call, print. Results go to stdout, everything else to stderr."""

import io
import os
import signal
import sys
from typing import Any

from batchlab.cli.notes import note, note_interrupted
from batchlab.errors import BatchlabError, InputError
from batchlab.interrupts import uninterrupted

READER_GONE = 128 + getattr(signal, "SIGPIPE", 13)
"""As a shell has it of who is ended by SIGPIPE: `head` has read enough, which is no answer."""


def main() -> None:
    """Entry point. Exit codes: 0 fine, 1 the answer is no, 2 usage or input error, 128 + N ended by signal N."""
    if sys.stdout is None:  # closed by whoever started us: what is written, if anything is, fails as it would there
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        signal.signal(number, _stop)  # so that what is half written is removed
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an id may hold what the terminal cannot show
    out = sys.stdout
    try:
        with uninterrupted():  # it takes half a second, and not every library lets a signal through its import
            from batchlab.cli.commands import cli

        cli.main(prog_name="batchlab", standalone_mode=True)
    except SystemExit as ended:  # click puts another stream in the place of one whose reader is gone
        _end(None, ended.code if sys.stdout is out else READER_GONE)
    except InputError as error:
        _end(str(error), 2)
    except BatchlabError as error:
        _end(str(error), 1)
    except KeyboardInterrupt as interrupt:
        _end(None, note_interrupted(interrupt))
    except BrokenPipeError:
        _end(None, READER_GONE)
    except OSError as error:
        if error.filename is not None:
            raise
        _end(f"cannot write the output: {error.strerror}", 2)


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt(number)


def _end(message: str | None, code: Any) -> None:
    if message is not None:
        note(message)
    try:
        sys.stdout.flush()
        sys.exit(code)
    except BrokenPipeError:
        code = READER_GONE if message is None else code
    except OSError as error:  # what is left in the buffer cannot be written either
        if message is None:
            code = 2
            note(f"cannot write the output: {error.strerror}")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
