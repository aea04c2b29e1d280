"""Each kind of trouble: an example that shows it, and one just beside it that does not."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from batchlab.clients.request import Request
from batchlab.core.limits import Limits
from batchlab.costs.unit import Unit
from batchlab.errors import StalledError
from batchlab.explain import Explainer, Explanation, blocking, churn, conclude, load
from batchlab.explain.reasons import Reason
from batchlab.explain.troubles import TROUBLES
from batchlab.scenario import build
from batchlab.scenario import load as load_scenario
from batchlab.simulation import Run, simulate

pytestmark = pytest.mark.once

EXAMPLES = Path(__file__).parents[1] / "examples"
MS = 10**6
SECOND = 10**9
NS = {"model": "linear", "unit": "ns"}


def explained(run: Any) -> Explanation:
    explainer = Explainer("all", [trouble() for trouble in TROUBLES])
    simulate(run, [explainer])
    return conclude(explainer)


def example(name: str, policy: str | None = None, **settings: Any) -> Explanation:
    overrides = {key.replace("__", "."): value for key, value in settings.items()}
    return explained(load_scenario(EXAMPLES / f"{name}.toml", overrides, [policy] if policy else []).runs[0])


def written(
    engine: dict[str, Any], requests: list[dict[str, Any]], cost: dict[str, Any] | None = None, **more: Any
) -> Explanation:
    workload = {"requests": requests, **more.pop("workload", {})}
    document = {"engine": engine, "cost": cost or {"model": "unit"}, "workload": workload, **more}
    return explained(build(document).runs[0])


def evidence(found: Explanation) -> dict[str, dict[str, Any]]:
    return {finding.name: finding.evidence for finding in found.findings}


def test_every_trouble_has_a_name_of_its_own() -> None:
    assert len({trouble.name for trouble in TROUBLES}) == len(TROUBLES)


def test_decode_stall() -> None:
    """Prefill first: A's decodes wait for B's and C's prompts. Decodes first: they never do."""
    requests = [{"id": "A", "arrival": 0, "prompt": 2, "output": 9}]
    requests += [{"id": id, "arrival": at, "prompt": 8, "output": 1} for id, at in (("B", 2), ("C", 3))]
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 8}
    stalls = evidence(written({"policy": "vllm-v0", **limits}, requests))["decode stall"]
    assert (stalls["stalls"], stalls["iterations"], stalls["requests"]) == (2, 2, 1)
    assert stalls["longest"] == {"request": "A", "iterations": 2, "first": 2, "last": 3}
    beside = evidence(written({"policy": "sarathi", "max_num_seqs": 4, "token_budget": 8}, requests))
    assert "decode stall" not in beside


@pytest.mark.parametrize(("output", "stalled"), [(2, 0), (3, 1)])
def test_whoever_has_its_last_token_before_the_prefill_is_not_stalled(output: int, stalled: int) -> None:
    """A's second token comes out at 2, just when B comes. Only a third one would be put off, for B's prompt."""
    requests = [{"id": "A", "arrival": 0, "prompt": 2, "output": output}]
    requests.append({"id": "B", "arrival": 2, "prompt": 8, "output": 1})
    found = evidence(written({"policy": "vllm-v0", "max_num_seqs": 4, "max_num_batched_tokens": 8}, requests))
    assert found.get("decode stall", {"stalls": 0})["stalls"] == stalled


@pytest.mark.parametrize(("chunks", "held"), [(3, 0), (4, 3), (49, 48)])
def test_head_of_line_blocking_of_the_budget(chunks: int, held: int) -> None:
    """A short prompt behind one of so many whole budgets; the first iteration is over before it is seen."""
    assert blocking.HELD_ITERATIONS == 3
    requests = [
        {"id": "long", "arrival": 0, "prompt": 100 * chunks, "output": 2},
        {"id": "short", "arrival": 1, "prompt": 5, "output": 2},
    ]
    found = evidence(written({"policy": "vllm", "max_num_seqs": 8, "max_num_batched_tokens": 100}, requests))
    name = "head-of-line blocking (budget)"
    if not held:
        assert name not in found
    else:
        worst = found[name]["worst"][0]
        assert (worst["owner"], worst["held"], worst["first"], worst["iterations"]) == ("long", "short", 1, held)


def test_of_several_owners_it_is_said_of_how_many_the_worst_is() -> None:
    """Of 6 and 4 whole budgets, in the first of which nobody waits yet: the first held its short prompt longer."""
    requests = [
        {"id": f"{kind}-{at}", "arrival": at + (kind == "short"), "prompt": prompt, "output": 2}
        for at, chunks in ((0, 6), (50, 4))
        for kind, prompt in (("long", 100 * chunks), ("short", 5))
    ]
    found = written({"policy": "vllm", "max_num_seqs": 8, "max_num_batched_tokens": 100}, requests)
    (told,) = (one.text for one in found.findings if one.name == blocking.BudgetBlocking.name)
    assert told.startswith("the prefill of 'long-0' took most of 5 iterations' budget")
    assert told.endswith("while 'short-0' waited with less to prefill (the worst of 2)")


def test_no_head_of_line_blocking_by_a_prompt_that_is_cut_smaller() -> None:
    found = evidence(example("head-of-line", engine__long_prefill_token_threshold=1024))
    assert "head-of-line blocking (budget)" not in found
    assert "head-of-line blocking (budget)" in evidence(example("head-of-line"))


@pytest.mark.parametrize(("small", "held"), [(3, 4), (4, 3), (5, 0)])
def test_head_of_line_blocking_at_admission(small: int, held: int) -> None:
    """15 usable blocks of one token. A holds 9, 10, 11, 12 of them and ends; B needs 9 and waits for that. C behind it
    would fit for 4, 3 or 2 of these iterations.
    """
    requests = [
        {"id": "A", "arrival": 0, "prompt": 8, "output": 5},
        {"id": "B", "arrival": 1, "prompt": 9, "output": 1},
        {"id": "C", "arrival": 1, "prompt": small, "output": 1},
    ]
    blocks = {"block_size": 1, "num_gpu_blocks": 16}
    found = evidence(written({"policy": "vllm", "max_num_seqs": 8, "max_num_batched_tokens": 100, **blocks}, requests))
    name = "head-of-line blocking (admission)"
    if not held:
        assert name not in found
    else:
        worst = found[name]["worst"][0]
        assert (worst["head"], worst["would_fit"], worst["iterations"]) == ("B", "C", held)


@pytest.mark.parametrize("urgent", [9, 10])
def test_starvation(urgent: int) -> None:
    """One seat, and so many more urgent ones, each there before the seat is free again."""
    assert blocking.STARVED_BY == 10
    requests = [{"id": "U", "arrival": 0, "prompt": 1, "output": 2, "priority": 0}]
    requests.append({"id": "late", "arrival": 0, "prompt": 1, "output": 1, "priority": 5})
    requests += [{"id": f"U{n}", "arrival": 1 + 2 * n, "prompt": 1, "output": 2, "priority": 0} for n in range(urgent)]
    engine = {"policy": "continuous", "max_num_seqs": 1, "max_num_batched_tokens": 8}
    found = evidence(written(engine, requests, queue={"order": "priority"}))
    if urgent < 10:
        assert "starvation" not in found
    else:
        worst = found["starvation"]["worst"]
        assert worst == [{"request": "late", "priority": 5, "overtaken_by": 10, "wait": 22}]
    assert "starvation" not in evidence(written(engine, requests))  # in order of arrival


def test_priority_inversion() -> None:
    """The urgent one waits 490 iterations under vLLM's rules; with preemption at arrival, or among equals, never."""
    found = evidence(example("priority-inversion", "vllm"))["priority inversion"]
    assert found["worst"][0]["urgent"] == "urgent" and found["worst"][0]["iterations"] == 490
    assert "priority inversion" not in evidence(example("priority-inversion", "decode-first"))
    equal = example("priority-inversion", "vllm", workload__requests__urgent__priority=5)
    assert "priority inversion" not in evidence(equal)


@pytest.mark.parametrize("iterations", [9, 10])
def test_a_short_priority_inversion_is_none(iterations: int) -> None:
    assert blocking.INVERTED_ITERATIONS == 10
    requests = [
        {"id": "low", "arrival": 0, "prompt": 1, "output": iterations + 1, "priority": 5},
        {"id": "urgent", "arrival": 1, "prompt": 1, "output": 1, "priority": 0},
    ]
    found = evidence(written({"policy": "continuous", "max_num_seqs": 1, "max_num_batched_tokens": 8}, requests))
    assert ("priority inversion" in found) == (iterations == 10)


def test_preemption_thrash_and_recompute_tax() -> None:
    """Checking only the first chunk takes E in, evicts it half way, and so on; with the full-input gate it waits."""
    thrashing = evidence(example("partial-prefill-thrash", engine__scheduler_reserve_full_isl=False))
    worst = thrashing["preemption thrash"]["worst"][0]
    assert worst["request"] == "E" and worst["preemptions"] >= churn.THRASHED
    tax = thrashing["recompute tax"]
    assert tax["share"] == tax["recomputed"] / tax["computed"] >= churn.TAX
    assert not evidence(example("partial-prefill-thrash")).keys() & {"preemption thrash", "recompute tax"}


def test_livelock() -> None:
    """Two that evict each other for ever: the run is stopped, and what it showed up to there says so."""
    explainer = Explainer("all", [trouble() for trouble in TROUBLES])
    run = load_scenario(EXAMPLES / "mutual-eviction.toml").runs[0]
    with pytest.raises(StalledError, match="livelock"):
        simulate(run, [explainer])
    found = conclude(explainer)
    assert not found.complete
    assert evidence(found)["livelock"]["preemptions"] >= churn.LIVELOCKED
    assert "livelock" not in evidence(example("partial-prefill-thrash", engine__scheduler_reserve_full_isl=False))


class PutBack:
    """Gives A one token of its prompt at a time and takes its seat away right after, so many times; B decodes."""

    rules = "none"

    def __init__(self, times: int) -> None:
        self.left = times

    def plan(self, view: Any, batch: Any) -> str:
        """Preempt, or schedule."""
        batch.decode_all()
        seated = [seq for seq in view.running if seq.id == "A" and seq.computed]
        if seated and self.left:
            self.left -= 1
            batch.preempt(seated[0], "recompute", "front")
            return "put back"
        batch.admit_waiting()
        batch.prefill_all(1)
        return "goes on"


@pytest.mark.parametrize(("times", "beside", "locked"), [(3, False, True), (2, False, False), (3, True, False)])
def test_few_preemptions_or_a_token_of_somebody_are_no_livelock(times: int, beside: bool, locked: bool) -> None:
    """Twice may be bad luck; and while B gets its tokens the run gets on, however often A is put back."""
    assert churn.LIVELOCKED == 3
    requests = [Request("A", 0, 4, 2, 2), *([Request("B", 0, 1, 20, 20)] if beside else [])]
    explainer = Explainer("all", [trouble() for trouble in TROUBLES])
    with contextlib.suppress(StalledError):  # three times the same state is what the run itself gives up on
        simulate(Run(PutBack(times), Limits(4, 8), Unit(), requests), [explainer])
    found = conclude(explainer)
    assert found.state.lives["A"].preemptions == times
    assert ("livelock" in evidence(found)) == locked
    assert found.complete != locked


@pytest.mark.parametrize(("output", "told"), [(49, True), (50, False)])
def test_seats_that_are_idle_for_less_than_a_hundredth_are_no_trouble(output: int, told: bool) -> None:
    """0.5 ms of delay, then an iteration of 1 ms for each token: 0.5 of 49.5 ms is above 1 %, 0.5 of 50.5 ms below."""
    assert load.IDLE_SHARE == 0.01
    requests = [{"id": id, "arrival": 0, "prompt": 4, "output": output} for id in "AB"]
    engine = {"policy": "triton", "max_batch_size": 4, "max_queue_delay_microseconds": 500}
    found = written(engine, requests, {**NS, "per_iteration": MS})
    assert found.state.lives["A"].e2el == MS // 2 + output * MS
    assert ("idle seats while work waits" in evidence(found)) == told


def test_seats_that_are_free_because_a_limit_holds_the_queue_up_are_not_idle() -> None:
    """B waits beside three free seats until A gives its KV blocks back: more seats would not help."""
    requests = [{"id": id, "arrival": 0, "prompt": 8, "output": 4} for id in "AB"]
    engine = {"policy": "vllm", "max_num_seqs": 4, "max_num_batched_tokens": 100, "block_size": 1, "num_gpu_blocks": 16}
    found = written(engine, requests)
    assert found.state.lives["B"].times[Reason.BLOCKS] > 0
    assert "idle seats while work waits" not in evidence(found)


@pytest.mark.parametrize("delay", [0, 500])
def test_idle_seats_while_work_waits(delay: int) -> None:
    """A delay window keeps two waiting for company beside four free seats."""
    requests = [{"id": id, "arrival": 0, "prompt": 4, "output": 2} for id in "AB"]
    engine = {"policy": "triton", "max_batch_size": 4, "max_queue_delay_microseconds": delay}
    found = evidence(written(engine, requests, {**NS, "per_iteration": 1000}))
    if delay:
        idle = found["idle seats while work waits"]
        assert (idle["time"], idle["seat_time"]) == (500_000, 1_000_000)
        assert idle["by_reason"] == {"delay window": 500_000}
    else:
        assert "idle seats while work waits" not in found


@pytest.mark.parametrize(("gap", "overloaded"), [(1, True), (2, False)])
def test_overload(gap: int, overloaded: bool) -> None:
    """One seat, two iterations each: one an iteration is too much, one in two is not."""
    requests = [{"id": f"r{n}", "arrival": n * gap, "prompt": 1, "output": 2} for n in range(50)]
    found = evidence(written({"policy": "continuous", "max_num_seqs": 1, "max_num_batched_tokens": 8}, requests))
    assert ("overload" in found) == ("offered rate not reached" in found) == overloaded
    if overloaded:
        assert found["overload"]["queue_last_fifth"] > load.GROWN * found["overload"]["queue_middle_fifth"]


def test_overload_behind_a_bound_shows_as_rejections() -> None:
    requests = [{"id": f"r{n}", "arrival": n, "prompt": 1, "output": 2} for n in range(50)]
    engine = {"policy": "continuous", "max_num_seqs": 1, "max_num_batched_tokens": 8, "max_queue": 2}
    found = evidence(written(engine, requests))
    assert found["overload"]["rejected"] >= load.REJECTED_SHARE * 50
    requests = [{**request, "arrival": 2 * request["arrival"]} for request in requests]
    assert "overload" not in evidence(written(engine, requests))


@pytest.mark.parametrize(("per_second", "reached"), [(10, 2.0), (2, None)])
def test_offered_rate_not_reached(per_second: int, reached: float | None) -> None:
    """Half a second each, one at a time: at most 0.5 s if measured from a send that waits for the last result. From the
    arrivals, at 10/s: max 3.3 s, mean 1.9 s, and 2/s were reached.
    """
    requests = [{"id": f"r{n}", "arrival": n * SECOND // per_second, "prompt": 1, "output": 1} for n in range(8)]
    engine = {"policy": "continuous", "max_num_seqs": 1, "max_num_batched_tokens": 8}
    found = written(engine, requests, {**NS, "per_iteration": SECOND // 2})
    latencies = [life.e2el for life in found.state.lives.values() if life.e2el is not None]
    if reached is None:
        assert "offered rate not reached" not in evidence(found)
        assert max(latencies) == SECOND // 2
    else:
        rates = evidence(found)["offered rate not reached"]
        assert (rates["offered"], rates["reached"], rates["per"]) == (10.0, reached, "s")
        assert (max(latencies), sum(latencies) / 8) == (3.3 * SECOND, 1.9 * SECOND)


@pytest.mark.parametrize(("prompt", "felt"), [(11, True), (9, False)])
def test_prefill_owned_iterations(prompt: int, felt: bool) -> None:
    """1 ms an iteration and 0.1 ms a prompt token: from ten tokens on an iteration is twice as long."""
    requests = [{"id": "A", "arrival": 0, "prompt": 1, "output": 30}]
    requests += [{"id": f"p{n}", "arrival": (5 + 5 * n) * MS, "prompt": prompt, "output": 1} for n in range(3)]
    engine = {"policy": "sarathi", "max_num_seqs": 8, "token_budget": 64}
    found = evidence(written(engine, requests, {**NS, "per_iteration": MS, "prefill_token": MS // 10}))
    assert ("prefill-owned iterations" in found) == felt
    if felt:
        owned = found["prefill-owned iterations"]
        assert owned["mean_time_decodes_alone"] == MS and owned["mean_time"] >= churn.FELT_FACTOR * MS


@pytest.mark.parametrize(("attempts", "storm"), [(4, True), (1, False)])
def test_retry_storm(attempts: int, storm: bool) -> None:
    """Ten at once for one seat and two places in the queue; who may come again, comes again."""
    requests = [{"id": f"r{n}", "arrival": 0, "prompt": 1, "output": 20} for n in range(10)]
    engine = {"policy": "continuous", "max_num_seqs": 1, "max_num_batched_tokens": 8, "max_queue": 2}
    retry = {"retry": {"limit": attempts, "wait": 2, "factor": 1}}
    found = written(engine, requests, workload=retry)
    assert ("retry storm" in evidence(found)) == storm
    if storm:
        seen = evidence(found)["retry storm"]
        rejected = [life for life in found.state.lives.values() if life.state == "rejected"]
        assert seen["requests"] == 10 and seen["attempts"] == sum(life.attempts for life in found.state.lives.values())
        assert all(life.attempts == 4 and sum(life.times) == life.end == 6 for life in rejected)


@pytest.mark.parametrize(("places", "attempts", "rejected"), [(3, 22, 12), (4, 18, 8)])
def test_retries_of_which_most_are_let_in_are_no_storm(places: int, attempts: int, rejected: int) -> None:
    """Ten at once; who finds the queue full comes again when it is empty. With three places 7, 4 and 1 are rejected, of
    10 + 7 + 4 + 1 attempts more than half; with four places 6 and 2 of 10 + 6 + 2, fewer.
    """
    assert load.STORM_SHARE == 0.5
    requests = [{"id": f"r{n}", "arrival": 0, "prompt": 1, "output": 20} for n in range(10)]
    engine = {"policy": "continuous", "max_num_seqs": 1, "max_num_batched_tokens": 8, "max_queue": places}
    found = written(engine, requests, workload={"retry": {"limit": 4, "wait": 200, "factor": 1}})
    assert sum(life.attempts for life in found.state.lives.values()) == attempts
    assert all(life.state == "completed" for life in found.state.lives.values())
    seen = evidence(found).get("retry storm")
    assert (seen is not None) == (rejected >= load.STORM_SHARE * attempts)
    assert seen is None or (seen["attempts"], seen["rejected"]) == (attempts, rejected)


def closed_loop(max_queue: int | None) -> Explanation:
    """64 clients, four seats, four iterations each: one request an iteration is served."""
    requests = [{"id": f"r{n}", "arrival": 0, "prompt": 1, "output": 4} for n in range(640)]
    engine = {"policy": "continuous", "max_num_seqs": 4, "max_num_batched_tokens": 64}
    engine |= {} if max_queue is None else {"max_queue": max_queue}
    return written(engine, requests, workload={"clients": 64, "think_time": 1})


def test_a_closed_loop_without_a_bound_waits_by_littles_law() -> None:
    """W = N / X: 64 clients at one an iteration wait 64 iterations, a round; nobody is rejected, nothing is said."""
    found = closed_loop(None)
    group = found.groups()["e2el"]
    last_rounds = [life for life in found.state.lives.values() if life.request.arrival > 64 and life.e2el is not None]
    mean = sum(life.e2el or 0 for life in last_rounds) / len(last_rounds)
    assert mean == pytest.approx(64 - 1, rel=0.03)  # one of the 64 thinks at a time
    assert group.times[Reason.SEATS] / sum(group.times) > 0.9
    assert not evidence(found).keys() & {"overload", "offered rate not reached"}


def test_a_closed_loop_behind_a_bound_shows_its_overload() -> None:
    """As many are served an iteration; who is let in waits for eight at most, and most attempts are rejected."""
    found = closed_loop(8)
    seen = evidence(found)["overload"]
    assert seen["rejected"] > seen["attempts"] / 2
    served = [life.e2el for life in found.state.lives.values() if life.e2el is not None]
    assert max(served) <= 4 + 8 + 4


def test_priority_without_effect() -> None:
    """Thirty low and one high, and everything fits: the same token rate for all. With too few seats it has one."""
    assert evidence(example("priority-order-only"))["priority without effect"]["priorities"]
    assert "priority without effect" not in evidence(example("priority-order-only", engine__max_num_seqs=4))


def test_a_quiet_run_shows_no_trouble() -> None:
    requests = [{"id": f"r{n}", "arrival": 6 * n, "prompt": 3, "output": 3} for n in range(12)]
    found = written({"policy": "sarathi", "max_num_seqs": 4, "token_budget": 16}, requests)
    assert found.findings == []


@pytest.mark.parametrize("urgent", [2, 3])
def test_a_request_preempted_twice_does_not_thrash(urgent: int) -> None:
    """39 blocks of one token: each urgent one grows until the other has to go, which comes back in between."""
    assert churn.THRASHED == 3
    requests = [{"id": "L", "arrival": 0, "prompt": 20, "output": 19, "priority": 5}]
    requests += [
        {"id": f"U{n}", "arrival": 1 + 36 * n, "prompt": 4, "output": 34, "priority": 0} for n in range(urgent)
    ]
    engine = {"policy": "vllm", "scheduling_policy": "priority", "max_num_seqs": 8, "max_num_batched_tokens": 100}
    found = written({**engine, "block_size": 1, "num_gpu_blocks": 40}, requests)
    assert found.state.lives["L"].preemptions == urgent
    assert ("preemption thrash" in evidence(found)) == (urgent == 3)


@pytest.mark.parametrize(("more", "taxed"), [(2, True), (3, False)])
def test_a_small_recompute_tax_is_none(more: int, taxed: bool) -> None:
    """11 of 68 tokens are computed again, then others come alone: 11 of 220 are 5 %, 11 of 221 are less."""
    requests = [{"id": "A", "arrival": 0, "prompt": 8, "output": 20}]
    requests += [{"id": f"L{n}", "arrival": 0, "prompt": 4, "output": 12} for n in range(2)]
    for n, prompt in enumerate([30] * 5 + [more]):
        requests.append({"id": f"x{n}", "arrival": 100 + 5 * n, "prompt": prompt, "output": 1})
    engine = {"policy": "vllm", "max_num_seqs": 8, "max_num_batched_tokens": 100, "block_size": 1, "num_gpu_blocks": 40}
    found = evidence(written(engine, requests))
    assert ("recompute tax" in found) == taxed
    if taxed:
        assert (found["recompute tax"]["recomputed"], found["recompute tax"]["computed"]) == (11, 220)
