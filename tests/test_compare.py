"""batchlab compare: which variants, what it prints about each, and how it ends."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from batchlab import compare
from batchlab.cli import main
from batchlab.cli.scenario_options import split_values
from batchlab.cli.side_by_side import blocks, print_comparison

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
PREEMPTION = ROOT / "examples" / "priority-preemption.toml"
MODES = ROOT / "examples" / "three-modes.toml"
CASES = ROOT.parent / "shared" / "worked-examples"
CHUNK = "engine.prefill_chunk"
SWITCH = "engine.priority_preemption"
LATE_D = "workload.requests.D.arrival"

needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the recorded examples are not here")

STUCK = """
class Stuck:
    def plan(self, view, batch):
        return "sulking"


class Faulty:
    def plan(self, view, batch):
        raise ValueError("lost the plan")
"""

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run the command in this process: exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["batchlab", "compare", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return (code or 0, *capsys.readouterr())

    return run


def cells(printed: str, label: str) -> list[str]:
    """The cells of the first row with this label, without stars."""
    row = next(line for line in printed.splitlines() if re.match(rf" *{re.escape(label)}  ", line))
    return re.split(r"  +", row.replace("*", "").strip())[1:]


def case(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))
    return found


def summaries(call: Call, *arguments: object) -> list[dict[str, Any]]:
    _, printed, _ = call(*arguments, "--json")
    return [variant["summary"] for variant in json.loads(printed)["variants"]]


def assert_decode_first(summary: dict[str, Any], expected: dict[str, Any]) -> None:
    assert summary["termination"] == expected["termination"]
    assert summary["iterations"] == len(expected["trace"])
    totals = summary["totals"]
    assert totals["max_queue_length"] == expected["max_queue_length"]
    assert totals["preemptions"] == expected["preemptions"]
    assert sum(totals["rejections"].values()) == expected["rejections"]
    assert totals["unused_budget"] == sum(expected["unused_budget"])
    assert summary.get("unused_per_iteration", expected["unused_budget"]) == expected["unused_budget"]
    got = {entry["id"]: {key: entry[key] for key in expected["requests"]["A"]} for entry in summary["requests"]}
    assert got == expected["requests"]


@needs_cases
def test_the_first_example_and_its_two_variants(call: Call) -> None:
    chunks = summaries(call, PREEMPTION, "--set", f"{CHUNK}=3,6")
    switched = summaries(call, PREEMPTION, "--set", f"{SWITCH}=true,false")
    for summary, name in zip((*chunks, *switched), ("baseline", "chunk-6", "baseline", "no-preemption"), strict=True):
        assert_decode_first(summary, case(f"decode-first-{name}")["expected"])


@needs_cases
@pytest.mark.parametrize("name", ["overload", "overload-high-priority"])
def test_overload(call: Call, name: str) -> None:
    recorded = case(f"decode-first-{name}{'-when-full' if 'high' in name else ''}")
    (summary,) = summaries(call, ROOT / "examples" / f"{name}.toml")
    assert_decode_first(summary, recorded["expected"])
    given = {entry["id"]: entry for entry in recorded["requests"]}
    assert [entry["id"] for entry in summary["requests"]] == list(given)
    for entry in summary["requests"]:
        assert (entry["arrival"], entry["prompt"], entry["output"]) == tuple(
            given[entry["id"]][key] for key in ("arrival", "prompt", "output")
        )


@needs_cases
@pytest.mark.parametrize("chunk", [2, 4, 8])
def test_the_second_example_in_print(call: Call, chunk: int) -> None:
    expected = case("three-modes" if chunk == 4 else f"three-modes-chunk-{chunk}")["expected"]
    code, printed, _ = call(MODES, "--chunk-size", chunk)
    assert code == 0
    assert cells(printed, "policy") == ["static", "continuous", "chunked"]
    for position, mode in enumerate(expected):
        for request in expected[mode]["requests"]:
            shown = [int(part) for part in re.findall(r"\d+", _column(printed, request["name"], position))]
            assert shown == [request["ttft"], request["e2e"], request["max_itl"]]
    assert cells(printed, "end time") == [str(expected[mode]["finish"]) for mode in expected]


def _column(printed: str, label: str, position: int) -> str:
    """What stands in a column of a row, found by the place of the column's number in the first line of the table."""
    lines = printed.splitlines()
    head = next(line for line in lines if re.match(r" +1 +2 +3", line))
    row = next(line for line in lines if line.startswith(f"  {label} "))
    starts = [*(match.start() for match in re.finditer(r"\d+", head)), len(row)]
    return row[starts[position] : starts[position + 1]]


@needs_cases
def test_refused_variants_stand_beside_those_that_run(call: Call) -> None:
    code, printed, _ = call(MODES, "--token-budget", 8)
    assert code == 1
    assert cells(printed, "ended") == ["refused", "refused", "all_terminal"]
    assert "request 'D': prompt: 12:" in printed
    finish = case("three-modes-budget-8")["expected"]["chunked"]["finish"]
    assert cells(printed, "end time") == ["-", "-", str(finish)]


def test_a_refused_variant_in_json(call: Call) -> None:
    code, printed, _ = call(MODES, "--mode", "static", "--token-budget", "8,16", "--json")
    first, second = json.loads(printed)["variants"]
    assert code == 1
    assert (first["ending"], first["summary"]) == ("refused", None)
    assert first["reason"].startswith("request 'D': prompt: 12")
    assert (second["ending"], second["reason"]) == ("all_terminal", None)


def test_the_product_has_policies_outermost_and_then_the_keys_in_order(call: Call) -> None:
    _, printed, _ = call(
        *(MODES, "--set", "engine.max_num_seqs=4,3", "--set", f"{LATE_D}=2,3", "--mode", "chunked,continuous", "--json")
    )
    settings = [variant["settings"] for variant in json.loads(printed)["variants"]]
    shown = [(s["policy"], s["engine.max_num_seqs"], s[LATE_D]) for s in settings]
    assert shown == [(p, seats, d) for p in ("chunked", "continuous") for seats in (4, 3) for d in (2, 3)]


def test_what_is_equal_is_told_once_and_what_differs_in_rows(call: Call) -> None:
    _, printed, _ = call(PREEMPTION, "--set", f"{CHUNK}=3,6")
    common, table = printed.split("\n\n", 1)
    assert "policy = decode-first (worked example 1), max_num_seqs = 2," in common
    assert "prefill_chunk" not in common
    assert cells(table, "prefill_chunk") == ["3", "6"]
    assert "max_num_seqs" not in table


def test_a_star_marks_what_differs_from_the_column_before(call: Call) -> None:
    _, printed, _ = call(PREEMPTION, "--set", f"{CHUNK}=3,6,6000")
    rows = {line[:26].strip(): line[26:] for line in printed.splitlines()}
    assert rows["A"].split() == ["3", "5", "0*", "2*", "0", "2"]
    assert rows["C"].split() == ["1", "1", "1", "1", "1", "1"]
    assert rows["F"].split() == ["rejected"] * 3
    assert rows["prefill_chunk"].split() == ["3", "6*", "6000*"]


def test_it_warns_of_two_changes_at_once(call: Call) -> None:
    _, _, told = call(PREEMPTION, "--set", f"{CHUNK}=3,6", "--set", f"{SWITCH}=true,false")
    assert told == (
        f"batchlab: columns 2 and 3 differ in {CHUNK} and {SWITCH}: change one thing at a time to know the cause\n"
    )


def test_one_line_for_the_same_two_changes_in_several_places(call: Call) -> None:
    _, _, told = call(PREEMPTION, "--set", f"{CHUNK}=3,4,5", "--set", f"{SWITCH}=true,false")
    assert told.count("\n") == 1
    assert "columns 2 and 3, 4 and 5 differ in" in told


def test_a_policy_and_a_setting_that_both_have_are_two_things(call: Call) -> None:
    _, _, told = call(MODES, "--mode", "static,continuous", "--token-budget", "16,20")
    assert "columns 2 and 3 differ in policy and engine.max_num_batched_tokens:" in told


def test_settings_that_come_with_a_policy_are_no_second_thing(call: Call) -> None:
    code, printed, told = call(MODES, "--mode", "static,chunked", "--chunk-size", "2,4")
    assert code == 0
    assert cells(printed, "prefill_chunk") == ["-", "2", "4"]
    assert told == "batchlab: static has no engine.prefill_chunk: one column stands for all its values\n"


def test_policies_one_by_one_change_one_thing(call: Call) -> None:
    assert call(MODES)[2] == ""


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("3,6", ["3", "6"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ('"a\\",b",c', ['"a\\",b"', "c"]),
        ('"a\\\\",b', ['"a\\\\"', "b"]),
        ("'a\\',b", ["'a\\'", "b"]),
        ("[1,2],[3,[4,5]]", ["[1,2]", "[3,[4,5]]"]),
        ("{a=1,b=2},3", ["{a=1,b=2}", "3"]),
        ("['],',1],2", ["['],',1]", "2"]),
        ("7", ["7"]),
        ("1,", ["1", ""]),
    ],
)
def test_split_values(text: str, parts: list[str]) -> None:
    assert split_values(text) == parts


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", f"{CHUNK}=3,x"], f"--set {CHUNK}: 'x': must be an integer"),
        (["--set", f"{CHUNK}=3,"], "--set: 'engine.prefill_chunk=3,': a value between its commas is empty"),
        (["--set", "engine.prefil_chunk=3,6"], "unknown key (did you mean 'prefill_chunk'?)"),
        (["--set", f"{CHUNK}=3", "--chunk-size", "6"], f"--set {CHUNK}: given twice"),
        (["--set", f"{CHUNK}=3,6,3"], f"--set {CHUNK}: 3: given twice"),
        (["--policy", "decode-first,decode-first"], "--policy: 'decode-first': given twice"),
        (["--policy", "decode-first", "--set", "engine.policy=static"], "--policy says it too"),
        (["--policy", "decode-first,decode-last"], "engine.policy: 'decode-last'"),
        (["--set", "workload.requests.Z.arrival=1,2"], "--set workload.requests.Z.arrival: no request has the id 'Z'"),
        (["--set", "workload.requests.D.arrival=2,-1"], "--set workload.requests.D.arrival: -1: must be at least 0"),
        (["--set", "workload.requests.D.arival=2"], "unknown key (did you mean 'arrival'?)"),
    ],
)
def test_a_wrong_input_is_told_before_anything_runs(call: Call, arguments: list[str], said: str) -> None:
    code, printed, told = call(PREEMPTION, *arguments)
    assert code == 2
    assert printed == ""
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("chunks", [64, 65])
def test_at_most_64_variants(call: Call, chunks: int) -> None:
    code, printed, told = call(PREEMPTION, "--set", f"{CHUNK}={','.join(map(str, range(1, chunks + 1)))}")
    assert code == (0 if chunks == 64 else 2)
    assert bool(printed) == (chunks == 64)
    assert told == ("" if chunks == 64 else "batchlab: 65 variants are too many to compare: at most 64\n")


def test_the_files_policies_count_too(call: Call) -> None:
    code, _, told = call(MODES, "--set", f"{LATE_D}={','.join(map(str, range(22)))}")
    assert code == 2
    assert told == "batchlab: 66 variants are too many to compare: at most 64\n"


def test_policies_as_a_setting(call: Call) -> None:
    _, printed, _ = call(MODES, "--set", "engine.policy=continuous,chunked")
    assert cells(printed, "policy") == ["continuous", "chunked"]


def test_the_iteration_limit_is_exit_code_1(call: Call) -> None:
    code, printed, _ = call(PREEMPTION, "--set", "run.max_iterations=200,2")
    assert code == 1
    assert cells(printed, "ended") == ["all_terminal", "iteration_limit"]
    assert cells(printed, "pending requests") == ["0", "3"]
    assert cells(printed, "B") == ["1 2", "1 - active"]
    assert cells(printed, "D") == ["3 4", "pending"]


def test_a_policy_that_stalls_or_fails_takes_only_its_own_column(call: Call, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(STUCK, encoding="utf-8")
    code, printed, _ = call(MODES, "--policy", f"chunked,{own}:Stuck,{own}:Faulty", "--json")
    assert code == 1
    variants = json.loads(printed)["variants"]
    assert [variant["ending"] for variant in variants] == ["all_terminal", "stalled", "failed"]
    assert "sulking" in variants[1]["reason"]
    assert "lost the plan" in variants[2]["reason"]


def test_json_says_what_is_common_and_what_differs(call: Call) -> None:
    code, printed, _ = call(PREEMPTION, "--set", f"{CHUNK}=3,6", "--set", f"{SWITCH}=true,false", "--json")
    document = json.loads(printed)
    assert code == 0
    assert document["scenario"] == PREEMPTION.name
    assert document["common"]["engine.max_queue"] == 2
    assert document["variants"][3]["settings"] == {CHUNK: 6, SWITCH: False}
    assert len(document["warnings"]) == 1
    assert document["variants"][0]["summary"]["unused_per_iteration"] == [0, 3, 2, 2, 4, 4]


def test_many_requests_are_not_told_one_by_one(call: Call, tmp_path: Path) -> None:
    scenario = tmp_path / "many.toml"
    text = PREEMPTION.read_text(encoding="utf-8")
    more = "".join(f'{{ id = "M{i}", arrival = 9, prompt = 1, output = 1 }},\n' for i in range(25))
    scenario.write_text(text[: text.rindex("]")] + more + "]\n", encoding="utf-8")
    (summary,) = summaries(call, scenario)
    assert "requests" not in summary
    _, printed, _ = call(scenario)
    assert cells(printed, "E2E P99")
    assert "first output" not in printed
    assert cells(printed, "rejected requests") == ["22"]  # F, and of the 25 all but two seats' and two places'


def printed_at(width: int, tmp_path: Path) -> list[str]:
    plan = compare.plan(MODES, {CHUNK: [2, 4, 8], LATE_D: [2, 20]})
    outcomes = [compare.run_variant(variant) for variant in plan.variants]
    path = tmp_path / "out"
    with path.open("w", encoding="utf-8") as file:
        print_comparison(plan, outcomes, Console(file=file, width=width))
    return path.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 160, 400])
def test_a_narrow_terminal_gets_blocks_with_everything(tmp_path: Path, width: int) -> None:
    lines = printed_at(width, tmp_path)
    assert max(map(len, lines)) <= width
    heads = [line.split() for line in lines if re.fullmatch(r" {12,}\d+( +\d+)* *", line)]
    assert [number for head in heads for number in head] == [str(n) for n in range(1, 11)]
    assert len([line for line in lines if line.startswith("policy ")]) == len(heads)
    assert (len(heads) == 1) == (width == 400)
    assert not any("…" in line for line in lines)
    ends = [cell for line in lines if line.startswith("end time") for cell in line.split()[2:]]
    assert ends == ["34"] * 10


REFUSED = """
[engine]
policy = "tensorrt-llm"
max_batch_size = 2
max_num_tokens = 4
[cost]
model = "unit"
[workload]
requests = [{ id = "A", arrival = 0, prompt = 9, output = 2 }, { id = "B", arrival = 1, prompt = 12, output = 2 }]
"""


def test_a_long_reason_goes_on_below_its_own_beginning(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.toml").write_text(REFUSED, encoding="utf-8")
    monkeypatch.setattr("batchlab.cli.tables.PIPE_WIDTH", 60)
    _, printed, _ = call(tmp_path / "s.toml", "--set", "engine.max_num_tokens=4,5")
    lines = [line[:32].rstrip() for line in printed.splitlines()]
    for first in (place for place, line in enumerate(lines) if line == "rejected requests"):
        below = lines[first + 1 : lines.index("longest queue", first)]
        assert [line for line in below if not line.startswith("   ")] == ["  prompt exceeds"] * 2
        words = " ".join(" ".join(below).split())
        assert words == " ".join(
            f"prompt exceeds max_num_tokens = {budget} without enable_chunked_context" for budget in (4, 5)
        )
    assert max(map(len, printed.splitlines())) <= 60


def test_a_key_goes_by_its_shortest_ending_that_no_other_has() -> None:
    load = "workload.generate"
    assert compare.endings([f"{load}.output.max", f"{load}.prompt.max", f"{load}.output", "engine.policy"]) == {
        f"{load}.output.max": "output.max",
        f"{load}.prompt.max": "prompt.max",
        f"{load}.output": "output",
        "engine.policy": "policy",
    }
    assert compare.endings(["a.b.c", "b.c", "c"]) == {"a.b.c": "a.b.c", "b.c": "b.c", "c": "c"}  # all of it is shared


def test_blocks() -> None:
    assert blocks([10, 10, 10], 34) == [[0, 1, 2]]
    assert blocks([10, 10, 10], 33) == [[0, 1], [2]]
    assert blocks([10, 50, 10], 20) == [[0], [1], [2]]


FILE = """
title = "from a file"
[engine]
policy = "chunked"
max_num_seqs = 1
max_num_batched_tokens = 100
prefill_chunk = 100
[cost]
model = "linear"
unit = "ns"
prefill_token = 1_000_000
decode_token = 2_000_000
[workload]
format = "csv"
time_unit = "ms"
columns = { id = "id", arrival = "at", prompt = "prompt", output = "output" }
"""
ROWS = "id,at,prompt,output\na,0,10,1\nb,0,20,1\n"


def test_a_workload_file_is_told_by_its_latencies(call: Call, tmp_path: Path) -> None:
    """Two requests of 10 and 20 ms, one after the other and both at once: worked out by hand."""
    scenario, rows = tmp_path / "s.toml", tmp_path / "w.csv"
    scenario.write_text(FILE, encoding="utf-8")
    rows.write_text(ROWS, encoding="utf-8")
    code, printed, told = call(scenario, "--workload", rows, "--set", "engine.max_num_seqs=1,2")
    assert (code, told) == (0, "")
    assert cells(printed, "TTFT mean") == ["20.00", "30.00"]  # (10 + 30) / 2, (30 + 30) / 2
    assert cells(printed, "TTFT P50") == ["20.00", "30.00"]
    assert cells(printed, "queue time mean") == ["5.00", "0.00"]
    assert cells(printed, "TPOT mean") == ["-", "-"]
    assert cells(printed, "end time (ms)") == ["30.00", "30.00"]
    assert "2 requests over" in printed


def test_blocks_are_shown_as_they_were_set(call: Call) -> None:
    """vLLM keeps one block to itself; V0 did not. Both were given as many."""
    example = ROOT / "examples" / "priority-inversion.toml"
    code, printed, _ = call(example, "--policy", "vllm,vllm-v0", "--set", "engine.num_gpu_blocks=41", "--json")
    assert code == 0 and json.loads(printed)["common"]["engine.num_gpu_blocks"] == 41


def test_latencies_of_others_are_called_so(call: Call) -> None:
    """V0 refuses prompts that are longer than its token budget."""
    command = (ROOT / "examples" / "generated.toml", "--set", "engine.max_num_batched_tokens=512", "--json")
    _, printed, err = call(*command, "--policy", "vllm,vllm-v0")
    counts = [str(each["summary"]["results"]["completed"]) for each in json.loads(printed)["variants"]]
    assert len(set(counts)) == 2
    assert f"{' and '.join(counts)} requests were completed: latencies are not of the same ones" in err
    assert "not of the same ones" not in call(*command, "--policy", "vllm")[2]
