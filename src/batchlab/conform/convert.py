"""Recorded vLLM steps as an iteration trace: what the engine itself did, in the form that `verify` checks.

What a recording does not state (phases, prefills that end, first tokens, tokens on their way) is kept account of here;
nothing is simulated.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from batchlab.conform.cases import is_trace, is_vllm, read_case
from batchlab.conform.vllm import scenario_run
from batchlab.errors import InputError
from batchlab.events import End
from batchlab.files import whole_file
from batchlab.metrics.fold import Summary
from batchlab.trace.encode import decode, encode, encode_end

IDLE = "the engine scheduled nothing"
DRAIN = "drain"
ABORTED = "by its client"

Entry = tuple[str, str, int]


def convert(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of the trace: header, iterations, end. Raises InputError where the case is incomplete."""
    run = scenario_run(case["scenario"])
    header = encode(run.header())
    summary = Summary()
    summary(decode(header))
    yield header
    end = End("all_terminal", 0, 0)
    try:
        for line in _Recording(case["scenario"], header).lines(case["trace"]):
            summary(decode(line))
            end = End("all_terminal", line["iteration"] + 1, line["end"])
            yield line
    except KeyError as error:
        raise InputError(None, "trace", None, f"iteration {end.iterations}: {error.args[0]!r} is missing") from error
    yield encode_end(end, summary.result_counts(), summary.totals())


def write_trace(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path | None:
    """Convert a recorded vLLM case into FOLDER/NAME.jsonl. Returns that path, None for a case of another kind."""
    if is_trace(path):  # it is one already
        return None
    case = read_case(path)
    if not is_vllm(case):
        return None
    target = Path(folder, Path(path).stem + ".jsonl")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(folder, None, None, f"cannot be made a folder: {error.strerror}") from error
    with whole_file(target) as file:
        try:
            for line in convert(case):
                file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")
        except InputError as error:
            error.file = error.file or str(path)
            raise
    return target


class _Account:
    """One request of the recording."""

    def __init__(self, prompt: int) -> None:
        self.prompt = prompt
        self.emitted = 0
        self.computed = 0
        self.target = prompt
        self.ended = False


class _Launched(NamedTuple):
    """A step on its way: its number, whether it holds tokens, and its entries that bring one."""

    number: int
    scheduled: bool
    bring: list[Entry]


class _Recording:
    """Turns the steps of one recording into lines, in order."""

    def __init__(self, scenario: dict[str, Any], header: dict[str, Any]) -> None:
        self._accounts = {request["id"]: _Account(request["prompt"]) for request in header["requests"]}
        self._budget = scenario["max_num_batched_tokens"]
        self._place = "key" if scenario["policy"] == "priority" else "front"
        self._several = header["steps_in_flight"] > 1
        self._count = 0
        self._flying: _Launched | None = None
        """The step whose tokens are still to come."""

    def lines(self, steps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """One line a step, and one more wherever the engine drains what is in flight."""
        for step in steps:
            yield self._step(step)
            if all(self._accounts[name].ended for name in (*step["running"], *step["waiting"])):
                flying, self._flying = self._flying, None
                if flying is not None and flying.scheduled:
                    yield self._drain(flying, step)

    def _step(self, step: dict[str, Any]) -> dict[str, Any]:
        preempted = [self._preempt(name) for name in step["preempted"]]
        dropped = [{"id": name, "result": "cancelled", "reason": ABORTED} for name in step.get("aborted", ())]
        for entry in dropped:
            self._accounts[entry["id"]].ended = True
        cached = {**step["new"], **step["resumed"]}
        for name, tokens in cached.items():
            account = self._accounts[name]
            account.target, account.computed = account.prompt + account.emitted, tokens
        scheduled = [self._entry(name, tokens) for name, tokens in step["scheduled"].items()]
        bring = [entry for entry in scheduled if self._accounts[entry[0]].computed >= self._accounts[entry[0]].target]
        delivered: _Launched | None = _Launched(self._count, bool(scheduled), bring)
        if self._several:
            delivered, self._flying = self._flying, delivered
        line: dict[str, Any] = {
            "type": "iteration",
            "iteration": self._count,
            "start": step["step"],
            "end": step["step"] + 1,
            "arrived": step["arrived"],
            "rejected": [],
            "preempted": preempted,
            "admitted": [name for name in step["scheduled"] if name in cached],
            "scheduled": scheduled,
            **self._delivery(delivered),
            "completed": step["finished"],
            "unused": self._budget - step["total_tokens"],
            "idle": None if scheduled else IDLE,
            "cached": [[name, cached[name]] for name in step["scheduled"] if name in cached],
            "kv": {"free": step["free_blocks"], "free_after": step["free_blocks_after"], "moved": 0},
        }
        for name in step["finished"]:
            self._accounts[name].ended = True
        for field, ids in (("queue", step["waiting"]), ("active", step["running"])):
            line[field] = _listed([name for name in ids if not self._accounts[name].ended])
        if self._several:
            line["delivers"] = None if delivered is None else delivered.number
        if dropped:
            line["dropped"] = dropped
        self._count += 1
        return line

    def _preempt(self, name: str) -> dict[str, Any]:
        account = self._accounts[name]
        computed, account.computed = account.computed, 0
        return {"id": name, "mode": "recompute", "place": self._place, "computed": computed}

    def _entry(self, name: str, tokens: int) -> Entry:
        account = self._accounts[name]
        phase = "prefill" if account.computed < account.target else "decode"
        account.computed += tokens
        return name, phase, tokens

    def _delivery(self, launched: _Launched | None) -> dict[str, Any]:
        """The fields that speak of the tokens which come out."""
        fields: dict[str, Any] = {"prefill_done": [], "first_token": [], "discarded": []}
        for name, phase, _ in launched.bring if launched is not None else ():
            account = self._accounts[name]
            if account.ended:
                fields["discarded"].append(name)
                continue
            if phase == "prefill":
                fields["prefill_done"].append(name)
            if account.emitted == 0:
                fields["first_token"].append(name)
            account.emitted += 1
        if not fields["discarded"]:
            del fields["discarded"]
        return fields

    def _drain(self, flying: _Launched, step: dict[str, Any]) -> dict[str, Any]:
        """Everybody has ended: the engine takes in what is in flight without a step of its own."""
        now = step["step"] + 1
        line = {
            "type": "iteration",
            "iteration": self._count,
            "start": now,
            "end": now,
            **{field: [] for field in ("arrived", "rejected", "preempted", "admitted", "scheduled")},
            "delivers": flying.number,
            **self._delivery(flying),
            **{field: [] for field in ("completed", "queue", "active", "cached")},
            "unused": self._budget,
            "idle": DRAIN,
            "kv": {"free": step["free_blocks_after"], "free_after": step["free_blocks_after"], "moved": 0},
        }
        self._count += 1
        return line


def _listed(ids: list[str]) -> list[str] | int:
    return ids if len(ids) <= 256 else len(ids)
