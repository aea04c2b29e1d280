"""Valid traces made without the simulator: the recorded worked examples.

The bookkeeping here is as plain as it can be, and shares nothing with the verifier that is tested with it.
"""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "shared" / "worked-examples"
MODES = ("static", "continuous", "chunked")


@dataclass
class Sample:
    """A trace as the objects of its lines, and the summary of the same run."""

    lines: list[dict[str, Any]]
    summary: dict[str, Any]


def recorded() -> dict[str, Callable[[], Sample]]:
    """The recorded worked examples by name, to be built when needed; none where they are not at hand."""
    samples: dict[str, Callable[[], Sample]] = {}
    for path in sorted(EXAMPLES.glob("decode-first-*.json")):
        samples[path.stem] = lambda path=path: decode_first(path.stem)
    for path in sorted(EXAMPLES.glob("three-modes*.json")):
        for mode in MODES:
            if "trace" in json.loads(path.read_text())["expected"][mode]:
                samples[f"{path.stem}-{mode}"] = lambda path=path, mode=mode: three_modes(path.stem, mode)
    return samples


def decode_first(name: str) -> Sample:
    """A recorded example of the first kind. Who was admitted is not recorded: it follows from who has a seat."""
    case = json.loads((EXAMPLES / f"{name}.json").read_text())
    requests = [
        {**r, "priority": {"high": 0, "normal": 1}[r["priority"]], "max_tokens": r["output"]} for r in case["requests"]
    ]
    limits, expected = case["limits"], case["expected"]
    head = header(
        "decode-first",
        {"unit": "iteration", "cost": {"model": "unit"}, "idle": "step"},
        requests,
        limits,
        settings={key: limits[key] for key in ("prefill_chunk", "priority_preemption")},
        max_iterations=limits["max_iterations"],
    )
    seated: list[str] = []
    steps = []
    for record in expected["trace"]:
        now = record["iteration"]
        scheduled = [[id, "decode", 1] for id in record["decode"]]
        scheduled += [[id, "prefill", tokens] for id, tokens in record["prefill"]]
        stayed = [id for id in seated if id not in record["preempted"]]
        newcomers_out = [id for id in record["preempted"] if id not in seated]
        now_seated = [id for id, *_ in scheduled] + record["active"]
        admitted = list(dict.fromkeys(newcomers_out + [id for id in now_seated if id not in stayed]))
        steps.append(
            {
                "start": now,
                "end": now + 1,
                "arrived": [r["id"] for r in requests if r["arrival"] == now],
                "rejected": [{"id": id, "reason": "queue full"} for id in record["rejected"]],
                "preempted": [{"id": id, "mode": "keep", "place": "front"} for id in record["preempted"]],
                "admitted": admitted,
                "scheduled": scheduled,
                "prefill_done": record["prefill_emitted"],
                "completed": record["completed"],
                "queue": record["queue"],
                "active": record["active"],
                "unused": record["unused_budget"],
                "idle": None if scheduled else "no work",
            }
        )
        seated = record["active"]
    sample = build(head, requests, steps, expected["termination"])
    _check_against_record(sample, expected)
    return sample


def _check_against_record(sample: Sample, expected: dict[str, Any]) -> None:
    totals = sample.summary["totals"]
    assert totals["max_queue_length"] == expected["max_queue_length"]
    assert totals["preemptions"] == expected["preemptions"]
    assert sum(totals["rejections"].values()) == expected["rejections"]
    assert totals["unused_budget"] == sum(expected["unused_budget"])
    for request in sample.summary["requests"]:
        recorded = expected["requests"][request["id"]]
        assert {key: request[key] for key in recorded} == recorded


def three_modes(name: str, mode: str) -> Sample:
    """A recorded example of the second kind. A request is admitted when it is first scheduled."""
    case = json.loads((EXAMPLES / f"{name}.json").read_text())
    requests = [{**r, "priority": 0, "max_tokens": r["output"]} for r in case["requests"]]
    head = header(
        mode,
        {"unit": "cost unit", "cost": {"model": "linear", **case["cost"]}, "idle": "jump"},
        requests,
        {**case["limits"], "max_queue": None},
    )
    seen: set[str] = set()
    started: set[str] = set()
    steps = []
    for record in case["expected"][mode]["trace"]:
        actions = [action.split(":") for action in record["actions"]]
        arrived = [r["id"] for r in requests if r["arrival"] <= record["start"] and r["id"] not in seen]
        admitted = [id for id, _, _ in actions if id not in started]
        seen.update(arrived)
        started.update(admitted)
        scheduled = [[id, phase, int(tokens)] for id, phase, tokens in actions]
        times = {"start": record["start"], "end": record["end"]}
        steps.append({**times, "arrived": arrived, "admitted": admitted, "scheduled": scheduled})
    sample = build(head, requests, steps)
    recorded = {r["name"]: r for r in case["expected"][mode]["requests"]}
    for request in sample.summary["requests"]:
        expected = recorded[request["id"]]
        assert (request["ttft"], request["e2el"]) == (expected["ttft"], expected["e2e"])
        assert (request["max_itl"], request["output_times"]) == (
            expected["max_itl"],
            expected["output_times"],
        )
    return sample


def header(
    engine: str,
    clock: dict[str, Any],
    requests: list[dict[str, Any]] | None,
    limits: dict[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """A header; without requests each of them gets a line of its own."""
    line = {
        "type": "header",
        "schema": 1,
        "batchlab": "0.1.0",
        "engine": engine,
        "rules": "worked example",
        "settings": {},
        "limits": {key: limits.get(key) for key in ("max_num_seqs", "max_num_batched_tokens", "max_queue")},
        "clock": clock,
        "max_iterations": None,
        "max_tokens_rule": "output",
        "source": {"name": None, "sha256": None, "requests": None},
        **more,
    }
    return line if requests is None else {**line, "requests": requests}


@dataclass
class _Account:
    """What has become of one request."""

    request: dict[str, Any]
    result: str = "pending"
    reason: str | None = None
    computed: int = 0
    target: int = 0
    recomputed: int = 0
    preemptions: int = 0
    first_start: int | None = None
    tokens: list[tuple[int, int]] | None = None  # (iteration, time) of each output token

    def summary(self, times: bool) -> dict[str, Any]:
        r, tokens = self.request, self.tokens or []
        done = self.result == "completed"
        gaps = [late[1] - early[1] for early, late in itertools.pairwise(tokens)]
        arrival = r["arrival"]
        fields = {key: r[key] for key in ("id", "arrival", "priority", "prompt", "output")}
        fields |= {
            "result": self.result,
            "reason": self.reason,
            "first_output": tokens[0][0] if tokens else None,
            "completed": tokens[-1][0] if done else None,
            "queue_time": None if self.first_start is None else self.first_start - arrival,
            "ttft": tokens[0][1] - arrival if tokens else None,
            "e2el": tokens[-1][1] - arrival if done else None,
            "max_itl": max(gaps, default=0) if tokens else None,
            "preemptions": self.preemptions,
            "recomputed_tokens": self.recomputed,
            "attempts": int(self.result != "pending"),
        }
        return {**fields, "output_times": [time for _, time in tokens]} if times else fields


def build(
    head: dict[str, Any],
    requests: list[dict[str, Any]],
    steps: list[dict[str, Any]],
    termination: str = "all_terminal",
) -> Sample:
    """Fill in what the steps leave out, and add the end line and the summary."""
    accounts = {r["id"]: _Account(r, target=r["prompt"], tokens=[]) for r in requests}
    inline = "requests" in head
    lines = [head] if inline else [head, *({"type": "request", **r} for r in requests)]
    queue: list[str] = []
    active: list[str] = []
    stalls = [0, 0]
    iterations = []
    for number, step in enumerate(steps):
        line = _iteration(number, step, head["limits"]["max_num_batched_tokens"])
        _move(line, accounts, queue, active)
        _run(line, step, accounts, active, stalls)
        for field, ids in (("queue", queue), ("active", active)):
            line[field] = step.get(field, list(ids) if len(ids) <= 256 else len(ids))
        if isinstance(line["queue"], list):
            queue[:] = line["queue"]
        iterations.append(line)
    results = [account.result for account in accounts.values()]
    end = {
        "type": "end",
        "termination": termination,
        "iterations": len(iterations),
        "time": iterations[-1]["end"] if iterations else 0,
        "results": {result: results.count(result) for result in dict.fromkeys(results)},
        "totals": _totals(head, iterations, accounts, stalls),
    }
    summary = {key: head[key] for key in ("schema", "engine", "rules")}
    summary |= {"unit": head["clock"]["unit"], **{key: end[key] for key in end if key != "type"}}
    summary["requests"] = [account.summary(times=inline) for account in accounts.values()]
    return Sample([*lines, *iterations, end], json.loads(json.dumps(summary)))


def _iteration(number: int, step: dict[str, Any], budget: int | None) -> dict[str, Any]:
    fields = (
        "arrived",
        "rejected",
        "preempted",
        "admitted",
        "scheduled",
        "prefill_done",
        "first_token",
        "completed",
    )
    line = {"type": "iteration", "iteration": number, "start": step["start"], "end": step["end"]}
    line |= {field: list(step.get(field, [])) for field in fields}
    total = sum(tokens for _, _, tokens in line["scheduled"])
    line |= {"queue": [], "active": [], "unused": None if budget is None else budget - total}
    line["idle"] = step.get("idle")
    return line


def _move(line: dict[str, Any], accounts: dict[str, _Account], queue: list[str], active: list[str]) -> None:
    """Arrivals, preemptions of those with a seat, rejections, admissions, then preemptions of newcomers."""
    for id in line["arrived"]:
        accounts[id].result = "waiting"
        queue.append(id)
    late = [entry for entry in line["preempted"] if entry["id"] not in active]
    for entry in [entry for entry in line["preempted"] if entry not in late]:
        _preempt(entry, accounts[entry["id"]], queue, active)
    for entry in line["rejected"]:
        accounts[entry["id"]].result, accounts[entry["id"]].reason = "rejected", entry["reason"]
        queue.remove(entry["id"])
    for id in line["admitted"]:
        accounts[id].result = "active"
        queue.remove(id)
        active.append(id)
    for entry in late:
        _preempt(entry, accounts[entry["id"]], queue, active)


def _preempt(entry: dict[str, Any], account: _Account, queue: list[str], active: list[str]) -> None:
    entry["computed"] = account.computed
    account.preemptions += 1
    account.result = "waiting"
    if entry["mode"] == "recompute":
        account.recomputed += account.computed
        account.target = account.request["prompt"] + len(account.tokens or [])
        account.computed = 0
    active.remove(entry["id"])
    queue.insert(0 if entry["place"] == "front" else len(queue), entry["id"])


def _run(
    line: dict[str, Any],
    step: dict[str, Any],
    accounts: dict[str, _Account],
    active: list[str],
    stalls: list[int],
) -> None:
    got = {id for id, _, _ in line["scheduled"]}
    if any(phase == "prefill" for _, phase, _ in line["scheduled"]):
        for id, account in accounts.items():
            if id not in got and account.tokens and account.computed >= account.target:
                stalls[0] += account.result == "active"
                stalls[1] += account.result == "waiting"
    prefill_done, first, completed = [], [], []
    for id, phase, tokens in line["scheduled"]:
        account = accounts[id]
        assert account.tokens is not None
        if account.first_start is None:
            account.first_start = line["start"]
        account.computed += tokens
        if phase == "prefill" and account.computed == account.target:
            prefill_done.append(id)
        if phase == "decode" or account.computed == account.target:
            if not account.tokens:
                first.append(id)
            account.tokens.append((line["iteration"], line["end"]))
            if len(account.tokens) == account.request["output"]:
                account.result = "completed"
                completed.append(id)
    line["prefill_done"] = step.get("prefill_done", prefill_done)
    line["first_token"] = first
    line["completed"] = step.get("completed", [id for id in active if id in completed])
    active[:] = [id for id in active if id not in completed]


def _totals(
    head: dict[str, Any], iterations: list[dict[str, Any]], accounts: dict[str, _Account], stalls: list[int]
) -> dict[str, Any]:
    def length(line: dict[str, Any]) -> int:
        return line["queue"] if isinstance(line["queue"], int) else len(line["queue"])

    reasons = [entry["reason"] for line in iterations for entry in line["rejected"]]
    batches = [entry for line in iterations for entry in line["scheduled"]]
    budget = head["limits"]["max_num_batched_tokens"]
    return {
        "max_queue_length": max(map(length, iterations), default=0),
        "preemptions": sum(len(line["preempted"]) for line in iterations),
        "rejections": {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)},
        "unused_budget": None if budget is None else sum(line["unused"] for line in iterations),
        "prefill_tokens": sum(tokens for _, phase, tokens in batches if phase == "prefill"),
        "decode_tokens": sum(tokens for _, phase, tokens in batches if phase == "decode"),
        "recomputed_tokens": sum(account.recomputed for account in accounts.values()),
        "cached_tokens": 0,
        "moved_blocks": 0,
        "retries": 0,
        "decode_stalls": stalls[0],
        "preempted_decode_stalls": stalls[1],
    }
