"""Whose time a step's is where steps overlap: the iteration's that planned it, not that of the one that delivers it."""

from itertools import pairwise
from typing import Any

import pytest
from laws_runs import POLICIES, outcome
from step_samples import BEGINS, LONG, TIME, one_long_step
from test_explain import SOME_SEEDS, explained_of

from batchlab.events import Iteration
from batchlab.explain import Explainer, conclude
from batchlab.explain.lives import Life
from batchlab.explain.reasons import Reason
from batchlab.explain.troubles import TROUBLES
from batchlab.metrics.fold import Summary
from batchlab.simulation import simulate
from batchlab.steps import Steps
from batchlab.trace.encode import decode


@pytest.mark.parametrize("policy", POLICIES)
def test_steps_follow_each_other_and_each_is_told_once(policy: str) -> None:
    """In order, without overlap, none before its plan, and together they fill the time in which any ran."""
    for seed in SOME_SEEDS:
        steps, told, busy = Steps(), [], 0
        for line in outcome(policy, seed).iterations:
            event = decode(line)
            assert isinstance(event, Iteration)
            steps.take(event)
            assert steps.running.start <= event.start and steps.running.end == event.end
            busy += event.end - event.start if steps.running.line.scheduled else 0
            told += steps.over
        told += steps.left()
        assert [step.line.iteration for step in told] == list(range(len(told)))
        assert all(a.end <= b.start for a, b in pairwise(told))
        assert all(step.line.start <= step.start <= step.end for step in told)
        assert busy == sum(step.end - step.start for step in told if step.line.scheduled), seed


@pytest.mark.parametrize("policy", POLICIES)
def test_the_time_of_a_step_is_put_down_to_the_step_that_took_it(policy: str) -> None:
    """Who is scheduled is said to work, in that iteration and in its phase, exactly while that step runs.

    It runs until its tokens come out, from when it was planned or the step before it came out, whichever is later.
    """
    overlapping = 0
    for seed in SOME_SEEDS:
        one = outcome(policy, seed)
        lives, ran, free = explained_of(policy, seed).state.lives, {}, 0
        for line in one.iterations:
            out = one.delivered(line)
            if out is not None and out["scheduled"]:
                ran[out["iteration"]] = (max(out["start"], free), line["end"])
                overlapping += out is not line
                free = line["end"]
        for number, (start, end) in ran.items():
            for id, phase, _ in one.iterations[number]["scheduled"]:
                life = lives[id]
                if life.preemptions == 0 and life.attempts == 1:
                    until = end if life.end is None else max(start, min(end, life.end))
                    assert worked(life, phase, number, start, until) == until - start, (seed, number, id)
    assert overlapping > 20 or policy not in ("vllm", "orca"), overlapping


def worked(life: Life, phase: str, number: int, start: int, end: int) -> int:
    """Of the time from start to end, how much its spans put down to working in this iteration and phase."""
    kinds = (Reason.DECODE, Reason.BESIDE) if phase == "decode" else (Reason.PREFILL,)
    spans = [span for span in life.spans or () if span.reason in kinds and span.start < end and start < span.end]
    assert all((span.first or 0) <= number <= (span.last or 0) for span in spans)
    return sum(min(span.end, end) - max(span.start, start) for span in spans)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_long_step_is_blamed_with_asynchronous_scheduling_too(asynchronous: bool) -> None:
    """The same load, the same step: for the request that it computes, for the one beside it, and in the findings."""
    explainer = Explainer("all", [trouble() for trouble in TROUBLES])
    summary = Summary()
    planned: dict[int, list[tuple[str, str, int]]] = {}

    def keep(event: Any) -> None:
        if isinstance(event, Iteration):
            planned[event.iteration] = event.scheduled

    simulate(one_long_step(asynchronous), [explainer, summary, keep])
    found = conclude(explainer)
    long, beside = found.state.lives["long"], found.state.lives["A"]
    (prefill,) = (span for span in long.spans or () if span.reason is Reason.PREFILL)
    (slow,) = (span for span in beside.spans or () if span.reason is Reason.BESIDE)
    for span in (prefill, slow):
        assert (span.start, span.end) == (BEGINS[asynchronous], BEGINS[asynchronous] + TIME)
        assert ("long", "prefill", LONG) in planned[span.first or 0] and span.first == span.last
    flying = BEGINS[True] - BEGINS[False] if asynchronous else 0
    assert (long.times[Reason.IN_FLIGHT], beside.times[Reason.IN_FLIGHT]) == (flying, 0)
    (owned,) = (finding.evidence for finding in found.findings if finding.name == "prefill-owned iterations")
    assert owned["slowest"] == {"iteration": prefill.first, "time": TIME, "prefill": LONG}
    for entry in summary.document()["requests"]:
        assert sum(found.state.lives[entry["id"]].times) == entry["e2el"]
