"""Explaining: the spans of every request add up to its life, and each reason is true wherever it is given."""

import functools
import json
import tracemalloc
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from laws_runs import POLICIES, SEEDS, Outcome, document_for, make_run, outcome
from loads_vllm import decode_first_run, vllm_run
from trace_breaks import BREAKS
from trace_samples import recorded

from batchlab.clients.request import Request
from batchlab.conform.cases import case_files
from batchlab.conform.convert import write_trace
from batchlab.core.limits import Limits
from batchlab.costs.unit import Unit
from batchlab.errors import InputError, StalledError
from batchlab.explain import Explainer, Explanation, conclude, explain
from batchlab.explain.churn import RecomputeTax
from batchlab.explain.clocks import Above
from batchlab.explain.lives import Life, Span
from batchlab.explain.reasons import LABELS, MEANINGS, Reason
from batchlab.explain.source import DEFAULTS
from batchlab.explain.troubles import TROUBLES
from batchlab.metrics.fold import Summary
from batchlab.policies.chunked import Chunked
from batchlab.scenario import load
from batchlab.simulation import Run, simulate
from batchlab.trace.encode import decode

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
CASES = ROOT.parent / "shared" / "vllm-cases"
SOME_SEEDS = SEEDS[1:150:8]  # with one of the crowds: 57
WORKS = (Reason.PREFILL, Reason.AGAIN, Reason.DECODE, Reason.BESIDE)


@functools.cache
def explained_of(policy: str, seed: int) -> Explanation:
    return explained(outcome(policy, seed))


def explained(one: Outcome, focus: Any = "all") -> Explanation:
    """From the lines of its trace, as if they had been recorded elsewhere."""
    explainer = Explainer(focus, [trouble() for trouble in TROUBLES])
    for line in one.lines:
        explainer(decode(DEFAULTS | line if line["type"] == "header" else line))
    return conclude(explainer)


def lived(life: Life, one: Outcome) -> int:
    """How long its life lasted, by the trace's own words: until its end, or the trace's."""
    ends = {id: line["end"] for line in one.iterations for id in line["completed"]}
    ends |= {e["id"]: line["start"] for line in one.iterations for e in line.get("dropped", ())}
    ends |= {e["id"]: line["start"] for line in one.iterations for e in line["rejected"] if "retry_at" not in e}
    until = max(one.end["time"], max((line["start"] for line in one.iterations if life.id in _out(line)), default=0))
    return int(ends.get(life.id, until) - one.requests[life.id]["arrival"])


def _out(line: dict[str, Any]) -> list[str]:
    return [entry["id"] for entry in line["rejected"]]


@pytest.mark.parametrize("policy", POLICIES)
def test_spans_partition_every_life(policy: str) -> None:
    """Without gap or overlap, from arrival to end, in a sum that is exact; and so do the sums kept without spans."""
    lives = 0
    for seed in SOME_SEEDS:
        one = outcome(policy, seed)
        found, sums = explained_of(policy, seed), explained(one, ())
        figures = {entry["id"]: entry for entry in one.summary["requests"]}
        for id, life in found.state.lives.items():
            if not life.attempts:
                continue
            lives += 1
            time, by_span = life.request.arrival, [0] * len(Reason)
            for span in life.spans or ():
                assert span.start == time < span.end, f"seed {seed}, {id}: {span}"
                by_span[span.reason] += span.end - span.start
                time = span.end
            assert time - life.request.arrival == lived(life, one), f"seed {seed}, {id}"
            assert by_span == life.times == sums.state.lives[id].times, f"seed {seed}, {id}"
            assert (life.ttft, life.e2el) == (figures[id]["ttft"], figures[id]["e2el"]), f"seed {seed}, {id}"
            if life.ttft is not None:
                assert life.until_first is not None and sum(life.until_first) == life.ttft
                assert all(map(int.__le__, life.until_first, life.times))
            if life.first_start is not None:
                assert life.first_start - life.request.arrival == figures[id]["queue_time"]
    assert lives > 60


@pytest.mark.parametrize("make", [vllm_run, decode_first_run])
def test_spans_partition_every_life_with_caches_and_shedding(make: Any) -> None:
    """Loads in which blocks run out, prompts begin alike, queues shed and clients give up or come again."""
    seen: Counter[Reason] = Counter()
    for seed in range(40):
        explainer, sums, summary = Explainer("all"), Explainer(), Summary()
        simulate(make(seed), [explainer, sums, summary])
        figures = {entry["id"]: entry for entry in summary.document()["requests"]}
        for id, life in explainer.lives.items():
            spans = life.spans or []
            assert all(a.end == b.start for a, b in pairwise(spans))
            by_span = [sum(s.end - s.start for s in spans if s.reason is reason) for reason in Reason]
            assert by_span == life.times == sums.lives[id].times, (seed, id)
            assert (life.ttft, life.e2el) == (figures[id]["ttft"], figures[id]["e2el"]), (seed, id)
            assert life.e2el is None or sum(by_span) == life.e2el
            seen.update(span.reason for span in spans)
    wanted = {Reason.PREEMPTED, Reason.RETRY, Reason.ORDER, Reason.SEATS}
    assert wanted <= seen.keys(), seen


def test_memory_does_not_grow_with_the_iterations() -> None:
    """Four requests, 100 iterations and 10,000: what is kept is the same, but for numbers that are longer."""

    def kept(output: int) -> int:
        requests = [Request(f"r{n}", n, 5, output, output) for n in range(4)]
        run = Run(Chunked(prefill_chunk=2), Limits(3, 8), Unit(), requests, max_iterations=100_000)
        explainer = Explainer((), [trouble() for trouble in TROUBLES])
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        simulate(run, [explainer])
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert explainer.iterations > output
        return after - before

    kept(10)  # what is made once, at the first use
    assert kept(5_000) < kept(50) + 5_000


@pytest.mark.parametrize("policy", POLICIES)
def test_every_reason_is_true_of_every_iteration_it_covers(policy: str) -> None:
    """By what the lines say, read here a second time."""
    seen: Counter[Reason] = Counter()
    for seed in SOME_SEEDS:
        one = outcome(policy, seed)
        found = explained_of(policy, seed)
        came: dict[str, int] = {}
        for number, id in enumerate(id for line in one.iterations for id in line["arrived"]):
            came.setdefault(id, number)
        for life in found.state.lives.values():
            for span in life.spans or ():
                for number in () if span.first is None else range(span.first, (span.last or 0) + 1):
                    line = one.iterations[number]
                    if line["start"] == line["end"] or (span.reason in WORKS and not line["scheduled"]):
                        continue  # no time passed, or it did for a step that was planned before
                    seen[span.reason] += 1
                    again = life.attempts > 1 or any(found.state.lives[id].attempts > 1 for id in span.who)
                    assert is_true(span, life, line, one, came, again), f"seed {seed}, {life.id}, {number}: {span}"
    assert seen[Reason.SEATS] > 20 and seen[Reason.PREFILL] > 20


def is_true(span: Span, life: Life, line: dict[str, Any], one: Outcome, came: dict[str, int], again: bool) -> bool:
    """Whether a line bears a reason out. again: one of those concerned was rejected and came a second time."""
    limits, facts = one.limits, span.facts
    phases = [phase for id, phase, _ in line["scheduled"] if id == life.id]
    prefills = any(phase == "prefill" for _, phase, _ in line["scheduled"])
    if span.reason in WORKS:
        kind = "prefill" if span.reason in (Reason.PREFILL, Reason.AGAIN) else "decode"
        return phases == [kind] and (kind == "prefill" or prefills == (span.reason is Reason.BESIDE))
    if phases:
        return False
    held = seats_held(line)
    match span.reason:
        case Reason.SEATS if limits["max_num_seqs"] is not None:
            return held is None or held == limits["max_num_seqs"]
        case Reason.SEATS:  # Orca's max_bs, Triton's slots
            places = {one.header["settings"].get(n) for n in ("max_bs", "max_batch_size", "max_candidate_sequences")}
            return held is None or any(n is not None and max(held, len(line["scheduled"])) >= n for n in places)
        case Reason.BUDGET:
            return bool(line["unused"] == 0 or facts["needs"] > line["unused"])
        case Reason.BLOCKS | Reason.BEHIND_BLOCKS:
            return "kv" in line and ("preempted" in facts or "policy" in facts or facts["needs"] > facts["free"])
        case Reason.ORDER:
            return came[span.who[0]] > came[life.id] or again
        case Reason.BATCH:
            return bool(one.header["batching"] == "request")
        case Reason.DELAY:
            return bool(line["idle"].startswith("waiting"))
        case Reason.STALL:
            return prefills and span.who[0] != life.id
        case Reason.PREEMPTED:
            return isinstance(line["queue"], int) or life.id in (*line["queue"], *line["completed"])
    return True


def seats_held(line: dict[str, Any]) -> int | None:
    """After the plan, before anybody left; None where the line only counts, or somebody ended without a seat."""
    if isinstance(line["active"], int) or line.get("delivers", line["iteration"]) != line["iteration"]:
        return None
    return len(line["active"]) + len(line["completed"])


@pytest.mark.parametrize("policy", POLICIES)
def test_hardly_anything_is_left_undetermined(policy: str) -> None:
    """For our own policies the trace nearly always tells; the odd one does as it likes, without a word."""
    times = [0] * len(Reason)
    for seed in SOME_SEEDS:
        for life in explained_of(policy, seed).state.lives.values():
            times = [a + bool(b) for a, b in zip(times, life.times, strict=True)]
    assert times[Reason.UNKNOWN] <= (len(SOME_SEEDS) if policy == "odd" else 1), times


@pytest.mark.parametrize("policy", POLICIES)
def test_stalls_and_recomputed_tokens_are_those_of_the_totals(policy: str) -> None:
    for seed in SOME_SEEDS:
        one = outcome(policy, seed)
        evidence = {f.name: f.evidence for f in explained_of(policy, seed).findings}
        stalls = one.end["totals"]["decode_stalls"]
        if stalls is not None:
            assert evidence.get("decode stall", {"stalls": 0})["stalls"] == stalls, seed
        preempted = sum(len(line["preempted"]) for line in one.iterations)
        if "preemption thrash" in evidence:
            assert evidence["preemption thrash"]["preemptions"] == preempted, seed


def test_tokens_computed_again_are_those_of_the_totals() -> None:
    """Where everybody who was preempted was so once, and completed, all that was dropped and not cached is redone."""
    compared = 0
    for seed in range(120):
        tax, summary = RecomputeTax(), Summary()
        explainer = Explainer((), [tax])
        try:
            simulate(vllm_run(seed), [explainer, summary])
        except StalledError:
            continue
        hit = [life for life in explainer.lives.values() if life.preemptions]
        once = all(life.preemptions == 1 and life.state == "completed" for life in hit)
        if hit and once and explainer.state is not None and explainer.state.terms.depth == 1:
            compared += 1
            assert tax.again == summary.totals()["recomputed_tokens"], seed
    assert compared > 3


@pytest.mark.parametrize("policy", ["sarathi", "orca", "fastertransformer", "vllm-v0"])
def test_first_come_first_served_never_gives_the_order_as_a_reason(policy: str) -> None:
    for seed in SOME_SEEDS:
        for life in explained_of(policy, seed).state.lives.values():
            assert life.times[Reason.ORDER] == life.overtaken_by == 0, (seed, life.id)


def test_a_run_is_explained_alike_live_and_from_its_file(tmp_path: Path) -> None:
    for policy in ("vllm", "decode-first", "triton"):
        for seed in SOME_SEEDS[:10]:
            path = tmp_path / f"{policy}{seed}.jsonl"
            path.write_text(outcome(policy, seed).text, encoding="utf-8")
            live = Explainer("all", [trouble() for trouble in TROUBLES])
            simulate(make_run(json.loads(document_for(policy, seed)), seed), [live])
            ids = list(live.lives)
            from_file, from_run = explain(path, ids), conclude(live)
            assert from_file.document() == from_run.document()
            for id in ids:
                assert from_file.request(id) == from_run.request(id)


@pytest.mark.parametrize("policy", POLICIES)
def test_time_between_iterations_counts_too(policy: str) -> None:
    """A real engine does other things between iterations. All times threefold, and each iteration ends 1 earlier."""
    between = 0
    for seed in SOME_SEEDS[1:8]:
        one = outcome(policy, seed)
        lines = [slowed(line) for line in one.lines]
        lines[-1]["time"] = max((line["end"] for line in lines if line["type"] == "iteration"), default=0)
        slow = Outcome(policy, seed, {}, "\n".join(map(json.dumps, lines)), {})
        for life in explained(slow).state.lives.values():
            spans = life.spans or []
            assert all(a.end == b.start for a, b in pairwise(spans))
            assert [sum(s.end - s.start for s in spans if s.reason is reason) for reason in Reason] == life.times
            if life.attempts:
                assert sum(life.times) == lived(life, slow), f"seed {seed}, {life.id}"
            between += life.times[Reason.BETWEEN]
    assert between > 20


def slowed(line: dict[str, Any]) -> dict[str, Any]:
    """A line with times threefold, and a gap of 1 behind each iteration that lasts."""
    if line["type"] == "request":
        return {**line, "arrival": 3 * line["arrival"]}
    if line["type"] == "header":
        requests = {"requests": [slowed({"type": "request", **r}) for r in line.get("requests", ())]}
        requests["requests"] = [{k: v for k, v in r.items() if k != "type"} for r in requests["requests"]]
        return {**line, **(requests if "requests" in line else {})}
    if line["type"] == "end":
        return dict(line)
    start, end = line["start"], line["end"]
    again = [{**e, **({"retry_at": 3 * e["retry_at"]} if "retry_at" in e else {})} for e in line["rejected"]]
    return {**line, "start": 3 * start, "end": 3 * end - (end > start), "rejected": again}


@pytest.mark.parametrize("name", sorted(recorded()))
def test_the_recorded_worked_examples(name: str) -> None:
    """Their schedules, as somebody else has written them down."""
    sample = recorded()[name]()
    one = Outcome(name, 0, {}, "\n".join(map(json.dumps, sample.lines)), sample.summary)
    for entry in sample.summary["requests"]:
        life = explained(one).state.lives[entry["id"]]
        if entry["e2el"] is not None:
            assert sum(life.times) == life.e2el == entry["e2el"]


def test_a_cut_trace_is_explained_up_to_there(tmp_path: Path) -> None:
    one = outcome("vllm", 1)
    path = tmp_path / "cut.jsonl"
    lines = one.text.splitlines(keepends=True)
    path.write_text("".join(lines[:-2]) + lines[-2][:-20], encoding="utf-8")
    found = explain(path, list(one.requests))
    assert not found.complete
    last = one.iterations[-2]["end"]
    for life in found.state.lives.values():
        if life.attempts and life.end is None and life.state != "retrying":
            assert sum(life.times) == last - life.request.arrival


def test_the_worked_example_by_hand() -> None:
    """The table of the README: two seats, six tokens, chunks of three."""
    explainer = Explainer("all")
    simulate(load(ROOT / "examples" / "priority-preemption.toml").runs[0], [explainer])
    spans = {
        id: [(span.reason.label, span.start, span.end, span.who) for span in life.spans or ()]
        for id, life in explainer.lives.items()
    }
    assert spans == {
        "A": [
            ("prefill", 0, 1, ()),
            ("preempted", 1, 3, ("C",)),
            ("prefill", 3, 4, ()),
            ("decode", 4, 5, ()),
            ("decode beside prefill", 5, 6, ()),
        ],
        "B": [("prefill", 0, 2, ()), ("decode beside prefill", 2, 3, ())],
        "C": [("prefill", 1, 2, ())],
        "D": [("prefill", 2, 4, ()), ("decode", 4, 5, ())],
        "E": [("seats", 2, 5, ()), ("prefill", 5, 6, ())],
        "F": [],
    }


@pytest.mark.skipif(not CASES.is_dir(), reason="the recorded cases are not at hand")
def test_steps_recorded_from_vllm_itself(tmp_path: Path) -> None:
    """A trace that no policy of ours has made, without notes: the spans add up, and little is left open."""
    known = unknown = 0
    for case in case_files([str(CASES)]):
        path = write_trace(case, str(tmp_path))
        if path is None:
            continue
        ids = [entry["id"] for entry in json.loads(path.read_text().splitlines()[0])["requests"]]
        for life in explain(path, ids).state.lives.values():
            for span in life.spans or ():
                if not span.reason.works:
                    known += span.end - span.start
                    unknown += (span.end - span.start) * (span.reason is Reason.UNKNOWN)
            if life.end is not None:
                assert sum(life.times) == life.end - life.request.arrival
    assert known > 500 and unknown < 0.02 * known, (known, unknown)


def test_every_reason_has_a_name_and_a_meaning() -> None:
    assert set(LABELS) == set(MEANINGS) == set(Reason)
    assert len(set(LABELS.values())) == len(Reason)
    assert [reason.value for reason in Reason] == list(range(len(Reason)))


def test_sums_above_a_place() -> None:
    rng, amounts, plain = Random("above"), Above(), []
    for _ in range(300):
        place, amount = rng.randrange(60), rng.randrange(9)
        amounts.add(place, amount)
        plain.append((place, amount))
        asked = rng.randrange(80)
        assert amounts.above(asked) == sum(a for p, a in plain if p > asked)


@pytest.mark.parametrize("policy", ["decode-first", "vllm", "tensorrt-llm", "odd"])
def test_a_broken_trace_is_explained_or_refused_in_one_line(policy: str, tmp_path: Path) -> None:
    """Whatever breaks a rule of the verifier: a sum of spans that is exact, or one line that names the place."""
    path, refused, explained_all_the_same = tmp_path / "broken.jsonl", 0, 0
    for seed in [seed for seed in SOME_SEEDS if 3 < len(outcome(policy, seed).iterations) < 100][:3]:
        for name, broken in BREAKS.items():
            lines = json.loads(json.dumps(outcome(policy, seed).lines))
            if not broken.edit(lines):
                continue
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
            try:
                found = explain(path)
            except InputError as error:
                refused += 1
                assert str(path) in str(error) and ("line" in str(error)), name
                continue
            explained_all_the_same += 1
            for life in found.state.lives.values():
                until = life.end if life.end is not None else max(found.end.time, life.out_since)
                assert not life.attempts or sum(life.times) == until - life.request.arrival, (name, life.id)
            found.document()
    assert refused > 5 and explained_all_the_same > 5
