"""The built-in policies against the recorded examples, and against plain second readings of the rules."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
from loads import decode_first_case, three_modes_case
from reference import decode_first, three_modes

from batchlab.conform import decode_first as our_decode_first
from batchlab.conform import three_modes as our_three_modes
from batchlab.conform.cases import case_files, conform_case

EXAMPLES = Path(__file__).parents[2] / "shared" / "worked-examples"
FILES = [pytest.param(path, id=path.stem) for path in sorted(EXAMPLES.glob("*.json"))]
CORRUPTIONS = 60  # of each file

SEEDS = 2000
CHUNK = 100
CHUNKS = [pytest.param(range(start, start + CHUNK), id=f"seeds-{start}") for start in range(0, SEEDS, CHUNK)]

needs_examples = pytest.mark.skipif(not FILES, reason="the recorded examples are not here")


# Recorded examples


@needs_examples
@pytest.mark.parametrize("path", FILES)
def test_example_passes(path: Path) -> None:
    result = conform_case(path)
    assert result.difference is None, str(result.difference)
    assert result.name == json.loads(path.read_text(encoding="utf-8"))["name"]
    assert "iterations" in result.detail


@needs_examples
def test_a_folder_means_all_its_cases() -> None:
    assert case_files([EXAMPLES]) == sorted(EXAMPLES.glob("*.json"))


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all integers below a value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from numbers(inner, (*path, index))
    elif type(value) is int:
        yield path


def place_of(expected: dict[str, Any], path: tuple[Any, ...]) -> str:
    """Where a difference at this path has to be reported: iteration or request, and the field."""
    mode, path = (f"{path[0]}: ", path[1:]) if path[0] in three_modes.MODES else ("", path)
    within = expected[mode[:-2]] if mode else expected
    if path[0] == "trace":
        return f"{mode}iteration {path[1]}: {path[2]}"
    if path[0] == "requests" and isinstance(within["requests"], list):
        return f"{mode}request {path[1]}: {path[2]}"
    if path[0] == "requests":
        return f"requests: {path[1]}: {path[2]}"
    return f"{mode}{path[0]}"


def change(case: dict[str, Any], path: tuple[Any, ...], by: int) -> None:
    target = case["expected"]
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] += by


def check_corrupted(case: dict[str, Any], place: str, tmp_path: Path) -> None:
    file = tmp_path / "corrupted.json"
    file.write_text(json.dumps(case), encoding="utf-8")
    difference = conform_case(file).difference
    assert difference is not None, f"not noticed: {place}"
    assert difference.place == place
    assert difference.expected != difference.got
    assert str(difference).startswith(f"{place}: expected ") and ", got " in str(difference)


@needs_examples
@pytest.mark.parametrize("path", FILES)
def test_one_wrong_number_is_found(path: Path, tmp_path: Path) -> None:
    case = json.loads(path.read_text(encoding="utf-8"))
    places = list(numbers(case["expected"]))
    rng = Random(path.stem)
    for chosen in rng.sample(places, min(CORRUPTIONS, len(places))):
        corrupted = deepcopy(case)
        change(corrupted, chosen, rng.choice([-1, 1, 1000]))
        check_corrupted(corrupted, place_of(case["expected"], chosen), tmp_path)


def traces(expected: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for mode, result in [("", expected), *expected.items()]:
        if isinstance(result, dict) and "trace" in result:
            yield f"{mode}: " if mode else "", result["trace"]


@needs_examples
@pytest.mark.parametrize("path", FILES)
def test_one_wrong_entry_is_found(path: Path, tmp_path: Path) -> None:
    """Order counts, a number inside a text counts, and so does a missing or surplus iteration."""
    original = json.loads(path.read_text(encoding="utf-8"))
    for number, (mode, _) in enumerate(traces(original["expected"])):
        case = deepcopy(original)
        trace = list(traces(case["expected"]))[number][1]
        for index, record in enumerate(trace):
            for field in ("decode", "prefill", "queue", "active", "actions"):
                if len(record.get(field, ())) > 1:
                    record[field].reverse()
                    check_corrupted(case, f"{mode}iteration {index}: {field}", tmp_path)
                    record[field].reverse()
            if record.get("actions"):
                kept, record["actions"][0] = record["actions"][0], record["actions"][0] + "0"
                check_corrupted(case, f"{mode}iteration {index}: actions", tmp_path)
                record["actions"][0] = kept
        last = trace.pop()
        check_corrupted(case, f"{mode}number of iterations", tmp_path)
        trace += [last, last]
        check_corrupted(case, f"{mode}number of iterations", tmp_path)


@needs_examples
def test_a_refusal_and_a_run_are_not_confused(tmp_path: Path) -> None:
    case = json.loads((EXAMPLES / "three-modes-budget-8.json").read_text(encoding="utf-8"))
    run = deepcopy(case)
    run["expected"] = {"chunked": {"error": "too long"}}
    check_corrupted(run, "chunked: configuration", tmp_path)
    refused = deepcopy(case)
    refused["expected"] = {"static": case["expected"]["chunked"]}
    check_corrupted(refused, "static: configuration", tmp_path)


# Random loads against the references


@pytest.mark.parametrize("seeds", CHUNKS)
def test_decode_first_agrees_with_its_reference(seeds: range) -> None:
    for seed in seeds:
        case = decode_first_case(seed)
        case["expected"] = decode_first.run(case["limits"], case["requests"])
        detail, difference = our_decode_first.run_case(case)
        assert difference is None, f"seed {seed}: {difference}"
        count = len(case["expected"]["trace"])
        assert detail.startswith("1 iteration," if count == 1 else f"{count} iterations,")


@pytest.mark.parametrize("seeds", CHUNKS)
def test_three_modes_agree_with_their_reference(seeds: range) -> None:
    for seed in seeds:
        case = three_modes_case(seed)
        case["expected"] = {
            mode: three_modes.run(mode, case["limits"], case["cost"], case["requests"]) for mode in three_modes.MODES
        }
        detail, difference = our_three_modes.run_case(case)
        assert difference is None, f"seed {seed}: {difference}"
        assert all(mode in detail for mode in three_modes.MODES)
