"""Laws that every run keeps, whatever the policy, the limits, the load and the clock.

The numbers are those of docs/invariants.md. Each law reads the trace that a run wrote and nothing else, by
plain assertions; the verifier has a test of its own over the same runs. Every policy that
`batchlab.policies.names()` finds is tested, and one that does odd but allowed things with every verb.
A run follows from its policy's name and a seed; a failure names both. Laws about whole runs, from number 10 on
without 15, are in test_laws_of_runs.py.
"""

import json
from collections import Counter

import pytest
from laws_lives import ENDED, Story
from laws_runs import ODD, RESERVES, Outcome, document_for, every_run, make_run

from batchlab.core.scheduler import Core
from batchlab.core.step import Step
from batchlab.simulation import simulate


@every_run
def test_law_01_token_budget(run: Outcome) -> None:
    budget = run.limits["max_num_batched_tokens"]
    for line in run.iterations:
        tokens = sum(tokens for _, _, tokens in line["scheduled"])
        assert all(tokens >= 1 for _, _, tokens in line["scheduled"])
        if budget is None:
            assert line["unused"] is None
        else:
            assert tokens <= budget
            assert line["unused"] == budget - tokens


@every_run
def test_law_02_sequence_cap(run: Outcome) -> None:
    cap = run.limits["max_num_seqs"]
    for line in run.iterations:
        active = line["active"] if isinstance(line["active"], int) else len(line["active"])
        seats = active + len(line["completed"])  # taken until the end of the iteration
        assert cap is None or seats <= cap
        assert len(line["scheduled"]) <= seats


@every_run
def test_law_03_queue_bound(run: Outcome) -> None:
    """A newcomer never waits beyond the bound; work already begun may."""
    bound = run.limits["max_queue"]
    begun: set[str] = set()
    newcomers: set[str] = set()
    for line in run.iterations:
        begun.update(line["admitted"])
        newcomers.update(line["arrived"])
        newcomers -= begun | {entry["id"] for entry in (*line["rejected"], *line.get("dropped", ()))}
        assert bound is None or len(newcomers) <= bound
        if not isinstance(line["queue"], int):
            assert newcomers <= set(line["queue"])


@every_run
def test_law_04_token_conservation(run: Outcome) -> None:
    """Scheduled, cached and dropped tokens add up to the request; every sampled token is delivered or discarded."""
    story = Story(run)
    phases: Counter[str] = Counter()
    for line in story.lines():
        for _, phase, tokens in line["scheduled"]:
            phases[phase] += tokens
            assert phase == "prefill" or tokens == 1
        assert line["prefill_done"] == [name for name, phase in story.delivered if phase == "prefill"]
        assert line["first_token"] == story.first
        assert line.get("discarded", []) == story.lost_tokens
        for name in line["completed"]:
            assert name in dict(story.delivered)
            life = story.lives[name]
            assert life.emitted == run.output_of(name)
            ended_waiting = run.asynchronous and life.lost and not life.computed  # by the token that was on its way
            if life.attempts == 1 and not ended_waiting:  # an earlier attempt's work is its own
                expected = life.request["prompt"] + life.emitted - 1 + life.dropped - life.cached
                extra = life.computed - (life.request["prompt"] + life.emitted - 1)
                assert life.scheduled == expected + extra and 0 <= extra <= run.asynchronous
    for name, life in story.lives.items():
        assert life.emitted < run.output_of(name) or life.state == "completed" or run.output_of(name) < 1
        assert life.emitted <= life.request["max_tokens"]
    totals = run.end["totals"]
    assert (totals["prefill_tokens"], totals["decode_tokens"]) == (phases["prefill"], phases["decode"])
    assert totals["recomputed_tokens"] == sum(life.recomputed for life in story.lives.values())
    assert totals.get("cached_tokens", 0) == sum(life.cached for life in story.lives.values())


@every_run
def test_law_05_lifecycle(run: Outcome) -> None:
    before = dict.fromkeys(run.requests, "pending")
    story = Story(run)
    for line in story.lines():
        assert all(before[name] in ("pending", "retrying") for name in line["arrived"])
        present = {name for name, state in before.items() if state in ("waiting", "active")} | set(line["arrived"])
        touched = [*line["admitted"], *(entry["id"] for entry in line["preempted"])]
        touched += [entry["id"] for entry in (*line["rejected"], *line.get("dropped", ()))]
        assert present.issuperset(touched)
        ends = [entry["id"] for entry in (*line["rejected"], *line.get("dropped", ()))] + line["completed"]
        assert len(set(ends)) == len(ends)
        assert all(entry["reason"] for entry in (*line["rejected"], *line.get("dropped", ())))
        assert all(entry["result"] in ("cancelled", "expired", "failed") for entry in line.get("dropped", ()))
        names = [name for name, _, _ in line["scheduled"]]
        assert len(set(names)) == len(names)
        assert all(story.lives[name].state in ("active", "completed") for name in names)
        assert run.asynchronous or set(line["completed"]) <= set(names)
        for field, state in (("queue", "waiting"), ("active", "active")):
            there = {name for name, life in story.lives.items() if life.state == state}
            listed = line[field]
            if isinstance(listed, int):
                assert listed == len(there) > 256
            else:
                assert len(listed) == len(set(listed)) <= 256 and set(listed) == there
        before = {name: life.state for name, life in story.lives.items()}
    assert run.end["results"] == dict(Counter(before.values()))
    assert {entry["id"]: entry["result"] for entry in run.summary["requests"]} == before


@every_run
def test_law_06_causality(run: Outcome) -> None:
    """Nothing is known before it arrives, no token comes before what it follows from is computed."""
    requests, story = run.requests, Story(run)
    position = {row["id"]: index for index, row in enumerate(run.document["workload"]["requests"])}
    due = {name: request["arrival"] for name, request in requests.items()}  # of the next attempt
    last_token: dict[str, int] = {}
    previous_start = -1
    for line in story.lines():
        order = [(due[name], position[name]) for name in line["arrived"]]
        assert order == sorted(order)
        assert all(previous_start < arrival <= line["start"] for arrival, _ in order)
        for name in line["arrived"]:
            del due[name]
        named = {*line["admitted"], *(name for name, _, _ in line["scheduled"]), *line["completed"]}
        named |= {entry["id"] for entry in (*line["preempted"], *line["rejected"], *line.get("dropped", ()))}
        assert named.isdisjoint(due)
        due |= {entry["id"]: entry["retry_at"] for entry in line["rejected"] if entry.get("retry_at") is not None}
        for name, _ in story.delivered:
            life = story.lives[name]
            known = life.request["prompt"] + life.emitted
            assert life.computed >= known - 1 or life.state in ("waiting", "completed") or life.lost
            since = last_token.get(name, requests[name]["arrival"])
            assert since < line["end"] or (run.asynchronous and since <= line["end"])
            last_token[name] = line["end"]
        previous_start = previous_start if line["idle"] == "drain" else line["start"]  # a drain takes nobody in
    if run.iterations:
        assert all(time > previous_start for time in due.values())


@every_run
def test_law_07_monotone_time(run: Outcome) -> None:
    now = 0
    steps = run.header["clock"]["idle"] == "step"
    drains = 0  # outside of time where it is counted in iterations
    for index, line in enumerate(run.iterations):
        assert type(line["start"]) is int and type(line["end"]) is int
        assert line["iteration"] == index
        assert line["start"] == now if steps else line["start"] >= now
        works = line["scheduled"] and not run.asynchronous  # else its tokens may come out later
        assert line["end"] > line["start"] if works else line["end"] >= line["start"]
        now = line["end"]
        drains += line["idle"] == "drain"
        assert not steps or now == index + 1 - drains
    assert (run.end["iterations"], run.end["time"]) == (len(run.iterations), now)


@every_run
def test_law_08_nothing_invented_or_lost(run: Outcome) -> None:
    """Every request ends once, whatever its end; attempts before the last are events and no results."""
    given = run.document["workload"]["requests"]
    assert sorted(run.requests) == sorted(row["id"] for row in given)
    for row in given:
        fields = [key for key in ("arrival", "prompt", "output", "deadline", "cancel_at") if key in row]
        assert run.requests[row["id"]].items() >= {key: row[key] for key in fields}.items()
    arrived = Counter(name for line in run.iterations for name in line["arrived"])
    again: Counter[str] = Counter()
    gone = [name for line in run.iterations for name in line["completed"]]
    for line in run.iterations:
        gone += [entry["id"] for entry in line.get("dropped", ())]
        for entry in line["rejected"]:
            if entry.get("retry_at") is None:
                gone.append(entry["id"])
            else:
                again[entry["id"]] += 1
    assert arrived.keys() <= run.requests.keys() and again.keys() <= arrived.keys()
    assert all(again[name] <= count <= 1 + again[name] for name, count in arrived.items())
    assert len(set(gone)) == len(gone) and set(gone) <= set(arrived)
    assert sum(run.end["results"].values()) == len(given) == len(run.summary["requests"])
    assert all(entry["attempts"] == arrived[entry["id"]] for entry in run.summary["requests"])
    assert run.end["totals"].get("retries", 0) == again.total()
    if run.end["termination"] == "all_terminal":
        assert sorted(gone) == sorted(run.requests)
        assert run.end["results"].keys() <= set(ENDED)
    else:
        assert len(gone) < len(given)


@every_run
def test_law_09_progress_kept(run: Outcome) -> None:
    """A preemption that keeps loses nothing; one that recomputes starts again with what was emitted."""
    story = Story(run)
    at_end = dict.fromkeys(run.requests, 0)
    for line in story.lines():
        first_of = {}
        for entry in line["preempted"]:
            first_of.setdefault(entry["id"], entry)
        for name, entry in first_of.items():
            if name not in line["admitted"]:
                assert entry["computed"] == at_end[name]
        at_end = {name: life.computed for name, life in story.lives.items()}
        for name, phase, tokens in line["scheduled"]:
            life = story.lives[name]
            start = life.computed - tokens
            assert phase == ("prefill" if start < life.target else "decode")
            assert phase == "decode" or life.computed <= life.target
    by_name = {entry["id"]: entry for entry in run.summary["requests"]}
    assert all(by_name[name]["recomputed_tokens"] == life.recomputed for name, life in story.lives.items())


@every_run
def test_law_15_block_conservation(run: Outcome) -> None:
    """Free blocks and those held are all there are; shared ones are held once, and never are there fewer than none."""
    total = run.limits.get("num_gpu_blocks")
    if total is None:
        assert all("kv" not in line for line in run.iterations)
        return
    size, caching = run.limits["block_size"], run.limits["enable_prefix_caching"]
    story = Story(run)
    holders: set[str] = set()
    for line in story.lines():
        holders -= {entry["id"] for entry in (*line["preempted"], *line.get("dropped", ()))}
        holders |= {name for name, _, _ in line["scheduled"]}
        held = {name: -(-story.lives[name].computed // size) for name in holders}
        check_blocks(line["kv"]["free"], total, held, caching, run.policy in RESERVES)
        holders -= set(line["completed"])
        held = {name: held[name] for name in holders}
        check_blocks(line["kv"]["free_after"], total, held, caching, run.policy in RESERVES)
        cached = dict(line.get("cached", ()))
        assert all(tokens % size == 0 and 0 <= tokens < story.lives[name].target for name, tokens in cached.items())
        assert caching or not any(cached.values())
        assert line["kv"]["moved"] >= 0
    assert run.end["totals"]["moved_blocks"] == sum(line["kv"]["moved"] for line in run.iterations)


def check_blocks(free: int, total: int, held: dict[str, int], caching: bool, reserves: bool) -> None:
    assert 0 <= free <= total
    if reserves:
        assert free + sum(held.values()) <= total and (held or free == total)
    elif caching:
        assert max(held.values(), default=0) <= total - free <= sum(held.values())
    else:
        assert free + sum(held.values()) == total


@pytest.mark.parametrize("seed", range(0, 150, 3))
def test_law_15_block_conservation_inside(seed: int) -> None:
    """The same with the pool's own books, between plan and delivery."""
    run = make_run(json.loads(document_for("vllm", seed)), seed)
    if run.limits.num_gpu_blocks is None:
        pytest.skip("no blocks in this run")

    def look(core: Core, step: Step) -> None:
        held = sum(seq.held for seq in core.running)
        caching = run.limits.enable_prefix_caching
        assert core.kv.free + held == run.limits.num_gpu_blocks or (caching and core.kv.free + held > 0)
        assert not any(seq.held for seq in core.waiting)
        if caching:
            used = {block for seq in core.running for block in seq.blocks}
            assert used.isdisjoint(core.kv.free_queue)
            assert sorted([*used, *core.kv.free_queue]) == list(range(1, run.limits.num_gpu_blocks + 1))

    simulate(run, [], look)


@every_run
def test_law_16_capacity_ends_what_can_never_go_on(run: Outcome) -> None:
    """Only a request that alone would need more than the whole pool fails, and none of that kind lives on."""
    if run.policy == ODD:
        return
    total, size = run.limits.get("num_gpu_blocks"), run.limits.get("block_size", 1)
    story = Story(run)
    for line in story.lines():
        failed = {entry["id"]: entry for entry in line.get("dropped", ()) if entry["result"] == "failed"}
        for name, entry in failed.items():
            life = story.lives[name]
            assert entry["reason"]
            if "KV cache exhausted" in entry["reason"]:
                assert life.request["prompt"] + life.emitted >= total * size
            else:  # it has to be whole again, and the engine cannot take that much at once
                assert run.policy in ("vllm-v0", "tensorrt-llm")
        if total is not None:
            active = [life for life in story.lives.values() if life.state in ("active", "waiting")]
            assert all(life.computed <= total * size for life in active)
