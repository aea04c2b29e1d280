"""vLLM's rules one by one, by their numbers in docs/engines.md: small cases worked out by hand from the rule's text.

Each check is run against the real classes, and against every mutation of its rule in vllm_mutants*.py, where it has to
fail: a check that cannot see its rule broken proves nothing. Blocks hold one token unless a size is given.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from vllm_mutants import POLICY_MUTANTS
from vllm_mutants_core import CORE_MUTANTS
from vllm_world import World, ask, fails, scheduled, segment

from batchlab.errors import InputError
from batchlab.scenario import build
from batchlab.simulation import simulate

Check = Callable[[World], None]


def rule_01_running_before_waiting_under_one_budget(w: World) -> None:
    # budget 4: A's decode takes 1, B's prefill what is left
    steps = w.steps(ask("A", 2, 3), ask("B", 9, 1, arrival=1), budget=4)
    assert list(steps[1]["scheduled"].items()) == [("A", 1), ("B", 3)]


def rule_02_running_chunk(w: World) -> None:
    # max_model_len 4, prompt 3: A can give one token, which is on its way; 4 - 3 - 1 = 0 tokens: skipped, B goes on
    requests = ask("A", 3, 2, max_tokens=4), ask("B", 1, 3)
    steps = w.steps(*requests, model_len=4, async_scheduling=True)
    assert scheduled(steps)[:2] == [{"A": 3, "B": 1}, {"B": 1}]
    # prompt 5, budget 2: what is left, capped by the budget
    assert scheduled(w.steps(ask("A", 5, 1), budget=2, seqs=1))[:3] == [{"A": 2}, {"A": 2}, {"A": 1}]


def rule_03_long_prefill_threshold(w: World) -> None:
    # alone: no cap. B comes: capped to 2 as a waiting and as a running request
    requests = ask("A", 6, 9), ask("B", 6, 1, arrival=1)
    steps = w.steps(*requests, long_prefill_token_threshold=2)
    assert scheduled(steps)[:4] == [{"A": 6}, {"A": 1, "B": 2}, {"A": 1, "B": 2}, {"A": 1, "B": 2}]
    # adaptive: max(2, 8 // 2) = 4
    settings = {"long_prefill_token_threshold": 2, "long_prefill_token_threshold_adaptive": True}
    assert scheduled(w.steps(*requests, budget=8, **settings))[1] == {"A": 1, "B": 4}


def rule_04_no_slot_for_the_last_token(w: World) -> None:
    # prompt 3 and the first output token are computed: 4 tokens in 2 blocks of 2; the second is never stored
    steps = w.steps(ask("A", 3, 2), size=2, blocks=2)
    assert [step["free_blocks"] for step in steps] == [0, 0] and steps[1]["finished"] == ["A"]
    # prompt 2, block of 2: the second block comes with the first output token, not before
    assert [step["free_blocks"] for step in w.steps(ask("A", 2, 3), size=2, blocks=2)] == [1, 0, 0]


def rule_05_the_last_is_the_victim(w: World) -> None:
    # 4 blocks, three hold one each: A takes the 4th, B has C preempted
    steps = w.steps(ask("A", 1, 9), ask("B", 1, 9), ask("C", 1, 9), blocks=4, stop=2)
    assert (steps[1]["preempted"], steps[1]["scheduled"], steps[1]["running"]) == (["C"], {"A": 1, "B": 1}, ["A", "B"])


def three_by_priority(w: World, blocks: int, **settings: int) -> list[dict]:
    """Running [L, H, M] with priorities 2, 0, 1: L came a step earlier; after step 1 they hold 2, 1 and 1 blocks."""
    requests = ask("L", 1, 9, priority=2), ask("H", 1, 9, 1, priority=0), ask("M", 1, 9, 1, priority=1)
    return w.steps(*requests, blocks=blocks, scheduling_policy="priority", stop=4, **settings)


def rule_05_the_victim_may_be_the_requester(w: World) -> None:
    # 4 blocks are held; L is first and finds none, L itself is the least urgent: the walk stops, H and M get nothing
    step = three_by_priority(w, 4)[2]
    assert (step["preempted"], step["scheduled"], step["running"]) == (["L"], {}, ["H", "M"])


def rule_05_a_victim_before_the_cursor(w: World) -> None:
    # 5 blocks: L takes the 5th, H finds none, L goes and gives its token back; M after H is not skipped
    step = three_by_priority(w, 5)[2]
    assert (step["preempted"], step["scheduled"], step["total_tokens"]) == (["L"], {"H": 1, "M": 1}, 2)


def rule_05_a_victims_tokens_go_back(w: World) -> None:
    # budget 4, chunks of 2: L 4, then L 2, H 1, M 1; they hold 8 of 10. L takes 2 more, H finds none and L's 2 tokens
    # go back: after H's 1 there are 3, and M gets a chunk of 2
    requests = ask("L", 10, 9, priority=2), ask("H", 1, 9, 1, priority=0), ask("M", 5, 9, 1, priority=1)
    settings = {"scheduling_policy": "priority", "scheduler_reserve_full_isl": False, "long_prefill_token_threshold": 2}
    steps = w.steps(*requests, blocks=10, budget=4, stop=3, **settings)
    assert scheduled(steps)[1] == {"L": 2, "H": 1, "M": 1}
    assert steps[2]["preempted"] == ["L"] and steps[2]["scheduled"] == {"H": 1, "M": 2}


def rule_05_first_of_equals(w: World) -> None:
    # X and Y are equal in priority and time: the first in running order goes; Y then finds none, and is the last
    requests = ask("H", 1, 9, priority=0), ask("X", 1, 9, priority=1, sent=0), ask("Y", 1, 9, priority=1, sent=0)
    step = w.steps(*requests, blocks=3, scheduling_policy="priority", stop=2)[1]
    assert step["preempted"] == ["X", "Y"]


def rule_06_recompute_and_to_the_front(w: World) -> None:
    # chunks of 2: A 2, B 1, C 1 hold 4 of 5; then A needs 2 blocks, so C goes; B needs 1 and goes: before C and D
    requests = ask("A", 5, 1), ask("B", 1, 9), ask("C", 1, 9), ask("D", 1, 9, arrival=1)
    settings = {"long_prefill_token_threshold": 2, "scheduler_reserve_full_isl": False}
    steps = w.steps(*requests, blocks=5, seqs=3, stop=5, **settings)
    assert steps[1]["preempted"] == ["C", "B"] and steps[1]["waiting"] == ["B", "C", "D"]
    # B had prompt 1 and 1 output token, which it keeps: both are prefilled again
    again = next(step for step in steps[2:] if "B" in step["scheduled"])
    assert again["resumed"]["B"] == 0 and again["scheduled"]["B"] == 2


def rule_06_by_key_under_priority(w: World) -> None:
    # two seats: C (1) waits; B (2) is preempted and returns behind C
    requests = ask("A", 1, 9, priority=0), ask("B", 1, 9, priority=2), ask("C", 1, 9, 1, priority=1)
    step = w.steps(*requests, seqs=2, blocks=3, scheduling_policy="priority", stop=2)[1]
    assert (step["preempted"], step["waiting"]) == (["B"], ["C", "B"])


def rule_07_no_admission_after_a_preemption(w: World) -> None:
    # B's 3 blocks are free but for A's one, and a seat: C of 1 token would fit, and comes a step later
    requests = ask("A", 1, 9, priority=0), ask("B", 3, 9, priority=2), ask("C", 1, 9, 1, priority=1)
    steps = w.steps(*requests, seqs=2, blocks=4, scheduling_policy="priority", stop=3)
    assert (steps[1]["preempted"], steps[1]["scheduled"]) == (["B"], {"A": 1})
    assert list(steps[2]["scheduled"]) == ["A", "C"]


def rule_08_head_of_line(w: World) -> None:
    # A holds 4 of 6; B, the head, needs 5 of 2: C of 1 waits behind it
    steps = w.steps(ask("A", 4, 2), ask("B", 5, 1), ask("C", 1, 1), blocks=6)
    assert scheduled(steps)[0] == {"A": 4}


def rule_08_heap_key(w: World) -> None:
    # priority, then time, then the id as text: "r10" < "r9"
    requests = [ask("r9", 1, 1, priority=1, sent=5), ask("r10", 1, 1, priority=1, sent=5)]
    requests += [ask("late", 1, 1, priority=1, sent=6), ask("first", 1, 1, priority=0, sent=7)]
    steps = w.steps(*requests, seqs=1, scheduling_policy="priority")
    assert [name for step in steps for name in step["scheduled"]] == ["first", "r10", "r9", "late"]


def rule_09_seats_count_all_running(w: World) -> None:
    # one seat: A's only token is on its way, it is not scheduled but keeps its seat
    steps = w.steps(ask("A", 1, 1), ask("B", 1, 1), seqs=1, async_scheduling=True)
    assert scheduled(steps)[:3] == [{"A": 1}, {}, {"B": 1}]


def rule_10_waiting_chunk(w: World) -> None:
    # chunks on: 5 of the budget of 8, then the 3 that are left of B's 6. Off: B does not fit, and stops C too
    requests = ask("A", 5, 1), ask("B", 6, 1), ask("C", 1, 1)
    assert scheduled(w.steps(*requests, budget=8))[0] == {"A": 5, "B": 3}
    steps = w.steps(*requests, budget=8, enable_chunked_prefill=False)
    assert scheduled(steps)[:2] == [{"A": 5}, {"B": 6, "C": 1}]
    # the threshold comes before the budget: 3 of B's 6 fit into the 5 that are left
    steps = w.steps(*requests, budget=8, enable_chunked_prefill=False, long_prefill_token_threshold=3)
    assert scheduled(steps)[0] == {"A": 3, "B": 3, "C": 1}


def rule_11_full_input_gate(w: World) -> None:
    # 5 blocks are free beside A: not for B's whole prompt of 6, but for its first chunk of 2
    requests = ask("A", 1, 2), ask("B", 6, 1)
    assert scheduled(w.steps(*requests, budget=3, seqs=2, blocks=6))[0] == {"A": 1}
    steps = w.steps(*requests, budget=3, seqs=2, blocks=6, scheduler_reserve_full_isl=False, stop=2)
    assert scheduled(steps)[0] == {"A": 1, "B": 2}
    # nothing is reserved: B holds 8 of 16 and still needs 4; C's 6 of the 8 that are free pass all the same
    requests = ask("B", 12, 1), ask("C", 6, 1, arrival=1)
    steps = w.steps(*requests, budget=5, blocks=16, long_prefill_token_threshold=3, stop=2)
    assert scheduled(steps)[:2] == [{"B": 5}, {"B": 3, "C": 2}]


def rule_12_watermark(w: World) -> None:
    # int(0.25 * (7 + 1)) = 2 blocks; beside A of 1, admitted in the same step, 6 - 2 = 4 are for newcomers
    one = ask("A", 1, 7)
    assert scheduled(w.steps(one, ask("B", 5, 1), blocks=7, watermark=0.25, stop=1))[0] == {"A": 1}
    assert scheduled(w.steps(one, ask("B", 4, 1), blocks=7, watermark=0.25, stop=1))[0] == {"A": 1, "B": 4}
    # alone it does not count, and never for running requests: A grows to 7 of 7 blocks
    assert scheduled(w.steps(ask("A", 7, 1), blocks=7, watermark=0.25))[0] == {"A": 7}
    steps = w.steps(one, blocks=7, watermark=0.25)
    assert steps[-1]["finished"] == ["A"] and steps[-1]["free_blocks"] == 0 and len(steps) == 7
    # it is part of the chunk's check too: 5 of the prompt of 9 are more than 4
    settings = {"watermark": 0.25, "scheduler_reserve_full_isl": False, "stop": 1}
    assert scheduled(w.steps(one, ask("B", 6, 1), blocks=7, budget=6, **settings))[0] == {"A": 1}


def rule_13_a_token_where_all_is_computed(w: World) -> None:
    # 2 + 2 + 1: one token comes after the third chunk and ends it
    steps = w.steps(ask("A", 5, 1), budget=2, seqs=1)
    assert [step["finished"] for step in steps] == [[], [], ["A"]]


def rule_14_end_and_release(w: World) -> None:
    # A ends with its second token; its 3 blocks are free after that step, and B takes them in the next
    steps = w.steps(ask("A", 2, 2), ask("B", 3, 1), blocks=3)
    assert (steps[1]["finished"], steps[1]["free_blocks"], steps[1]["free_blocks_after"]) == (["A"], 0, 3)
    assert scheduled(steps)[2] == {"B": 3}
    # prompt 3, max_model_len 4: one token, whatever is asked for
    assert w.steps(ask("A", 3, 4), model_len=4)[0]["finished"] == ["A"]


SHARED = (1, 0, 4)  # four tokens that several prompts begin with: two blocks of 2


def cached(steps: list[dict], name: str) -> int:
    """The tokens that a request found when it was admitted for the first time."""
    return next(step["new"][name] for step in steps if name in step["new"])


def rule_15_hash_chain(w: World) -> None:
    a = ask("A", [SHARED, (2, 0, 1)], 4)
    steps = w.steps(
        a,
        ask("B", [(1, 0, 3), (3, 0, 3)], 1, 9),  # 3 shared tokens: one full block
        ask("X", [(9, 0, 2), (6, 0, 1)], 1),
        ask("C", [(9, 0, 2), (1, 2, 2), (4, 0, 1)], 1, 9),  # X's first block, A's second
        ask("D", [SHARED, (2, 0, 1), (1000 + segment("A"), 0, 3), (5, 0, 2)], 1, 9),  # with A's first 3 output tokens
        size=2,
        caching=True,
    )
    assert [cached(steps, name) for name in "BCD"] == [2, 2, 8]


def rule_16_at_most_all_but_one_token(w: World) -> None:
    # A's 4 tokens are cached whole: B takes one block and computes the last again
    steps = w.steps(ask("A", [SHARED], 1), ask("B", [SHARED], 1, arrival=3), size=2, caching=True)
    assert cached(steps, "B") == 2 and steps[1]["scheduled"] == {"B": 2}
    # one token more than cached: both blocks
    steps = w.steps(ask("A", [SHARED], 1), ask("B", [SHARED, (3, 0, 1)], 1, arrival=3), size=2, caching=True)
    assert cached(steps, "B") == 4


def rule_16_resumes_look_too(w: World) -> None:
    # 4 blocks of 2: A's third token block is taken from B, which frees [4, 3]; A takes 4, B finds 3 again
    steps = w.steps(ask("A", 4, 3), ask("B", 4, 9), size=2, blocks=4, caching=True, stop=5)
    assert steps[1]["preempted"] == ["B"] and steps[3]["resumed"] == {"B": 2}


def rule_16_duplicates_are_not_merged(w: World) -> None:
    # A and B each compute the second block; C gets A's (2), the older
    a, b = ask("A", [SHARED], 1), ask("B", [SHARED], 9)
    steps = w.steps(a, b, ask("C", [SHARED, (3, 0, 1)], 9, 1), size=2, blocks=9, caching=True)
    assert steps[0]["blocks"] == {"A": [1, 2], "B": [1, 3]} and steps[1]["blocks"]["C"][:2] == [1, 2]


def rule_16_the_older_duplicate_is_gone(w: World) -> None:
    # A's block 2 is the one that T of 5 blocks takes last; then only B's copy, 3, holds the second block
    requests = ask("A", [SHARED], 1), ask("B", [SHARED], 2), ask("T", [(8, 0, 9)], 3, 1)
    steps = w.steps(*requests, ask("D", [SHARED, (3, 0, 1)], 1, 2), size=2, blocks=8, caching=True)
    assert steps[1]["blocks"]["B"] == [1, 3, 4] and steps[1]["blocks"]["T"] == [5, 6, 7, 8, 2]
    assert next(step["blocks"]["D"] for step in steps if "D" in step["new"])[:2] == [1, 3]


def rule_17_registered_at_allocation(w: World) -> None:
    # the same step: B hits what A has only been given
    steps = w.steps(ask("A", [SHARED, (2, 0, 1)], 1), ask("B", [SHARED, (3, 0, 1)], 1), size=2, caching=True)
    assert steps[0]["new"] == {"A": 0, "B": 4}
    # a chunk of 3 registers one block of 2
    steps = w.steps(ask("A", [SHARED], 9), ask("B", [SHARED, (3, 0, 1)], 1, 1), budget=3, seqs=2, size=2, caching=True)
    assert steps[0]["scheduled"] == {"A": 3} and steps[1]["new"] == {"B": 4}


def rule_17_async_registers_after_update(w: World) -> None:
    # A's first output token fills its second block. In step 1, when it was allocated, the token was not known, and A is
    # not scheduled again; the update in step 2 makes the block findable
    a = ask("A", [(1, 0, 3)], 2)
    after = ask("B", [(1, 0, 3), (1000 + segment("A"), 0, 1), (3, 0, 1)], 1, arrival=3)
    assert cached(w.steps(a, after, size=2, caching=True, async_scheduling=True), "B") == 4


def rule_18_evictable_hits(w: World) -> None:
    # A's 2 blocks are cached and free, X holds 1 of 4: B needs 4, hits 2 that are among the 3 free: 4 - 2 + 2 > 3
    requests = ask("A", [SHARED], 1), ask("X", 1, 2, 1), ask("B", [SHARED, (3, 0, 4)], 1, 1)
    steps = w.steps(*requests, size=2, blocks=4, caching=True)
    assert scheduled(steps)[1] == {"X": 1}
    # and out of the free queue: B of 3 blocks hits both, which are taken from the end of [3, 4, 5, 2, 1]
    steps = w.steps(requests[0], ask("B", [SHARED, (3, 0, 1)], 1, 1), size=2, blocks=5, caching=True)
    assert steps[1]["blocks"] == {"B": [1, 2, 3]} and steps[1]["free_queue"] == [4, 5]


def rule_19_free_queue(w: World) -> None:
    # without caching A's [1, 2, 3] go to the front, the tail first: B takes 3
    steps = w.steps(ask("A", 3, 1), ask("B", 1, 1, 1), blocks=5)
    assert steps[0]["free_queue"] == [4, 5]
    assert steps[1]["blocks"] == {"B": [3]} and steps[1]["free_queue"] == [2, 1, 4, 5]
    # with it only the block that is not full, 3; the hashed ones to the end, the tail first
    requests = ask("A", [SHARED, (2, 0, 1)], 1), ask("B", 1, 1, 1)
    steps = w.steps(*requests, size=2, blocks=5, caching=True)
    assert steps[1]["blocks"] == {"B": [3]} and steps[1]["free_queue"] == [4, 5, 2, 1]
    # T's 4 blocks are 3, 4, 5 and 2: of A's, the head is left
    steps = w.steps(requests[0], ask("T", 7, 1, 1), ask("D", [SHARED, (3, 0, 1)], 1, 2), size=2, blocks=5, caching=True)
    assert steps[1]["blocks"]["T"] == [3, 4, 5, 2] and cached(steps, "D") == 2


def rule_20_two_steps_deep(w: World) -> None:
    # max_tokens 9, output 2: step 2 is planned before the second token is seen, and is for nothing
    steps = w.steps(ask("A", 1, 2, max_tokens=9), async_scheduling=True)
    assert scheduled(steps) == [{"A": 1}, {"A": 1}, {"A": 1}] and steps[2]["finished"] == ["A"]


def rule_20_the_last_token_is_not_scheduled_again(w: World) -> None:
    # max_tokens 2: computed 2 and one token on its way: 2 + 2 - 1 >= 1 + 2
    steps = w.steps(ask("A", 1, 2), async_scheduling=True)
    assert scheduled(steps) == [{"A": 1}, {"A": 1}, {}] and steps[2]["finished"] == ["A"]


def rule_20_a_victims_token_is_delivered(w: World) -> None:
    # B's last token is on its way when A needs B's block: B ends in the queue; for all that is known, it could go on
    requests = ask("A", 1, 9), ask("B", 1, 1, max_tokens=9)
    step = w.steps(*requests, blocks=2, async_scheduling=True, stop=2)[1]
    assert (step["preempted"], step["waiting"], step["finished"]) == (["B"], ["B"], ["B"])
    # with more to come it keeps the token: known are 2 tokens when it resumes
    requests = ask("A", 1, 3), ask("B", 1, 2)
    steps = w.steps(*requests, blocks=2, async_scheduling=True)
    assert next(step["scheduled"] for step in steps if step["resumed"]) == {"B": 2}


def rule_21_aborts_free_at_once(w: World) -> None:
    # B takes A's blocks and its seat in the step of the abort
    steps = w.steps(ask("A", 3, 9, cancel_at=1), ask("B", 3, 1), blocks=4, seqs=1)
    assert steps[1]["aborted"] == ["A"] and steps[1]["scheduled"] == {"B": 3}


def scenario(w: World, requests: list[dict], **engine: object) -> list[dict]:
    """(id, reason) of each request of a scenario that is rejected."""
    document = {
        "engine": {"policy": "vllm", "max_num_seqs": 4, "max_num_batched_tokens": 16, "block_size": 2, **engine}
    }
    found = build(document | {"cost": {"model": "unit"}, "workload": {"requests": requests}}).runs[0]
    settings = {key: value for key, value in found.settings.items() if value is not None}
    found.policy = w.policy(**settings)
    events: list = []
    simulate(found, [events.append])
    return [(r.id, r.reason) for event in events for r in getattr(event, "rejected", ())]


def rule_22_start_and_front_end(w: World) -> None:
    asked = [{"id": "A", "arrival": 0, "prompt": 7, "output": 1}, {"id": "B", "arrival": 0, "prompt": 8, "output": 1}]
    asked.append({"id": "C", "arrival": 0, "prompt": 1, "output": 1, "max_tokens": 9})
    refused = scenario(w, asked, num_gpu_blocks=5, max_model_len=8)
    assert [id for id, _ in refused] == ["B", "C"] and all("max_model_len" in reason for _, reason in refused)
    # 4 usable blocks of 2 hold 8 tokens: a max_model_len of 9 does not start
    with pytest.raises(InputError, match="max_model_len"):
        scenario(w, asked, num_gpu_blocks=5, max_model_len=9)


def rule_23_bounded_queue(w: World) -> None:
    asked = [{"id": name, "arrival": at, "prompt": 4, "output": 9} for name, at in [("A", 0), ("B", 1), ("C", 1)]]
    # A runs, B waits or runs: 2 is the bound
    assert scenario(w, asked, max_num_queued_reqs=2) == [("C", "max_num_queued_reqs reached")]
    # A's prefill is done at 1: of its 4 tokens none counts; B's 4 do: 4 + 4 > 7
    assert scenario(w, asked, max_num_queued_tokens=7) == [("C", "max_num_queued_tokens reached")]


CHECKS: dict[str, Check] = {name: check for name, check in list(globals().items()) if name.startswith("rule_")}


@pytest.mark.parametrize("name", CHECKS)
def test_rule(name: str) -> None:
    CHECKS[name](World())


@pytest.mark.parametrize("mutant", POLICY_MUTANTS)
def test_check_sees_a_broken_policy(mutant: str) -> None:
    rule, policy = POLICY_MUTANTS[mutant]
    assert fails(CHECKS[rule], World(policy)), f"{rule} passes with {mutant}"


@pytest.fixture(scope="module")
def core_verdicts() -> dict[str, bool]:
    """Whether each broken core was seen; another process, since only the source of the core can be broken."""
    command = "import json, test_vllm_rules as t, vllm_mutants_core as m; print(json.dumps(m.verdicts(t.CHECKS)))"
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    env = os.environ | {"PYTHONPATH": path, "BATCHLAB_INTERPRETED": "1"}
    done = subprocess.run([sys.executable, "-c", command], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("mutant", CORE_MUTANTS)
def test_check_sees_a_broken_core(mutant: str, core_verdicts: dict[str, bool]) -> None:
    assert core_verdicts[mutant], f"{CORE_MUTANTS[mutant][0]} passes with {mutant}"


def test_every_rule_has_a_check_and_a_mutation() -> None:
    broken = {rule for rule, _ in [*POLICY_MUTANTS.values(), *CORE_MUTANTS.values()]}
    assert {int(name.split("_")[1]) for name in CHECKS} == set(range(1, 24))
    assert broken == set(CHECKS), set(CHECKS) ^ broken
