"""The quick path against the plain one: the same run gives the same numbers whether or not anybody looks at it.

Where only summaries listen, sequences that decode go in step as one, newcomers stand in line as places of a load, and
while nothing happens the policy is not asked. With one observer more, every sequence is looked at by itself, every
iteration is an event, and the summary folds events. Nothing may tell the two apart.
"""

import sys
from collections import Counter, deque
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from loads_in_step import any_run

from batchlab.clients.columns import Columns, load_of
from batchlab.clients.request import Request, TokenIdentity
from batchlab.core.histogram import ERROR
from batchlab.core.limits import Limits
from batchlab.core.queue import WaitingQueue
from batchlab.core.sequence import Sequence
from batchlab.costs.linear import Linear
from batchlab.errors import BatchlabError
from batchlab.loop import Loop
from batchlab.metrics.fold import Summary
from batchlab.metrics.latency import PERCENTILES, gap_figures
from batchlab.policies.base import Policy
from batchlab.policies.vllm import Vllm
from batchlab.settings import LATEST
from batchlab.simulation import Run, simulate

LOADS = 1500  # 50_000 take about five minutes in one process (pytest -n 0), and no two of them differ
CHUNK = 100
MOST_EXACT = 4096  # different gaps; beyond, percentiles have an error
VLLM = Limits(max_num_seqs=4, max_num_batched_tokens=16, num_gpu_blocks=200, block_size=4)
NS = Linear("ns", per_iteration=1000, prefill_token=10, decode_token=3, context_token=1)


def outcome(run: Run, *more: Any) -> Any:
    """Everything that comes out of a run: the summary, or the error, and what the policy has written down."""
    summary = Summary(each_gap=True)
    try:
        simulate(run, [summary, *more])
    except BatchlabError as error:
        return type(error), str(error), getattr(run.policy, "saw", None)
    emitted = [(result.emitted, result.completed_time) for result in summary.results]
    counted = gap_figures(summary.tally.gaps)  # the document has the gaps that are kept
    return (
        summary.document(with_requests=True),
        emitted,
        gaps_of_each(summary),
        counted,
        getattr(run.policy, "saw", None),
    )


def gaps_of_each(summary: Summary) -> dict[str, list[list[int]]]:
    """Of each request, and of every other one together: the gaps between tokens, and how often each occurred."""
    results, count = summary.results, len(summary.results)
    places = np.argsort(summary.column("arrival"), kind="stable")  # the order of the results
    masks = {result.request.id: [place] for result, place in zip(results, places.tolist(), strict=True)}
    masks["every other"] = places[::2].tolist()
    chosen = np.zeros((len(masks), count), bool)
    for row, members in enumerate(masks.values()):
        chosen[row, members] = True
    each = summary.tally.each_gap
    return {id: [part.tolist() for part in each.of(mask)] for id, mask in zip(masks, chosen, strict=True)}


def look(event: Any) -> None:
    """An observer, which makes a run take the plain path."""


@pytest.mark.parametrize("first", range(0, LOADS, CHUNK))
def test_nothing_tells_whether_anybody_looks(first: int) -> None:
    for seed in range(first, first + CHUNK):
        quick, plain = outcome(any_run(seed)), outcome(any_run(seed), look)
        assert quick == plain, f"seed {seed}"


@pytest.mark.parametrize("first", range(0, LOADS, CHUNK))
def test_nothing_tells_it_with_a_step_in_flight_either(first: int) -> None:
    for seed in range(first, first + CHUNK):
        quick, plain = outcome(any_run(seed, in_flight=True)), outcome(any_run(seed, in_flight=True), look)
        assert quick == plain, f"seed {seed}"


@pytest.mark.parametrize("in_flight", [False, True])
def test_the_loads_reach_what_they_are_for(in_flight: bool) -> None:
    """Among the first of them: every end of a request and of a run, preemptions, retries, errors, and seats in step."""
    met: Counter[str] = Counter()
    with spying() as loops:
        for seed in range(300):
            found = outcome(any_run(seed, in_flight))
            if not isinstance(found[0], dict):
                met[found[0].__name__] += 1
                continue
            met.update(found[0]["results"].keys())
            met[found[0]["termination"]] += 1
            met["preempted"] += found[0]["totals"]["preemptions"] > 0
            met["retried"] += found[0]["totals"]["retries"] > 0
            met["moved"] += found[0]["totals"]["moved_blocks"] > 0
            met["cached"] += found[0]["totals"]["cached_tokens"] > 0
    met["in step"] = sum(loop.core.steady.steps > 20 for loop in loops)
    met["apart"] = sum(loop.core.batch.plain_steps > 0 for loop in loops)
    met["coasting"] = sum(loop.coasts for loop in loops)
    ends = {"completed", "rejected", "failed", "cancelled", "expired", "pending", "waiting", "active"}
    more = {
        "all_terminal",
        "iteration_limit",
        "preempted",
        "retried",
        "moved",
        "cached",
        "in step",
        "apart",
        "coasting",
    }
    assert {name for name in ends | more if met[name] < 3} == set()
    assert met["StalledError"] + met["BatchlabError"] > 0


# Which path is taken


class spying:
    """Remembers every loop that simulate makes."""

    def __init__(self) -> None:
        self.loops: list[Any] = []

    def __enter__(self) -> list[Any]:
        def remembered(*arguments: Any) -> Any:
            self.loops.append(Loop(*arguments))
            return self.loops[-1]

        vars(sys.modules["batchlab.simulation"])["Loop"] = remembered
        return self.loops

    def __exit__(self, *error: Any) -> None:
        vars(sys.modules["batchlab.simulation"])["Loop"] = Loop


def loop_of(run: Run, *more: Any) -> tuple[Any, dict[str, Any]]:
    """The loop of a run after its end, and the totals."""
    summary = Summary()
    with spying() as loops:
        simulate(run, [summary, *more])
    return loops[0], summary.document()


def crowd(count: int, output: int, priority: Any = None) -> Columns:
    rng = np.random.default_rng(5)
    arrival = np.cumsum(rng.integers(0, 4000, count))
    rows = arrival, rng.integers(1, 30, count), rng.integers(2, output, count)
    return Columns(*(column.astype(np.int64) for column in rows), priority=priority)


def test_vllm_goes_in_step_and_coasts() -> None:
    loop, document = loop_of(Run(Vllm(), VLLM, NS, crowd(200, 60), inline=False))
    assert loop.core.quick and loop.coasts
    assert loop.client is None  # nobody sends requests one by one
    assert loop.core.batch.plain_steps == 0
    assert document["totals"]["decode_tokens"] > 5000
    assert loop.core.steady.steps > 1000
    assert (loop.core.steady.size, loop.core.steady.context) == (0, 0)
    assert loop.core.kv.free == VLLM.num_gpu_blocks


def test_with_a_step_in_flight_they_go_in_step_and_coast() -> None:
    run = Run(Vllm(async_scheduling=True), VLLM, NS, crowd(200, 60), inline=False)
    loop, document = loop_of(run)
    assert loop.core.quick and loop.coasts and loop.client is None
    assert loop.core.batch.plain_steps == 0
    assert document["totals"]["decode_tokens"] > 5000
    assert loop.core.steady.steps > 1000
    assert (loop.core.steady.size, loop.core.steady.context) == (0, 0)
    assert loop.core.kv.free == VLLM.num_gpu_blocks


@pytest.mark.parametrize("in_flight", [False, True])
def test_with_a_prefix_cache_they_go_in_step_too(in_flight: bool) -> None:
    """Those whose blocks have identity, and are found by others, while the pool is too small for all."""
    rng = Random(4)
    requests = []
    for n in range(150):
        shared, own = rng.choice([(1, 24), (2, 40)]), rng.randint(1, 20)
        tokens = TokenIdentity(((shared[0], 0, shared[1]), (100 + n, 0, own)), 500 + n)
        output = rng.randint(2, 60)
        requests.append(Request(f"r{n}", n * 9000, shared[1] + own, output, output, tokens=tokens))
    limits = Limits(8, 64, num_gpu_blocks=60, block_size=4, enable_prefix_caching=True)
    loop, document = loop_of(Run(Vllm(async_scheduling=in_flight), limits, NS, requests, inline=False))
    plain = loop_of(Run(Vllm(async_scheduling=in_flight), limits, NS, requests, inline=False), look)[1]
    assert document == plain
    assert loop.core.quick and loop.coasts and loop.core.steady.steps > 1000
    assert document["totals"]["cached_tokens"] > 2000 and document["totals"]["preemptions"] > 0
    assert loop.core.kv.free == limits.num_gpu_blocks


class Counting(Vllm):
    """Keeps vllm's promise, and counts how often it is asked."""

    coasts = True
    asked = 0

    def plan(self, view: Any, batch: Any) -> Any:
        self.asked += 1
        return super().plan(view, batch)


@pytest.mark.parametrize(("more", "asked"), [([], 3), ([look], 501)])
def test_a_policy_is_not_asked_while_nothing_happens(more: list[Any], asked: int) -> None:
    """For two chunks of the prompt and for the last token; and for each of 500 tokens if somebody looks."""
    run = Run(Counting(), VLLM, NS, [Request("a", 0, 20, 500, 500)], inline=False)
    _, document = loop_of(run, *more)
    assert document["iterations"] == 501
    assert run.policy.asked == asked


@pytest.mark.parametrize(("more", "asked"), [([], 6), ([look], 502)])
def test_with_a_step_in_flight_it_is_asked_at_both_ends(more: list[Any], asked: int) -> None:
    """For two chunks of the prompt, the second token, the last but one and the last, and while that is on its way."""
    run = Run(Counting(async_scheduling=True), VLLM, NS, [Request("a", 0, 20, 500, 500)], inline=False)
    _, document = loop_of(run, *more)
    assert document["iterations"] == 502
    assert run.policy.asked == asked


def test_preemption_by_priority_takes_them_apart_and_they_fall_in_again() -> None:
    levels = np.random.default_rng(2).integers(0, 3, 200)
    scarce = Limits(max_num_seqs=8, max_num_batched_tokens=32, num_gpu_blocks=30, block_size=4)
    run = Run(Vllm(scheduling_policy="priority"), scarce, NS, crowd(200, 60, levels), inline=False)
    loop, document = loop_of(run)
    assert document["totals"]["preemptions"] > 20
    assert loop.core.batch.plain_steps > 20
    assert loop.core.steady.steps > 5 * loop.core.batch.plain_steps
    assert loop.core.kv.free == scarce.num_gpu_blocks


class Deep(Vllm):
    """Deeper than vLLM ever is."""

    def __init__(self) -> None:
        super().__init__(async_scheduling=True)
        self.steps_in_flight = 3


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("somebody looks", {"more": [look]}),
        ("the workload is written out", {"inline": True}),
        ("three steps in flight", {"policy": Deep()}),
    ],
)
def test_otherwise_it_is_the_plain_path(why: str, change: dict[str, Any]) -> None:
    change = dict(change)
    more = change.pop("more", [])
    run = Run(**{"policy": Vllm(), "limits": VLLM, "cost": NS, "requests": crowd(50, 30), "inline": False} | change)
    loop, _ = loop_of(run, *more)
    assert not loop.core.quick and loop.core.steady.steps == 0, why


class Fcfs(Policy):
    """Asks for single decodes, or for all."""

    def __init__(self, bulk: bool) -> None:
        self.bulk = bulk

    def plan(self, view: Any, batch: Any) -> None:
        if self.bulk:
            batch.decode_all()
        for seq in view.running:
            batch.schedule(seq)
        for seq in view.waiting:
            if batch.schedule(seq):
                break


def test_a_policy_that_serves_each_by_itself_is_let_alone() -> None:
    """Nobody goes in step for whom no bulk verb asks: taking them apart each time would cost more than it saves."""
    documents = []
    for bulk in (True, False):
        loop, document = loop_of(Run(Fcfs(bulk), VLLM, NS, crowd(60, 30), inline=False))
        assert (loop.core.steady.steps > 100) is bulk and loop.core.batch.plain_steps == 0
        documents.append(document)
    assert documents[0]["totals"] == documents[1]["totals"]


# What random loads hardly ever reach


class Hesitant:
    """Serves all but the first, and has that one sit down and stand up again three times before it serves it."""

    turns = 0

    def plan(self, view: Any, batch: Any) -> None:
        self.turns += 1
        first, *others = view.waiting
        for seq in [*view.running, *others]:
            batch.schedule(seq)
        if self.turns > 4:
            batch.schedule(first)
        elif self.turns > 1:
            batch.admit(first)
            batch.preempt(first, "recompute", "front")


def test_a_token_that_comes_by_itself_is_no_standstill() -> None:
    """The fourth step ends in the state of the third and of the second; but out of the second a token came."""
    requests = [Request("a", 0, 5, 1, 1), Request("b", 0, 5, 2, 2)]
    found = [outcome(Run(Hesitant(), VLLM, NS, requests, inline=False), *more) for more in ([], [look])]
    assert found[0] == found[1]
    assert found[0][0]["results"] == {"completed": 2}


@pytest.mark.parametrize("more", [[], [look]])
def test_the_last_moment_of_all_is_not_never(more: list[Any]) -> None:
    requests = [Request("a", 0, 5, 2, 2), Request("b", LATEST, 5, 2, 2)]
    with pytest.raises(BatchlabError, match=r"iteration 2: the time has passed 2\^62 ns"):
        simulate(Run(Vllm(), VLLM, NS, requests, inline=False), [Summary(), *more])


@pytest.mark.parametrize("more", [[], [look]])
def test_a_step_in_flight_may_land_after_the_last_moment(more: list[Any]) -> None:
    """The first has its only token while the step after that is on its way; the second comes before that one lands."""
    requests = [Request("a", LATEST - 1500, 5, 1, 9), Request("b", LATEST, 5, 2, 2)]
    with pytest.raises(BatchlabError, match=r"iteration 3: the time has passed 2\^62 ns"):
        simulate(Run(Vllm(async_scheduling=True), VLLM, NS, requests, inline=False), [Summary(), *more])


# Figures that need the histogram


def test_gaps_of_very_many_lengths_have_a_stated_error() -> None:
    """Context makes every step longer than the one before, so hardly two gaps are the same."""
    cost = Linear("ns", per_iteration=10**7, prefill_token=1000, decode_token=10, context_token=97)
    requests = [Request(f"r{n}", n * 10**6, 50 + n, 6000, 6000) for n in range(3)]
    gaps: list[int] = []
    last: dict[str, int] = {}

    def listen(event: Any) -> None:
        for id, phase, _ in getattr(event, "scheduled", []):
            if phase == "decode":
                gaps.append(event.end - last[id])
            if phase == "decode" or id in event.prefill_done:
                last[id] = event.end

    limits = Limits(max_num_seqs=4, max_num_batched_tokens=512)
    plain = outcome(Run(Vllm(), limits, cost, requests, inline=False), listen)
    quick = outcome(Run(Vllm(), limits, cost, requests, inline=False))
    assert quick == plain
    found = quick[3]
    kept = quick[0]["latency"]["itl"]
    assert "error" not in kept
    assert len(set(gaps)) > MOST_EXACT
    assert found["error"] == ERROR == 2.0**-11
    assert found["count"] == len(gaps) == 3 * 5999
    assert found["max"] == max(gaps) and found["mean"] == sum(gaps) / len(gaps)
    for percent in PERCENTILES:
        assert found[f"p{percent}"] == pytest.approx(np.percentile(gaps, percent), rel=ERROR)
        assert kept[f"p{percent}"] == pytest.approx(np.percentile(gaps, percent), rel=1e-12)
    few = outcome(Run(Vllm(), limits, cost, [Request("a", 0, 5, 4096, 4096)], inline=False))[3]
    assert "error" not in few and few["count"] == 4095


# The queue


class PendingLine(RuleBasedStateMachine):
    """A queue in which places of a load wait, against a plain line of positions."""

    @initialize(count=st.integers(1, 40), shuffled=st.booleans(), seed=st.integers(0, 99))
    def begin(self, count: int, shuffled: bool, seed: int) -> None:
        arrivals = list(range(count))
        if shuffled:
            Random(seed).shuffle(arrivals)
        self.requests = [Request(f"r{n}", time, n + 1, 1, n + 2, n % 3) for n, time in enumerate(arrivals)]
        self.load = load_of(self.requests)
        self.order = sorted(range(count), key=arrivals.__getitem__)
        self.sent = 0
        self.queue = WaitingQueue()
        self.line: deque[int] = deque()
        self.known: dict[int, Any] = {}  # who has been seen is the same object ever after
        self.out: list[int] = []

    def check(self, seq: Any) -> Any:
        r = self.requests[seq.position]
        assert (seq.id, seq.arrival, seq.prompt_tokens, seq.max_tokens, seq.priority) == (
            r.id, r.arrival, r.prompt, r.max_tokens, r.priority,
        )  # fmt: skip
        assert self.known.setdefault(seq.position, seq) is seq
        return seq

    @rule(most=st.integers(1, 6))
    def some_stand_in_line(self, most: int) -> None:
        end = min(self.sent + most, len(self.requests))
        if end > self.sent:
            self.queue.pend(self.load, self.sent, end)
            self.line.extend(self.order[self.sent : end])
            self.sent = end

    @rule(joins=st.booleans())
    def the_door_looks_at_one(self, joins: bool) -> None:
        """It is put at the back by itself, or sent away."""
        if self.sent == len(self.requests):
            return
        position = self.order[self.sent]
        self.sent += 1
        if joins:
            r = self.requests[position]
            seq = Sequence(position, r.id, r.arrival, r.prompt, r.max_tokens, r.priority)
            self.queue.append(self.check(seq))
            self.line.append(position)

    @rule()
    def the_first_is_looked_at(self) -> None:
        seq = self.queue.head
        assert (seq is None) is (not self.line)
        if seq is not None:
            assert self.check(seq).position == self.line[0]

    @precondition(lambda self: self.line)
    @rule()
    def the_first_goes(self) -> None:
        seq = self.check(self.queue.front())
        self.queue.remove(seq)
        assert seq.position == self.line.popleft()
        self.out.append(seq.position)

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def any_of_them_goes(self, data: Any) -> None:
        place = data.draw(st.integers(0, len(self.line) - 1))
        seq = self.check(list(self.queue)[place])
        assert seq.position == self.line[place]
        self.queue.remove(seq)
        del self.line[place]
        self.out.append(seq.position)

    @precondition(lambda self: self.out)
    @rule(front=st.booleans())
    def one_comes_back(self, front: bool) -> None:
        seq = self.known[self.out.pop()]
        (self.queue.push_front if front else self.queue.append)(seq)
        (self.line.appendleft if front else self.line.append)(seq.position)

    @rule()
    def all_are_looked_at(self) -> None:
        assert [self.check(seq).position for seq in self.queue] == list(self.line)

    @invariant()
    def so_many_wait(self) -> None:
        if hasattr(self, "queue"):
            assert len(self.queue) == self.queue.length() == len(self.line)


PendingLine.TestCase.settings = settings(
    derandomize=True, max_examples=150, stateful_step_count=40, deadline=None, database=None
)
TestPendingLine = PendingLine.TestCase
