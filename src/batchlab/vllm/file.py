"""The file that a recording goes to: only ever added to, whole steps at a time."""

import json
import logging
import os
from itertools import count
from pathlib import Path
from typing import Any

from msgspec.json import Encoder

from batchlab.errors import InputError

TRACE = "BATCHLAB_TRACE"
"""The environment variable that names the file."""
log = logging.getLogger("vllm.batchlab")


class TraceFile:
    """One recording. What is written is with the operating system at once: it outlives the engine's death.

    A file that is there already is never touched: the next free name is taken, trace.1.jsonl after trace.jsonl. A disk
    that fails ends the recording and not the engine. Raises InputError where there can be no such file.
    """

    def __init__(self, path: str) -> None:
        self.path, self._file = _create(Path(path))
        self._encode = Encoder().encode
        self._open = True
        log.warning("batchlab: recording to %s", self.path)

    def write(self, lines: list[dict[str, Any]]) -> None:
        """Add these lines, in one piece."""
        if not self._open:
            return
        try:
            data = b"".join([self._encode(line) + b"\n" for line in lines])
        except UnicodeEncodeError:  # half of a surrogate pair in an id that a client made: JSON can hold it escaped
            data = b"".join([json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines])
        try:
            while data:  # a full disk may take a part
                data = data[os.write(self._file, data) :]
        except OSError as error:
            log.error("batchlab: the recording %s ends here: %s", self.path, error.strerror)
            self.close()

    def close(self) -> None:
        """Nothing more is written."""
        if self._open:
            self._open = False
            os.close(self._file)


def _create(path: Path) -> tuple[Path, int]:
    if path.is_dir():
        raise InputError(TRACE, None, str(path), "is a folder: name a new file in it, such as trace.jsonl")
    for number in count():
        target = path if number == 0 else path.with_name(f"{path.stem}.{number}{path.suffix}")
        try:
            return target, os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            continue
        except OSError as error:
            expected = f"cannot be written: {error.strerror}: name a new file in a folder that is there"
            raise InputError(TRACE, None, str(path), expected) from None
    raise AssertionError("unreachable")
