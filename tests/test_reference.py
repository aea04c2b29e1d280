"""The reference readings against the recorded examples, and the random loads against their promises."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from loads import NEVER, decode_first_case, three_modes_case
from reference import decode_first, three_modes

EXAMPLES = Path(__file__).parents[2] / "shared" / "worked-examples"
SEEDS = range(300)
LIMITS = {
    "max_num_seqs": 2,
    "max_queue": 2,
    "max_num_batched_tokens": 6,
    "prefill_chunk": 3,
    "max_iterations": 200,
    "priority_preemption": True,
}
COST = {"prefill_token": 1, "decode_token": 2}


def example_files(prefix: str) -> list[Any]:
    paths = sorted(EXAMPLES.glob(f"{prefix}*.json"))
    return [pytest.param(path, id=path.stem) for path in paths]


def request(**changes: Any) -> dict[str, Any]:
    return {"id": "A", "arrival": 0, "priority": "normal", "prompt": 4, "output": 2} | changes


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the recorded examples are not here")
def test_every_example_file_is_used() -> None:
    used = len(example_files("decode-first-")) + len(example_files("three-modes"))
    assert 0 < used == len(list(EXAMPLES.glob("*.json")))


@pytest.mark.parametrize("path", example_files("decode-first-"))
def test_decode_first_example(path: Path) -> None:
    case = json.loads(path.read_text(encoding="utf-8"))
    result = decode_first.run(case["limits"], case["requests"])
    assert json.dumps(result) == json.dumps(case["expected"])  # as text: the order of keys counts too


@pytest.mark.parametrize("mode", three_modes.MODES)
@pytest.mark.parametrize("path", example_files("three-modes"))
def test_three_modes_example(path: Path, mode: str) -> None:
    case = json.loads(path.read_text(encoding="utf-8"))
    result = three_modes.run(mode, case["limits"], case["cost"], case["requests"])
    expected = case["expected"][mode]
    if "error" in expected:
        assert list(result) == ["error"]
    else:
        assert json.dumps(result) == json.dumps(expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_num_seqs": 0},
        {"max_num_seqs": 7},
        {"max_queue": -1},
        {"prefill_chunk": 0},
        {"max_iterations": 0},
    ],
)
def test_decode_first_refuses_limits(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        decode_first.run(LIMITS | changes, [request()])


@pytest.mark.parametrize(
    "changes", [{"prompt": 0}, {"output": 0}, {"arrival": -1}, {"arrival": 0.5}, {"priority": "low"}]
)
def test_decode_first_refuses_request(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        decode_first.run(LIMITS, [request(**changes)])


def test_decode_first_refuses_repeated_id() -> None:
    with pytest.raises(ValueError):
        decode_first.run(LIMITS, [request(), request(arrival=3)])


@pytest.mark.parametrize("mode", three_modes.MODES)
@pytest.mark.parametrize("changes", [{"max_num_batched_tokens": 0}, {"prefill_chunk": 0}])
def test_three_modes_refuses_limits(mode: str, changes: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        three_modes.run(mode, LIMITS | changes, COST, [request()])


@pytest.mark.parametrize("mode", three_modes.MODES)
@pytest.mark.parametrize("requests", [[], [request(prompt=0)], [request(output=0)], [request(arrival=-1)]])
def test_three_modes_refuses_requests(mode: str, requests: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError):
        three_modes.run(mode, LIMITS, COST, requests)


def test_arrivals_first_decides_who_gets_the_free_seat() -> None:
    limits = LIMITS | {"max_num_seqs": 1}
    load = [request(), request(id="B"), request(id="C", arrival=3)]  # A leaves in iteration 2, B waits
    assert decode_first.run(limits, load)["trace"][3]["active"] == ["C"]
    assert decode_first.run(limits | {"arrivals_first": False}, load)["trace"][3]["active"] == ["B"]


def test_no_rotation_of_decodes_and_shorter_prompts_pass() -> None:
    limits = {"max_num_seqs": 3, "max_num_batched_tokens": 3, "prefill_chunk": 3}
    load = [request(prompt=1, output=3), request(id="B", prompt=3), request(id="C", prompt=1, output=1)]
    trace = three_modes.run("continuous", limits, COST, load)["trace"]
    assert trace[0]["actions"] == ["A:prefill:1", "C:prefill:1"]
    assert [step["actions"] for step in trace[1:3]] == [["A:decode:1"], ["A:decode:1"]]
    assert trace[3]["actions"] == ["B:prefill:3"]


def test_decode_budget_can_be_smaller_than_the_seats() -> None:
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 1, "prefill_chunk": 1}
    load = [request(prompt=1, output=2), request(id="B", prompt=1, output=1)]
    trace = three_modes.run("chunked", limits, COST, load)["trace"]
    assert [step["actions"] for step in trace] == [["A:prefill:1"], ["A:decode:1"], ["B:prefill:1"]]


def test_refusal_names_the_request() -> None:
    load = [request(), request(id="long one", prompt=7)]
    for mode in ("static", "continuous"):
        assert "long one" in three_modes.run(mode, LIMITS, COST, load)["error"]


@pytest.mark.parametrize("make", [decode_first_case, three_modes_case])
def test_loads_are_repeatable(make: Any) -> None:
    assert [make(seed) for seed in SEEDS] == [make(seed) for seed in SEEDS]


def test_decode_first_loads_reach_the_corners() -> None:
    reached = set()
    for seed in SEEDS:
        case = decode_first_case(seed)
        result = decode_first.run(case["limits"], case["requests"])
        assert len(result["trace"]) < NEVER
        reached |= decode_first_corners(case, result)
    assert reached == {
        "all_terminal", "iteration_limit", "rejection", "double preemption", "repeated victim",
        "idle iteration", "budget gone", "pending", "waiting", "active", "arrivals_first=False",
    }  # fmt: skip


def decode_first_corners(case: dict[str, Any], result: dict[str, Any]) -> set[str]:
    trace, jobs = result["trace"], result["requests"].values()
    budget = case["limits"]["max_num_batched_tokens"]
    corners = {
        "rejection": result["rejections"] > 0,
        "double preemption": any(len(record["preempted"]) > 1 for record in trace),
        "repeated victim": any(job["preemptions"] > 1 for job in jobs),
        "idle iteration": budget in result["unused_budget"],
        "budget gone": 0 in result["unused_budget"],
        "arrivals_first=False": not case["limits"].get("arrivals_first", True),
    }
    left_over = {job["result"] for job in jobs} - {"completed", "rejected"}
    return {name for name, seen in corners.items() if seen} | {result["termination"]} | left_over


def test_three_modes_loads_reach_the_corners() -> None:
    reached = set()
    for seed in SEEDS:
        case = three_modes_case(seed)
        for mode in three_modes.MODES:
            result = three_modes.run(mode, case["limits"], case["cost"], case["requests"])
            reached |= three_modes_corners(mode, case, result)
    corners = {"finished", "idle jump", "seats over budget"}
    expected = {(mode, corner) for mode in three_modes.MODES for corner in corners}
    assert reached == expected | {("static", "refused"), ("continuous", "refused")}


def three_modes_corners(mode: str, case: dict[str, Any], result: dict[str, Any]) -> set[tuple[str, str]]:
    if "error" in result:
        return {(mode, "refused")}
    trace, limits = result["trace"], case["limits"]
    corners = {(mode, "finished")}
    if any(step["end"] < following["start"] for step, following in itertools.pairwise(trace)):
        corners.add((mode, "idle jump"))
    if limits["max_num_seqs"] > limits["max_num_batched_tokens"]:
        corners.add((mode, "seats over budget"))
    return corners
