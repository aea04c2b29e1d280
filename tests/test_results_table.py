"""Results as columns: the same as the summary's entries, in every format, complete or absent."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from batchlab import InputError, Summary, load, simulate
from batchlab.cli import main
from batchlab.metrics import table as tables

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
READERS = {
    ".parquet": pq.read_table,
    ".arrow": lambda path: pa.ipc.open_file(path).read_all(),
    ".csv": lambda path: pa.csv.read_csv(path, convert_options=pa.csv.ConvertOptions(strings_can_be_null=True)),
}


class Invoked(SimpleNamespace):
    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Invoked]:
    def invoke(*arguments: object) -> Invoked:
        monkeypatch.setattr("sys.argv", ["batchlab", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Invoked(exit_code=ended.value.code or 0, stdout=out, stderr=err)

    return invoke


def run(scenario: str, **settings: Any) -> Summary:
    (one,) = load(EXAMPLES / scenario, {key.replace("__", "."): value for key, value in settings.items()}).runs
    summary = Summary()
    simulate(one, [summary])
    return summary


def rows(table: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_pylist()
    return found


# Written out, with a rejection; cut off; drawn, in groups; with deadlines; from a file, with preemptions.
RUNS = [
    ("priority-preemption.toml", {}),
    ("priority-preemption.toml", {"run__max_iterations": 2}),
    ("generated.toml", {}),
    ("generated.toml", {"run__deadlines": "drop", "engine__max_num_seqs": 2}),
    ("ladder.toml", {"engine__num_gpu_blocks": 400}),
    ("ladder.toml", {"engine__num_gpu_blocks": 400, "run__max_iterations": 500}),
]


@pytest.mark.parametrize(("scenario", "settings"), RUNS)
def test_rows_equal_the_entries_of_the_summary(scenario: str, settings: dict[str, Any]) -> None:
    summary = run(scenario, **settings)
    entries = summary.document()["requests"]
    table = summary.table()
    assert table.num_rows == len(entries) > 0
    for row, entry, result in zip(rows(table), entries, summary.results, strict=True):
        for name in row.keys() & entry.keys():
            assert row[name] == entry[name], (name, row, entry)
        assert row.keys() - entry.keys() == {"max_tokens", "tpot", "ntpot", "emitted"}
        assert entry.keys() - row.keys() <= {"first_output", "completed", "output_times"}
        assert row["max_tokens"] == result.request.max_tokens
        assert row["emitted"] == result.emitted
        if row["result"] == "completed" and row["emitted"] > 1:
            assert row["tpot"] == (row["e2el"] - row["ttft"]) / (row["emitted"] - 1)
        else:
            assert row["tpot"] is None
        ended = row["result"] == "completed"
        assert row["ntpot"] == (row["e2el"] / row["emitted"] if ended else None)


def test_the_runs_above_have_what_they_are_for() -> None:
    results = {result for scenario, settings in RUNS for result in run(scenario, **settings).result_counts()}
    assert results >= {"completed", "rejected", "expired", "pending", "waiting", "active"}
    ladder = run("ladder.toml", engine__num_gpu_blocks=400)
    assert sum(row["preemptions"] for row in rows(ladder.table())) == ladder.tally.preemptions > 0


def test_told_in_events_or_tallied_the_rows_are_the_same() -> None:
    (one,) = load(EXAMPLES / "generated.toml").runs
    quick, told = Summary(), Summary()
    simulate(one, [quick])
    (one,) = load(EXAMPLES / "generated.toml").runs
    simulate(one, [told, lambda event: None])
    assert quick.table().equals(told.table(), check_metadata=True)
    assert quick.table().schema.metadata == {b"engine": b"vllm", b"unit": b"ns"}


def test_many_batches_are_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = run("generated.toml")
    whole = summary.table()
    monkeypatch.setattr(tables, "ROWS", 7)
    parts = summary.table()
    assert parts.column("id").num_chunks == -(-400 // 7)
    assert parts.equals(whole)


@pytest.mark.parametrize("ending", list(READERS))
@pytest.mark.parametrize("scenario", ["priority-preemption.toml", "generated.toml"])
def test_files_read_back_are_the_table(
    invoke: Callable[..., Invoked], scenario: str, ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"out{ending}"
    found = invoke("run", str(EXAMPLES / scenario), "--requests", str(path))
    assert found.exit_code == 0, found.stderr
    wanted, got = run(scenario).table(), READERS[ending](path)
    if ending == ".csv":  # it has no types
        got = got.cast(pa.schema([wanted.schema.field(name) for name in got.column_names]))
    assert got.column_names == wanted.column_names
    assert rows(got) == rows(wanted)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_several_policies_write_one_file_each(invoke: Callable[..., Invoked], tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    scenario = str(EXAMPLES / "three-modes.toml")
    found = invoke("run", scenario, "--policy", "static,continuous", "--requests", str(path))
    assert found.exit_code == 0, found.stderr
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out.continuous.parquet", "out.static.parquet"]
    metadata = pq.read_schema(tmp_path / "out.static.parquet").metadata
    assert metadata[b"engine"] == b"static" and metadata[b"unit"] == b"cost unit"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("out.json", ""), ("out", ""), ("out.parqet", " (did you mean '.parquet'?)"), (".csv", ""), ("out.csv.gz", "")],
)
def test_another_ending_is_refused_before_the_run(
    invoke: Callable[..., Invoked], name: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    found = invoke("run", str(EXAMPLES / "three-modes.toml"), "--requests", str(path))
    assert found.exit_code == 2
    assert found.stderr == f"batchlab: {path}: must end in .parquet, .arrow or .csv{hint}\n"
    assert not found.stdout and not list(tmp_path.iterdir())


def test_an_ending_in_capitals_is_one_too() -> None:
    assert tables.ending_of("A.Parquet") == ".parquet"
    with pytest.raises(InputError):
        tables.ending_of("parquet")


@pytest.mark.parametrize("other", ["--trace", "--summary"])
def test_two_outputs_cannot_be_one_file(invoke: Callable[..., Invoked], other: str, tmp_path: Path) -> None:
    path = str(tmp_path / "out.csv")
    scenario = str(EXAMPLES / "three-modes.toml")
    found = invoke("run", scenario, "--policy", "static", "--requests", path, other, path)
    assert found.exit_code == 2 and "would overwrite another output" in found.stderr
    assert not list(tmp_path.iterdir())


def test_the_workload_is_not_overwritten(invoke: Callable[..., Invoked], tmp_path: Path) -> None:
    scenario, load_file = tmp_path / "s.toml", tmp_path / "ladder.csv"
    scenario.write_text((EXAMPLES / "ladder.toml").read_text())
    load_file.write_bytes((EXAMPLES / "ladder.csv").read_bytes())
    found = invoke("run", str(scenario), "--requests", str(load_file))
    assert found.exit_code == 2 and "would overwrite its workload file" in found.stderr
    assert load_file.read_bytes() == (EXAMPLES / "ladder.csv").read_bytes()


def test_a_folder_that_is_not_there_costs_no_run(invoke: Callable[..., Invoked], tmp_path: Path) -> None:
    path = tmp_path / "no" / "out.arrow"
    found = invoke("run", str(EXAMPLES / "three-modes.toml"), "--requests", str(path))
    assert found.exit_code == 2 and "cannot be written" in found.stderr and not found.stdout


def test_a_full_disk_is_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    (one,) = load(EXAMPLES / "generated.toml").runs
    summary = Summary()
    simulate(one, [summary])
    with pytest.raises(OSError), open("/dev/full", "wb") as file:
        summary.write_table(file, "x.csv")


def test_summary_and_rows_of_one_call_agree(invoke: Callable[..., Invoked], tmp_path: Path) -> None:
    summary, out = tmp_path / "s.json", tmp_path / "r.parquet"
    arguments = ["run", str(EXAMPLES / "generated.toml"), "--summary", str(summary), "--requests", str(out)]
    assert invoke(*arguments).exit_code == 0
    entries = json.loads(summary.read_text())["requests"]
    assert [row["e2el"] for row in rows(pq.read_table(out))] == [entry["e2el"] for entry in entries]
