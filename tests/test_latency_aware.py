"""latency-aware: every step with a decode keeps the target or says why not, and wastes no room that a prompt could use.

The durations are added up here, from the entries and the coefficients, not taken from the cost model.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchlab import Limits, Run, Summary, simulate
from batchlab.clients.request import Request
from batchlab.core.scheduler import Core
from batchlab.core.step import Step
from batchlab.costs.linear import Linear
from batchlab.errors import SettingError
from batchlab.events import Iteration
from batchlab.policies.latency_aware import LatencyAware

SEATS = 6


@dataclass
class Load:
    """A random load and everything that decides what fits."""

    requests: list[Request]
    target: int
    budget: int
    cost: dict[str, int]

    def run(self) -> Run:
        return Run(
            policy=LatencyAware(target_itl=self.target),
            limits=Limits(max_num_seqs=SEATS, max_num_batched_tokens=self.budget),
            cost=Linear(unit="cost unit", **self.cost),
            requests=self.requests,
        )


@dataclass
class Seen:
    """One planned step: who got what, and what was left of the prompts, in running order."""

    decodes: int
    chunks: list[tuple[str, int]]
    duration: int
    used: int
    prompts: list[tuple[str, int, int]] = field(default_factory=list)
    """(id, tokens computed after the step, tokens left) of everybody who was prefilling."""


@st.composite
def loads(draw: st.DrawFn) -> Load:
    count = draw(st.integers(1, 8))
    requests = [
        Request(f"r{n}", draw(st.integers(0, 60)), draw(st.integers(1, 80)), output := draw(st.integers(1, 12)), output)
        for n in range(count)
    ]
    cost = {
        "per_iteration": draw(st.sampled_from([0, 0, 3, 20])),
        "prefill_token": draw(st.integers(1, 4)),
        "decode_token": draw(st.integers(0, 6)),
        "context_token": draw(st.sampled_from([0, 0, 1, 2])),
    }
    return Load(requests, draw(st.integers(1, 120)), draw(st.integers(SEATS, 60)), cost)


def seen_by(load: Load) -> tuple[list[Seen], list[Iteration], Summary]:
    steps: list[Seen] = []
    events: list[Iteration] = []
    summary = Summary()
    c = load.cost

    def on_plan(core: Core, step: Step) -> None:
        chunks = [(seq.id, tokens) for seq, phase, tokens in step.entries if phase == "prefill"]
        decodes = sum(phase == "decode" for _, phase, _ in step.entries)
        prefill = sum(tokens for _, tokens in chunks)
        total = c["per_iteration"] + c["prefill_token"] * prefill + c["decode_token"] * decodes
        total += c["context_token"] * sum(seq.computed for seq, _, _ in step.entries)
        given_chunk = dict(chunks)
        prompts = [
            (seq.id, seq.computed, seq.prefill_target - seq.computed)
            for seq in core.running
            if seq.computed < seq.prefill_target or seq.id in given_chunk
        ]
        steps.append(Seen(decodes, chunks, max(1, total), prefill + decodes, prompts))

    def keep(event: object) -> None:
        if isinstance(event, Iteration):
            events.append(event)

    simulate(load.run(), [summary, keep], on_plan)
    return steps, events, summary


@settings(max_examples=300, deadline=None)
@given(loads())
def test_a_step_with_a_decode_keeps_the_target_or_says_why_not(load: Load) -> None:
    steps, events, summary = seen_by(load)
    for step, event in zip(steps, events, strict=True):
        if step.used:
            assert event.end - event.start == step.duration
        if step.decodes and step.duration > load.target:
            assert not step.chunks, "the target is missed with a prompt in the step"
            if step.prompts:
                assert event.note is not None
                assert f"target_itl = {load.target}" in event.note
                assert f"takes {step.duration} " in event.note
    for result in summary.results:
        assert result.result == "completed"


@settings(max_examples=300, deadline=None)
@given(loads())
def test_no_room_is_left_that_the_next_prompt_could_use(load: Load) -> None:
    """One more token of the first prompt that has any left would break the target or the budget."""
    steps, events, _ = seen_by(load)
    for step, event in zip(steps, events, strict=True):
        if not step.decodes:
            assert event.note is None
            continue
        unfinished = [prompt for prompt in step.prompts if prompt[2] > 0]
        if not unfinished or step.used == load.budget:
            continue
        id, computed, _ = unfinished[0]
        begun = id in dict(step.chunks)
        reread = 1 if begun else computed + 1
        longer = step.duration + load.cost["prefill_token"] + load.cost["context_token"] * reread
        assert longer > load.target
        if not begun:
            assert event.note is not None
            assert event.note.startswith("no token of ")


@settings(max_examples=100, deadline=None)
@given(loads())
def test_while_nobody_decodes_prompts_get_the_whole_budget(load: Load) -> None:
    for step in seen_by(load)[0]:
        if step.used and not step.decodes:
            assert step.used == load.budget or all(left == 0 for _, _, left in step.prompts)


def steady(target: int) -> Load:
    """One request that decodes, and a prompt of 40 that comes at 1."""
    requests = [Request("stream", 0, 1, 20, 20), Request("long", 1, 40, 1, 1)]
    cost = {"per_iteration": 10, "prefill_token": 2, "decode_token": 4, "context_token": 0}
    return Load(requests, target, 64, cost)


def chunks_of(load: Load, id: str) -> list[int]:
    return [tokens for step in seen_by(load)[0] for name, tokens in step.chunks if name == id]


@pytest.mark.parametrize(
    ("target", "chunks"),
    [
        (94, [40]),  # 10 + 4 + 2 * 40 = 94: the whole prompt just fits
        (93, [39, 1]),
        (34, [10, 10, 10, 10]),  # 34 - 10 - 4 = 20: ten tokens
        (35, [10, 10, 10, 10]),  # half a token more is none
        (16, [1] * 19 + [21]),  # one token a step; after the stream's 19 decodes the rest at once
    ],
)
def test_chunks_by_hand(target: int, chunks: list[int]) -> None:
    assert chunks_of(steady(target), "long") == chunks


@pytest.mark.parametrize("target", [15, 13])
def test_a_target_that_leaves_no_room_is_told(target: int) -> None:
    """A step of one decode takes 14, a token more 16: with 15 nothing fits, with 13 decodes alone are too slow."""
    load = steady(target)
    steps, events, summary = seen_by(load)
    notes = [event.note for event in events if event.note]
    assert notes == [f"no token of 'long' fits into target_itl = {target}: the step takes 14 without it"] * 19
    assert chunks_of(load, "long") == [40], "the prompt runs once nobody decodes"
    assert summary.by_id["stream"].max_itl == 14
    assert [step.duration for step in steps][-1] == 10 + 2 * 40


def test_a_target_below_1_is_refused() -> None:
    load = steady(0)
    with pytest.raises(SettingError, match="must be at least 1"):
        simulate(load.run())
