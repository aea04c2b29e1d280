"""Laws about whole runs: repeatability, knowledge, termination, files. The rest are in test_laws.py."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from laws_runs import (
    ODD,
    POLICIES,
    SEEDS,
    WAITS,
    Outcome,
    carry_out,
    digests,
    document_for,
    every_run,
    make_run,
    outcome,
    outcomes,
)

from batchlab import costs, policies
from batchlab.clients.request import Request
from batchlab.core.limits import Limits
from batchlab.errors import BatchlabError, InputError, StalledError
from batchlab.files import whole_file
from batchlab.metrics.fold import Summary
from batchlab.simulation import Run, simulate
from batchlab.trace.verify import verify
from batchlab.trace.write import TraceWriter


@pytest.mark.parametrize("policy", POLICIES)
def test_law_10_same_input_same_bytes(policy: str) -> None:
    for seed in SEEDS:
        again = carry_out(make_run(json.loads(document_for(policy, seed)), seed))
        first = outcome(policy, seed)
        assert again == (first.text, first.summary), f"seed {seed}"


def test_law_10_interpreted_core_gives_the_same_bytes() -> None:
    """Another process, with the source of the core and another order of hashes; it may be the same form here."""
    command = "import json, laws_runs; print(json.dumps(laws_runs.digests()))"
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    env = os.environ | {"PYTHONPATH": path, "BATCHLAB_INTERPRETED": "1", "PYTHONHASHSEED": "12345"}
    done = subprocess.run([sys.executable, "-c", command], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ours, theirs = digests(), json.loads(done.stdout)
    assert theirs.pop("form") == "interpreted"
    form = ours.pop("form")
    assert len(ours) >= 300
    differing = [name for name, digest in ours.items() if theirs[name] != digest]
    assert not differing, f"{form} here, interpreted there: they differ in {differing}"


@pytest.mark.parametrize("policy", POLICIES)
def test_law_11_knowledge_boundary(policy: str) -> None:
    """Change true output lengths so that nobody can have noticed up to iteration n: nothing differs until then."""
    changed = 0
    for seed in SEEDS:
        rng = Random(f"knowledge {policy} {seed}")
        document = json.loads(document_for(policy, seed))
        for row in document["workload"]["requests"]:
            row["max_tokens"] = row["output"] + rng.choice([1, 5, 60])
        try:
            first = Outcome(policy, seed, document, *carry_out(make_run(document, seed)))
        except InputError:
            continue  # refused with these limits
        if not first.iterations:
            continue
        n = rng.randrange(len(first.iterations))
        emitted: Counter[str] = Counter()
        for line in first.iterations[: n + 1]:
            emitted.update(name for name, phase, _ in line["scheduled"] if phase == "decode")
            emitted.update(line["prefill_done"])
        for row in document["workload"]["requests"]:
            if emitted[row["id"]] < row["output"]:
                before, row["output"] = row["output"], rng.randint(emitted[row["id"]] + 1, row["max_tokens"])
                changed += before != row["output"]
        second = Outcome(policy, seed, document, *carry_out(make_run(document, seed)))
        assert first.iterations[: n + 1] == second.iterations[: n + 1], f"seed {seed}, n {n}"
        for one, other in zip(first.iterations[n + 1 : n + 2], second.iterations[n + 1 : n + 2], strict=True):
            for field in ("start", "arrived", "rejected", "preempted", "admitted", "scheduled"):
                assert one[field] == other[field], f"seed {seed}, n {n}: {field} of the iteration after it"
    assert changed > 100


@every_run
def test_law_12_termination(run: Outcome) -> None:
    limit, count = run.header["max_iterations"], len(run.iterations)
    assert limit is None or count <= limit
    if run.end["termination"] == "iteration_limit":
        assert count == limit
        assert run.end["results"].keys() & {"waiting", "active", "pending", "retrying"}
    else:
        assert run.end["termination"] == "all_terminal"
    if run.policy in WAITS:
        count = sum(bool(line["scheduled"]) for line in run.iterations)
    if run.policy == ODD:
        return
    # Every iteration that has work brings a token, planned or delivered, or an arrival, or somebody gives way.
    tokens = sum(request["prompt"] + request["output"] for request in run.requests.values())
    tokens += run.end["totals"]["recomputed_tokens"] + run.end["totals"]["retries"] * tokens
    again = [entry.get("retry_at") or 0 for line in run.iterations for entry in line["rejected"]]
    times = [*again, *(request["arrival"] for request in run.requests.values())]
    visits = sum(len(line["arrived"]) for line in run.iterations)
    idle = max(times, default=0) if run.header["clock"]["idle"] == "step" else visits
    gave_way = run.end["totals"]["preemptions"] + sum(len(line.get("dropped", ())) for line in run.iterations)
    assert count <= tokens * run.header["steps_in_flight"] + gave_way + idle + 1


class Sleeper:
    """Takes requests in and never schedules any."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason

    def plan(self, view: Any, batch: Any) -> str | None:
        batch.admit_waiting()
        return self.reason


@pytest.mark.parametrize("reason", [None, "gone fishing"])
@pytest.mark.parametrize("arrivals", [[0], [0, 5, 70]])
def test_law_12_a_stall_is_told_with_its_reason(reason: str | None, arrivals: list[int]) -> None:
    requests = [Request(f"r{time}", time, 3, 2, 2) for time in arrivals]
    cost = costs.build({"model": "linear", "unit": "ns", "prefill_token": 1})
    with pytest.raises(StalledError) as caught:
        simulate(Run(Sleeper(reason), Limits(max_num_seqs=1), cost, requests))
    told = str(caught.value)
    assert (reason or "the policy scheduled nothing") in told and "\n" not in told
    assert f"at time {arrivals[-1]} (ns)" in told


def test_law_12_a_stepping_clock_stops_at_the_limit() -> None:
    run = Run(Sleeper(), Limits(), costs.build({"model": "unit"}), [Request("A", 0, 1, 1, 1)], max_iterations=7)
    end = simulate(run)
    assert (end.termination, end.iterations, end.time) == ("iteration_limit", 7, 7)


@every_run
def test_law_13_idle_has_a_reason(run: Outcome) -> None:
    for line in run.iterations:
        if line["scheduled"]:
            assert line["idle"] is None
            continue
        assert isinstance(line["idle"], str) and line["idle"]
        if line["idle"] == "no work":
            assert line["queue"] == line["active"] == []
        elif run.policy != ODD and line["idle"] != "drain":
            assert line["queue"] or line["active"] or line["completed"] or line.get("dropped")


@pytest.mark.parametrize("policy", POLICIES)
def test_law_14_a_finished_file_is_complete(policy: str, tmp_path: Path) -> None:
    for seed in SEEDS[:20]:
        path, summary = tmp_path / f"{seed}.jsonl", Summary()
        run = make_run(json.loads(document_for(policy, seed)), seed)
        with whole_file(path) as file:
            simulate(run, [summary, TraceWriter(file, summary)])
            assert not path.exists()
        assert path.read_bytes() == outcome(policy, seed).text.encode()
        assert json.loads(path.read_bytes().splitlines()[-1])["type"] == "end"
    assert len(list(tmp_path.iterdir())) == len(SEEDS[:20])


class Tripping:
    """Works for some iterations, then raises."""

    def __init__(self, after: int) -> None:
        self.after = after

    def plan(self, view: Any, batch: Any) -> None:
        self.after -= 1
        if self.after < 0:
            raise RuntimeError("tripped")
        batch.admit_waiting()
        batch.decode_all()
        batch.prefill_all(1)


@pytest.mark.parametrize("older", [None, "older\n"])
@pytest.mark.parametrize("after", [0, 1, 50])
def test_law_14_a_failed_run_leaves_no_file(tmp_path: Path, after: int, older: str | None) -> None:
    path, summary = tmp_path / "trace.jsonl", Summary()
    if older is not None:
        path.write_text(older, encoding="utf-8")
    requests = [Request("A", 0, 10, 500, 500)]
    run = Run(Tripping(after), Limits(max_num_batched_tokens=4), costs.build({"model": "unit"}), requests)
    with pytest.raises(BatchlabError, match=f"iteration {after}: RuntimeError: tripped"), whole_file(path) as file:
        simulate(run, [summary, TraceWriter(file, summary)])
    assert [entry.name for entry in tmp_path.iterdir()] == ([] if older is None else [path.name])
    assert older is None or path.read_text(encoding="utf-8") == older


# The runs themselves, and the verifier on them


@pytest.mark.parametrize("policy", POLICIES)
def test_verifier_finds_every_law_kept(policy: str, tmp_path: Path) -> None:
    path, summary = tmp_path / "trace.jsonl", tmp_path / "summary.json"
    for one in outcomes(policy):
        path.write_text(one.text, encoding="utf-8")
        summary.write_text(json.dumps(one.summary), encoding="utf-8")
        report = verify(path, summary)
        assert not report.violations, f"seed {one.seed}: {report.violations[0]}\n{json.dumps(one.document)}"
        assert (report.iterations, report.requests) == (len(one.iterations), len(one.requests))


@pytest.mark.parametrize("policy", POLICIES)
def test_runs_reach_the_corners(policy: str) -> None:
    """Random runs prove nothing if they are all alike."""
    reached: Counter[str] = Counter()
    for one in outcomes(policy):
        lines, totals = one.iterations, one.end["totals"]
        reached["no listed requests"] += "requests" not in one.header
        reached["counted queue"] += any(isinstance(line["queue"], int) for line in lines)
        reached["waiting"] += totals["max_queue_length"] > 0
        reached["idle"] += any(not line["scheduled"] for line in lines)
        reached["jump"] += one.header["clock"]["idle"] == "jump"
        reached["limit"] += one.end["termination"] == "iteration_limit"
        if policy == ODD or takes(policy, "max_queue") or policy == "vllm":
            reached["rejections"] += bool(totals["rejections"])
            reached["retried"] += totals["retries"] > 0
        if policy == ODD or takes(policy, "max_num_batched_tokens"):
            reached["unused"] += bool(totals["unused_budget"])
        reached["no oracle"] += one.header["max_tokens_rule"] != "output"
        reached["cancelled"] += "cancelled" in one.end["results"]
        reached["expired"] += "expired" in one.end["results"]
        if policy == ODD:
            odd_corners(one, reached)
        if policy == "vllm":
            vllm_corners(one, reached)
        elif policy in ("decode-first", "chunked"):
            reached["shed"] += any("shed" in reason for reason in totals["rejections"])
            reached["aging"] += one.header["queue"]["aging"] is not None
    assert all(count >= 2 for count in reached.values()), sorted(reached.items(), key=lambda item: item[1])


def takes(policy: str, limit: str) -> bool:
    return limit in policies.limits_of(policies.find(policy)).values()


def odd_corners(one: Outcome, reached: Counter[str]) -> None:
    entries = [entry for line in one.iterations for entry in line["preempted"]]
    for entry in entries:
        reached[f"{entry['mode']} {entry['place']}"] += 1
    reached["twice at once"] += any(len(line["preempted"]) > 3 for line in one.iterations)
    reached["recomputed"] += one.end["totals"]["recomputed_tokens"] > 0
    reached["over the bound"] += one.end["totals"]["max_queue_length"] > (one.limits["max_queue"] or 0)


def vllm_corners(one: Outcome, reached: Counter[str]) -> None:
    settings, totals, lines = one.header["settings"], one.end["totals"], one.iterations
    entries = [entry for line in lines for entry in line["preempted"]]
    for entry in entries:
        reached[f"{entry['mode']} under {settings['scheduling_policy']}"] += 1
    reached["async"] += one.asynchronous
    reached["async preemption"] += one.asynchronous and bool(entries)
    reached["discarded"] += any(line.get("discarded") for line in lines)
    reached["cached"] += totals["cached_tokens"] > 0
    reached["cached after preemption"] += any(
        dict(line.get("cached", ())).get(entry["id"], 0) > 0 for entry in entries for line in lines
    )
    reached["moved"] += totals["moved_blocks"] > 0
    reached["failed"] += "failed" in one.end["results"]
    for field in ("watermark", "long_prefill_token_threshold_adaptive", "victim"):
        reached[f"preemption with {field}"] += bool(entries and settings[field])
    for field in ("enable_chunked_prefill", "scheduler_reserve_full_isl"):
        reached[f"preemption without {field}"] += bool(entries and not settings[field])
    for reason in ("max_num_queued_reqs", "max_num_queued_tokens", "KV cache", "max_model_len"):
        reached[reason] += any(reason in known for known in totals["rejections"])
