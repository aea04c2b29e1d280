"""A reason is proven by lifting the limit it names. Which law holds exactly depends on what else is in the way."""

import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from laws_runs import CROWDS, SEEDS, document_for, make_run

from batchlab import policies
from batchlab.clients.request import Request
from batchlab.core.limits import Limits
from batchlab.costs.unit import Unit
from batchlab.errors import InputError
from batchlab.explain import Explainer
from batchlab.explain.lives import Life
from batchlab.explain.reasons import Reason
from batchlab.policies.chunked import Chunked
from batchlab.policies.continuous import Continuous
from batchlab.policies.sarathi import Sarathi
from batchlab.policies.vllm import Vllm
from batchlab.prove import LIMITS, enough, first_wait, fresh, prove
from batchlab.simulation import Run, simulate

pytestmark = pytest.mark.once

LIFTABLE = [
    name
    for name in policies.names()
    # These wait for more than limits: for their batch to end, for company, for a target, for a place of their own.
    if name not in ("static", "fastertransformer", "triton", "triton-iterative", "latency-aware", "orca")
]
PLAIN = {
    "chunked": lambda: Chunked(prefill_chunk=3),
    "continuous": Continuous,
    "sarathi": Sarathi,
    "vllm": Vllm,
    "vllm, asynchronous": lambda: Vllm(async_scheduling=True),
}
PLENTY = 100_000


def lives_of(run: Run) -> dict[str, Life]:
    explainer = Explainer("all")
    simulate(fresh(run), [explainer])
    return explainer.lives


def limited(run: Run) -> dict[str, int]:
    """The limits that it has, each with enough of it."""
    names = dict.fromkeys(LIMITS.values())
    return {name: max(enough(run, name), value) for name in names if (value := getattr(run.limits, name)) is not None}


@pytest.mark.parametrize("policy", LIFTABLE)
def test_with_enough_of_every_limit_nobody_waits_for_one(policy: str) -> None:
    """On any clock. Where every iteration lasts 1, whoever waited for a limit is then scheduled strictly earlier: in
    the iteration that sees it.
    """
    waited = earlier = 0
    for seed in SEEDS[::4]:
        run = make_run(json.loads(document_for(policy, seed)), seed)
        before = lives_of(run)
        after = lives_of(fresh(run, **limited(run)))
        for id, life in before.items():
            wait = first_wait_of(life)
            if wait is None or wait not in LIMITS or seed in CROWDS:
                continue
            waited += 1
            assert first_wait_of(after[id]) not in LIMITS, f"seed {seed}, {id}"
            if run.cost.unit == "iteration" and life.first_start is not None and run.cost.idle == "step":
                earlier += 1
                assert after[id].first_start is not None and after[id].first_start < life.first_start, (seed, id)
    assert waited > 10 and earlier >= 1, (waited, earlier)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_wait_is_proven_with_asynchronous_scheduling_too(asynchronous: bool) -> None:
    """One seat, taken by A from 0 on for 3 iterations, with asynchronous scheduling for one more: until its last token
    is out. That B's own step then waits for the one before is no wait for a limit.
    """
    requests = [Request("A", 0, 4, 3, 3), Request("B", 0, 4, 2, 2)]
    proof = prove(Run(Vllm(async_scheduling=asynchronous), Limits(1, 64), Unit(), requests, engine="one seat"), "B")
    assert proof.wait is not None and proof.wait.reason is Reason.SEATS and proof.limits == {"max_num_seqs": 1}
    assert proof.first_scheduled == 3 + asynchronous and proof.proven
    (trial,) = proof.trials
    assert (trial.lifted, trial.first_scheduled, trial.wait) == ({"max_num_seqs": 2}, 0, None)


def first_wait_of(life: Life) -> Reason | None:
    """The reason of its first wait before its first tokens, read off its spans here a second time."""
    for span in life.spans or ():
        if span.reason in (Reason.UNDER_WAY, Reason.BETWEEN):
            continue
        return None if span.reason.works or span.start == life.first_start else span.reason
    return None


@pytest.mark.parametrize("policy", PLAIN)
@pytest.mark.parametrize("seed", range(12))
def test_one_more_seat_makes_nobody_later_where_seats_are_all_there_is(policy: str, seed: int) -> None:
    """First come, first served, iterations of 1, nothing else in short supply: each request takes its own time, so
    starts are those of a queue before parallel servers, which one more server makes earlier or equal, each of them.
    The first that ever waited is strictly earlier.
    """
    run = plain_run(PLAIN[policy](), seed, max_num_seqs=Random(f"seats {seed}").choice([1, 2, 3]))
    before, after = lives_of(run), lives_of(fresh(run, max_num_seqs=run.limits.max_num_seqs + 1))
    for id, life in before.items():
        assert started(after[id]) <= started(life), id
    first = first_to_wait(before, Reason.SEATS)
    if first is not None:
        assert started(after[first.id]) < started(first)
        proof = prove(run, first.id)
        assert proof.proven and proof.trials[-1].lifted == {"max_num_seqs": run.limits.max_num_seqs + 1}


@pytest.mark.parametrize(
    ("policy", "limit"),
    [
        ("sarathi", "max_num_batched_tokens"),
        ("chunked", "max_num_batched_tokens"),
        ("vllm", "max_num_batched_tokens"),
        ("vllm", "num_gpu_blocks"),
        ("vllm, asynchronous", "max_num_batched_tokens"),
        ("vllm, asynchronous", "num_gpu_blocks"),
    ],
)
def test_whoever_waits_for_the_only_limit_is_strictly_earlier_without_it(policy: str, limit: str) -> None:
    """And `prove` finds it by lifting that limit alone."""
    waited = 0
    for seed in range(12):
        rng = Random(f"only {seed}")
        tight = rng.choice([14, 16, 20]) if limit == "max_num_batched_tokens" else rng.choice([18, 24])
        run = plain_run(PLAIN[policy](), seed, **{limit: tight})
        before, after = lives_of(run), lives_of(fresh(run, **{limit: enough(run, limit)}))
        for id, life in before.items():
            wait = first_wait_of(life)
            if wait is not None and LIMITS.get(wait) == limit:
                waited += 1
                assert started(after[id]) < started(life), (seed, id)
                proof = prove(run, id)
                assert proof.proven and set(proof.trials[-1].lifted) == {limit}, (seed, id)
    assert waited > 5


def plain_run(policy: Any, seed: int, **limits: int) -> Run:
    """First come, first served, no priorities, everybody patient; plenty of what is not given."""
    rng = Random(f"plain {seed}")
    count = rng.choice([5, 9, 14])
    rows = sorted(rng.choice([0, 0, 1, rng.randrange(25)]) for _ in range(count))
    requests = [Request(f"r{n}", at, rng.randint(1, 9), o := rng.randint(1, 9), o) for n, at in enumerate(rows)]
    given = {"max_num_seqs": 14, "max_num_batched_tokens": PLENTY, **limits}
    if "num_gpu_blocks" in given:
        given["block_size"] = 1
    return Run(policy, Limits(**given), Unit(), requests, engine="plain")


def first_to_wait(lives: dict[str, Life], reason: Reason) -> Life | None:
    waits = [life for life in lives.values() if first_wait_of(life) is reason]
    return min(waits, key=lambda life: ((life.spans or ())[0].start, life.index), default=None)


def started(life: Life) -> int:
    assert life.first_start is not None
    return life.first_start


def test_what_one_more_does_is_not_always_good() -> None:
    """The law has limits, which is why a proof shows its reruns: over all policies and loads, one more seat, token or
    block makes most who waited for it earlier, leaves some where they were and makes a few later.
    """
    seen: Counter[str] = Counter()
    for run, id in some_waits():
        proof = prove(run, id)
        if not proof.limits or proof.trials[0].refused is not None or proof.first_scheduled is None:
            continue
        trial = proof.trials[0]
        after = trial.first_scheduled
        seen["earlier" if proof.earlier(trial) else "same" if after == proof.first_scheduled else "later"] += 1
        seen["proven" if proof.proven else "not proven"] += 1
    assert seen["earlier"] > seen["same"] > seen["later"] > 0, seen
    assert seen["proven"] > 20 * seen["not proven"], seen


def some_waits() -> Iterator[tuple[Run, str]]:
    for policy in LIFTABLE:
        for seed in SEEDS[:32:2]:
            if seed not in CROWDS:
                run = make_run(json.loads(document_for(policy, seed)), seed)
                for id in [request.id for request in run.requests][:5]:
                    yield run, id


def test_a_request_that_never_waited_has_nothing_to_prove() -> None:
    run = Run(Continuous(), Limits(max_num_batched_tokens=9), Unit(), [Request("A", 0, 3, 2, 2)])
    proof = prove(run, "A")
    assert not proof.proven and proof.wait is None and not proof.limits and proof.first_scheduled == 0


def test_a_wait_behind_two_limits_is_proven_by_lifting_both() -> None:
    """One seat and one token an iteration: a second seat alone lets B sit down beside A, without tokens."""
    requests = [Request("A", 0, 1, 9, 9), Request("B", 0, 1, 1, 1)]
    run = Run(Chunked(prefill_chunk=1), Limits(max_num_seqs=1, max_num_batched_tokens=1), Unit(), requests)
    proof = prove(run, "B")
    assert proof.wait is not None and proof.wait.reason is Reason.SEATS
    assert proof.wait.facts["also"] == ["token budget"]
    *alone, both = proof.trials
    assert [(trial.first_scheduled, trial.wait) for trial in alone] == [(9, Reason.BUDGET)] * len(alone)
    assert proof.proven and both.first_scheduled == 0 and set(both.lifted) == {"max_num_seqs", "max_num_batched_tokens"}


def test_a_rerun_leaves_the_run_as_it_was() -> None:
    run = make_run(json.loads(document_for("triton", 5)), 5)
    once = first_wait(run, run.requests[0].id)
    assert once == first_wait(run, run.requests[0].id)


def test_an_unknown_id_is_refused_with_the_nearest() -> None:
    run = Run(Continuous(), Limits(max_num_batched_tokens=9), Unit(), [Request("alpha", 0, 3, 2, 2)])
    with pytest.raises(InputError, match="did you mean 'alpha'"):
        prove(run, "alpa")
