"""The verifier on KV blocks, prefix caches, steps in flight and clients who give up or come again.

The recorded steps of a real engine have to pass, and so has what the simulator makes of the same and of random loads;
each of many ways to break such a trace has to be caught by its rule.
"""

import copy
import io
import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from loads_vllm import decode_first_run, vllm_run
from trace_breaks import BREAKS, Lines, iterations

from batchlab.cli.commands import cli
from batchlab.clients.request import Request, TokenIdentity
from batchlab.clients.retry import Backoff
from batchlab.conform.convert import convert
from batchlab.conform.vllm import scenario_run
from batchlab.core.limits import Limits
from batchlab.costs.unit import Unit
from batchlab.errors import InputError, StalledError
from batchlab.metrics.fold import Summary
from batchlab.policies.decode_first import DecodeFirst
from batchlab.policies.vllm import Vllm
from batchlab.scenario import build
from batchlab.simulation import Run, simulate
from batchlab.trace.fields import check_line
from batchlab.trace.verify import MAX_VIOLATIONS, RULES, Report, verify
from batchlab.trace.write import TraceWriter

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
CASES = ROOT.parent / "shared" / "vllm-cases"
RECORDED = sorted(path.stem for path in CASES.glob("*.json"))
BROKEN = ["004", "020", "022", "039", "048", "051", "054", "071"]
SEEDS = 300

needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the recorded cases are not at hand")


@cache
def case(name: str) -> dict[str, Any]:
    return json.loads((CASES / f"{name}.json").read_text())


@cache
def converted(name: str) -> Lines:
    return [json.loads(json.dumps(line)) for line in convert(case(name))]


def simulated(run: Run) -> tuple[Lines, dict[str, Any]]:
    """The lines and the summary of a run."""
    file, summary = io.StringIO(), Summary()
    simulate(run, [summary, TraceWriter(file, summary)])
    return [json.loads(line) for line in file.getvalue().splitlines()], summary.document()


def check(tmp_path: Path, lines: Lines, summary: object = None) -> Report:
    path, other = tmp_path / "trace.jsonl", tmp_path / "summary.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if summary is None:
        return verify(path)
    other.write_text(json.dumps(summary))
    return verify(path, other)


def told(report: Report) -> list[str]:
    return [str(violation) for violation in report.violations]


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    return Draft202012Validator(json.loads((ROOT / "src" / "batchlab" / "trace" / "schema.json").read_text()))


# Small runs, each with something of its own


def request(id: str, arrival: int, prompt: int, output: int, **more: Any) -> Request:
    return Request(id, arrival, prompt, output, more.pop("max_tokens", output), more.pop("priority", 1), **more)


def vllm(requests: list[Request], limits: dict[str, Any], **settings: Any) -> Run:
    limits = {"max_num_seqs": 3, "max_num_batched_tokens": 8, "num_gpu_blocks": 6, "block_size": 2} | limits
    return Run(Vllm(**settings), Limits(**limits), Unit(idle="jump"), requests, engine="vllm", deadlines="drop")


def alike(index: int, prompt: int) -> TokenIdentity:
    return TokenIdentity(((0, 0, min(prompt, 6)), (10 + index, 0, max(prompt - 6, 0))), 50 + index)


def blocks() -> Run:
    """Three grow until the last one in has to go."""
    return vllm([request("A", 0, 4, 5), request("B", 0, 3, 5), request("C", 1, 1, 3), request("D", 9, 2, 2)], {})


def swapped() -> Run:
    return vllm([request("A", 0, 4, 5), request("B", 0, 3, 5), request("C", 1, 1, 3)], {}, preemption_mode="swap")


def alike_prompts() -> Run:
    sizes = [(8, 3), (8, 3), (6, 2), (8, 4)]
    loads = [request(f"r{n}", n, *size, tokens=alike(n, size[0])) for n, size in enumerate(sizes)]
    return vllm(loads, {"enable_prefix_caching": True, "num_gpu_blocks": 9})


def in_flight() -> Run:
    """B is preempted while its token is on its way; everybody has gone before C's last batch is delivered."""
    loads = [request("A", 0, 4, 6), request("B", 0, 3, 5), request("C", 20, 2, 9, cancel_at=24)]
    return vllm(loads, {"num_gpu_blocks": 5}, async_scheduling=True)


def given_up() -> Run:
    loads = [
        request("A", 0, 2, 9, cancel_at=4),
        request("B", 0, 2, 9, deadline=6),
        request("C", 1, 2, 3),
        request("D", 1, 2, 3, cancel_at=2),
    ]
    return vllm(loads, {"num_gpu_blocks": 20, "max_num_seqs": 2})


def coming_again() -> Run:
    """One seat, one place to wait: the others come up to three times."""
    loads = [request(id, 0, 2, 6) for id in "ABCD"] + [request("E", 1, 2, 2, cancel_at=3)]
    limits = Limits(max_num_seqs=1, max_num_batched_tokens=4, max_queue=1)
    return Run(DecodeFirst(prefill_chunk=4), limits, Unit(), loads, 200, engine="decode-first", retry=Backoff(3, 2, 2))


def refused() -> Run:
    return vllm([request(id, 0, 2, 6) for id in "ABC"], {}, max_num_queued_reqs=2)


def in_sessions() -> Run:
    """Turns that wait for the answer before them."""
    numbers = {"prompt": 6, "output": 3, "turns": 3, "think_time": 20}
    generate = {"num_prompts": 12, "seed": 1, "arrivals": "poisson", "request_rate": 0.05, **numbers}
    engine: dict[str, Any] = {"policy": "vllm", "max_num_seqs": 3, "max_num_batched_tokens": 8}
    engine |= {"num_gpu_blocks": 40, "block_size": 4, "enable_prefix_caching": True}
    cost = {"model": "linear", "unit": "cost unit", "per_iteration": 3, "decode_token": 1}
    return build({"engine": engine, "cost": cost, "workload": {"generate": generate}}).runs[0]


SMALL: dict[str, Callable[[], Run]] = {
    make.__name__.replace("_", "-"): make
    for make in (blocks, swapped, alike_prompts, in_flight, given_up, coming_again, refused, in_sessions)
}


@cache
def small(name: str) -> Lines:
    return simulated(SMALL[name]())[0]


# What is right passes


@needs_cases
def test_all_recorded_cases_are_here() -> None:
    assert len(RECORDED) == 32 and set(BROKEN) <= set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_steps_keep_every_rule(name: str, tmp_path: Path, schema: Draft202012Validator) -> None:
    lines = converted(name)
    for line in lines:
        schema.validate(line)
    report = check(tmp_path, lines)
    assert told(report) == [] and report.stopped is None
    assert report.iterations >= len(case(name)["trace"])
    assert lines[-1]["results"].get("completed", 0) == sum(len(step["finished"]) for step in case(name)["trace"])


@pytest.mark.parametrize("name", RECORDED)
def test_simulated_steps_are_the_recorded_ones(name: str, tmp_path: Path) -> None:
    lines, summary = simulated(scenario_run(case(name)["scenario"]))
    assert told(check(tmp_path, lines, summary)) == []
    spoken = ("idle", "note")  # in the engine's words, or ours
    ours, theirs = (
        [{k: v for k, v in line.items() if k not in spoken} for line in x] for x in (lines, converted(name))
    )
    assert ours == theirs


@pytest.mark.parametrize("name", SMALL)
def test_small_runs_keep_every_rule(name: str, tmp_path: Path, schema: Draft202012Validator) -> None:
    lines, summary = simulated(SMALL[name]())
    for line in lines:
        schema.validate(line)
    assert told(check(tmp_path, lines, summary)) == []


@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("make", [vllm_run, decode_first_run])
def test_random_runs_keep_every_rule(
    make: Callable[[int], Run], part: int, tmp_path: Path, schema: Draft202012Validator
) -> None:
    finished = 0
    for seed in range(part, SEEDS, 10):
        try:
            lines, summary = simulated(make(seed))
        except StalledError:
            continue
        finished += 1
        assert told(check(tmp_path, lines, summary)) == [], f"{make.__name__} seed {seed}"
        schema.validate(lines[0])
        schema.validate(lines[len(lines) // 2])
    assert finished > 0.8 * SEEDS / 10


def test_random_runs_reach_the_corners() -> None:
    reached: Counter[str] = Counter()
    for seed in range(SEEDS):
        for make in (vllm_run, decode_first_run):
            try:
                lines, summary = simulated(make(seed))
            except StalledError:
                continue
            reached.update(name for name, total in summary["totals"].items() if total)
            reached.update(summary["results"])
            everything = iterations(lines)
            reached["several in flight"] += lines[0]["steps_in_flight"] > 1
            reached["drain"] += any(line["idle"] == "drain" for line in everything)
            reached["discarded"] += any(line.get("discarded") for line in everything)
            reached["shed"] += any("shed" in entry["reason"] for line in everything for entry in line["rejected"])
            for line in everything:
                reached.update({f"{entry['mode']} {entry['place']}" for entry in line["preempted"]})
                parked = {entry["id"] for entry in line["preempted"]} & set(line["completed"])
                reached["completed while waiting"] += bool(parked)
    wanted = (
        *("cancelled", "expired", "failed", "rejected", "completed", "retries", "cached_tokens", "moved_blocks"),
        *("several in flight", "drain", "discarded", "shed", "completed while waiting", "recomputed_tokens"),
        *(f"{mode} {place}" for mode in ("keep", "recompute", "swap") for place in ("front", "key")),
    )
    assert {name: reached[name] for name in wanted if reached[name] < 2} == {}


# What is wrong is caught


@pytest.mark.parametrize("kind", BREAKS)
def test_a_break_is_caught(kind: str, tmp_path: Path) -> None:
    """In every small run in which it can happen, and it can in one at least."""
    assert sum([caught(kind, small(name), tmp_path) for name in SMALL]) > 0


@pytest.mark.parametrize("name", BROKEN if RECORDED else [])
def test_every_break_of_recorded_steps_is_caught(name: str, tmp_path: Path) -> None:
    broken = {BREAKS[kind].rule for kind in BREAKS if caught(kind, converted(name), tmp_path)}
    assert len(broken) >= 25, broken


def caught(kind: str, good: Lines, tmp_path: Path) -> bool:
    """Whether the break applies to this trace; where it does, its rule must be told."""
    lines = copy.deepcopy(good)
    if not BREAKS[kind].edit(lines):
        return False
    assert lines != good, "nothing was changed"
    report = check(tmp_path, lines)
    assert BREAKS[kind].rule in {violation.rule for violation in report.violations}, told(report)
    return True


def test_every_rule_has_its_break() -> None:
    assert len(BREAKS) >= 60
    assert {entry.rule for entry in BREAKS.values()} | {"summary"} == set(RULES)


@pytest.mark.parametrize("name", SMALL)
def test_fields_are_checked_for_type_and_presence_as_the_schema_does(name: str, schema: Draft202012Validator) -> None:
    lines = small(name)
    shown: dict[Any, dict[str, Any]] = {}
    for line in lines:
        if line["type"] == "iteration":
            for field in line:
                if line[field]:
                    shown.setdefault(field, line)
        else:
            shown[line["type"]] = line
    for line in {id(line): line for line in shown.values()}.values():
        for path in _paths(line):
            for value in (None, "", -1, 1.5, [], {}, [[]], True, "absent"):
                broken = copy.deepcopy(line)
                target = _at(broken, path[:-1])
                if value == "absent" and isinstance(target, dict):
                    del target[path[-1]]
                else:
                    target[path[-1]] = value
                assert bool(check_line(broken)) == (not schema.is_valid(broken)), (path, value)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path] if path else []
    for step, inner in steps:
        found += _paths(inner, (*path, step))
    return found


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


# Commands


@needs_cases
def test_conform_writes_traces(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "traces"
    arguments = ["conform", str(CASES / "000.json"), str(CASES / "067.json"), "--write-traces", str(folder)]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0 and f"2 traces written to {folder}" in done.output
    assert sorted(path.name for path in folder.iterdir()) == ["000.jsonl", "067.jsonl"]
    assert [json.loads(line) for line in (folder / "067.jsonl").open()] == converted("067")
    checked = CliRunner().invoke(cli, ["verify", str(folder / "067.jsonl")])
    assert checked.exit_code == 0 and "every rule holds" in checked.output
    twice = CliRunner().invoke(cli, [*arguments[:2], *arguments[1:2], *arguments[3:]])
    assert isinstance(twice.exception, InputError) and "second case of this name" in str(twice.exception)


@needs_cases
def test_conform_writes_no_trace_of_a_broken_recording(tmp_path: Path) -> None:
    broken = copy.deepcopy(case("000"))
    del broken["trace"][2]["finished"]
    with pytest.raises(InputError, match="iteration 2: 'finished' is missing"):
        list(convert(broken))


def test_verify_says_when_it_stopped(tmp_path: Path) -> None:
    lines = copy.deepcopy(small("blocks"))
    lines[2]["extra"] = 1
    report = check(tmp_path, lines)
    assert report.stopped == "stopped at line 3: what follows cannot be judged"
    done = CliRunner().invoke(cli, ["verify", str(tmp_path / "trace.jsonl")])
    assert done.exit_code == 1 and "1 violation; stopped at line 3: what follows" in done.output
    as_json = CliRunner().invoke(cli, ["verify", str(tmp_path / "trace.jsonl"), "--json"])
    assert json.loads(as_json.output)["stopped"] == report.stopped
    many = [line | {"unused": -1} if line["type"] == "iteration" else line for line in small("blocks")]
    many = [many[0], *(line for _ in range(MAX_VIOLATIONS) for line in many[1:-1]), many[-1]]
    assert check(tmp_path, many).stopped == f"stopped after {MAX_VIOLATIONS} violations"
