"""Verify a trace: derive all that follows from it again, without any code of the simulator, and compare."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from batchlab.errors import shorten
from batchlab.trace.ending import check_end, check_summary
from batchlab.trace.fields import check_line
from batchlab.trace.read import BadLine, NotStrictJson, parse_json, read_trace, unreadable
from batchlab.trace.replay import Replay
from batchlab.trace.rules import MAX_VIOLATIONS, RULES, Findings, Report, TooMany, Violation

__all__ = ["MAX_VIOLATIONS", "RULES", "Report", "Violation", "verify"]

PathLike = str | os.PathLike[str]


def verify(path: PathLike, summary: PathLike | None = None) -> Report:
    """Check a trace, and a summary of the same run if one is given, against every rule in RULES.

    Memory grows with the number of requests, not with the length of the trace. Whatever is wrong inside the
    files is in the report; InputError is raised only for a path that cannot be read.
    """
    report = Report()
    findings = Findings(report)
    run = _Run(report, findings, keep_times=summary is not None)
    try:
        termination = run.read(path)
        if termination is not None and summary is not None and run.replay is not None:
            _verify_summary(summary, run.replay, termination, findings)
    except TooMany:
        pass
    if run.replay is not None:
        report.iterations = run.replay.count
        report.requests = len(run.replay.requests)
    return report


class _Run:
    """One pass over the lines of a trace."""

    def __init__(self, report: Report, findings: Findings, keep_times: bool) -> None:
        self.replay: Replay | None = None
        self._report = report
        self._findings = findings
        self._keep_times = keep_times
        self._termination: str | None = None

    def read(self, path: PathLike) -> str | None:
        """Check every line. Returns the termination, None if the trace could not be followed to its end."""
        lines = read_trace(path)
        broken: int | None = None
        try:
            for obj in self._whole_lines(lines):
                if not self._line(obj):
                    self._report.stopped = f"stopped at line {self._findings.line}: what follows cannot be judged"
                    return None
        except BadLine as error:
            self._findings.line = error.line
            if error.truncated and self._is_recording():
                self._cut(error.line)
                return None
            value = "" if error.value is None else f"{shorten(error.value)}: "
            self._findings.add("format", value + str(error.expected))
            if not error.truncated:
                self._report.stopped = _stopped_at(error.line)
                return None
            broken = error.line
        self._findings.line = None
        if self._termination is None and self._is_recording():
            self._cut(None)
            return None
        if self._termination is None or broken is not None:
            self._findings.add("complete", "no end line: the run was killed, or the file was cut")
            return None
        return self._termination

    def _is_recording(self) -> bool:
        return self.replay is not None and self.replay.terms.recorded

    def _cut(self, line: int | None) -> None:
        """A recording has no end: it goes on until its engine is gone, at worst within a line, which is left out."""
        assert self.replay is not None
        here = sum(request.here for request in self.replay.requests.values())
        notes = [] if line is None else [f"line {line} is cut off and left out"]
        notes += [] if self.replay.count else ["nothing was recorded, so nothing is broken"]
        notes += [f"{here} requests had not ended when the recording did"] if here else []
        self._report.note = "; ".join(notes) or None

    def _whole_lines(self, lines: Iterator[tuple[int, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
        for number, obj in lines:
            self._findings.line = number
            yield obj

    def _line(self, obj: dict[str, Any]) -> bool:
        """Check one line; False if it is broken so that nothing after it can be judged."""
        problems = check_line(obj)
        for place, problem in problems:
            self._findings.add("format", f"{place}: {problem}")
        if problems:
            return False
        kind = obj["type"]
        if self._termination is not None:
            self._findings.add("format", f"type: {kind!r} after the end line, nothing expected there")
            return False
        if self.replay is None:
            if kind != "header":
                self._findings.add("format", f"type: {kind!r} in the first line, 'header' expected")
                return False
            self.replay = Replay(obj, self._findings, self._keep_times)
            return True
        return self._body(kind, obj, self.replay)

    def _body(self, kind: str, obj: dict[str, Any], replay: Replay) -> bool:
        if kind == "header":
            self._findings.add("format", "type: a second 'header', only one expected")
            return False
        if kind == "request":
            if "requests" in replay.header:
                self._findings.add("format", "type: 'request', but the header lists all requests")
                return False
            replay.add_request(obj)
        elif kind == "iteration":
            replay.iteration(obj)
        else:
            self._termination = obj["termination"]
            check_end(obj, replay, self._findings)
        return True


def _stopped_at(line: int | None) -> str | None:
    return None if line is None else f"stopped at line {line}: what follows it cannot be judged"


def _verify_summary(path: PathLike, replay: Replay, termination: str, findings: Findings) -> None:
    findings.line = None
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as error:
        raise unreadable(path, error, "summary") from error
    try:
        document = parse_json(raw)
    except NotStrictJson as error:
        findings.add("summary", f"{shorten(error.value)}: {error.expected}")
        return
    check_summary(document, replay, termination, findings)
