"""What people run into with serving engines: each example has a right answer, and these are they."""

import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchlab.core.tally import RESULTS
from batchlab.errors import StalledError
from batchlab.events import Iteration
from batchlab.metrics.fold import Summary
from batchlab.metrics.objectives import goodput
from batchlab.scenario import build, load
from batchlab.simulation import simulate

EXAMPLES = Path(__file__).parents[1] / "examples"


class Result:
    """One finished run: its summary, its requests by id, and its iterations."""

    def __init__(self, example: str, policy: int = 0, **overrides: Any) -> None:
        keys = {key.replace("__", "."): value for key, value in overrides.items()}
        run = load(EXAMPLES / f"{example}.toml", keys).runs[policy]
        summary, events = Summary(), []
        self.end = simulate(run, [summary, events.append])
        self.iterations = [event for event in events if isinstance(event, Iteration)]
        self.summary = summary.document()
        self.requests = {entry["id"]: entry for entry in self.summary["requests"]}

    def results(self) -> dict[str, str]:
        return {name: entry["result"] for name, entry in self.requests.items()}


def test_unservable_prompts_are_refused_and_the_rest_served() -> None:
    run = Result("unservable-prompt")
    assert run.results() == {**dict.fromkeys("ABCDE", "rejected"), "F": "completed"}
    assert all("at most 784 tokens" in run.requests[name]["reason"] for name in "ABCDE")
    assert run.requests["F"]["ttft"] == 1 and run.summary["totals"]["max_queue_length"] == 0


@pytest.mark.parametrize(
    ("prompt", "output", "result", "tokens"),
    [(784, 1, "completed", 1), (785, 1, "rejected", 0), (784, 2, "failed", 1)],
)
def test_a_prompt_at_the_edge(prompt: int, output: int, result: str, tokens: int) -> None:
    """784 fit, as the last token is never stored; with 2 to give, the second has no place."""
    keys = {"workload__requests__A__prompt": prompt, "workload__requests__A__output": output}
    run = Result("unservable-prompt", **keys)
    assert (run.requests["A"]["result"], len(run.requests["A"]["output_times"])) == (result, tokens)
    assert run.requests["F"]["result"] == "completed"


def test_a_decode_into_the_wall_ends_with_a_capacity_error() -> None:
    """1000 + 8 stored tokens are 1008; the 9th is given out, the 10th cannot be."""
    run = Result("decode-wall")
    request = run.requests["A"]
    assert (request["result"], len(request["output_times"]), request["preemptions"]) == ("failed", 9, 0)
    assert "KV cache exhausted" in request["reason"] and "63 blocks" in request["reason"]
    assert run.end.iterations == 4 + 8 + 1
    # one token more of room is one token more of output; with room for all of it nothing is wrong
    assert len(Result("decode-wall", engine__num_gpu_blocks=65).requests["A"]["output_times"]) == 24
    assert Result("decode-wall", workload__requests__A__output=9).results() == {"A": "completed"}


def test_partial_prefill_thrash() -> None:
    gate, none = (
        Result("partial-prefill-thrash"),
        Result("partial-prefill-thrash", engine__scheduler_reserve_full_isl=False),
    )
    assert (gate.summary["totals"]["preemptions"], gate.summary["totals"]["recomputed_tokens"]) == (0, 0)
    assert none.summary["totals"]["preemptions"] == none.requests["E"]["preemptions"] > 20
    assert none.summary["totals"]["recomputed_tokens"] > 4 * 100_000  # more than four such prompts
    # while E thrashes, each step of the others carries 8k prompt tokens: 20 ms become over 200
    assert none.summary["latency"]["itl"]["p50"] > 10 * gate.summary["latency"]["itl"]["p50"]
    assert none.requests["E"]["ttft"] > 4 * gate.requests["E"]["ttft"]


def test_head_of_the_line() -> None:
    run = Result("head-of-line")
    # 48 steps of 2048, then 1696: the 49th has room for the short one
    assert (run.requests["long"]["first_output"], run.requests["short"]["first_output"]) == (48, 48)
    capped = Result("head-of-line", engine__long_prefill_token_threshold=1024)
    # the first step is the long one's alone, so not capped; 2048 + 96 * 1024 >= 100000
    assert (capped.requests["long"]["first_output"], capped.requests["short"]["first_output"]) == (96, 1)


def test_priority_inversion() -> None:
    vllm, strict = Result("priority-inversion", 0), Result("priority-inversion", 1)
    # under vLLM's rules a seat is free after 500 iterations of 10 ms
    assert vllm.requests["urgent"]["queue_time"] > 4_800_000_000
    assert vllm.summary["totals"]["preemptions"] == 0
    # strict: it starts in the next iteration; one is under way
    assert strict.requests["urgent"]["queue_time"] < 10_000_000
    assert strict.summary["totals"]["preemptions"] == 1
    assert set(vllm.results().values()) == set(strict.results().values()) == {"completed"}


@pytest.mark.parametrize("policy", [0, 1])
def test_equal_priorities_never_preempt_each_other(policy: int) -> None:
    run = Result("priority-inversion", policy, workload__requests__urgent__priority=5)
    assert run.summary["totals"]["preemptions"] == 0
    assert run.requests["urgent"]["queue_time"] > 4_800_000_000


def test_priority_orders_admission_not_token_share() -> None:
    run = Result("priority-order-only")
    assert len({(entry["ttft"], entry["e2el"]) for entry in run.requests.values()}) == 1
    queued = Result("priority-order-only", engine__max_num_seqs=8)
    urgent = queued.requests.pop("urgent")
    assert urgent["queue_time"] == 0
    assert sum(entry["ttft"] > urgent["ttft"] for entry in queued.requests.values()) == 23
    assert len({entry["e2el"] - entry["ttft"] for entry in [*queued.requests.values(), urgent]}) == 1


def test_a_preempted_request_is_not_rejected_by_the_queue_bound() -> None:
    run = Result("preempted-with-full-queue")
    assert run.results() == {"A": "completed", "B": "completed", "C": "completed", "D": "rejected"}
    assert run.requests["B"]["preemptions"] == 1
    full = next(line for line in run.iterations if line.preempted)
    assert full.queue == ["B", "C"] and full.active == ["A"]  # three, the bound, with nobody refused
    assert not full.rejected


def test_mutual_eviction_is_told(tmp_path: Path) -> None:
    path, trace = EXAMPLES / "mutual-eviction.toml", tmp_path / "trace.jsonl"
    command = [sys.executable, "-m", "batchlab", "run", str(path), "--trace", str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and not trace.exists()
    message = done.stderr.strip()
    assert "\n" not in message and "livelock" in message
    assert "'A', 'B' evict each other" in message and "least urgent" in message
    assert Result("mutual-eviction", engine__scheduler_reserve_full_isl=True).results() == dict.fromkeys(
        "AB", "completed"
    )


def test_mutual_eviction_ends_only_with_somebody_new_or_leaving() -> None:
    """A cancellation to come ends it, however late: it is not called a livelock before."""
    with pytest.raises(StalledError, match="livelock"):
        Result("mutual-eviction")
    for time in (8, 1000):
        run = Result("mutual-eviction", workload__requests__A__cancel_at=time)
        assert run.results() == {"A": "cancelled", "B": "completed"}


@pytest.mark.parametrize("name", [path.stem for path in sorted(EXAMPLES.glob("*.toml"))])
def test_every_example_says_why_it_idles(name: str) -> None:
    """Nobody waits for ever: an iteration without tokens while somebody is there has a reason, and the run ends."""
    text = (EXAMPLES / f"{name}.toml").read_text(encoding="utf-8")
    if name == "mutual-eviction" or "requests = [" not in text:
        return
    for policy in range(len(load(EXAMPLES / f"{name}.toml").runs)):
        run = Result(name, policy)
        assert run.end.termination == "all_terminal"
        for line in run.iterations:
            assert line.scheduled or line.idle
            assert not (line.queue or line.active) or line.idle not in ("no work", "the policy scheduled nothing")


def closed_loop(bound: int | None, requests: int) -> tuple[float, float, Summary]:
    """1024 clients that think for 1 s, 512 tokens in and 64 out, about 32 requests a second: completions a second and
    the mean E2E in s, between 30 % and 90 % of the run.
    """
    engine = {"policy": "vllm", "max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_num_queued_reqs": bound}
    cost = {"model": "linear", "unit": "ns", "per_iteration": 25_000_000, "prefill_token": 30_000}
    load = {"num_prompts": requests, "seed": 1, "arrivals": "all-at-once", "prompt": 512, "output": 64}
    [run] = build(
        {
            "engine": {key: value for key, value in engine.items() if value is not None},
            "cost": {**cost, "decode_token": 150_000},
            "workload": {"clients": 1024, "think_time": 10**9, "generate": load},
        }
    ).runs
    summary = Summary()
    simulate(run, [summary])
    arrival, last = summary.column("arrival"), np.asarray(summary.tally.last_time)[:requests]
    done = np.asarray(summary.tally.result)[:requests] == RESULTS.index("completed")
    start, end = 0.3 * arrival.max(), 0.9 * arrival.max()
    completions = np.count_nonzero(done & (start <= last) & (last < end))
    inside = done & (start <= arrival) & (arrival < end)
    return completions / (end - start) * 1e9, float((last - arrival)[inside].mean()) / 1e9, summary


def test_a_queue_cap_in_a_closed_loop() -> None:
    """Without one W = N / X - Z, Little's law to 1 %. With one: the same throughput, about 13 s for the admitted, most
    attempts rejected, and the rejected in the denominator of attainment.
    """
    rate, wait, _ = closed_loop(None, 20_000)
    assert wait == pytest.approx(1024 / rate - 1, rel=0.01) and 29 < wait < 32
    capped_rate, capped_wait, summary = closed_loop(416, 60_000)
    assert capped_rate == pytest.approx(rate, rel=0.03)
    assert capped_wait == pytest.approx(416 / capped_rate, rel=0.03) and 12 < capped_wait < 14
    counts = summary.result_counts()
    assert counts["rejected"] > 10 * counts["completed"]
    found = goodput(summary.tally, summary.column("arrival"), {"e2el": Fraction(10**12)})
    assert found["attainment"] == counts["completed"] / 60_000  # everybody who was let in is good
