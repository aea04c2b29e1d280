"""Sweeps: every combination once, the same figures as a run alone, and nothing lost or changed by a kill."""

import contextlib
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from plan_samples import SCENARIO
from rich.console import Console

from batchlab.cli.commands import cli
from batchlab.cli.sweep import _columns, _print_columns
from batchlab.errors import InputError
from batchlab.metrics.fold import Summary
from batchlab.plan import sweep as sweeping
from batchlab.plan import trial
from batchlab.plan.journal import Journal
from batchlab.plan.sweep import Sweep
from batchlab.plan.trial import Trial, row_of, run_of
from batchlab.simulation import simulate

pytestmark = pytest.mark.once

GRID = {"engine.max_num_batched_tokens": [16, 4, 64], "workload.generate.request_rate": [5, 40.5]}
SLO = "ttft:p99<=500ms,itl:p99<=6ms"


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return str(path)


def killed_after(count):
    """A `done` that is interrupted when so many rows are ready, as Ctrl-C would."""

    def done(ready, of):
        if ready == count:
            raise KeyboardInterrupt

    return done


def test_a_value_that_goes_with_some_of_the_others_is_no_slip(tmp_path):
    """70B needs two GPUs: in whatever order the numbers of them stand, one of these runs fails and the others run."""
    text = """
    [engine]
    policy = "vllm"
    max_num_seqs = 4
    max_num_batched_tokens = 512
    num_gpu_blocks = 200
    [cost]
    model = "roofline"
    gpu = "h100-sxm"
    llm = "llama-3.1-8b"
    [workload]
    requests = [{ id = "a", arrival = 0, prompt = 10, output = 2 }]
    """
    (tmp_path / "s.toml").write_text(text)
    grids = ["--grid=cost.llm=llama-3.1-70b,llama-3.1-8b", "--grid=cost.tensor_parallel=1,2", "--jobs=1"]
    for number, options in enumerate((grids, [grids[0], "--grid=cost.tensor_parallel=2,1", grids[2]])):
        out = tmp_path / f"{number}.parquet"
        result = CliRunner().invoke(cli, ["sweep", str(tmp_path / "s.toml"), *options, "-o", str(out), "--json"])
        assert result.exit_code == 1
        rows = json.loads(result.stdout)["rows"]
        failed = [row for row in rows if row.get("error")]
        assert [(row["cost.llm"], row["cost.tensor_parallel"]) for row in failed] == [("llama-3.1-70b", 1)]
        assert len(rows) == 4
    result = CliRunner().invoke(cli, ["sweep", str(tmp_path / "s.toml"), grids[0], "-o", str(tmp_path / "o.parquet")])
    assert isinstance(result.exception, InputError) and not (tmp_path / "o.parquet").exists()


@pytest.mark.parametrize("swapped", [False, True])
def test_what_is_wrong_with_the_others_excuses_no_slip(scenario, tmp_path, swapped):
    """Orca cannot run here whatever the seats are; that it fails for its own reason makes none of 0 seats."""
    grid = [("engine.policy", ["vllm", "orca"]), ("engine.max_num_seqs", [8, 0])]
    output = tmp_path / "t.parquet"
    with pytest.raises(InputError, match=r"^--grid engine\.max_num_seqs: 0: must be at least 1"):
        sweeping.run(Sweep(scenario, dict(reversed(grid) if swapped else grid)), output, 1)
    assert not output.exists()
    rows = sweeping.run(Sweep(scenario, dict([grid[0], ("engine.max_num_seqs", [8, 4])])), output, 1)
    assert [row["engine.policy"] for row in rows if row["error"]] == ["orca", "orca"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("swapped", [False, True])
def test_a_value_may_need_two_others(tmp_path, order, swapped):
    """70B in bf16 fits on two H100 and on nothing else here, whatever share of memory; of 8 runs 2 can run."""
    text = SCENARIO.replace("num_gpu_blocks = 100\n", "").partition("[cost]")[0]
    text += '[cost]\nmodel = "roofline"\ngpu = "l40s"\nllm = "llama-3.1-70b"\n'
    path = tmp_path / "s.toml"
    path.write_text(f"{text}[workload]\nrequests = [{{ id = 'a', arrival = 0, prompt = 10, output = 2 }}]\n")
    grid = [
        ("cost.gpu", ["l40s", "h100-sxm"]),
        ("cost.tensor_parallel", [1, 2]),
        ("engine.gpu_memory_utilization", [0.96, 0.97]),
    ]
    grid = {grid[place][0]: grid[place][1][:: -1 if swapped else 1] for place in order}
    rows = sweeping.run(Sweep(str(path), grid), tmp_path / "t.parquet", 1)
    assert len(rows) == 8
    assert all(
        (row["error"] is None) == (row["cost.gpu"] == "h100-sxm" and row["cost.tensor_parallel"] == 2) for row in rows
    )


@pytest.mark.parametrize("bad", range(4))
def test_only_a_run_without_any_error_excuses_a_value(scenario, tmp_path, bad):
    """Two keys with a bad value each, wherever they stand: one of them is named."""
    seats, budgets = ([0, 8] if bad & 1 else [8, 0]), ([64, -1] if bad & 2 else [-1, 64])
    grid = {"engine.max_num_seqs": seats, "engine.max_num_batched_tokens": budgets}
    with pytest.raises(InputError, match="must be at least"):
        sweeping.run(Sweep(scenario, grid), tmp_path / "t.parquet", 1)


@pytest.mark.parametrize("budgets", [[64], [4, 64]])
@pytest.mark.parametrize(
    ("key", "values", "told"),
    [
        ("engine.watermark", [0.1, 1.5], "1.5: must be a fraction, at least 0 and below 1"),
        ("engine.long_prefill_token_threshold", [-1], "-1: must be at least 0"),
    ],
)
def test_what_the_policy_refuses_whatever_the_others_are_is_refused_at_once(
    scenario, tmp_path, key, values, told, budgets
):
    """Also beside a budget below the 8 seats, which by itself is a failed row."""
    output = tmp_path / "t.parquet"
    grid = {key: values, "engine.max_num_batched_tokens": budgets}
    with pytest.raises(InputError) as refused:
        sweeping.run(Sweep(scenario, grid), output, 1)
    assert str(refused.value) == f"--grid {key}: {told}"
    assert list(tmp_path.glob("t.parquet*")) == []
    rows = sweeping.run(Sweep(scenario, {**grid, key: [0]}), output, 1)
    assert [row["error"] is not None for row in rows] == [budget < 8 for budget in budgets]


def test_what_is_wrong_with_every_run_is_told_once(scenario, tmp_path):
    output = tmp_path / "t.parquet"
    with pytest.raises(InputError, match=r"^--set engine\.watermark: 1\.5: must be a fraction"):
        sweeping.run(Sweep(scenario, {"engine.max_num_seqs": [4, 8]}, {"engine.watermark": 1.5}), output, 1)
    assert list(tmp_path.glob("t.parquet*")) == []


def test_no_combination_is_looked_at_twice(monkeypatch):
    """Of 20 x 20 those along the axes, then some of the rest; of 10 x 10 all."""
    for size, least in ((20, 300), (10, 100)):
        looked_at = []
        monkeypatch.setattr(trial, "_error_of", lambda one, to=looked_at: to.append(dict(one.overrides)))
        list(trial._errors_in(Trial("s.toml"), {"a": range(size), "b": range(size)}))
        found = [(one["a"], one["b"]) for one in looked_at]
        assert len(found) == len(set(found)) >= least
        assert {(0, n) for n in range(size)} | {(n, 0) for n in range(size)} <= set(found)


def test_every_combination_once_in_order(scenario, tmp_path):
    rows = sweeping.run(Sweep(scenario, GRID, slo=SLO), tmp_path / "t.parquet", 1)
    assert [tuple(row[key] for key in GRID) for row in rows] == list(itertools.product(*GRID.values()))
    table = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert len(table) == 6 and [row["request_rate"] for row in table] == [row.get("request_rate") for row in rows]
    assert not (tmp_path / "t.parquet.journal").exists()


def test_a_row_has_the_figures_of_run(scenario, tmp_path):
    settings = {"engine.max_num_batched_tokens": 16, "workload.generate.request_rate": 40.5}
    row = row_of(Trial(scenario, settings, slo=SLO))
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    alone = json.loads(CliRunner().invoke(cli, ["run", scenario, "--json", *sets]).stdout)["runs"][0]
    assert row["ttft.p99"] == alone["latency"]["ttft"]["p99"] == row["slo.ttft:p99"]
    assert row["itl.count"] == alone["latency"]["itl"]["count"] > 0
    assert row["output_token_rate"] == alone["throughput"]["output_token_rate"]
    assert row["totals.preemptions"] == alone["totals"]["preemptions"]
    assert row["results.completed"] == 60
    assert row["met"] == (row["ttft.p99"] <= 500e6 and row["itl.p99"] <= 6e6)


@pytest.mark.parametrize("seed", range(4))
def test_shares_and_goodput_by_plain_counting(scenario, seed):
    """Against every request's own times, with requests that are rejected in the denominator."""
    settings = {"workload.generate.seed": seed, "workload.generate.request_rate": 60, "engine.max_num_queued_reqs": 12}
    slo = "ttft:p90<=300ms,itl:p99<=5500us,e2el:mean<=900ms"
    row = row_of(Trial(scenario, settings, slo=slo))
    summary = Summary()
    run = run_of(Trial(scenario, settings))
    simulate(replace(run, inline=True), [summary])
    done = [one for one in summary.results if one.result == "completed"]
    assert 0 < len(done) < 60
    ttft = [one.first_time - one.request.arrival for one in done]
    e2el = [one.output_times[-1] - one.request.arrival for one in done]
    gaps = [np.diff(one.output_times) for one in done]
    assert row["attained.ttft:p90"] == sum(each <= 300e6 for each in ttft) / 60
    assert row["attained.e2el:mean"] == sum(each <= 900e6 for each in e2el) / 60
    pooled = np.concatenate(gaps)
    assert row["attained.itl:p99"] == (pooled <= 5.5e6).sum() / len(pooled)
    tpot = [each.mean() if len(each) else 0 for each in gaps]
    good = sum(a <= 300e6 and b <= 900e6 and c <= 5.5e6 for a, b, c in zip(ttft, e2el, tpot, strict=True))
    assert row["attainment"] == good / 60 and 0 < good < len(done)
    span = max(one.output_times[-1] for one in done) - min(one.request.arrival for one in summary.results)
    assert row["goodput"] == pytest.approx(good * 1e9 / span, rel=1e-12)
    given = row_of(Trial(scenario, settings, slo="attainment>=10%", goodput=("ttft:300", "tpot:5.5")))
    good = sum(a <= 300e6 and c <= 5.5e6 for a, c in zip(ttft, tpot, strict=True))
    assert given["attainment"] == given["slo.attainment"] == good / 60 and given["met"] == (good >= 6)


def test_the_file_says_what_it_holds(scenario, tmp_path):
    sweep = Sweep(scenario, GRID, {"engine.max_num_seqs": 4}, slo=SLO, goodput=("ttft:500",))
    sweeping.run(sweep, tmp_path / "t.parquet", 1)
    schema = pq.read_schema(tmp_path / "t.parquet")
    about = {key.decode(): value.decode() for key, value in schema.metadata.items()}
    assert json.loads(about["settings"]) == {"engine.max_num_seqs": 4} and json.loads(about["varied"]) == list(GRID)
    assert about["scenario"] == "scenario.toml" and about["slo"] == SLO and json.loads(about["goodput"]) == ["ttft:500"]
    ttft, itl = json.loads(about["objectives"])
    assert (ttft["figure"], ttft["bound"], ttft["unit"]) == ("ttft:p99", 500e6, "ns") and itl["metric"] == "itl"
    units = {field.name: (field.metadata or {}).get(b"unit", b"").decode() for field in schema}
    assert units["ttft.p99"] == units["slo.ttft:p99"] == units["time"] == "ns"
    assert units["goodput"] == units["request_rate"] == "1/s" and units["attained.itl:p99"] == "1"
    assert units["itl.count"] == units["met"] == units["engine.max_num_batched_tokens"] == ""


def test_a_narrow_terminal_loses_nothing(scenario, tmp_path):
    """Every figure of the wide table stands in the folded one too."""
    rows = sweeping.run(Sweep(scenario, GRID, slo=SLO + ",e2el:p90<=9s,tpot:mean<=6ms"), tmp_path / "t.parquet", 1)
    columns = _columns(rows, list(GRID), SLO)
    printed = {}
    for width in (60, 80, 120, 300):
        out = Console(file=io.StringIO(), width=width)
        _print_columns(out, columns, len(GRID))
        text = out.file.getvalue()
        printed[width] = text.split()
        assert max(map(len, text.splitlines())) <= width and "…" not in text
    for width in (60, 80, 120):
        assert all(cell in printed[width] for cell in printed[300] if "." in cell or cell in ("yes", "no"))


FOUR = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "long_prefill_token_threshold")


@pytest.mark.parametrize("count", range(6))
@pytest.mark.parametrize("torn", [b"", b'{"number": 5, "row": {"error"', b'{"number": 5, "row": {"error": "x"}}'])
def test_killed_and_resumed_is_the_same_file(scenario, tmp_path, count, torn):
    whole, parts = tmp_path / "whole.parquet", tmp_path / "parts.parquet"
    asked = Sweep(scenario, GRID, slo=SLO)
    sweeping.run(asked, whole, 1)
    with pytest.raises(KeyboardInterrupt):
        sweeping.run(asked, parts, 1, killed_after(count))
    assert not parts.exists()
    with open(f"{parts}.journal", "ab") as journal:
        journal.write(torn)  # a line without an end was not finished, even if it reads well
    told = []
    sweeping.run(asked, parts, 1, lambda ready, of: told.append((ready, of)))
    assert told == [(ready, 6) for ready in range(count, 7)]  # finished rows were not run again
    assert parts.read_bytes() == whole.read_bytes()


def test_every_cut_of_a_journal_is_read(tmp_path):
    path = tmp_path / "journal"
    with Journal(path, "d") as journal:
        for number in range(3):
            journal.add(number, {"value": number / 3})
    data = path.read_bytes()
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        with Journal(path, "d") as journal:
            lines = data[:size].count(b"\n")
            assert journal.rows == {number: {"value": number / 3} for number in range(max(0, lines - 1))}
            journal.add(9, {})
        with Journal(path, "d") as journal:
            assert 9 in journal.rows and len(journal.rows) == max(1, lines)


def test_several_processes_give_the_same_file(scenario, tmp_path):
    for jobs in (1, 2):
        sweeping.run(Sweep(scenario, GRID), tmp_path / f"{jobs}.parquet", jobs)
    assert (tmp_path / "1.parquet").read_bytes() == (tmp_path / "2.parquet").read_bytes()


def test_a_sample_is_a_part_of_the_grid(scenario):
    everything = Sweep(scenario, GRID).combinations()
    for seed, size in itertools.product(range(4), range(1, 8)):
        some = Sweep(scenario, GRID, sample=size, seed=seed).combinations()
        assert len(some) == min(size, 6)
        assert some == [one for one in everything if one in some]
    seen = {json.dumps(Sweep(scenario, GRID, sample=2, seed=seed).combinations()) for seed in range(30)}
    assert len(seen) > 5


def test_a_sample_looks_at_no_values_that_it_does_not_run(scenario, tmp_path, monkeypatch):
    looked_at = []
    monkeypatch.setattr(sweeping, "refuse_bad_values", lambda trial, values: looked_at.append(values))
    grid = {"engine.max_num_batched_tokens": range(16, 9000), "workload.generate.request_rate": [5, 40.5]}
    rows = sweeping.run(Sweep(scenario, grid, sample=2), tmp_path / "t.parquet", 1)
    assert looked_at == [{key: list(dict.fromkeys(row[key] for row in rows)) for key in grid}]


def test_objectives_may_fit_the_clock_of_some_runs_only(scenario, tmp_path):
    rows = sweeping.run(Sweep(scenario, {"cost.unit": ["ns", "cost unit"]}, slo=SLO), tmp_path / "t.parquet", 1)
    assert [row["error"] is None for row in rows] == [True, False]
    assert "the clock counts in cost units" in rows[1]["error"]


def test_a_journal_belongs_to_one_sweep(scenario, tmp_path):
    output = tmp_path / "t.parquet"
    with pytest.raises(KeyboardInterrupt):
        sweeping.run(Sweep(scenario, GRID), output, 1, killed_after(2))
    for other in (Sweep(scenario, GRID, slo=SLO), Sweep(scenario, {**GRID, "engine.max_num_seqs": [8]})):
        with pytest.raises(InputError, match="another sweep"):
            sweeping.run(other, output, 1)
    Path(scenario).write_text(SCENARIO.replace("seed = 3", "seed = 4"))
    with pytest.raises(InputError, match="another sweep"):
        sweeping.run(Sweep(scenario, GRID), output, 1)


def test_the_digest_knows_the_files_that_are_named(tmp_path):
    head = SCENARIO.split("[workload")[0]
    rows = tmp_path / "load.jsonl"
    path = tmp_path / "s.toml"
    path.write_text(f'{head}[workload]\nfile = "load.jsonl"\nformat = "llmservingsim"\n')
    digests = []
    for tokens in (5, 6):
        rows.write_text(json.dumps({"arrival_time_ns": 0, "input_toks": tokens, "output_toks": 2}) + "\n")
        digests.append(Sweep(str(path), GRID).digest())
        assert digests[-1] == Sweep(str(path), GRID).digest()
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    ("files", "overrides", "changed"),
    [
        ({"cost.toml": '[cost]\nmodel = "table"\nfile = "t.csv"\n'}, {"cost.from": "cost.toml"}, "t.csv"),
        ({"sub/cost.toml": '[cost]\nfile = "t.csv"\n'}, {"cost.from": "sub/cost.toml"}, "sub/t.csv"),
        ({"sub/cost.toml": '[cost]\nprofile = "p"\n'}, {"cost.from": "sub/cost.toml"}, "sub/p/skew.csv"),
        ({"sub/cost.toml": '[cost]\nllm = "m/config.json"\n'}, {"cost.from": "sub/cost.toml"}, "sub/m/config.json"),
        ({"cost.toml": "[cost]\n"}, {"cost.from": "cost.toml"}, "cost.toml"),
        ({}, {"engine.policy": "mine.py:Own"}, "mine.py"),
        ({}, {"engine.policy": "mine.py"}, "mine.py"),
        ({"mine.py": "import sub.order\n"}, {"engine.policy": "mine.py:Own"}, "sub/order.py"),
        ({"mine.py": "from order import key\n"}, {"engine.policy": "mine.py:Own"}, "order.py"),
        ({"mine.py": "W = open('w.json').read()\n"}, {"engine.policy": "mine.py:Own"}, "w.json"),
        ({"mine.py": "from order import key\n", "order.py": "W = 'w.json'\n"}, {"engine.policy": "mine.py"}, "w.json"),
        ({}, {"workload.classes": [{"prompt": {"file": "lengths.csv"}}]}, "lengths.csv"),
        ({"a.toml": 'b = "../x/a.toml"\nc = "t.csv"\n'}, {"cost.from": "a.toml"}, "t.csv"),  # round in a circle
    ],
)
def test_the_digest_knows_what_named_files_name(tmp_path, monkeypatch, files, overrides, changed):
    folder = tmp_path / "x"
    for name, text in {"s.toml": SCENARIO, **files, changed: files.get(changed, "1\n")}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    asked = Sweep("s.toml", GRID, overrides)
    before = asked.digest()
    (folder / "other.csv").write_text("1\n")
    assert asked.digest() == before
    (folder / changed).write_text(files.get(changed, "1\n") + "#\n")
    assert asked.digest() != before


def test_the_digest_knows_the_workload_file(scenario, tmp_path):
    load = tmp_path / "load.csv"
    load.write_text("1")
    before = Sweep(scenario, GRID, workload=str(load)).digest()
    load.write_text("2")
    assert Sweep(scenario, GRID, workload=str(load)).digest() != before


def test_a_bad_combination_is_a_row_and_exit_1(scenario, tmp_path):
    output = tmp_path / "t.parquet"
    grid = "--grid=engine.max_num_batched_tokens=4,16"
    result = CliRunner().invoke(cli, ["sweep", scenario, grid, "-o", str(output), "--jobs", "1", "--json"])
    assert result.exit_code == 1
    bad, good = json.loads(result.stdout)["rows"]
    told = "--grid engine.max_num_batched_tokens: 4: must be at least max_num_seqs = 8"  # the option as it was typed
    assert bad["error"] == told and good["error"] is None
    assert pq.read_table(output).column("error").to_pylist() == [bad["error"], None]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid=engine.max_num_seqs=1,1"], "--grid engine.max_num_seqs: 1: given twice"),
        (["--grid=engine.max_num_seqs"], "--grid: 'engine.max_num_seqs': must be"),
        (["--grid=engine.max_num_seqs=2,"], "--grid: 'engine.max_num_seqs=2,': a value between its commas is empty"),
        (["--grid=engine.=1,2"], "--grid engine.: is no SECTION.KEY, a name beside a dot is missing; must be"),
        (["--grid=zz=1,2"], "--grid zz: is no SECTION.KEY; must be"),
        (["--grid=engine.max_num_seqs=1,2", "--set=engine.max_model_len=0"], "--set engine.max_model_len: 0: must be"),
        (["--grid=engine.max_num_seqs=1", "--seed=3"], "--seed: 3: needs --sample"),
        (["--grid=engine.max_num_seqs=1", "--set=engine.max_num_seqs=2"], "--grid has this key too"),
        (["--grid=engine.max_num_seqs=1", "--slo=ttft:p99"], "--slo"),
        (["--grid=engine.max_num_seqs=1", "--slo=attainment>=90%"], "attainment"),
        (
            ["--grid=engine.max_num_seqs=1,2", "--slo=ttft:p99<=5"],
            "--slo: 'ttft:p99<=5': needs a unit: s, ms, us or ns",
        ),
        (["--grid=engine.max_num_seqs=1", "-o", "nowhere/t.parquet"], "no such folder"),
        (["--grid=engine.max_num_seqs=1", "-o", f"{'x' * 250}.parquet"], ".parquet: cannot be written: File name too"),
        (["--grid=engine.max_num_seqs=1", "-o", f"{'x' * 240}.parquet"], ".journal: cannot be written: File name too"),
        (["--grid=engine.max_num_seqs=1", "-o", "t.csv"], "t.csv: must end in .parquet"),
        (["--grid=engine.max_num_seqs=8,0"], "--grid engine.max_num_seqs: 0: must be at least 1"),
        (["--grid=engine.max_num_seqs=8,4.5"], "--grid engine.max_num_seqs: 4.5: must be an integer"),
        (["--grid=engine.max_num_seqs=8,nan"], "--grid engine.max_num_seqs: nan: must be an integer"),
        (["--grid=engine.policy=vllm,vlm"], "--grid engine.policy: 'vlm': one of"),
        (["--grid=engine.policy=vllm,3"], "--grid engine.policy: 3: must be the name of one policy"),
        (["--grid=workload.generate.arrivals=poisson,gama"], "--grid workload.generate.arrivals: 'gama'"),
        (["--grid=cost.per_iteration=1,-1", "--grid=engine.max_num_seqs=1"], "--grid cost.per_iteration: -1"),
        (["--grid=engine.max_num_seqs=1", "--goodput", "ttft:x"], "must be METRIC:NUMBER"),
        (["--grid=engine.max_num_seq=1"], "--grid engine.max_num_seq: unknown key (did you mean 'max_num_seqs'?)"),
        (["--grid=engine.max_num_seqs=1", "-o", "/dev/null"], "/dev/null: cannot be written: it is no regular file"),
        ([f"--grid=engine.{k}={','.join(map(str, range(1, 51)))}" for k in FOUR], "6,250,000 runs are too many"),
    ],
)
def test_bad_input_is_one_line(scenario, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    output = [] if "-o" in arguments else ["-o", "t.parquet"]
    result = CliRunner().invoke(cli, ["sweep", scenario, "--jobs=1", *output, *arguments])
    assert isinstance(result.exception, InputError), result.output
    assert message in str(result.exception)
    assert sorted(os.listdir(tmp_path)) == ["scenario.toml"]


def test_a_foreign_journal_is_left_alone(scenario, tmp_path):
    for text in ("my notes\n", "my notes", '{"sweep": "x"}\n', '{"a": 1}\n'):
        (tmp_path / "t.parquet.journal").write_text(text)
        with pytest.raises(InputError, match="journal"):
            sweeping.run(Sweep(scenario, GRID), tmp_path / "t.parquet", 1)
        assert (tmp_path / "t.parquet.journal").read_text() == text


def test_what_is_wrong_with_every_combination_is_no_row(scenario, tmp_path):
    (tmp_path / "empty.csv").write_text("arrival,prompt,output\n")
    load = 'file = "empty.csv"\nformat = "csv"\ntime_unit = "ns"\n'
    load += 'columns = { arrival = "arrival", prompt = "prompt", output = "output" }\n'
    Path(scenario).write_text(SCENARIO.split("[workload")[0] + "[workload]\n" + load)
    with pytest.raises(InputError, match=r"empty\.csv: line 2: has a header line and no rows"):
        sweeping.run(Sweep(scenario, {"engine.max_num_seqs": [2, 4]}), tmp_path / "t.parquet", 1)
    assert not list(tmp_path.glob("t.parquet*"))
    one_good = {"workload.file": ["empty.csv", "good.csv"]}  # of which the other one runs: a result
    (tmp_path / "good.csv").write_text("arrival,prompt,output\n0,5,5\n")
    bad, good = sweeping.run(Sweep(scenario, one_good), tmp_path / "t.parquet", 1)
    assert "no rows" in bad["error"] and good["results.completed"] == 1


@pytest.mark.parametrize(
    "line",
    [
        '{"number": 1e400, "row": {}}',
        '{"number": 0, "row": {}}',
        '{"number": 99, "row": {"error": null}, "check": 0}',
        '{"number": 0, "row": [], "check": []}',
        "[" * 20_000,
        "[1, 2]",
        "null",
        "",
        "\xff",
    ],
)
def test_a_damaged_journal_is_one_error(scenario, tmp_path, line):
    output, journal = tmp_path / "t.parquet", tmp_path / "t.parquet.journal"
    with pytest.raises(KeyboardInterrupt):
        sweeping.run(Sweep(scenario, GRID), output, 1, killed_after(2))
    first, row, *_ = journal.read_bytes().splitlines(keepends=True)
    for number, damaged in (
        (2, [first, line.encode("latin-1") + b"\n"]),
        (3, [first, row, line.encode() + b"\n", row]),
    ):
        journal.write_bytes(b"".join(damaged))
        with pytest.raises(InputError) as told:
            sweeping.run(Sweep(scenario, GRID), output, 1)
        assert str(told.value) == f"{journal}: line {number}: is no line of a sweep's journal"


def test_a_changed_row_of_a_journal_is_no_row(scenario, tmp_path):
    """Every digit and letter of it: the figures and the number too; but for a last digit that makes no other number."""
    output, journal = tmp_path / "t.parquet", tmp_path / "t.parquet.journal"
    asked = Sweep(scenario, GRID)
    with pytest.raises(KeyboardInterrupt):
        sweeping.run(asked, output, 1, killed_after(1))
    first, row = journal.read_bytes().splitlines(keepends=True)
    refused = 0
    for place in (place for place, char in enumerate(row) if chr(char).isalnum()):
        changed = row[:place] + (b"3" if row[place] == ord("2") else b"2") + row[place + 1 :]
        journal.write_bytes(first + changed)
        try:
            same = json.loads(changed) == json.loads(row)
        except ValueError:
            same = False
        with contextlib.nullcontext() if same else pytest.raises(InputError, match="line 2: is no line of a sweep's j"):
            Journal(journal, asked.digest())
        refused += not same
    assert refused > 0.9 * sum(chr(char).isalnum() for char in row)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_process_killed_outright_is_resumed(scenario, tmp_path):
    rates, prompts = list(range(1, 31)), [120]
    asked = Sweep(scenario, {"workload.generate.request_rate": rates, "workload.generate.num_prompts": prompts})
    grid = [f"--grid={key}={','.join(map(str, values))}" for key, values in asked.grid.items()]
    command = [sys.executable, "-m", "batchlab", "sweep", scenario, *grid, "--jobs=2"]
    journal = tmp_path / "parts.parquet.journal"
    first = subprocess.Popen([*command, "-o", str(tmp_path / "parts.parquet")], stdout=subprocess.DEVNULL)
    while first.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < 3):
        time.sleep(0.005)
    first.kill()
    first.wait()
    assert not (tmp_path / "parts.parquet").exists(), "it was over before it could be killed"
    assert journal.read_bytes().count(b"\n") >= 3
    told = []
    sweeping.run(asked, tmp_path / "parts.parquet", 1, lambda ready, of: told.append(ready))
    assert told[0] >= 2
    sweeping.run(asked, tmp_path / "whole.parquet", 1)
    assert (tmp_path / "parts.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_runs_that_leave_the_fitted_range_say_so(tmp_path: Path) -> None:
    """Steps of 8 decodes, fitted to 1 and 2: sweep, tune and capacity say it as a single run does."""
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        '[engine]\npolicy = "vllm"\nmax_num_seqs = 8\nmax_num_batched_tokens = 512\n'
        '[cost]\nmodel = "linear"\nunit = "ns"\nper_iteration = 100_000_000\nfitted = { decodes = [1, 2] }\n'
        '[workload.generate]\nnum_prompts = 60\nseed = 1\narrivals = "poisson"\nrequest_rate = 5\n'
        'prompt = { distribution = "fixed", value = 100 }\noutput = { distribution = "fixed", value = 10 }\n'
    )
    said = CliRunner().invoke(cli, ["run", str(scenario)]).stderr
    remark = said.removeprefix("batchlab: ").strip()
    assert "steps lie outside the fitted decodes, 1 to 2" in remark
    output = tmp_path / "t.parquet"
    swept = CliRunner().invoke(
        cli, ["sweep", str(scenario), "--grid", "engine.max_num_seqs=8,9", "-o", str(output), "--jobs", "1"]
    )
    assert f"in 2 of 2 runs, as in the first of them: {remark}" in swept.stderr
    assert pq.read_table(output)["remarks"].to_pylist()[0] == remark
    tuned = CliRunner().invoke(
        cli, ["tune", str(scenario), "--slo", "ttft:p99<=9s", "--space", "engine.max_num_seqs=8,9", "--jobs", "1"]
    )
    assert f"in 2 of 2 runs, as in the first of them: {remark}" in tuned.stderr
    found = CliRunner().invoke(cli, ["capacity", str(scenario), "--slo", "ttft:p99<=9s", "--jobs", "1"])
    assert "at this rate" in found.stderr and "steps lie outside the fitted decodes, 1 to 2" in found.stderr


@pytest.mark.parametrize(
    ("units", "per"), [(["ns", "ns"], "/s"), (["cost unit"], "/cost unit"), (["ns", "cost unit"], "")]
)
def test_rates_are_called_so(units, per):
    rows = [{"error": None, "unit": unit, "request_rate": 1.5, "output_token_rate": 3.0} for unit in units]
    heads = [name for name in _columns(rows, [], None) if name.startswith(("requests", "output tokens"))]
    assert heads == [f"requests{per}", f"output tokens{per}"]
