"""Recorded cases: files that hold a load and every step that was taken on it. Ours must take the same."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchlab.conform import decode_first, three_modes, vllm
from batchlab.conform.compare import Difference
from batchlab.conform.recorded import run_recording
from batchlab.errors import InputError
from batchlab.files import unreadable


@dataclass(frozen=True)
class CaseResult:
    """The verdict on one case: `difference` is None if all is equal."""

    name: str
    path: str
    detail: str
    difference: Difference | None


def conform_case(path: str | os.PathLike[str]) -> CaseResult:
    """Run our policy on a recorded case and compare every iteration. Raises InputError if the file is no case."""
    recording = is_trace(path)
    case = {} if recording else read_case(path)
    try:
        detail, difference = run_recording(path) if recording else _shape(case)(case)
    except InputError as error:
        error.file = error.file or str(path)
        raise
    return CaseResult(str(case.get("name", Path(path).stem)), str(path), detail, difference)


def case_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The files named, and the *.json and *.jsonl files of folders named, sorted by name within each folder."""
    found: list[Path] = []
    for path in map(Path, paths):
        inside = (
            sorted(p for p in path.glob("*.json*") if p.suffix in (".json", ".jsonl"))
            if os.path.isdir(path)
            else [path]
        )
        if not inside:
            raise InputError(path, None, None, "no .json or .jsonl file in this folder")
        found += inside
    return found


def is_trace(path: str | os.PathLike[str]) -> bool:
    """Whether the file's first line is the header of a trace."""
    try:
        with open(path, "rb") as file:
            first = json.loads(file.readline(1 << 20))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.get("type") == "header"


def is_vllm(case: dict[str, Any]) -> bool:
    """Whether this is a recording of vLLM's scheduler."""
    return isinstance(case.get("scenario"), dict) and isinstance(case.get("trace"), list)


def _shape(case: dict[str, Any]) -> Callable[[dict[str, Any]], tuple[str, Difference | None]]:
    if is_vllm(case):
        return vllm.run_case
    expected = case.get("expected")
    if isinstance(expected, dict) and isinstance(case.get("limits"), dict) and isinstance(case.get("requests"), list):
        if expected and set(expected) <= set(three_modes.MODES):
            return three_modes.run_case
        if "trace" in expected or "error" in expected:
            return decode_first.run_case
    raise InputError(
        None, None, None, "not a recorded case: it needs limits, requests and expected, or scenario and trace"
    )


def read_case(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A case file's content. Raises InputError if it is no JSON object."""
    try:
        data = Path(path).read_bytes()
        if not data:
            raise InputError(path, None, None, "a recorded case or a trace, but the file is empty")
        case = json.loads(data.decode("utf-8"))
    except OSError as error:
        raise unreadable(path, error, "a recorded case is a JSON file") from error
    except (ValueError, RecursionError) as error:
        raise InputError(path, None, None, f"not a JSON file: {error}") from error
    if not isinstance(case, dict):
        raise InputError(path, None, None, "not a recorded case: must be a JSON object")
    return case
