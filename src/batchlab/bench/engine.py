"""A server that is started for a measurement and gone after it."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from batchlab.errors import InputError
from batchlab.interrupts import uninterrupted
from batchlab.shell_line import CONTINUATION

PATIENCE = 20.0
"""Seconds that a server has to end by itself."""
PLACES = ("{value}", "{port}")
TAIL = 300
"""Characters of a log that are told."""


@dataclass(frozen=True)
class Started:
    """A server that answers. url: where; took: seconds from its start until /health did."""

    url: str
    took: float


def words_of(command: str) -> list[str]:
    """A command as its words, split as a shell would and never given to one. Raises InputError."""
    try:
        words = shlex.split(CONTINUATION.sub(" ", command))
    except ValueError as error:
        raise InputError("--engine", None, command, f"cannot be split into words: {error}") from None
    for place in PLACES:
        if not any(place in word for word in words):
            raise InputError("--engine", None, command, f"must hold {place}: --engine 'vllm serve MODEL ...'")
    return words


def refuse_missing(words: list[str]) -> None:
    """Raises InputError where the program is not there, before anything long is done for it."""
    program = words[0]
    if not any(place in program for place in PLACES) and shutil.which(program) is None:
        reason = errno.EACCES if os.sep in program and os.path.exists(program) else errno.ENOENT
        raise InputError("--engine", None, program, f"cannot be started: {os.strerror(reason)}")


@contextlib.contextmanager
def started(words: list[str], value: str, within: float) -> Iterator[Started]:
    """Run a command on a free port of loopback until /health answers; its process group is gone at the end.

    words: with {value} and {port} in them. within: seconds. Raises InputError with the end of its log where it does not
    come up.
    """
    if not hasattr(os, "killpg"):
        raise InputError("--engine", None, None, "needs process groups, which this system has not")
    port = _free_port()
    command = [word.replace("{value}", value).replace("{port}", str(port)) for word in words]
    with tempfile.TemporaryFile() as log:
        begin = time.monotonic()
        process = None
        try:
            with uninterrupted():  # else a server could run that nobody knows of
                process = _begun(command, log)
            url = f"http://127.0.0.1:{port}"
            _await(process, url, begin + within, log)
            yield Started(url, time.monotonic() - begin)
        finally:
            if process is not None:
                _stop(process)


def _begun(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        raise InputError("--engine", None, command[0], f"cannot be started: {error.strerror}") from None


def _stop(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C would; what is left of its group after some seconds, or at another Ctrl-C, is killed."""
    try:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its group, even where the leader is gone
        process.wait()


def _await(process: subprocess.Popen[bytes], url: str, end: float, log: IO[bytes]) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback, whatever proxy there is
    while time.monotonic() < end:
        if process.poll() is not None:
            raise _failure(f"ended with {process.returncode} before it was ready", log)
        try:
            with opener.open(f"{url}/health", timeout=2):
                return
        except (OSError, http.client.HTTPException):  # the second: whoever listens speaks no HTTP, or not yet
            time.sleep(0.1)
    raise _failure("did not answer /health in time", log)


def _failure(what: str, log: IO[bytes]) -> InputError:
    log.seek(max(0, log.seek(0, os.SEEK_END) - 4 * TAIL))
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    tail = " | ".join(lines)[-TAIL:] or "nothing"
    return InputError("--engine", None, None, f"the server {what}; the end of its log: {tail}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
