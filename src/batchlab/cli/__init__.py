"""The command line: parse, call, print. Results go to stdout, everything else to stderr."""

import contextlib
import io
import os
import signal
import sys

from batchlab.cli.main import cli
from batchlab.cli.notes import note
from batchlab.errors import BatchlabError, InputError


def main() -> None:
    """Entry point. Exit codes: 0 fine, 1 the answer is no, 2 usage or input error, 128 + N ended by signal N."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        signal.signal(number, _stop)  # so that what is half written is removed
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an id may hold what the terminal cannot show
    try:
        cli.main(prog_name="batchlab", standalone_mode=True)
    except InputError as error:
        _end(str(error), 2)
    except BatchlabError as error:
        _end(str(error), 1)
    except BrokenPipeError:
        _end(None, 1)
    except OSError as error:
        if error.filename is not None:
            raise
        _end(f"cannot write the output: {error.strerror}", 2)


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt(number)


def _end(message: str | None, code: int) -> None:
    if message is not None:
        note(message)
    with contextlib.suppress(OSError):  # what is left in the buffer cannot be written either
        sys.stdout.flush()
        sys.exit(code)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
