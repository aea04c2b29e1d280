"""Every engine's policy against a naive reading of the engine's rules, turn by turn, on random loads."""

from typing import Any

import engine_loads
import pytest
from reference.engines import (
    common,
    fastertransformer,
    orca,
    sarathi,
    static_padding,
    tensorrt_llm,
    triton_dynamic,
    vllm_v0,
)

from batchlab import scenario
from batchlab.events import Iteration
from batchlab.simulation import simulate

LOADS = 2000  # for each engine; 10,000 agree too, in about five times the time
CHUNK = 250
ENGINES: dict[str, tuple[Any, Any]] = {
    "static": (engine_loads.static_padding, static_padding),
    "fastertransformer": (engine_loads.fastertransformer, fastertransformer),
    "orca": (engine_loads.orca, orca),
    "sarathi": (engine_loads.sarathi, sarathi),
    "vllm-v0": (engine_loads.vllm_v0, vllm_v0),
    "tensorrt-llm": (engine_loads.tensorrt_llm, tensorrt_llm),
}
WITH_BLOCKS = ("orca", "vllm-v0", "tensorrt-llm")
COUNTED = {"model": "unit", "idle": "jump"}


def iterations_of(
    engine: str, settings: dict[str, Any], requests: list[dict[str, Any]], cost: dict[str, Any]
) -> list[Iteration]:
    """Runs batchlab on the load. None is left out of the settings: it stands for what is not given."""
    document = {
        "engine": {"policy": engine} | {key: value for key, value in settings.items() if value is not None},
        "cost": cost,
        "run": {"max_iterations": common.MOST_TURNS},
        "workload": {"requests": requests},
    }
    seen: list[Any] = []
    simulate(scenario.build(document).runs[0], [seen.append])
    return [event for event in seen if isinstance(event, Iteration)]


def turns_of(engine: str, settings: dict[str, Any], requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What happened in each turn, in the shape of the references."""
    turns = []
    for event in iterations_of(engine, settings, requests, COUNTED):
        turn = common.new_turn(event.start)
        turn["rejected"] = [rejection.id for rejection in event.rejected]
        turn["preempted"] = [preemption.id for preemption in event.preempted]
        turn["failed"] = [dropped.id for dropped in event.dropped]
        turn["scheduled"] = [[id, tokens] for id, _, tokens in event.scheduled]
        turn["padding"] = event.padding
        turn["completed"] = event.completed
        turn["free"] = None if event.kv is None else event.kv["free"]
        if common.happened(turn):
            turns.append(turn)
    return turns


def comparable(turns: list[dict[str, Any]], blocks: bool) -> list[dict[str, Any]]:
    """No engine has a rule for the order of those that end together; free blocks only where the engine has blocks."""
    return [turn | {"completed": sorted(turn["completed"]), "free": turn["free"] if blocks else None} for turn in turns]


@pytest.mark.parametrize("first", range(0, LOADS, CHUNK))
@pytest.mark.parametrize("engine", ENGINES)
def test_policy_does_what_the_reference_does(engine: str, first: int) -> None:
    load, reference = ENGINES[engine]
    for seed in range(first, first + CHUNK):
        settings, requests = load(seed)
        expected = comparable(reference.run(settings, requests), engine in WITH_BLOCKS)
        found = comparable(turns_of(engine, settings, requests), engine in WITH_BLOCKS)
        pairs = zip(found, expected, strict=False)
        differing = next((number for number, (ours, naive) in enumerate(pairs) if ours != naive), None)
        if differing is not None:
            assert found[differing] == expected[differing], f"{engine}, seed {seed}"
        assert len(found) == len(expected), f"{engine}, seed {seed}"


def batches_of(settings: dict[str, Any], requests: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """What Triton's policy sent and when, and whom it refused, in the shape of the reference."""
    own = {key: value for key, value in settings.items() if key != "cost"}
    by_level = own.pop("priority_queue_policy")
    if by_level:
        own["priority_queue_policy"] = {str(level): policy for level, policy in by_level.items()}
    result: dict[str, list[Any]] = {"batches": [], "rejected": []}
    for event in iterations_of("triton", own, requests, {"model": "linear", "unit": "ns"} | settings["cost"]):
        for rejection in event.rejected:
            judged = event.start if rejection.reason == "timeout" else None
            result["rejected"].append([rejection.id, rejection.reason, judged])
        if any(phase == "prefill" for _, phase, _ in event.scheduled):
            result["batches"].append([event.start, [id for id, _, _ in event.scheduled]])
    return result


@pytest.mark.parametrize("first", range(0, LOADS, CHUNK))
def test_triton_sends_the_batches_of_the_reference(first: int) -> None:
    for seed in range(first, first + CHUNK):
        settings, requests = engine_loads.triton(seed)
        expected = triton_dynamic.run(settings, requests)
        found = batches_of(settings, requests)
        assert found["batches"] == expected["batches"], f"triton, seed {seed}"
        assert sorted(found["rejected"]) == sorted(expected["rejected"]), f"triton, seed {seed}"


CORNERS = {
    "static": {"padding", "only padding"},
    "fastertransformer": {"padding"},
    "orca": {"rejected", "several in flight", "no room"},
    "sarathi": {"cut prompt"},
    "vllm-v0": {"rejected", "preempted", "several preempted", "failed", "swap", "recompute"},
    "tensorrt-llm": {
        "rejected", "preempted", "several preempted", "failed", "cut prompt",
        "GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH", "FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS",
    },
}  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_loads_reach_the_corners_and_end(engine: str) -> None:
    load, reference = ENGINES[engine]
    reached = set()
    for seed in range(400):
        settings, requests = load(seed)
        assert (settings, requests) == load(seed)
        turns = reference.run(settings, requests)
        ended = [id for turn in turns for name in ("completed", "rejected", "failed") for id in turn[name]]
        assert sorted(ended) == sorted(request["id"] for request in requests), f"{engine}, seed {seed}"
        reached |= corners(settings, requests, turns)
    assert reached >= CORNERS[engine]


def corners(settings: dict[str, Any], requests: list[dict[str, Any]], turns: list[dict[str, Any]]) -> set[str]:
    prompts = {request["id"]: request["prompt"] for request in requests}
    seen = {
        "rejected": any(turn["rejected"] for turn in turns),
        "preempted": any(turn["preempted"] for turn in turns),
        "several preempted": any(len(turn["preempted"]) > 1 for turn in turns),
        "failed": any(turn["failed"] for turn in turns),
        "padding": any(turn["padding"] for turn in turns),
        "only padding": any(turn["padding"] and not turn["scheduled"] for turn in turns),
        "cut prompt": any(1 < tokens < prompts[id] for turn in turns for id, tokens in turn["scheduled"]),
        "several in flight": settings.get("n_workers", 1) > 1,
        "no room": any(turn["free"] == 0 for turn in turns),
    }
    choices = {value for key, value in settings.items() if isinstance(value, str) and key != "padding"}
    return {name for name, is_so in seen.items() if is_so} | choices


def test_triton_loads_reach_the_corners() -> None:
    reached = set()
    for seed in range(400):
        settings, requests = engine_loads.triton(seed)
        result = triton_dynamic.run(settings, requests)
        arrival = {request["id"]: request["arrival"] for request in requests}
        served = [id for _, ids in result["batches"] for id in ids]
        assert sorted(served + [id for id, _, _ in result["rejected"]]) == sorted(arrival), f"triton, seed {seed}"
        reached |= {reason for _, reason, _ in result["rejected"]}
        for start, ids in result["batches"]:
            reached |= {f"batch of {len(ids)}", "waited" if start not in arrival.values() else "at an arrival"}
            if [arrival[id] for id in ids] != sorted(arrival[id] for id in ids):
                reached.add("out of order")
    assert reached >= {"max_queue_size", "timeout", "waited", "at an arrival", "out of order", "batch of 8"}


@pytest.mark.parametrize("lengths", [[(4, 2), (7, 1), (5, 9)], [(1, 1)], [(3, 3), (3, 3)], [(20, 1), (2, 2)]])
def test_fastertransformer_takes_the_iterations_of_its_formula(lengths: list[tuple[int, int]]) -> None:
    requests = [
        {"id": str(number), "arrival": 0, "prompt": prompt, "output": output}
        for number, (prompt, output) in enumerate(lengths)
    ]
    turns = fastertransformer.run({"max_bs": 8}, requests)
    longest = max(prompt + output for prompt, output in lengths)
    assert len(turns) == longest - min(prompt for prompt, _ in lengths)


@pytest.mark.parametrize(
    ("policy", "sizes"), [("FIRST_COME_FIRST_SERVED", [["A", 8], ["B", 2]]), ("EQUAL_PROGRESS", [["A", 4], ["B", 4]])]
)
def test_tensorrt_llm_shares_the_tokens_of_a_step(policy: str, sizes: list[list[Any]]) -> None:
    """11 tokens, units of 4: first come, 13 are cut to 8 and 2 fit whole; in turns, a unit each and no third."""
    settings = {
        "max_batch_size": 4,
        "max_num_tokens": 11,
        "tokens_per_block": 4,
        "num_blocks": 100,
        "capacity_scheduler_policy": "GUARANTEED_NO_EVICT",
        "enable_chunked_context": True,
        "context_chunking_policy": policy,
        "chunk_unit_size": 4,
    }
    second = 2 if policy == "FIRST_COME_FIRST_SERVED" else 9
    requests = [
        {"id": "A", "arrival": 0, "prompt": 13, "output": 1},
        {"id": "B", "arrival": 0, "prompt": second, "output": 1},
    ]
    assert tensorrt_llm.run(settings, requests)[0]["scheduled"] == sizes
