"""docs/lessons.md in figures, each derived by hand or from a plain count, never read off the output."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from batchlab import Limits, Run, Summary, load, simulate
from batchlab.cli.tables import slots_line
from batchlab.clients.request import Request
from batchlab.costs.unit import Unit
from batchlab.events import Header, Iteration
from batchlab.policies.base import Policy
from batchlab.policies.static import Static
from batchlab.trace.encode import decode, encode
from batchlab.trace.verify import verify
from batchlab.trace.write import TraceWriter

pytestmark = pytest.mark.once

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
OUTPUTS = [20, 45, 80, 120, 150, 90, 60, 200]
CHUNKS = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
MS = 1_000_000


def observe(
    name: str, policy: str | None = None, overrides: Mapping[str, Any] | None = None
) -> tuple[Summary, list[Iteration]]:
    """Run an example once, keeping every iteration."""
    (run,) = load(EXAMPLES / f"{name}.toml", overrides, [policy] if policy else []).runs
    return observed(run)


def observed(run: Run) -> tuple[Summary, list[Iteration]]:
    summary = Summary()
    iterations: list[Iteration] = []

    def keep(event: object) -> None:
        if isinstance(event, Iteration):
            iterations.append(event)

    simulate(run, [summary, keep])
    return summary, iterations


# Slot waste


def test_a_tied_batch_wastes_835_of_1600_slots() -> None:
    summary, iterations = observe("slot-waste", "static")
    assert len(iterations) == max(OUTPUTS) == 200
    opened, useful = 8 * max(OUTPUTS), sum(OUTPUTS)
    assert (opened, useful, opened - useful) == (1600, 765, 835)
    assert summary.slots() == {"opened": opened, "useful": useful, "wasted": 835, "waste": 835 / 1600}
    assert slots_line(summary.slots()) == "slots opened 1,600, useful 765, wasted 835 (52.19 %)"


def test_a_batch_that_is_decided_anew_wastes_none() -> None:
    summary, iterations = observe("slot-waste", "continuous")
    assert len(iterations) == 200
    assert summary.slots() == {"opened": 765, "useful": 765, "wasted": 0, "waste": 0.0}


def test_two_batches_waste_twice_and_refilled_slots_do_not() -> None:
    both = {"workload.limit": 16}
    static, tied = observe("slot-waste", "static", both)
    assert len(tied) == 2 * 200
    assert static.slots() == {"opened": 3200, "useful": 1530, "wasted": 1670, "waste": 1670 / 3200}
    continuous, refilled = observe("slot-waste", "continuous", both)
    assert continuous.slots()["opened"] == continuous.slots()["useful"] == 1530
    assert len(refilled) == list_schedule(OUTPUTS * 2, seats=8) == 320


def list_schedule(lengths: list[int], seats: int) -> int:
    """When the last is done if each takes the seat that is free first."""
    free = [0] * seats
    for length in lengths:
        free.sort()
        free[0] += length
    return max(free)


def plain_count(iterations: list[Iteration], tied: bool) -> int:
    """Slots opened, from sets of ids: everybody in the batch, or everybody in it since the engine was last empty."""
    seated: set[str] = set()
    batch: set[str] = set()
    opened = 0
    for it in iterations:
        if not seated:
            batch = set()
        gone = [preemption.id for preemption in it.preempted]
        for id in it.admitted:
            if id in gone and id not in seated:
                gone.remove(id)
            else:
                seated.add(id)
        seated -= set(gone) - set(it.admitted)
        batch |= seated
        seated -= {dropped.id for dropped in it.dropped}
        if it.scheduled:
            opened += len(batch) if tied else len(seated)
        seated -= set(it.completed)
    return opened


@pytest.mark.parametrize("name", ["three-modes", "priority-preemption", "deadlines", "retry", "aging"])
def test_slots_of_the_other_examples(name: str) -> None:
    for run in load(EXAMPLES / f"{name}.toml").runs:
        summary, iterations = observed(run)
        slots = summary.slots()
        assert slots["opened"] == plain_count(iterations, run.engine == "static")
        assert slots["useful"] == sum(result.emitted for result in summary.results)
        assert slots["wasted"] == slots["opened"] - slots["useful"] >= 0


def test_a_cancelled_member_keeps_its_slot_in_a_tied_batch_only() -> None:
    """A has 6 tokens, B is cancelled at 2: tied, B's slot stays open for all six iterations."""
    requests = [Request("A", 0, 1, 6, 6), Request("B", 0, 1, 6, 6, cancel_at=2)]

    def slots(policy: Policy) -> dict[str, Any]:
        return observed(Run(policy, Limits(2, 2), Unit(), requests))[0].slots()

    class Untied(Static):
        batching = "iteration"

    assert slots(Static()) == {"opened": 12, "useful": 8, "wasted": 4, "waste": 4 / 12}
    assert slots(Untied()) == {"opened": 8, "useful": 8, "wasted": 0, "waste": 0.0}


def test_no_slot_was_opened() -> None:
    summary, _ = observed(Run(Static(), Limits(1, 1), Unit(), [Request("A", 5, 1, 1, 1)], max_iterations=2))
    assert summary.slots() == {"opened": 0, "useful": 0, "wasted": 0, "waste": None}
    assert slots_line(summary.slots()) == "slots opened 0, useful 0, wasted 0"


def test_a_trace_says_how_its_engine_batches() -> None:
    headers = [run.header() for run in load(EXAMPLES / "three-modes.toml").runs]
    assert [header.batching for header in headers] == ["request", "iteration", "iteration"]
    for header in headers:
        line = json.loads(json.dumps(encode(header)))
        again = decode(line)
        assert isinstance(again, Header)
        assert again.batching == header.batching
        del line["batching"]
        older = decode(line)
        assert isinstance(older, Header)
        assert older.batching == "iteration"


@pytest.mark.parametrize("policy", ["static", "continuous"])
@pytest.mark.parametrize("field", [None, "opened", "useful", "wasted", "waste"])
def test_the_verifier_counts_the_slots_itself(policy: str, field: str | None, tmp_path: Path) -> None:
    (run,) = load(EXAMPLES / "slot-waste.toml", None, [policy]).runs
    summary = Summary()
    with (tmp_path / "trace.jsonl").open("w") as file:
        simulate(run, [summary, TraceWriter(file, summary)])
    document = summary.document()
    if field:
        document["slots"][field] += 1
    (tmp_path / "summary.json").write_text(json.dumps(document))
    findings = verify(tmp_path / "trace.jsonl", tmp_path / "summary.json")
    assert findings.ok == (field is None)


# Broken on purpose


def waits_of(summary: Summary) -> list[int]:
    """From arrival to the first iteration that serves it, of those who were served."""
    starts = [(result.first_scheduled, result.request.arrival) for result in summary.results]
    return [start - arrival for start, arrival in starts if start is not None]


def test_an_unbounded_queue_grows_by_six_in_every_iteration() -> None:
    summary, iterations = observe("unbounded-queue")
    lengths = [it.queue_length for it in iterations]
    assert lengths[:50] == [6 * (n + 1) for n in range(50)]
    assert lengths[50:] == [300 - 2 * (n + 1) for n in range(150)]
    waits = waits_of(summary)
    assert waits == [n // 2 - n // 8 for n in range(400)], "two an iteration, in the order of arrival"
    assert max(waits) == 150


def test_a_bounded_queue_bounds_the_wait_and_says_no() -> None:
    summary, iterations = observe("unbounded-queue", overrides={"engine.max_queue": 16})
    assert max(it.queue_length for it in iterations) <= 16
    waits = waits_of(summary)
    assert max(waits) == 16 // 2 - 1, "the last of 16, two served an iteration"
    # 8 come in iteration 0, 8 more fit in iterations 0 to 2 beyond the two served each; then 2 of 8 find a place.
    assert [len(it.rejected) for it in iterations[:50]] == [0, 0, 4, *[6] * 47]
    assert summary.result_counts() == {"completed": 400 - 4 - 6 * 47, "rejected": 4 + 6 * 47}


def test_a_whole_long_prompt_stretches_every_gap_beside_it() -> None:
    whole = 5 * MS + 6000 * 25_000 + 4 * 20_000
    chunk = 5 * MS + 500 * 25_000 + 4 * 20_000
    plain = 5 * MS + 4 * 20_000
    assert (whole, chunk, plain) == (155_080_000, 17_580_000, 5_080_000)
    harmed, _ = observe("long-prompt", "continuous")
    repaired, _ = observe("long-prompt", "chunked")
    for id in ("S1", "S2", "S3", "S4"):
        before, after = harmed.by_id[id].max_itl, repaired.by_id[id].max_itl
        assert (before, after) == (whole, chunk)
        assert before is not None
        assert after is not None
        assert 8.8 < before / after < 8.9
        assert harmed.by_id[id].completed_time == repaired.by_id[id].completed_time
    ttft = [run.by_id["long"].since_arrival(run.by_id["long"].first_time) for run in (harmed, repaired)]
    assert ttft[0] is not None
    assert ttft[1] is not None
    assert ttft[1] - ttft[0] == 12 * chunk - whole, "the price: twelve iterations instead of one"


def test_what_a_free_preemption_does_not_count() -> None:
    """A has 1,000 prompt tokens, 100 an iteration; its first token comes in iteration 9, then one an iteration."""
    kept, _ = observe("free-preemption")
    paid, iterations = observe("free-preemption", overrides={"engine.preemption_mode": "recompute"})
    lost = [1000 + (40 - 10)]  # preempted at 40, after 30 decodes
    lost.append(lost[0] + 1 + (80 - 52))  # 1,031 tokens again in 41 to 51, then decodes from 52 on
    lost.append(lost[1] + 1 + (110 - 92))  # 1,060 tokens again in 81 to 91, then decodes from 92 on
    assert [p.computed for it in iterations for p in it.preempted] == lost == [1030, 1059, 1078]
    assert paid.totals()["recomputed_tokens"] == paid.by_id["A"].recomputed_tokens == sum(lost) == 3167
    assert kept.totals()["recomputed_tokens"] == 0
    end = 9 + 199 + 3  # its first token, 199 decodes, three iterations without a seat
    again = 3 * (11 - 1)  # each time eleven iterations of prefill give the token that one decode would have given
    assert kept.by_id["A"].completed_iteration == end
    assert paid.by_id["A"].completed_iteration == end + again
    for id in ("B", "H1", "H2", "H3"):
        assert kept.by_id[id].completed_iteration == paid.by_id[id].completed_iteration


# Chunks too small and too large


def chunk_curve() -> dict[int, tuple[float, float, int]]:
    """Longest gap and P99 of the TTFT in ms, and iterations, by chunk."""
    curve = {}
    for chunk in CHUNKS:
        summary, iterations = observe("chunk-size", overrides={"engine.prefill_chunk": chunk})
        latency = summary.document(with_requests=False)["latency"]
        curve[chunk] = latency["itl"]["max"] / MS, latency["ttft"]["p99"] / MS, len(iterations)
    return curve


def test_the_best_chunk_lies_between_too_small_and_too_large() -> None:
    curve = chunk_curve()
    target = 25
    best = min((c for c in CHUNKS if curve[c][0] <= target), key=lambda c: curve[c][1])
    assert best == 512
    smallest, largest = curve[16], curve[4096]
    assert smallest[1] > 10 * curve[best][1], "too small: the prompts' first token comes ten times later"
    assert largest[0] > 4 * target, "too large: a gap of four times the target"
    assert curve[16][0] <= target
    assert curve[4096][1] < curve[best][1], "each end is best at what it is for"
    # 256 iterations for a prompt of 4,096 tokens at 5 ms each, alone, are 1.28 s more than one iteration
    assert smallest[1] - largest[1] > 255 * 5
    assert [curve[c][2] for c in (16, 4096)] == [633, 400], "400 tokens a stream are 400 iterations in any case"
    # a whole prompt and 17 decodes at most, with what they read
    assert 5 + 4096 * 0.025 + 4096 * 50e-6 < largest[0] < 5 + 4096 * 0.025 + 17 * 0.02 + (5 * 4096 + 16 * 464) * 50e-6


def test_what_small_chunks_pay_for() -> None:
    """One prompt of 4,096 alone, in chunks of 16: 256 iterations, and what they read again."""
    (run,) = load(EXAMPLES / "chunk-size.toml", {"engine.prefill_chunk": 16}).runs
    run.requests = [Request("alone", 0, 4096, 1, 1)]
    _, iterations = observed(run)
    read = sum(16 * k for k in range(1, 257))
    assert read == 526_336
    assert iterations[-1].end == 256 * 5 * MS + 4096 * 25_000 + read * 50
    assert len(iterations) == 256
