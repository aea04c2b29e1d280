"""What a page tells of saved sweeps, tunings and capacities, against the files themselves."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from report_samples import PLANNED

from batchlab.cli.commands import cli
from batchlab.errors import InputError
from batchlab.report import saved
from batchlab.scenario import load

pytestmark = pytest.mark.once

pytest_plugins = ["report_samples"]

BOUNDS = {"ttft:p99<=500ms": ("ttft:p99", 500e6), "itl:p99<=50ms": ("itl:p99", 50e6)}


def test_attainment_of_a_sweep_is_what_its_table_has(planned_report: Path, folder: Path) -> None:
    found = saved.sweep(folder / "s.parquet")
    rows = pq.read_table(folder / "s.parquet").to_pylist()
    curves = {curve["name"]: curve["points"] for curve in found["attained"]}
    assert len(curves) == 2 * (len(BOUNDS) + 1)
    for budget in (64, 256):
        own = [row for row in rows if row["engine.max_num_batched_tokens"] == budget]
        assert len(own) == 2
        for text, (figure, bound) in BOUNDS.items():
            expected = [
                [row["workload.generate.request_rate"], row[f"attained.{figure}"], row[f"slo.{figure}"] <= bound]
                for row in own
            ]
            assert curves[f"{text}, max_num_batched_tokens = {budget}"] == expected
        together = curves[f"{saved.TOGETHER}, max_num_batched_tokens = {budget}"]
        assert together == [[row["workload.generate.request_rate"], row["attainment"], row["met"]] for row in own]
    assert all(0 <= share <= 1 for points in curves.values() for _, share, _ in points)
    assert not found["tuned"] and [axis["label"] for axis in found["axes"]] == [
        "Output tokens per s",
        "TTFT P99",
        "ITL P99",
    ]


def test_a_sweep_has_the_columns_of_the_terminal(planned_report: Path, folder: Path, tmp_path: Path) -> None:
    scenario, table = folder / "plan.toml", tmp_path / "t.parquet"
    slo = "ttft:p99<=30ms,attainment>=90%"
    asked = ("--grid", "engine.max_num_seqs=2,8", "--slo", slo, "--goodput", "ttft:30", "-o", str(table), "--jobs", "1")
    done = CliRunner().invoke(cli, ["sweep", str(scenario), *asked], env={"COLUMNS": "250"})
    assert done.exit_code == 0, done.output
    heads = re.split(r" {2,}", next(line for line in done.stdout.splitlines() if "TTFT p50" in line).strip())
    found = saved.sweep(table)
    assert ["max_num_seqs", *(heading for heading, _ in found["columns"]), "met"] == heads
    assert {"attainment", "in ttft:p99", "goodput"} <= set(heads)
    rows = pq.read_table(table).to_pylist()
    for place, cells in zip(found["listed"], found["cells"], strict=True):
        shown = dict(zip(heads[1:], cells, strict=False))
        assert shown["attainment"] == rows[place]["attainment"] and shown["TTFT p99"] == rows[place]["ttft.p99"]
        assert shown["in ttft:p99"] == rows[place]["attained.ttft:p99"] and shown["goodput"] == rows[place]["goodput"]


def test_a_tuning_is_shown_by_what_it_traded(planned_report: Path, folder: Path) -> None:
    found = saved.sweep(folder / "tuned.parquet")
    rows = pq.read_table(folder / "tuned.parquet").to_pylist()
    assert found["tuned"] and [axis["column"] for axis in found["axes"]] == [
        "output_token_rate",
        "slo.ttft:p99",
        "slo.itl:p99",
    ]
    assert [row["values"][0] for row in found["rows"]] == [row["output_token_rate"] for row in rows]
    marks = [row["mark"] for row in found["rows"]]
    assert marks[0] == "as it is" and marks.count("recommended") == sum(row["recommended"] for row in rows[1:])
    listed = set(found["listed"])
    assert listed == {0} | {place for place, row in enumerate(rows) if row["pareto"]}
    assert found["facts"]["maximize"] == "throughput" and found["facts"]["space.engine.max_num_seqs"] == "2, 8, 16"


def test_a_capacity_of_sessions_is_called_so(planned_report: Path, folder: Path, tmp_path: Path) -> None:
    table = pq.read_table(folder / "tuned.parquet")
    shown = {}
    for of in ("requests", "sessions"):
        about = {**table.schema.metadata, b"rate_of": of.encode()}
        axes = json.loads(about[b"axes"])
        axes[0]["column"] = "capacity"
        about[b"axes"] = json.dumps(axes).encode()
        path = tmp_path / f"{of}.parquet"
        rates = table.column("output_token_rate")
        pq.write_table(table.append_column("capacity", rates).replace_schema_metadata(about), path)
        found = saved.sweep(path)
        shown[of] = (found["axes"][0]["label"], found["columns"][0][0])
    assert shown == {of: (f"Capacity: {of} per s",) * 2 for of in ("requests", "sessions")}


def test_a_capacity_says_load_price_settings_and_every_rate_tried(planned_report: Path, folder: Path) -> None:
    document = json.loads((folder / "c.json").read_text(encoding="utf-8"))
    found = saved.capacity(folder / "c.json")
    met, tried = document["samples"][0]["met"], document["samples"][0]["tried"]
    assert found["load"] == {name: met[name] for name in ("requests", "span", "prompt_mean", "output_mean", "e2el")}
    hourly = met["offered"] * 3600 * met["output_mean"] / 1e6
    assert found["cost"]["per_million_output_tokens"] == pytest.approx(2.5 / hourly)
    curves = {curve["name"]: curve["points"] for curve in found["attained"]}
    for text, (figure, bound) in BOUNDS.items():
        assert curves[text] == [[p["rate"], p["attained"][figure], p["values"][figure] <= bound] for p in tried]
    assert curves[saved.TOGETHER] == [[p["rate"], p["attainment"], p["met"]] for p in tried]
    assert (found["facts"]["engine.max_num_seqs"], found["facts"]["cost.per_iteration"]) == ("8", "5000000")
    text = planned_report.read_text(encoding="utf-8").split('<script id="data"')[0]
    assert found["notes"] and all(f"<b>Uncertain:</b> {note}" in text for note in found["notes"])
    for said in ("per million output tokens", "1 GPU at 2.5 an hour", "Load at that rate", "cost.prefill_token"):
        assert said in text


def test_what_makes_a_capacity_uncertain_is_a_note(planned_report: Path, folder: Path, tmp_path: Path) -> None:
    document = json.loads((folder / "c.json").read_text(encoding="utf-8"))
    caveats = {"caveats": ["few\nrequests", "a short load"], "caveats_of_changes": ["shorter yet"]}
    more = {**caveats, "load": {"arrivals": "poisson", "requests": 60}}
    (tmp_path / "c.json").write_text(json.dumps(document | more), encoding="utf-8")
    found = saved.capacity(tmp_path / "c.json")
    assert found["notes"] == ["few\\nrequests", "a short load", "shorter yet"]
    assert (found["facts"]["load.arrivals"], found["facts"]["load.requests"]) == ("poisson", "60")
    assert not any(name.startswith("caveats") for name in found["facts"])


@pytest.mark.parametrize(
    "change",
    [
        {"answer": "no such sample"},
        {"samples": []},
        {"samples": 3},
        {"slo": 5},
        {"cost": {"gpu_price": "x"}},
        {"cost": 3},
        {"changes": None},
        {"settings": ["x"], "samples": [{"sample": "seed 3", "met": {}, "missed": None}]},
        {"capacity": -1},
        {"caveats": 3},
        {"caveats_of_changes": 3},
        {"of": 5},
        {"of": None},
        {"unit": True},
        {"binds": ["seats"]},
        {"capacity": True},
        {"interval": ["1", 2.0]},
        {"interval": [1.0, 10**400]},
        {"changes": [{"name": 5, "before": 1, "after": 2, "rate": 3.0}]},
    ],
)
def test_a_capacity_that_was_tampered_with_is_one_error(
    change: dict[str, object], planned_report: Path, folder: Path, tmp_path: Path
) -> None:
    document = json.loads((folder / "c.json").read_text(encoding="utf-8")) | change
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError) as error:
        saved.capacity(path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [{"met": "yes"}, {"met": 1.0}, {"rate": "5"}, {"attainment": "nan"}, {"attained": {"ttft:p99": [1]}}],
)
def test_a_try_of_a_capacity_that_was_tampered_with_is_one_error(
    change: dict[str, object], planned_report: Path, folder: Path, tmp_path: Path
) -> None:
    document = json.loads((folder / "c.json").read_text(encoding="utf-8"))
    for sample in document["samples"]:
        sample["tried"][0] |= change
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError) as error:
        saved.capacity(path)
    assert str(error.value).startswith(f"{path}: not what batchlab capacity --json prints: ")


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("column", "cells", "told"),
    [
        ("ttft.p99", [1.0, NAN, INF], "row 2: nan: must be a finite number"),
        ("itl.p99", [1.0, 2.0, INF], "row 3: inf: must be a finite number"),
        ("output_token_rate", ["a", "b", "c"], "row 1: 'a': must be a finite number"),
        ("ttft.p99", [[1], [2], [3]], "row 1: [1]: must be a finite number"),
        ("ttft.p99", [True, False, None], "row 1: True: must be a finite number"),
        ("slo.ttft:p99", [1.0, -INF, 2.0], "row 2: -inf: must be a finite number"),
        ("attained.itl:p99", ["1", "1", "1"], "row 1: '1': must be a finite number"),
        ("attainment", [0.5, None, NAN], "row 3: nan: must be a finite number"),
        ("totals.preemptions", ["a", "b", "c"], "row 1: 'a': must be a finite number"),
        ("workload.generate.request_rate", [1.0, 2.0, NAN], "row 3: nan: must be a finite number"),
        ("met", ["a", "b", "c"], "row 1: 'a': must be true or false"),
        ("met", [[True], [False], []], "row 1: [True]: must be true or false"),
        ("met", [1.0, NAN, INF], "row 1: 1.0: must be true or false"),
        ("met", [True, None, False], "row 2: must be true or false"),
        ("unit", [3, 4, 5], "row 1: 3: must be a text"),
        ("error", [1, None, None], "row 1: 1: must be a text"),
    ],
)
def test_a_table_that_was_tampered_with_is_one_error(
    column: str, cells: list[object], told: str, planned_report: Path, folder: Path, tmp_path: Path
) -> None:
    table = pq.read_table(folder / "s.parquet")
    values = pa.array(cells + [cells[-1]] * (table.num_rows - 3))
    place = table.column_names.index(column)
    pq.write_table(table.set_column(place, column, values), tmp_path / "t.parquet")
    with pytest.raises(InputError) as error:
        saved.sweep(tmp_path / "t.parquet")
    assert str(error.value) == f"{tmp_path / 't.parquet'}: column {column}, {told}"


@pytest.mark.parametrize("column", ["unit", "totals.preemptions", "error"])
def test_a_table_without_a_column_is_one_error(column: str, planned_report: Path, folder: Path, tmp_path: Path) -> None:
    pq.write_table(pq.read_table(folder / "s.parquet").drop_columns([column]), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="a table that batchlab sweep or tune wrote"):
        saved.sweep(tmp_path / "t.parquet")


def test_a_tuning_says_what_to_do_and_of_what(planned_report: Path, folder: Path) -> None:
    found = saved.sweep(folder / "tuned.parquet")
    rows = pq.read_table(folder / "tuned.parquet").to_pylist()
    [best] = [row for row in rows if row["recommended"]]
    advice = found["advice"]
    before, after = rows[0]["output_token_rate"], best["output_token_rate"]
    assert (advice["before"], advice["after"], advice["own"]) == (before, after, best is rows[0])
    assert advice["change"] == ("" if advice["own"] else f"{100 * (after / before - 1):+.0f} %")
    assert f"--max-num-seqs {best['engine.max_num_seqs']}" in advice["flags"]
    assert advice["caveats"] == ["60 requests a run: ttft:p99 is decided by fewer than 10 of them"]
    assert found["about"].startswith("policy vllm · linear · generated workload, arrivals poisson")
    assert found["facts"]["engine.num_gpu_blocks"] == "40" and found["facts"]["cost.per_iteration"] == "5000000"
    assert "engine.max_num_seqs" not in found["facts"], "it is what varies"
    assert not {"flags", "met", "caveats"} & set(found["facts"])
    text = planned_report.read_text(encoding="utf-8").split('<script id="data"')[0]
    assert "<b>Uncertain:</b> 60 requests a run" in text


def test_a_sweep_says_of_what_it_is_and_leaves_out_what_varies(planned_report: Path, folder: Path) -> None:
    found = saved.sweep(folder / "s.parquet")
    requests = load(folder / "plan.toml").runs[0].requests
    prompts, outputs = ([getattr(one, name) for one in requests] for name in ("prompt", "output"))
    means = f"prompt mean {sum(prompts) / 60:,.1f}, output mean {sum(outputs) / 60:,.1f} tokens"
    assert found["about"] == f"policy vllm · linear · 60 requests · {means}"
    assert (found["facts"]["engine.max_num_seqs"], found["facts"]["load.requests"]) == ("8", "60")
    assert not {"engine.max_num_batched_tokens", "load.source"} & set(found["facts"])
    assert {curve["series"] for curve in found["attained"]} == {
        "max_num_batched_tokens = 64",
        "max_num_batched_tokens = 256",
    }
    assert found["advice"] is None


def test_blocks_that_the_policy_keeps_are_told_apart(planned_report: Path, folder: Path) -> None:
    """vLLM keeps one block; a mean has six digits."""
    found = saved.capacity(folder / "c.json")
    assert found["facts"]["engine.num_gpu_blocks"] == "40 (39 usable)"
    assert all(len(found["facts"][name]) <= 7 for name in ("load.prompt_mean", "load.output_mean"))


TWO_CLASSES = """
[engine]
policy = "vllm"
max_num_seqs = 8
max_num_batched_tokens = 64
num_gpu_blocks = 100
[cost]
model = "linear"
unit = "ns"
per_iteration = 5_000_000
[workload.generate]
num_prompts = 20
seed = 3
arrivals = "poisson"
request_rate = 20
[[workload.generate.classes]]
name = "chat"
prompt = 10
output = 4
[[workload.generate.classes]]
name = "rag"
prompt = 10
output = 7
"""
CLASSES = "workload.generate.classes"


@pytest.fixture(scope="module")
def of_two_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two keys that end alike, and of one that changes nothing."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "s.toml").write_text(TWO_CLASSES, encoding="utf-8")
    grid = [f"--grid={CLASSES}.chat.output=4,9", f"--grid={CLASSES}.rag.output=7", "--grid=engine.max_num_seqs=30,40"]
    done = CliRunner().invoke(
        cli, ["sweep", str(folder / "s.toml"), *grid, "-o", str(folder / "t.parquet"), "--jobs=1"]
    )
    assert done.exit_code == 0, done.output
    return folder / "t.parquet"


def test_settings_go_by_what_tells_their_keys_apart(of_two_classes: Path) -> None:
    assert [row["settings"] for row in saved.sweep(of_two_classes)["rows"]] == [
        f"chat.output = {output}, rag.output = 7, max_num_seqs = {seats}" for output in (4, 9) for seats in (30, 40)
    ]


def test_all_runs_that_are_equal_on_a_front_are_listed(of_two_classes: Path) -> None:
    found, rows = saved.sweep(of_two_classes), pq.read_table(of_two_classes).to_pylist()
    points = [[(row[cost], row["output_token_rate"]) for row in rows] for cost in ("ttft.p99", "itl.p99")]
    for own, front in zip(points, found["fronts"], strict=True):
        assert own[0] == own[1] and own[2] == own[3]  # the seats change nothing
        kept = [one for one in own if not any(c <= one[0] and g >= one[1] and (c, g) != one for c, g in own)]
        assert len(front) == len(kept) >= 2 and {own[place] for place in front} == set(kept)
    assert found["listed"] == sorted({place for front in found["fronts"] for place in front})


SESSIONS = "turns = 3\nthink_time = 1_000_000_000\n"


@pytest.mark.parametrize(("more", "of"), [("", "requests"), (SESSIONS, "sessions")])
def test_a_sweep_says_what_its_rate_counts_and_its_targets(tmp_path: Path, more: str, of: str) -> None:
    """Of classes the targets are in the file, so that the page has them too; without the word an axis has the key."""
    text, lengths = PLANNED[: PLANNED.index("prompt =")], PLANNED[PLANNED.index("prompt =") :]
    for name, targets in (("chat", "ttft:200"), ("doc", "e2el:9000 tpot:50")):
        text += f'[[workload.generate.classes]]\nname = "{name}"\ngoodput = "{targets}"\n{lengths}{more}'
    (tmp_path / "s.toml").write_text(text)
    table = tmp_path / "t.parquet"
    grid = ("--grid", "workload.generate.request_rate=20,40", "--slo", "ttft:p99<=300ms")
    done = CliRunner().invoke(cli, ["sweep", str(tmp_path / "s.toml"), *grid, "-o", str(table), "--jobs", "1"])
    assert done.exit_code == 0, done.output
    assert "goodput: requests within chat: TTFT 200.00 ms; doc: E2E 9,000.00 ms, TPOT 50.00 ms" in done.stdout
    found = saved.sweep(table)
    assert found["of"] == of and found["attained"]
    assert found["meanings"].endswith("goodput: requests within chat: TTFT 200 ms; doc: E2E 9.00 s, TPOT 50.0 ms")
    assert not any(name.startswith(("targets", "rate_of")) for name in found["facts"])
    written = pq.read_table(table)
    about = {key: value for key, value in written.schema.metadata.items() if key != b"rate_of"}
    pq.write_table(written.replace_schema_metadata({**about, b"targets_of_groups": b'{"chat": 3}'}), table)
    old = saved.sweep(table)
    assert old["of"] == "workload.generate.request_rate"
    assert old["meanings"].endswith("goodput: requests within all targets")


def test_a_tuning_says_which_of_its_runs_are_listed(planned_report: Path, folder: Path) -> None:
    rows = pq.read_table(folder / "tuned.parquet").to_pylist()
    few = {0} | {place for place, row in enumerate(rows) if row["pareto"] or row["recommended"]}
    text = planned_report.read_text(encoding="utf-8").split('<script id="data"')[0]
    assert f"{len(few)} of {len(rows)} runs: the scenario as it is" in text and "<th>Tried" not in text
