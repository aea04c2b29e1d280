"""`workload describe` as a user meets it, and the example of a generated load."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from batchlab.cli import main
from batchlab.errors import InputError
from batchlab.scenario import build, load

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
EXAMPLE = str(EXAMPLES / "generated.toml")
COLUMNS = ("--format", "csv", "--time-unit", "s", "--columns", "arrival=at,prompt=in,output=out")


@pytest.fixture
def call(capsys, monkeypatch):
    def called(*arguments):
        monkeypatch.setattr("sys.argv", ["batchlab", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return called


def test_a_file_by_itself(call, tmp_path):
    file = tmp_path / "w.csv"
    file.write_text("at,in,out\n0,10,1\n2,20,3\n4,30,5\n")
    code, out, err = call("workload", "describe", file, *COLUMNS, "--set", "transform.rate_scale=2")
    assert (code, err) == (0, "")
    assert re.search(r"^times divided by rate_scale 2$", out, re.MULTILINE)
    assert re.search(r"^rate +1 requests/s in the mean; 3 in the busiest minute$", out, re.MULTILINE)
    assert re.search(r"^gaps +CV 0\.000 \(constant\)$", out, re.MULTILINE)
    assert re.search(r"^prompt +20 +10 +20 +28 +29 +29\.8 +30 +60$", out, re.MULTILINE)
    code, out, _ = call("workload", "describe", file, *COLUMNS, "--json", "--set", "limit=2")
    found = json.loads(out)
    assert (found["requests"], found["span"], found["request_rate"]) == (2, 2 * 10**9, 0.5)
    assert found["steps"] == ["only the first 2 rows (limit = 2)"] and found["source"]["file"] == str(file)


def test_a_scenario_of_any_kind(call):
    for name in ("three-modes.toml", "closed-loop.toml", "generated.toml"):
        code, out, err = call("workload", "describe", ROOT / "examples" / name, "--json")
        assert (code, err) == (0, "")
        requests = load(ROOT / "examples" / name).runs[0].requests
        found = json.loads(out)
        assert found["requests"] == len(requests)
        assert found["prompt"]["total"] == sum(request.prompt for request in requests)
    code, out, _ = call("workload", "describe", EXAMPLE, "--set", "workload.generate.num_prompts=50", "--json")
    assert json.loads(out)["requests"] == 50


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("none.csv", *COLUMNS), "batchlab: none.csv: cannot be read: No such file or directory"),
        (("none.csv",), "batchlab: none.csv: --format: is missing; one of azure"),
        (("none.csv", "--format", "xls"), "batchlab: --format: 'xls': 'azure'"),
        (("none.csv", "--format", "csv", "--columns", "arrival"), "batchlab: --columns: 'arrival': must be such as"),
        (
            ("none.csv", "--format", "azure", "--set", "transform.smple=1"),
            "batchlab: workload.transform.smple: unknown key",
        ),
        (("none.csv", "--format", "azure", "--set", "file.x=1"), "batchlab: --set file.x: must be a key of [workload]"),
        (("none.csv", "--workload", "x"), "batchlab: --workload: 'x': only for a scenario"),
        ((EXAMPLE, "--format", "csv"), "batchlab: --format: 'csv': only for a workload file"),
        (
            (EXAMPLE, "--set", "workload.generate.seed=-1"),
            "batchlab: --set workload.generate.seed: -1: must be at least 0",
        ),
    ],
)
def test_what_is_wrong_is_one_line(call, arguments, expected):
    code, out, err = call("workload", "describe", *arguments)
    assert code == 2 and out == "" and err.startswith(expected) and err.count("\n") == 1


def test_the_example_runs_to_its_end(call):
    code, out, err = call("run", EXAMPLE, "--json")
    assert (code, err) == (0, "")
    (run,) = json.loads(out)["runs"]
    found = load(EXAMPLE).runs[0].requests
    assert run["termination"] == "all_terminal" and run["totals"]["decode_tokens"] == int(found.output.sum()) - 400
    computed = run["totals"]["prefill_tokens"] + run["totals"]["cached_tokens"]
    assert computed == int(found.prompt.sum()) and run["totals"]["preemptions"] == 0
    assert run["totals"]["cached_tokens"] > 0.55 * int(found.prompt.sum())


def test_what_the_manual_shows_can_be_generated():
    text = (ROOT / "docs" / "workloads.md").read_text(encoding="utf-8")
    shown = [block for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "workload.generate" in block]
    assert len(shown) == 2
    for block in shown:
        workload = tomllib.loads(block)["workload"]
        if "classes" in workload["generate"]:
            workload["generate"] |= {"num_prompts": 20, "seed": 1, "arrivals": "all-at-once"}
        cost = {"model": "linear", "unit": "ns", "per_iteration": 1}
        engine = {"policy": "chunked", "prefill_chunk": 4, "max_num_batched_tokens": 8}
        (run,) = build({"engine": engine, "cost": cost, "workload": workload}).runs
        assert len(run.requests) == workload["generate"]["num_prompts"]


@pytest.mark.parametrize(
    ("turns", "of"),
    [("", "requests"), ("turns = 4\nturn_gap = 5\n", "requests"), ("turns = 4\nthink_time = 5\n", "sessions")],
)
def test_a_rate_says_what_it_counts(call, tmp_path, turns, of):
    """Of turns that wait for answers nobody knows yet when they come: the rate is that of the first ones."""
    load = '[workload.generate]\nnum_prompts = 40\nseed = 1\narrivals = "constant"\nrequest_rate = 2\n'
    load += "prompt = 9\noutput = 1\n"
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        '[engine]\npolicy = "continuous"\nmax_num_seqs = 2\n'
        f'[cost]\nmodel = "linear"\nunit = "ns"\nper_iteration = 9\n{load}{turns}'
    )
    code, out, err = call("workload", "describe", scenario)
    assert (code, err) == (0, "")
    known = 10 if of == "sessions" else 40
    _, text, _ = call("workload", "describe", scenario, "--json")
    found = json.loads(text)
    assert (found["rate_of"], found["arrivals"], found["requests"]) == (of, known, 40)
    assert re.search(rf"^rate +\S+ {of}/s in the mean; {known} in the busiest minute$", out, re.MULTILINE)


def test_single_requests_are_no_sessions(call, tmp_path):
    """Of a load without turns nothing is said of sessions, even where its prompts begin alike."""
    text = "[engine]\npolicy = 'vllm'\nmax_num_seqs = 8\nmax_num_batched_tokens = 64\n"
    text += "[cost]\nmodel = 'linear'\nunit = 'ns'\nper_iteration = 1\n"
    text += "[workload.generate]\nnum_prompts = 40\nseed = 0\n"
    text += 'arrivals = "constant"\nrequest_rate = 1\nprompt = 10\noutput = 2\nshared_prefix = 5\n'
    for more, said in (("", ""), ("turns = 4\nturn_gap = 5\n", ", 10 sessions")):
        file = tmp_path / "s.toml"
        file.write_text(text + more)
        code, out, err = call("workload", "describe", file)
        assert code == 0, err
        assert re.search(rf"^shared +\S+ % of the prompt tokens came before{said}$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--columns", "arrival=at,prompt=in,output=out"], "ok.csv: --time-unit: is missing; csv needs it: 's', 'ms',"),
        (["--time-unit", "s"], "ok.csv: --columns: is missing: such as arrival=at,prompt=in,output=out"),
        (["--time-unit", "h"], "--time-unit: 'h': 's', 'ms', 'us', 'ns', 'timestamp' or 'unit'"),
        (["--time-unit", "s", "--columns", "arrival=at,prompt=in"], "--columns: output: is missing"),
        (["--set", "time_unit=h"], "workload.time_unit: 'h': 's', 'ms', 'us', 'ns', 'timestamp' or 'unit'"),
    ],
)
def test_an_error_names_the_option_that_is_wrong_or_missing(
    options: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ok.csv").write_text("at,in,out\n0,5,6\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["batchlab", "workload", "describe", "ok.csv", "--format", "csv", *options])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith(f"batchlab: {told}")


@pytest.mark.parametrize("value", [1, {"ttft": 100}, ["ttft:100"]])
def test_targets_of_a_class_that_are_no_text_are_told_how_to_write_them(value: object) -> None:
    document = tomllib.loads((EXAMPLES / "generated.toml").read_text(encoding="utf-8"))
    document["workload"]["generate"]["classes"][0]["goodput"] = value
    with pytest.raises(InputError, match=r"classes\[0\]\.goodput: .*must be a text, such as 'ttft:100 tpot:20'$"):
        build(document, folder=EXAMPLES)
