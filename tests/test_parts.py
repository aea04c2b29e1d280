"""What surrounds the policy in a real scheduler: queue order with aging, shedding, deadlines, cancellation, retries."""

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchlab.events import End, Iteration
from batchlab.metrics.fold import Summary
from batchlab.scenario import build
from batchlab.simulation import simulate

ENGINE = {"policy": "chunked", "max_num_seqs": 1, "max_num_batched_tokens": 4, "prefill_chunk": 4}
VLLM = {"policy": "vllm", "max_num_seqs": 4, "max_num_batched_tokens": 64, "block_size": 1}


class Result:
    """One run, from a document."""

    def __init__(self, requests: list[dict[str, Any]], engine: dict[str, Any] = ENGINE, **sections: Any) -> None:
        workload = {"requests": requests} | sections.pop("workload", {})
        document = {"engine": engine, "cost": {"model": "unit"}, **sections, "workload": workload}
        summary, events = Summary(), []
        simulate(build(document).runs[0], [summary, events.append])
        self.iterations = [event for event in events if isinstance(event, Iteration)]
        self.end = next(event for event in events if isinstance(event, End))
        self.totals = summary.document()["totals"]
        self.requests = {entry["id"]: entry for entry in summary.document()["requests"]}

    @property
    def admitted(self) -> list[str]:
        return [name for line in self.iterations for name in line.admitted]

    def at(self, iteration: int) -> Iteration:
        return self.iterations[iteration]


def request(id: str, arrival: int = 0, prompt: int = 1, output: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": id, "arrival": arrival, "prompt": prompt, "output": output, **more}


# Aging


@settings(derandomize=True, max_examples=200, deadline=None, database=None)
@given(
    aging=st.integers(1, 8),
    loads=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=25),
)
def test_aging_bounds_how_far_anybody_is_overtaken(aging: int, loads: list[tuple[int, int, int]]) -> None:
    """Nobody who comes more than (difference in priority) * aging later is admitted before."""
    rows = [request(f"r{n}", at, 1, output, priority=level) for n, (at, level, output) in enumerate(loads)]
    run = Result(rows, queue={"order": "priority", "aging": aging})
    place = {name: number for number, name in enumerate(run.admitted)}
    by_name = {row["id"]: row for row in rows}
    for one in by_name.values():
        for other in by_name.values():
            ahead = (one["priority"] - other["priority"]) * aging
            if other["arrival"] - one["arrival"] > max(ahead, 0):
                assert place[one["id"]] < place[other["id"]]


def flood(last: int) -> list[dict[str, Any]]:
    """One unimportant request, and an urgent one every iteration, more than one seat can serve."""
    return [request("meek", 0, 1, 1, priority=3), *(request(f"u{n}", n, 1, 2, priority=0) for n in range(last))]


@pytest.mark.parametrize("last", [10, 50, 200])
def test_without_aging_there_is_no_bound(last: int) -> None:
    """The longer the flood, the longer the wait: urgent requests of two iterations each are all served first."""
    run = Result(flood(last), queue={"order": "priority"})
    assert run.admitted[-1] == "meek" and run.requests["meek"]["queue_time"] == 2 * last


@pytest.mark.parametrize("aging", [1, 4, 10])
def test_with_aging_the_flood_is_passed_in_time(aging: int) -> None:
    """Three levels: urgent ones that come more than 3 * aging later go behind; those before take 2 iterations each."""
    run = Result(flood(200), queue={"order": "priority", "aging": aging})
    before = run.admitted[: run.admitted.index("meek")]
    assert all(int(name[1:]) <= 3 * aging for name in before)
    assert run.requests["meek"]["queue_time"] <= 2 * (3 * aging + 1)


# Shedding


def test_shedding_drops_the_least_urgent_and_of_these_the_latest() -> None:
    rows = [request("seated", 0, 1, 9), *(request(name, at, priority=level) for name, at, level in WAITING)]
    run = Result(rows, ENGINE | {"max_queue": 3}, queue={"when_full": "shed"})
    assert [(entry.id, entry.reason) for entry in run.at(4).rejected] == [("c", "shed for a more urgent request")]
    assert run.at(4).queue == ["a", "b", "urgent"]
    # an equal does not push anybody out: it is refused itself
    assert [(entry.id, entry.reason) for entry in run.at(5).rejected] == [("equal", "queue full")]


WAITING = [("a", 1, 2), ("b", 2, 5), ("c", 3, 5), ("urgent", 4, 1), ("equal", 5, 5)]


@pytest.mark.parametrize("seed", range(60))
def test_shedding_against_its_own_words(seed: int) -> None:
    rng = Random(f"shed {seed}")
    rows = [request("seated", 0, 1, 100)]
    rows += [request(f"r{n}", rng.randint(1, 12), priority=rng.randint(0, 4)) for n in range(20)]
    bound, order = rng.choice([1, 2, 4]), rng.choice(["arrival", "priority"])
    run = Result(rows, ENGINE | {"max_queue": bound}, queue={"when_full": "shed", "order": order})
    by_name = {row["id"]: (row["priority"], row["arrival"], place) for place, row in enumerate(rows) if place}
    waiting: list[str] = []
    rejected = {entry.id: line.start for line in run.iterations for entry in line.rejected}
    for name in sorted(by_name, key=lambda name: by_name[name][1:]):
        waiting.append(name)
        if len(waiting) > bound:
            least = max(waiting, key=by_name.__getitem__)
            if by_name[least][0] == by_name[name][0]:
                least = name  # no less urgent one waits
            waiting.remove(least)
            assert rejected.pop(least) == by_name[name][1]
    assert not rejected and sorted(run.admitted[1:]) == sorted(waiting)


def test_work_already_begun_is_not_shed() -> None:
    """P was preempted and waits, the least urgent of all; a more urgent newcomer finds the queue full all the same."""
    engine = ENGINE | {"policy": "decode-first", "max_queue": 1, "priority_preemption": True}
    rows = [request("P", 0, 1, 9, priority=9), request("H", 1, 1, 9, priority=1), request("N", 2, priority=1)]
    run = Result(rows, engine, queue={"when_full": "shed"})
    assert run.requests["N"]["result"] == "rejected"
    assert {run.requests[name]["result"] for name in "PH"} == {"completed"}


# Deadlines


@pytest.mark.parametrize(("rule", "result"), [("drop", "expired"), ("keep", "completed")])
def test_a_deadline_ends_a_request_or_not(rule: str, result: str) -> None:
    run = Result([request("A", 0, 1, 9, deadline=4), request("B", 1)], run={"deadlines": rule})
    assert run.requests["A"]["result"] == result and run.requests["B"]["result"] == "completed"
    tokens = len(run.requests["A"]["output_times"])
    assert tokens == (4 if rule == "drop" else 9)
    # its seat is B's in the iteration that starts at the deadline
    assert run.requests["B"]["queue_time"] == (3 if rule == "drop" else 8)


def test_a_deadline_met_in_time_is_no_end() -> None:
    """The last token at the deadline itself is in time."""
    run = Result([request("A", 0, 1, 4, deadline=4)], run={"deadlines": "drop"})
    assert run.requests["A"]["result"] == "completed"
    run = Result([request("A", 0, 1, 5, deadline=4)], run={"deadlines": "drop"})
    assert run.requests["A"]["result"] == "expired"


# Cancellation


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("phase", "row"),
    [
        ("prefill", request("A", 0, 12, 9)),
        ("decode", request("A", 0, 4, 40)),
        ("waiting", request("A", 1, 4, 40)),
        ("preempted", request("A", 0, 4, 40, priority=9)),
    ],
)
def test_a_cancelled_request_frees_all_at_once(phase: str, row: dict[str, Any], asynchronous: bool) -> None:
    """B, which has waited for A's seat and blocks, is admitted in the very iteration of the cancellation."""
    engine = VLLM | {"max_num_seqs": 1, "max_num_batched_tokens": 4, "num_gpu_blocks": 16}
    engine |= {"async_scheduling": asynchronous, "scheduling_policy": "priority"}
    rows = [row | {"cancel_at": 3}, request("B", 1, 4, 2, priority=10)]
    if phase == "waiting":
        rows = [request("B", 0, 4, 40, priority=1, cancel_at=3), row, request("A2", 1, 4, 2, priority=10)]
        rows[1]["cancel_at"] = 2
    if phase == "preempted":  # P takes A's blocks; both have seats
        engine |= {"max_num_seqs": 2, "num_gpu_blocks": 9, "max_num_batched_tokens": 16}
        rows = [row | {"cancel_at": 5}, request("P", 0, 3, 5, priority=0), request("B", 1, 4, 2, priority=10)]
    run = Result(rows, engine)
    dropped = {entry.id: line.iteration for line in run.iterations for entry in line.dropped}
    admitted = {name: line.iteration for line in run.iterations for name in line.admitted}
    assert run.requests["A"]["result"] == "cancelled"
    assert all(line.kv["free_after"] == engine["num_gpu_blocks"] - 1 for line in run.iterations[-1:])
    after = run.at(dropped["A"])
    assert "A" not in [*after.queue, *after.active, *(name for name, _, _ in after.scheduled)]
    if phase in ("prefill", "decode"):
        assert admitted["B"] == dropped["A"] == 3 and {n: t for n, _, t in after.scheduled} == {"B": 4}
    elif phase == "waiting":
        assert "A" not in admitted and admitted["A2"] == dropped["B"] == 3
    else:
        assert run.requests["A"]["preemptions"] > 0


def test_a_token_on_its_way_to_nobody_is_discarded() -> None:
    """Asynchronously, the step planned before the cancellation gives a token that nobody gets."""
    engine = VLLM | {"num_gpu_blocks": 16, "async_scheduling": True}
    run = Result([request("A", 0, 2, 9, cancel_at=2), request("B", 0, 2, 5)], engine)
    line = next(line for line in run.iterations if line.dropped)
    assert line.discarded == ["A"] and run.requests["B"]["result"] == "completed"
    assert len(run.requests["A"]["output_times"]) == 1


def test_cancelled_before_it_was_seen() -> None:
    """The engine is busy until long after; the request comes and goes in one line."""
    cost = {"model": "linear", "unit": "ns", "per_iteration": 100}
    run = Result([request("A", 0, 1, 3), request("B", 10, cancel_at=20)], cost=cost)
    line = run.at(1)
    assert (line.arrived, [entry.id for entry in line.dropped]) == (["B"], ["B"])
    assert run.requests["B"]["result"] == "cancelled" and run.requests["B"]["ttft"] is None


def test_a_cancellation_after_the_end_changes_nothing() -> None:
    run = Result([request("A", 0, 1, 2, cancel_at=2), request("B", 5)])
    assert run.requests["A"]["result"] == "completed"


# Retries


def test_a_rejected_client_comes_again_with_backoff() -> None:
    """Rejected at 1; again 3 later, then 6: at 4 and 10. An attempt is an event, the result comes once."""
    rows = [request("seated", 0, 1, 9), request("A", 1)]
    retry = {"retry": {"limit": 3, "wait": 3, "factor": 2}}
    run = Result(rows, ENGINE | {"max_queue": 0, "policy": "decode-first"}, workload=retry)
    times = [(line.start, entry.retry_at) for line in run.iterations for entry in line.rejected]
    assert times == [(1, 4), (4, 10)]
    assert [line.start for line in run.iterations if "A" in line.arrived] == [1, 4, 10]
    assert (run.requests["A"]["result"], run.requests["A"]["attempts"]) == ("completed", 3)
    assert run.requests["A"]["ttft"] == 10 + 1 - 1  # from its first arrival
    assert (run.totals["rejections"], run.totals["retries"]) == ({}, 2)


def test_a_limit_of_attempts() -> None:
    rows = [request("seated", 0, 1, 99), request("A", 1)]
    engine = ENGINE | {"max_queue": 0, "policy": "decode-first"}
    run = Result(rows, engine, workload={"retry": {"limit": 3, "wait": 3, "factor": 2}})
    assert [line.start for line in run.iterations if "A" in line.arrived] == [1, 4, 10]
    assert (run.requests["A"]["result"], run.requests["A"]["attempts"]) == ("rejected", 3)
    assert (run.totals["rejections"], run.totals["retries"]) == ({"queue full": 1}, 2)


@pytest.mark.parametrize(
    "given_up", [{"cancel_at": 4}, {"deadline": 3}, {"cancel_at": 3}, {"cancel_at": 10, "deadline": 2}]
)
def test_nobody_comes_again_after_giving_up(given_up: dict[str, int]) -> None:
    """The attempt would be at 4."""
    rows = [request("seated", 0, 1, 9), request("A", 1, **given_up)]
    engine = ENGINE | {"max_queue": 0, "policy": "decode-first"}
    run = Result(rows, engine, workload={"retry": {"limit": 9, "wait": 3}}, run={"deadlines": "drop"})
    assert (run.requests["A"]["result"], run.requests["A"]["attempts"]) == ("rejected", 1)


@pytest.mark.parametrize("cancel_at", [5, 6, 30])
def test_a_second_attempt_can_be_cancelled(cancel_at: int) -> None:
    """Both attempts have the same time to give up; the request ends once."""
    rows = [request("seated", 0, 1, 4), request("A", 1, 1, 9, cancel_at=cancel_at)]
    engine = ENGINE | {"max_queue": 0, "policy": "decode-first"}
    run = Result(rows, engine, workload={"retry": {"limit": 9, "wait": 3}})
    expected = "cancelled" if cancel_at < 13 else "completed"
    assert (run.requests["A"]["result"], run.requests["A"]["attempts"]) == (expected, 2)


# Overload


@pytest.mark.parametrize("policy", ["decode-first", "chunked", "continuous", "static", "latency-aware", "vllm"])
@pytest.mark.parametrize("retrying", [False, True])
def test_sustained_overload_keeps_every_bound(policy: str, retrying: bool) -> None:
    """Two requests an iteration, and room for a fifth of them: whoever is not served is told so."""
    engine: dict[str, Any] = {"policy": policy, "max_num_seqs": 2, "max_num_batched_tokens": 6}
    engine |= {"decode-first": {"prefill_chunk": 3}, "chunked": {"prefill_chunk": 3}}.get(policy, {})
    engine |= {"latency-aware": {"target_itl": 5}}.get(policy, {})
    engine |= {"block_size": 2, "num_gpu_blocks": 9, "max_num_queued_reqs": 6} if policy == "vllm" else {"max_queue": 4}
    rows = [request(f"r{n}", n // 2, 1 + n % 5, 1 + n % 4, priority=n % 3) for n in range(300)]
    workload = {"retry": {"limit": 3, "wait": 4}} if retrying else {}
    run = Result(rows, engine, workload=workload)
    results = Counter(entry["result"] for entry in run.requests.values())
    assert run.end.termination == "all_terminal" and set(results) == {"completed", "rejected"}
    assert results["rejected"] > 100 and results["completed"] > 30
    rejected = {entry.id for line in run.iterations for entry in line.rejected if entry.retry_at is None}
    assert rejected == {name for name, entry in run.requests.items() if entry["result"] == "rejected"}
    assert sum(run.totals["rejections"].values()) == results["rejected"]
    for line in run.iterations:
        assert len(line.queue) <= (6 if policy == "vllm" else 4 + 2)  # work already begun may wait beyond the bound
        assert len(line.active) <= 2 and sum(tokens for _, _, tokens in line.scheduled) <= 6
        assert line.scheduled or not (line.queue or line.active)
