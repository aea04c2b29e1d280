"""Triton's dynamic batcher and its iterative sequences in small situations, each worked out by hand from a rule.

The numbers are those of the rules in docs/engines.md. All times are in microseconds, and every step lasts 10: a batch
whose longest member has N output tokens runs for 10 * N.
"""

import io
from random import Random
from typing import Any

import pytest

from batchlab.clients.request import Request
from batchlab.core.limits import Limits
from batchlab.costs.linear import Linear
from batchlab.errors import InputError
from batchlab.events import Iteration
from batchlab.metrics.fold import Summary
from batchlab.policies.triton import QueuePolicy, Triton
from batchlab.policies.triton_iterative import TritonIterative
from batchlab.scenario import build
from batchlab.simulation import Run, simulate
from batchlab.trace.verify import verify
from batchlab.trace.write import TraceWriter

STEP = 10
US = 1000  # the clock counts ns
LONG = {"default_timeout_microseconds": 100}


def ask(name: str, at: int, out: int = 1, priority: int = 1, deadline: int | None = None, prompt: int = 3) -> Request:
    late = None if deadline is None else deadline * US
    return Request(name, at * US, prompt, out, out, priority, deadline=late)


BUSY = ask("X", 0, out=3)  # where batches hold one request, it occupies the engine from 0 to 30


@pytest.fixture
def play(tmp_path: Any) -> Any:
    """Runs requests through a policy, verifies the trace, returns the iterations."""

    def run(policy: Any, limits: Limits, requests: list[Request]) -> list[Iteration]:
        path = tmp_path / "trace.jsonl"
        summary, iterations = Summary(), []
        with open(path, "w", encoding="utf-8") as file:
            observers = [summary, TraceWriter(file, summary), lambda e: iterations.append(e)]
            cost = Linear(unit="ns", per_iteration=STEP * US)
            simulate(Run(policy, limits, cost, requests), observers)
        report = verify(path)
        assert not report.violations and report.stopped is None
        return [event for event in iterations if isinstance(event, Iteration)]

    return run


@pytest.fixture
def batches(play: Any) -> Any:
    """(time, members) of every batch and (time, id, reason) of every rejection."""

    def run(*requests: Request, most: int = 4, **settings: Any) -> list[Any]:
        found: list[Any] = []
        for event in play(Triton(**settings), Limits(max_num_seqs=most), list(requests)):
            found += [(event.start // US, one.id, one.reason) for one in event.rejected]
            if event.admitted:
                assert [name for name, _, _ in event.scheduled] == event.admitted
                found.append((event.start // US, "".join(event.admitted)))
        return found

    return run


# Rule 1: defaults. Rules 5 and 10: one batch at a time, to its end.


def test_without_a_delay_whoever_is_there_goes(batches: Any) -> None:
    assert batches(ask("A", 0), ask("B", 3), ask("C", 4)) == [(0, "A"), (10, "BC")]


def test_nobody_joins_a_batch(batches: Any) -> None:  # rule 5: B could go at 10, where three of four places are empty
    assert batches(ask("A", 0, out=3), ask("B", 1)) == [(0, "A"), (30, "B")]


def test_a_batch_lasts_as_long_as_its_longest_member(batches: Any) -> None:  # rule 5
    assert batches(ask("A", 0), ask("B", 0, out=4), ask("C", 5), most=2) == [(0, "AB"), (40, "C")]


def test_whole_prompts_then_decodes(play: Any) -> None:  # rule 10
    requests = [ask("A", 0, prompt=3), ask("B", 0, out=3, prompt=500)]
    events = play(Triton(), Limits(max_num_seqs=2), requests)
    assert [event.scheduled for event in events] == [
        [("A", "prefill", 3), ("B", "prefill", 500)],
        [("B", "decode", 1)],
        [("B", "decode", 1)],
    ]


def test_slots_of_ended_members_are_waste(tmp_path: Any) -> None:  # batching by request: 2 * 4 opened, 1 + 4 useful
    summary = Summary()
    requests = [ask("A", 0), ask("B", 0, out=4)]
    simulate(Run(Triton(), Limits(max_num_seqs=2), Linear(unit="ns", per_iteration=1), requests), [summary])
    assert summary.slots() == {"opened": 8, "useful": 5, "wasted": 3, "waste": 3 / 8}


# Rules 6 to 8: the window


def test_a_batch_is_cut_at_max_batch_size(batches: Any) -> None:  # rule 6
    assert batches(*(ask(name, 0) for name in "ABCDE"), most=2) == [(0, "AB"), (10, "CD"), (20, "E")]


def test_it_waits_for_company_until_the_oldest_is_as_old_as_the_delay(batches: Any) -> None:  # rule 8, last
    assert batches(ask("A", 0), ask("B", 30), max_queue_delay_microseconds=100) == [(100, "AB")]


def test_a_full_batch_does_not_wait(batches: Any) -> None:  # rule 1: preferred = [max_batch_size]; rule 8, first
    assert batches(ask("A", 0), ask("B", 30), most=2, max_queue_delay_microseconds=100) == [(30, "AB")]


def test_the_age_runs_while_the_engine_is_busy(batches: Any) -> None:  # rule 7: at 300 B is 150 old
    requests = ask("A", 0, out=20), ask("B", 150)
    assert batches(*requests, max_queue_delay_microseconds=100) == [(100, "A"), (300, "B")]


def test_the_rest_of_the_delay_is_waited_for(batches: Any) -> None:  # rule 8: at 300 B is 50 old
    requests = ask("A", 0, out=20), ask("B", 250)
    assert batches(*requests, max_queue_delay_microseconds=100) == [(100, "A"), (350, "B")]


def test_as_old_as_the_delay_is_exceeded(batches: Any) -> None:  # rule 7: at 300 B is 100 old
    requests = ask("A", 0, out=20), ask("B", 200)
    assert batches(*requests, max_queue_delay_microseconds=100) == [(100, "A"), (300, "B")]


def test_a_preferred_size_goes_at_once(batches: Any) -> None:  # rule 8, first
    requests = ask("A", 0), ask("B", 10)
    assert batches(*requests, preferred_batch_size=[2], max_queue_delay_microseconds=100) == [(10, "AB")]


def test_a_batch_is_cut_to_the_best_preferred_size(batches: Any) -> None:  # rule 8, first; C waits from 0 to 100
    requests = [ask(name, 0) for name in "ABC"]
    settings = {"preferred_batch_size": [2], "max_queue_delay_microseconds": 100}
    assert batches(*requests, **settings) == [(0, "AB"), (100, "C")]


def test_the_last_preferred_size_that_is_reached_is_the_best(batches: Any) -> None:  # rule 6
    requests = [ask(name, 0) for name in "ABCDE"]
    settings = {"preferred_batch_size": [2, 4], "max_queue_delay_microseconds": 100}
    assert batches(*requests, most=8, **settings) == [(0, "ABCD"), (100, "E")]


def test_between_two_preferred_sizes_the_smaller_goes(batches: Any) -> None:  # rule 8, first
    requests = [ask(name, 0) for name in "ABC"]
    settings = {"preferred_batch_size": [4, 2], "max_queue_delay_microseconds": 100}
    assert batches(*requests, most=8, **settings) == [(0, "AB"), (100, "C")]


def test_without_a_delay_a_preferred_size_is_kept_too(
    batches: Any,
) -> None:  # rule 8: the best; then, delay 0, the rest
    requests = [ask(name, 0) for name in "ABC"]
    assert batches(*requests, preferred_batch_size=[2]) == [(0, "AB"), (10, "C")]


def test_below_every_preferred_size_the_delay_decides(batches: Any) -> None:  # rule 8
    requests = [ask(name, 0) for name in "ABC"]
    settings = {"preferred_batch_size": [4], "max_queue_delay_microseconds": 100}
    assert batches(*requests, most=8, **settings) == [(100, "ABC")]


def test_an_exceeded_delay_sends_more_than_the_preferred_size(batches: Any) -> None:  # rule 8, third: at 50 A is 40 old
    requests = [ask("P", 0, out=5), ask("Q", 0), ask("A", 10), ask("B", 11), ask("C", 12)]
    settings = {"preferred_batch_size": [2], "max_queue_delay_microseconds": 20}
    assert batches(*requests, **settings) == [(0, "PQ"), (50, "ABC")]


def test_an_exceeded_delay_sends_no_more_than_the_maximum(batches: Any) -> None:  # rules 6 and 8; at 60 D is 47 old
    requests = [ask("P", 0, out=5), ask("Q", 0), *(ask(name, 10) for name in "ABCD")]
    settings = {"preferred_batch_size": [2], "max_queue_delay_microseconds": 20}
    assert batches(*requests, most=3, **settings) == [(0, "PQ"), (50, "ABC"), (60, "D")]


# Rule 3: the bound of the queue


def test_a_full_queue_rejects(batches: Any) -> None:  # B and C wait; the engine looks again at 10
    requests = BUSY, ask("B", 1), ask("C", 2), ask("D", 3)
    found = batches(*requests, most=1, default_queue_policy=QueuePolicy(max_queue_size=2))
    assert found == [(0, "X"), (10, "D", "max_queue_size"), (30, "B"), (40, "C")]


def test_who_comes_at_once_finds_the_others_in_the_queue(batches: Any) -> None:  # although the batch had room for both
    found = batches(ask("A", 0), ask("B", 0), default_queue_policy=QueuePolicy(max_queue_size=1))
    assert found == [(0, "B", "max_queue_size"), (0, "A")]


def test_delayed_requests_count(batches: Any) -> None:
    # B's timeout is over at 6, C's at 34. At 30 B is delayed and C runs, to 40. D finds B, E finds B and D.
    policy = QueuePolicy(timeout_action="DELAY", default_timeout_microseconds=5, max_queue_size=2)
    requests = BUSY, ask("B", 1), ask("C", 29), ask("D", 38), ask("E", 39)
    found = batches(*requests, most=1, default_queue_policy=policy)
    assert found == [(0, "X"), (30, "C"), (40, "E", "max_queue_size"), (40, "D"), (50, "B")]


# Rules 3 and 4: timeouts


def test_reject(batches: Any) -> None:  # B's timeout is over at 26, C's at 35
    policy = QueuePolicy(default_timeout_microseconds=25)
    found = batches(BUSY, ask("B", 1), ask("C", 10), most=1, default_queue_policy=policy)
    assert found == [(0, "X"), (30, "B", "timeout"), (30, "C")]


def test_a_timeout_that_has_just_passed_is_over(batches: Any) -> None:  # B: 5 + 25; C: 6 + 25
    policy = QueuePolicy(default_timeout_microseconds=25)
    found = batches(BUSY, ask("B", 5), ask("C", 6), most=1, default_queue_policy=policy)
    assert found == [(0, "X"), (30, "B", "timeout"), (30, "C")]


def test_delay(batches: Any) -> None:  # B and C are over at 30, D is not; then those delayed, in their order
    policy = QueuePolicy(timeout_action="DELAY", default_timeout_microseconds=25)
    found = batches(BUSY, ask("B", 1), ask("C", 2), ask("D", 10), most=1, default_queue_policy=policy)
    assert found == [(0, "X"), (30, "D"), (40, "B"), (50, "C")]


def test_delayed_ones_wait_behind_all_that_come_later(batches: Any) -> None:  # at 40 D's 35 + 25 are not over
    policy = QueuePolicy(timeout_action="DELAY", default_timeout_microseconds=25)
    found = batches(BUSY, ask("B", 1), ask("C", 10), ask("D", 35), most=1, default_queue_policy=policy)
    assert found == [(0, "X"), (30, "C"), (40, "D"), (50, "B")]


def test_a_timeout_is_noticed_by_the_cursor_only(batches: Any) -> None:
    # B's is over at 6, but at 30 the cursor does not come behind E: it is rejected at 40
    policies = {"2": QueuePolicy(default_timeout_microseconds=5)}
    requests = BUSY, ask("B", 1, priority=2), ask("D", 2), ask("E", 3)
    settings = {"priority_levels": 2, "default_priority_level": 1, "priority_queue_policy": policies}
    assert batches(*requests, most=1, **settings) == [(0, "X"), (30, "D"), (40, "B", "timeout"), (40, "E")]


def test_the_cursor_comes_to_the_request_behind_a_full_batch(batches: Any) -> None:  # B is over at 51, C at 30
    policy = QueuePolicy(default_timeout_microseconds=50, allow_timeout_override=True)
    found = batches(BUSY, ask("B", 1), ask("C", 10, deadline=20), most=1, default_queue_policy=policy)
    assert found == [(0, "X"), (30, "C", "timeout"), (30, "B")]


def test_a_shorter_timeout_of_its_own_counts_if_allowed(batches: Any) -> None:
    policy = QueuePolicy(default_timeout_microseconds=100, allow_timeout_override=True)
    found = batches(BUSY, ask("B", 1, deadline=20), most=1, default_queue_policy=policy)
    assert found == [(0, "X"), (30, "B", "timeout")]


def test_a_longer_timeout_of_its_own_does_not_count(batches: Any) -> None:
    policy = QueuePolicy(default_timeout_microseconds=25, allow_timeout_override=True)
    found = batches(BUSY, ask("B", 1, deadline=90), most=1, default_queue_policy=policy)
    assert found == [(0, "X"), (30, "B", "timeout")]


def test_a_timeout_of_its_own_does_not_count_if_not_allowed(batches: Any) -> None:
    policy = QueuePolicy(default_timeout_microseconds=100)
    assert batches(BUSY, ask("B", 1, deadline=5), most=1, default_queue_policy=policy) == [(0, "X"), (30, "B")]


def test_a_timeout_of_its_own_never_counts_where_the_default_is_none(batches: Any) -> None:
    policy = QueuePolicy(allow_timeout_override=True)
    assert batches(BUSY, ask("B", 1, deadline=5), most=1, default_queue_policy=policy) == [(0, "X"), (30, "B")]


def test_a_timeout_inside_the_window_ends_the_wait(batches: Any) -> None:  # rules 8 and 9: A's at 40, B's at 60
    settings = {
        "max_queue_delay_microseconds": 100,
        "default_queue_policy": QueuePolicy(default_timeout_microseconds=40),
    }
    assert batches(ask("A", 0), ask("B", 20), **settings) == [(40, "A", "timeout"), (60, "B", "timeout")]


def test_the_age_then_counts_from_those_that_are_left(batches: Any) -> None:  # rule 9: A is out at 40, B goes at 120
    policy = QueuePolicy(default_timeout_microseconds=200, allow_timeout_override=True)
    settings = {"max_queue_delay_microseconds": 100, "default_queue_policy": policy}
    assert batches(ask("A", 0, deadline=40), ask("B", 20), **settings) == [(40, "A", "timeout"), (120, "B")]


def test_a_delayed_one_keeps_its_age(batches: Any) -> None:  # rules 4 and 7: at 40 it goes behind B, at 100 both go
    policy = QueuePolicy(timeout_action="DELAY", default_timeout_microseconds=200, allow_timeout_override=True)
    settings = {"max_queue_delay_microseconds": 100, "default_queue_policy": policy}
    assert batches(ask("A", 0, deadline=40), ask("B", 20), **settings) == [(100, "BA")]


# Rule 2: priorities


def test_level_1_is_served_first(batches: Any) -> None:
    requests = BUSY, ask("B", 1, priority=2), ask("C", 2, priority=1)
    settings = {"priority_levels": 2, "default_priority_level": 2}
    assert batches(*requests, most=1, **settings) == [(0, "X"), (30, "C"), (40, "B")]


def test_without_levels_the_number_means_nothing(batches: Any) -> None:
    requests = BUSY, ask("B", 1, priority=2), ask("C", 2, priority=1)
    assert batches(*requests, most=1) == [(0, "X"), (30, "B"), (40, "C")]


def test_0_and_what_is_out_of_range_is_the_default_level(batches: Any) -> None:  # A 3, B 2, C 2, D 1, E 2
    levels = {"A": 3, "B": 0, "C": 9, "D": 1, "E": -1}
    requests = [ask(name, 1, priority=level) for name, level in levels.items()]
    settings = {"priority_levels": 3, "default_priority_level": 2}
    found = batches(BUSY, *requests, most=1, **settings)
    assert found == [(0, "X"), (30, "D"), (40, "B"), (50, "C"), (60, "E"), (70, "A")]


def test_a_more_urgent_arrival_goes_in_front_of_a_pending_batch(batches: Any) -> None:  # rule 9
    requests = ask("A", 0, priority=2), ask("B", 10, priority=2), ask("C", 20, priority=1)
    settings = {"priority_levels": 2, "default_priority_level": 2, "max_queue_delay_microseconds": 100}
    assert batches(*requests, most=3, **settings) == [(20, "CAB")]


def test_each_level_has_its_own_bound(batches: Any) -> None:
    settings = {
        "priority_levels": 2,
        "default_priority_level": 2,
        "priority_queue_policy": {"2": QueuePolicy(max_queue_size=1)},
    }
    requests = BUSY, ask("B", 1, priority=2), ask("C", 2, priority=2), ask("D", 3), ask("E", 4)
    found = batches(*requests, most=1, **settings)
    assert found == [(0, "X"), (10, "C", "max_queue_size"), (30, "D"), (40, "E"), (50, "B")]


def test_delayed_ones_of_a_level_go_before_the_next_level(batches: Any) -> None:  # rule 4: at 30 B is delayed, D is not
    settings = {
        "priority_levels": 2,
        "default_priority_level": 2,
        "priority_queue_policy": {"1": QueuePolicy(timeout_action="DELAY", default_timeout_microseconds=25)},
    }
    requests = BUSY, ask("B", 1), ask("C", 2, priority=2), ask("D", 10)
    assert batches(*requests, most=1, **settings) == [(0, "X"), (30, "D"), (40, "B"), (50, "C")]


# Settings


def document(engine: dict[str, Any]) -> dict[str, Any]:
    return {
        "engine": engine,
        "cost": {"model": "linear", "unit": "ns", "per_iteration": 10},
        "workload": {"requests": [{"id": "A", "arrival": 0, "prompt": 1, "output": 1}]},
    }


def test_the_settings_of_a_scenario_are_those_of_model_config() -> None:
    engine = {
        "policy": "triton",
        "max_batch_size": 8,
        "preferred_batch_size": [4, 8],
        "max_queue_delay_microseconds": 100,
        "priority_levels": 2,
        "default_priority_level": 2,
        "default_queue_policy": {"timeout_action": "DELAY", "default_timeout_microseconds": 5},
        "priority_queue_policy": {"1": {"max_queue_size": 3, "allow_timeout_override": True}},
    }
    (run,) = build(document(engine)).runs
    run.check()
    assert run.limits.max_num_seqs == 8
    assert run.settings["priority_queue_policy"]["1"]["max_queue_size"] == 3
    assert run.settings["default_queue_policy"]["timeout_action"] == "DELAY"


@pytest.mark.parametrize(
    ("place", "engine"),
    [
        ("engine.max_batch_size", {"max_batch_size": None}),
        ("engine.preferred_batch_size", {"preferred_batch_size": [2, 5]}),
        ("engine.preferred_batch_size", {"preferred_batch_size": [0]}),
        ("engine.max_queue_delay_microseconds", {"max_queue_delay_microseconds": -1}),
        ("engine.priority_levels", {"priority_levels": -1}),
        ("engine.default_priority_level", {"priority_levels": 2}),
        ("engine.default_priority_level", {"default_priority_level": 1}),
        ("engine.priority_queue_policy", {"priority_queue_policy": {"1": {}}}),
        ("engine.default_queue_policy.timeout_action", {"default_queue_policy": {"timeout_action": "DROP"}}),
        ("engine.default_queue_policy.max_queue_siz", {"default_queue_policy": {"max_queue_siz": 1}}),
        ("engine.default_queue_policy.max_queue_size", {"default_queue_policy": {"max_queue_size": -1}}),
    ],
)
def test_what_triton_refuses(place: str, engine: dict[str, Any]) -> None:
    settings = {"policy": "triton", "max_batch_size": 4} | engine
    with pytest.raises(InputError) as error:
        for run in build(document({k: v for k, v in settings.items() if v is not None})).runs:
            run.check()
    assert str(error.value).startswith(place)


def random_requests(rng: Random) -> list[Request]:
    requests = []
    for index in range(rng.randint(1, 25)):
        deadline = rng.choice([None, None, 5, 40])
        out = rng.choice([1, 2, 5])
        requests.append(ask(f"r{index}", rng.choice([0, rng.randint(0, 200)]), out, rng.randint(-1, 4), deadline))
    return requests


def random_queue_policy(rng: Random) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=rng.choice(["REJECT", "DELAY"]),
        default_timeout_microseconds=rng.choice([0, 10, 60]),
        allow_timeout_override=rng.random() < 0.5,
        max_queue_size=rng.choice([0, 0, 1, 5]),
    )


def test_random_loads_verify_and_end(play: Any) -> None:
    for seed in range(150):
        rng = Random(f"triton {seed}")
        most = rng.choice([1, 2, 4, 9])
        levels = rng.choice([0, 0, 1, 3])
        policy = Triton(
            preferred_batch_size=rng.choice([None, sorted({rng.randint(1, most) for _ in range(2)})]),
            max_queue_delay_microseconds=rng.choice([0, 7, 100]),
            priority_levels=levels,
            default_priority_level=min(levels, 1),
            default_queue_policy=random_queue_policy(rng),
            priority_queue_policy={"1": random_queue_policy(rng)} if levels and rng.random() < 0.7 else None,
        )
        requests = random_requests(rng)
        events = play(policy, Limits(max_num_seqs=most), requests)
        ended = [name for event in events for name in event.completed] + [r.id for e in events for r in e.rejected]
        assert sorted(ended) == sorted(request.id for request in requests)
        assert {one.reason for event in events for one in event.rejected} <= {"timeout", "max_queue_size"}
        batch: set[str] = set()
        for event in events:  # rule 5: nobody is admitted while anybody of a batch is left
            assert not (event.admitted and batch)
            batch = (
                batch | set(event.admitted) - set(event.completed) if event.admitted else batch - set(event.completed)
            )


# Iterative sequences


@pytest.fixture
def executions(play: Any) -> Any:
    """(time, members, padding) of every execution, the time in ns where it is no whole microsecond."""

    def run(*requests: Request, most: int = 2, **settings: Any) -> list[Any]:
        return [
            (event.start // US if event.start % US == 0 else event.start, "".join(n for n, _, _ in event.scheduled))
            + ((event.padding,) if event.padding else ())
            for event in play(TritonIterative(max_batch_size=most, **settings), Limits(), list(requests))
            if event.scheduled
        ]

    return run


def oldest(candidates: int, **settings: Any) -> dict[str, Any]:
    return {"strategy": "oldest", "max_candidate_sequences": candidates, **settings}


def test_who_comes_joins_at_the_next_token(executions: Any) -> None:  # rule 2
    assert executions(ask("A", 0, out=3), ask("B", 5, out=2)) == [(0, "A"), (10, "AB"), (20, "AB")]


def test_the_first_execution_is_the_whole_prompt(play: Any) -> None:  # rule 2
    events = play(TritonIterative(2), Limits(), [ask("A", 0, out=2, prompt=90), ask("B", 5, prompt=4)])
    assert [event.scheduled for event in events] == [
        [("A", "prefill", 90)],
        [("A", "decode", 1), ("B", "prefill", 4)],
    ]


def test_a_plain_release_frees_the_slot(executions: Any) -> None:  # rule 1
    assert executions(ask("A", 0, out=2), ask("B", 1), most=1) == [(0, "A"), (10, "A"), (20, "B")]


def test_empty_slots_below_the_highest_are_padded(executions: Any) -> None:  # rule 6: C stays in slot 2
    requests = ask("A", 0), ask("B", 0), ask("C", 0, out=3)
    assert executions(*requests, most=5) == [(0, "ABC"), (10, "C", 2), (20, "C", 2)]


def test_the_lowest_free_slot_is_taken(executions: Any) -> None:  # rule 5: D takes A's, so B's in slot 1 comes second
    requests = ask("A", 0), ask("B", 0, out=3), ask("D", 12)
    assert executions(*requests) == [(0, "AB"), (10, "B", 1), (20, "DB")]


def test_too_few_slots_wait_until_the_oldest_is_older_than_the_delay(executions: Any) -> None:
    # rules 3 and 5: 1 of 4 slots; A is older than 50 us at 50,001 ns; rescheduled at 60,001, its age is 0 again
    settings = {"minimum_slot_utilization": 0.5, "max_queue_delay_microseconds": 50}
    assert executions(ask("A", 0, out=2), most=4, **settings) == [(50_001, "A"), (110_002, "A")]


def test_enough_slots_run_at_once(executions: Any) -> None:  # rule 5: 2 of 4
    settings = {"minimum_slot_utilization": 0.5, "max_queue_delay_microseconds": 50}
    assert executions(ask("A", 0), ask("B", 20), most=4, **settings) == [(20, "AB")]


@pytest.mark.parametrize("settings", [{"minimum_slot_utilization": 1.0}, {"max_queue_delay_microseconds": 50}])
def test_with_either_0_all_run_at_once(executions: Any, settings: dict[str, Any]) -> None:  # rule 5
    assert executions(ask("A", 0, out=2), most=4, **settings) == [(0, "A"), (10, "A")]


def test_age_counts_in_the_backlog(executions: Any) -> None:  # rule 5: D has its slot at 10, but waits since 1
    requests = ask("A", 0), ask("B", 0), ask("C", 0), ask("D", 1)
    settings = {"minimum_slot_utilization": 1.0, "max_queue_delay_microseconds": 50}
    assert executions(*requests, most=3, **settings) == [(0, "ABC"), (51_001, "D")]


def test_rescheduled_ones_go_to_the_back(executions: Any) -> None:  # rules 3 and 7: after AB the queue is C A B
    requests = [ask(name, 0, out=2) for name in "ABC"]
    assert executions(*requests, **oldest(4)) == [(0, "AB"), (10, "CA"), (20, "BC")]


def test_newcomers_with_a_slot_stand_before_rescheduled_ones(executions: Any) -> None:  # rule 4
    requests = ask("A", 0, out=2), ask("B", 5)
    assert executions(*requests, most=1, **oldest(3)) == [(0, "A"), (10, "B"), (20, "A")]


def test_without_a_slot_they_wait_in_the_backlog(executions: Any) -> None:  # rule 1
    requests = ask("A", 0, out=2), ask("B", 5)
    assert executions(*requests, most=1, **oldest(1)) == [(0, "A"), (10, "A"), (20, "B")]


def test_the_backlog_stands_behind_rescheduled_ones(executions: Any) -> None:
    # rule 4: at 10 A goes behind B; at 20 B's slot goes to C, which stands behind A
    requests = ask("A", 0, out=2), ask("B", 0), ask("C", 0)
    assert executions(*requests, most=1, **oldest(2)) == [(0, "A"), (10, "B"), (20, "A"), (30, "C")]


def test_a_slot_that_was_taken_until_now_is_no_newcomers(executions: Any) -> None:
    # rule 4: C came at 5, when A and B held both slots; at 10 A's is free, and B is rescheduled before C gets it
    requests = ask("A", 0), ask("B", 0, out=2), ask("C", 5)
    assert executions(*requests, most=2, **oldest(2)) == [(0, "AB"), (10, "BC")]


def test_the_dynamic_batcher_waits_after_each_token(executions: Any) -> None:  # rules 3 and 7
    settings = oldest(4, max_queue_delay_microseconds=50)
    assert executions(ask("A", 0, out=2), **settings) == [(50, "A"), (110, "A")]


def test_preferred_sizes_cut_there_too(executions: Any) -> None:  # rule 7: of A B C the first two; then C A, then B C
    settings = oldest(4, max_queue_delay_microseconds=50, preferred_batch_size=[2])
    assert executions(*(ask(n, 0, out=2) for n in "ABC"), most=4, **settings) == [(0, "AB"), (10, "CA"), (20, "BC")]


@pytest.mark.parametrize(
    ("place", "settings"),
    [
        ("engine.max_batch_size", {"max_batch_size": 0}),
        ("engine.minimum_slot_utilization", {"minimum_slot_utilization": 1.5}),
        ("engine.minimum_slot_utilization", {"minimum_slot_utilization": 0.5, **oldest(2)}),
        ("engine.max_candidate_sequences", {"strategy": "oldest"}),
        ("engine.max_candidate_sequences", {"max_candidate_sequences": 3}),
        ("engine.preferred_batch_size", {"preferred_batch_size": [1]}),
        ("engine.preferred_batch_size", oldest(2, preferred_batch_size=[5])),
    ],
)
def test_what_the_sequence_batcher_refuses(place: str, settings: dict[str, Any]) -> None:
    with pytest.raises(InputError) as error:
        for run in build(document({"policy": "triton-iterative", "max_batch_size": 4} | settings)).runs:
            run.check()
    assert str(error.value).startswith(place)


def test_random_sequences_verify_and_end(play: Any) -> None:
    for seed in range(100):
        rng = Random(f"iterative {seed}")
        most = rng.choice([1, 2, 4])
        settings: dict[str, Any] = {"max_queue_delay_microseconds": rng.choice([0, 7, 100])}
        if rng.random() < 0.5:
            settings |= oldest(rng.choice([1, 2, 6]), preferred_batch_size=rng.choice([None, [most]]))
        else:
            settings["minimum_slot_utilization"] = rng.choice([0.0, 0.3, 1.0])
        slots = settings.get("max_candidate_sequences", most)
        requests = random_requests(rng)
        events = play(TritonIterative(most, **settings), Limits(), requests)
        assert sorted(name for event in events for name in event.completed) == sorted(r.id for r in requests)
        assert all(len(event.active) <= slots and len(event.scheduled) <= most for event in events)


def test_a_policy_can_run_twice() -> None:
    requests = [ask(name, 0, out=3) for name in "ABC"]
    for policy in TritonIterative(2), TritonIterative(2, **oldest(3)), Triton():
        texts = []
        for limit in (1, None, None):  # the first run is cut off and leaves everybody where it was
            text, summary = io.StringIO(), Summary()
            cost = Linear(unit="ns", per_iteration=STEP * US)
            limits = Limits(max_num_seqs=2)
            simulate(Run(policy, limits, cost, requests, limit), [summary, TraceWriter(text, summary)])
            texts.append(text.getvalue())
        assert texts[1] == texts[2]
        assert len(texts[0]) < len(texts[1])
