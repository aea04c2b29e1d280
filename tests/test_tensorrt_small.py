"""TensorRT-LLM's two schedulers in small situations, each worked out by hand from a rule of docs/engines.md.

A step is written as in `./batchlab run`: `A+4` are four prompt tokens of A, `A` one more token. Blocks hold
four tokens.
"""

from random import Random
from typing import Any

import pytest

from batchlab.clients.request import Request
from batchlab.core.limits import Limits
from batchlab.core.scheduler import Core
from batchlab.costs.unit import Unit
from batchlab.errors import InputError
from batchlab.events import Iteration
from batchlab.metrics.fold import Summary
from batchlab.policies.tensorrt_llm import TensorRtLlm, list_order
from batchlab.scenario import build
from batchlab.simulation import Run, simulate
from batchlab.trace.verify import verify
from batchlab.trace.write import TraceWriter

STATIC = {"capacity_scheduler_policy": "STATIC_BATCH"}
UTILIZE = {"capacity_scheduler_policy": "MAX_UTILIZATION"}
CHUNKS = {"enable_chunked_context": True}
EQUAL = {**CHUNKS, "context_chunking_policy": "EQUAL_PROGRESS"}


def ask(name: str, prompt: int, out: int, at: int = 0, most: int | None = None) -> Request:
    return Request(name, at, prompt, out, most or out)


class Played:
    """A run that is over: its steps in words, and all that happened."""

    def __init__(self, events: list[Iteration], summary: Summary) -> None:
        self.events = events
        self.totals = summary.totals()
        self.steps = [" ".join(n if p == "decode" else f"{n}+{k}" for n, p, k in e.scheduled) for e in events]
        self.paused = {
            event.iteration: [(one.id, one.computed) for one in event.preempted] for event in events if event.preempted
        }
        self.rejected = {one.id: one.reason for event in events for one in event.rejected}
        self.failed = {one.id: (event.iteration, one.reason) for event in events for one in event.dropped}
        self.ends = {name: event.iteration for event in events for name in event.completed}


@pytest.fixture
def play(tmp_path: Any) -> Any:
    """Runs requests through the policy and verifies the trace."""

    def run(*requests: Request, batch: int = 8, tokens: int | None = 100, blocks: int = 100, **settings: Any) -> Played:
        policy = TensorRtLlm(**settings)
        limits = Limits(max_num_seqs=batch, max_num_batched_tokens=tokens, num_gpu_blocks=blocks, block_size=4)
        path = tmp_path / "trace.jsonl"
        summary, events = Summary(), []
        with open(path, "w", encoding="utf-8") as file:
            observers = [summary, TraceWriter(file, summary), lambda event: events.append(event)]
            simulate(Run(policy, limits, Unit(), requests, 10_000), observers)
        report = verify(path)
        assert not report.violations and report.stopped is None
        return Played([event for event in events if isinstance(event, Iteration)], summary)

    return run


# The micro-batch scheduler


def test_contexts_then_generation(play: Any) -> None:  # rules 11 and 13: A's token is counted first, and comes last
    assert play(ask("A", 6, 2), ask("B", 9, 1), tokens=10).steps == ["A+6", "B+9 A"]


def test_whole_prompts_without_chunks_and_nobody_passes(play: Any) -> None:  # rule 11: B does not fit, C would
    assert play(ask("A", 6, 1), ask("B", 5, 1), ask("C", 2, 1), tokens=10).steps == ["A+6", "B+5 C+2"]


def test_no_budget(play: Any) -> None:
    assert play(ask("A", 60, 1), ask("B", 500, 1), tokens=None, blocks=999).steps == ["A+60 B+500"]


def test_max_batch_size(play: Any) -> None:  # rule 4: C starts when A has ended
    steps = play(ask("A", 2, 2), ask("B", 2, 3), ask("C", 2, 1), batch=2).steps
    assert steps == ["A+2 B+2", "A B", "C+2 B"]


def test_first_come_first_served_rounds_down_to_the_unit(play: Any) -> None:
    # rule 12: A 4 of 4, B 2 of 8; then B gets 4 of 6, as 5 are left and the unit is 2; then its last 2
    steps = play(ask("A", 4, 3), ask("B", 8, 1), tokens=6, chunk_unit_size=2, **CHUNKS).steps
    assert steps == ["B+2 A+4", "B+4 A", "B+2 A"]


def test_no_rounding_where_the_prompt_ends(play: Any) -> None:  # rule 12: 3 of 3 are no whole unit of 4
    assert play(ask("A", 3, 1), ask("B", 4, 1), tokens=7, **CHUNKS).steps == ["A+3 B+4"]


def test_contexts_without_tokens_are_left_out(
    play: Any,
) -> None:  # rules 12 and 13: of 7, 2 are left: less than the unit
    assert play(ask("A", 5, 2), ask("B", 6, 1), tokens=7, **CHUNKS).steps == ["A+5", "B+6 A"]


def test_a_prompt_that_ends_may_pass_one_that_gets_nothing(play: Any) -> None:
    # rule 12: A 4 of 10, B nothing of 5, C all of its 2. Then C's token, A 4 of 6; then A 2 of 2, B nothing (3 left)
    steps = play(ask("A", 10, 1), ask("B", 5, 1), ask("C", 2, 3), tokens=6, **CHUNKS).steps
    assert steps == ["A+4 C+2", "A+4 C", "A+2 C", "B+5"]


def test_decodes_are_counted_before_contexts(play: Any) -> None:  # rule 11: A, the older, has what D's token leaves
    steps = play(ask("A", 12, 1), ask("D", 1, 4), tokens=5, **CHUNKS).steps
    assert steps == ["A+4 D+1", "A+4 D", "A+4 D", "D"]


def test_equal_progress(play: Any) -> None:
    # rule 12, unit 2, 10 tokens: A2 B2 C2, then A2, B1, nothing for C as 1 is left, then nothing for A. Then 4 and 6
    requests = ask("A", 8, 1), ask("B", 3, 1), ask("C", 8, 1)
    steps = play(*requests, tokens=10, chunk_unit_size=2, **EQUAL).steps
    assert steps == ["A+4 C+2 B+3", "A+4 C+6"]


def test_chunks_that_fit_whole_are_not_touched(play: Any) -> None:  # rule 12: 6 + 4 = 10, units of 4 do not matter
    assert play(ask("A", 6, 1), ask("B", 4, 1), tokens=10, **EQUAL).steps == ["A+6 B+4"]


def test_the_unit_is_a_block_if_nothing_else_is_said(play: Any) -> None:  # rule 12: 7 // 4 * 4
    assert play(ask("A", 9, 1), tokens=7, **CHUNKS).steps == ["A+4", "A+5"]


# GUARANTEED_NO_EVICT


def test_all_blocks_to_the_end_are_set_aside(play: Any) -> None:
    # rules 3 to 5: A will need 3 of 4 blocks and has 1; B needs 2, so it waits, and C, who needs 1, behind it
    played = play(ask("A", 4, 3, most=8), ask("B", 4, 1, most=4), ask("C", 2, 1, most=2), blocks=4)
    assert played.steps == ["A+4", "A", "A", "B+4 C+2"]
    assert played.events[0].kv == {"free": 3, "free_after": 3, "moved": 0}


def test_what_is_set_aside_is_enough(play: Any) -> None:  # rule 3: 3 + 2 = 5 blocks
    assert play(ask("A", 4, 3, most=8), ask("B", 4, 2, most=4), blocks=5).steps == ["A+4 B+4", "A B", "A"]


def test_a_first_chunk_takes_the_blocks_of_the_whole_prompt(play: Any) -> None:  # rule 1: 4 tokens, 4 blocks
    played = play(ask("A", 16, 2), tokens=4, blocks=6, **CHUNKS)
    assert [event.kv["free"] for event in played.events if event.kv] == [2, 2, 2, 2, 1]  # rule 2: 16 are full


def test_one_that_is_part_prefilled_is_pending(play: Any) -> None:
    # rule 5: B has 4 of its 8 tokens when A is in generation; it is in the list before C and goes on
    played = play(ask("A", 2, 4), ask("B", 8, 1), ask("C", 2, 1, at=1), tokens=6, batch=2, **CHUNKS)
    assert played.steps == ["B+4 A+2", "B+4 A", "C+2 A", "A"]


def test_rejected_if_it_can_never_be_guaranteed(play: Any) -> None:
    played = play(ask("A", 9, 1, most=8), ask("B", 9, 1, most=7), blocks=4)
    assert played.rejected == {"A": "the KV cache cannot hold prompt and max_tokens: at most 4 blocks"}
    assert played.steps == ["B+9"]


def test_rejected_if_the_prompt_exceeds_the_budget_without_chunks(play: Any) -> None:
    requests = ask("A", 11, 1), ask("B", 10, 1)
    assert list(play(*requests, tokens=10).rejected) == ["A"]
    assert play(*requests, tokens=10, **CHUNKS).rejected == {}


@pytest.mark.parametrize("static", [False, True])
def test_never_pauses(play: Any, static: bool) -> None:
    for seed in range(500):
        rng = Random(f"no evict {seed}")
        requests = random_requests(rng)
        settings = random_settings(rng) | (STATIC if static else {})
        played = play(*requests, **settings)
        assert played.paused == {} and not played.failed and not played.rejected
        assert sorted(played.ends) == sorted(request.id for request in requests)


# STATIC_BATCH


def test_nobody_joins_while_anybody_is_in_generation(play: Any) -> None:  # rule 6
    played = play(ask("A", 2, 1), ask("B", 2, 3), ask("C", 2, 1, at=1), **STATIC)
    assert played.steps == ["A+2 B+2", "B", "B", "C+2"]


def test_half_a_prompt_waits_too(play: Any) -> None:  # rule 6: B has 4 of its 8 tokens when A begins to generate
    played = play(ask("A", 2, 3), ask("B", 8, 1), ask("C", 2, 1, at=1), tokens=6, **CHUNKS, **STATIC)
    assert played.steps == ["B+4 A+2", "A", "A", "B+4 C+2"]


# MAX_UTILIZATION

TIGHT = {"blocks": 4, **UTILIZE}  # of four tokens each


def test_the_last_started_is_paused_for_an_earlier_one(play: Any) -> None:
    # rules 7, 8 and 10. Both hold 2 of 4 blocks. In step 2 A's 8 tokens fill its own: B is out with 8 tokens computed.
    # Its 9 known tokens need 3 blocks, which are free when A has ended; 4 more tokens follow.
    played = play(ask("A", 7, 6), ask("B", 7, 6), **TIGHT)
    assert played.steps == ["A+7 B+7", "A B", "A", "A", "A", "A", "B+9", "B", "B", "B"]
    assert played.paused == {2: [("B", 8)]}
    assert played.totals["recomputed_tokens"] == 8


def test_the_current_one_may_be_the_one_that_is_paused(play: Any) -> None:  # rule 8: only B needs a block in step 1
    played = play(ask("A", 5, 4), ask("B", 8, 2), **TIGHT)
    assert played.steps == ["A+5 B+8", "A", "A", "A", "B+9"]
    assert played.paused == {1: [("B", 8)]}


def test_several_are_paused_from_the_end(play: Any) -> None:
    # rule 8: A takes D's block, B takes C's; then both have blocks to 8 tokens, and C needs its 4 known tokens' one
    requests = ask("A", 4, 3), ask("B", 4, 3), ask("C", 3, 2), ask("D", 3, 2)
    played = play(*requests, **TIGHT)
    assert played.paused == {1: [("D", 3), ("C", 3)]}
    assert played.steps == ["A+4 B+4 C+3 D+3", "A B", "A B", "C+4 D+4"]


def test_nobody_passes_one_that_was_paused(play: Any) -> None:  # rules 8 and 10: in step 3 a block is free, C needs one
    played = play(ask("A", 7, 6), ask("B", 7, 6), ask("C", 3, 1, at=3), **TIGHT)
    assert played.steps[2:7] == ["A", "A", "A", "A", "B+9 C+3"]


def test_one_that_was_paused_between_chunks_begins_anew(play: Any) -> None:
    # rules 1, 8 and 10: B holds 2 blocks for its 8 tokens, 4 of them computed, when A needs a third
    played = play(ask("A", 8, 2), ask("B", 8, 1), tokens=12, blocks=4, **CHUNKS, **UTILIZE)
    assert played.steps[:2] == ["B+4 A+8", "A"]
    assert played.paused == {1: [("B", 4)]}
    assert played.steps[2:] == ["B+8"]


def test_the_prompt_alone_has_to_fit(play: Any) -> None:
    played = play(ask("A", 17, 1), ask("B", 16, 1, most=99), **TIGHT)
    assert played.rejected == {"A": "the KV cache cannot hold the prompt: at most 4 blocks"}
    assert played.steps == ["B+16"]


def test_one_that_outgrows_the_pool_fails(play: Any) -> None:  # 6, 7 and 8 tokens of 8; three tokens came out
    played = play(ask("A", 6, 10), ask("B", 4, 1, at=1), blocks=2, **UTILIZE)
    assert played.failed == {"A": (3, "KV cache exhausted: a request can hold 2 blocks at most")}
    assert played.steps == ["A+6", "A", "A", "B+4"]


def test_one_that_outgrows_the_budget_without_chunks_fails(play: Any) -> None:
    # of 4 blocks each holds 2 in step 1; in step 5 A's 8 tokens fill its own, B is paused with 9 known tokens of 8
    played = play(ask("A", 4, 12), ask("B", 4, 12), tokens=8, **TIGHT)
    assert played.paused == {5: [("B", 8)]}
    assert list(played.failed) == ["B"] and played.failed["B"][0] == 6
    assert played.ends == {"A": 11}


def test_the_request_limit_pauses_with_memory_free() -> None:
    # Rule 9. In a list that is in order of arrival nobody starts behind the limit. So A, the older, is late here: it
    # comes to the scheduler when B is started.
    policy = TensorRtLlm(capacity_scheduler_policy="MAX_UTILIZATION")
    core = Core(Limits(max_num_seqs=1, num_gpu_blocks=50, block_size=4), list_order, holds=policy.holds)
    core.begin(5)
    core.arrive(policy.on_arrival, 1, "B", 5, 8, 9, 1)
    core.commit(core.plan(policy.plan), [])
    core.begin(6)
    core.arrive(policy.on_arrival, 0, "A", 3, 8, 9, 1)
    assert core.kv is not None and core.kv.free == 48
    step = core.plan(policy.plan)
    assert [(seq.id, mode, computed) for seq, mode, _, computed in step.preempted] == [("B", "recompute", 8)]
    assert [(seq.id, tokens) for seq, _, tokens in step.entries] == [("A", 8)]
    assert core.kv.free == 48


def test_max_utilization_ends_under_any_load(play: Any) -> None:
    pauses = 0
    for seed in range(300):
        rng = Random(f"utilize {seed}")
        requests = random_requests(rng)
        settings = random_settings(rng) | UTILIZE | CHUNKS
        played = play(*requests, **settings)
        pauses += len(played.paused)
        assert sorted([*played.ends, *played.failed]) == sorted(request.id for request in requests)
    assert pauses > 100


def random_requests(rng: Random) -> list[Request]:
    """Of at most 24 tokens, prompt and output together."""
    requests = []
    for index in range(rng.randint(1, 14)):
        out = rng.choice([1, 2, 5, 10])
        at = rng.choice([0, rng.randint(0, 20)])
        requests.append(ask(f"r{index}", rng.randint(1, 12), out, at, out + rng.choice([0, 2])))
    return requests


def random_settings(rng: Random) -> dict[str, Any]:
    """That can hold any of the random requests."""
    return {
        "batch": rng.choice([1, 2, 4, 9]),
        "tokens": rng.choice([12, 16, 40, None]),
        "blocks": rng.choice([6, 8, 12, 40]),
        "enable_chunked_context": rng.random() < 0.6,
        "context_chunking_policy": rng.choice(["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"]),
        "chunk_unit_size": rng.choice([None, 1, 3, 8]),
    }


# Settings


def document(engine: dict[str, Any]) -> dict[str, Any]:
    return {
        "engine": {"policy": "tensorrt-llm", **engine},
        "cost": {"model": "unit"},
        "workload": {"requests": [{"id": "A", "arrival": 0, "prompt": 1, "output": 1}]},
    }


def test_the_limits_have_the_names_of_the_engine() -> None:
    engine = {"max_batch_size": 3, "max_num_tokens": 7, "tokens_per_block": 2, "num_blocks": 5}
    (run,) = build(document(engine)).runs
    limits = run.limits
    assert (limits.max_num_seqs, limits.max_num_batched_tokens, limits.block_size, limits.num_gpu_blocks) == (
        3,
        7,
        2,
        5,
    )
    assert run.holds == "prompt"


@pytest.mark.parametrize(
    ("place", "engine"),
    [
        ("engine.chunk_unit_size", {"chunk_unit_size": 0}),
        ("engine.chunk_unit_size", {"chunk_unit_size": 9, "max_num_tokens": 8, **CHUNKS}),
        ("engine.tokens_per_block", {"tokens_per_block": 9, "max_num_tokens": 8, **CHUNKS}),
        ("engine.capacity_scheduler_policy", {"capacity_scheduler_policy": "MAX"}),
        ("engine.num_blocks", {"num_blocks": 0}),
        ("engine.max_num_seqs", {"max_num_seqs": 4}),
    ],
)
def test_what_is_refused(place: str, engine: dict[str, Any]) -> None:
    with pytest.raises(InputError) as error:
        for run in build(document(engine)).runs:
            run.check()
    assert str(error.value).startswith(place)
