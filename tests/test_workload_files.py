"""Workloads in columns, and scenarios that name a workload file."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from batchlab.clients.columns import Columns
from batchlab.clients.listed import Listed, field
from batchlab.clients.request import Request
from batchlab.errors import InputError
from batchlab.scenario import build, load

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
NAMES = {"arrival": "at", "prompt": "in", "output": "out"}
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"


def scenario(workload, unit="ns"):
    cost = {"model": "unit"} if unit == "iteration" else {"model": "linear", "unit": unit, "per_iteration": 1}
    engine = {"policy": "chunked", "prefill_chunk": 4, "max_num_batched_tokens": 8}
    return {"engine": engine, "cost": cost, "workload": workload}


def test_columns_are_a_sequence_of_requests():
    numbers = np.arange(1, 200_001)
    columns = Columns(numbers, numbers + 1, numbers + 2)
    assert len(columns) == 200_000 and columns[-1] == Request("199999", 200_000, 200_001, 200_002, 200_002)
    assert columns[1:3] == [columns[1], columns[2]] and next(iter(columns)) == columns[0]
    assert all(a == b for a, b in zip(columns, (columns[i] for i in range(len(columns))), strict=True))
    assert field(columns, "output") == [request.output for request in columns]
    assert field(columns, "priority") == [1] * 200_000
    with pytest.raises(IndexError):
        columns[200_000]
    client = Listed(Columns(np.array([5, 3, 5]), np.array([1, 2, 3]), np.array([1, 1, 1])))
    assert client.next_arrival == 3
    assert [(time, position) for time, position, _ in client.due(9)] == [(3, 1), (5, 0), (5, 2)]


def test_a_scenario_with_a_file(tmp_path):
    (tmp_path / "sub").mkdir()
    content = b"at,in,out\n1,2,3\n2,2,3\n"
    (tmp_path / "sub" / "w.csv").write_bytes(content)
    workload = {"file": "sub/w.csv", "format": "csv", "columns": NAMES, "time_unit": "ms", "limit": 1}
    (run,) = build(scenario(workload), folder=tmp_path).runs
    steps = ["only the first 1 rows (limit = 1)"]
    assert run.source == {"name": "w.csv", "sha256": hashlib.sha256(content).hexdigest(), "requests": 1, "steps": steps}
    assert not run.inline and run.header().requests is None and run.header().max_tokens_rule == "output"
    workload["time_unit"] = "unit"
    for unit in ("cost unit", "iteration"):
        (run,) = build(scenario(workload, unit), folder=tmp_path).runs
        assert list(run.requests) == [Request("0", 1, 2, 3, 3)]


@pytest.mark.parametrize(
    ("workload", "unit", "expected"),
    [
        ({}, "ns", "workload: needs requests = [...], file"),
        ({"format": "csv"}, "ns", "workload.file: is missing: name the file here, or run with --workload PATH"),
        ({"file": "w"}, "ns", "workload.format: is missing; one of azure, burstgpt, vidur, sarathi, mooncake"),
        ({"file": "w", "format": "orc"}, "ns", "workload.format: 'orc': 'azure', 'burstgpt', 'vidur', 'sarathi'"),
        ({"file": "w", "format": "sarathi"}, "ns", "workload.format: 'sarathi': has no arrivals: take its lengths"),
        ({"file": "w", "format": "csv"}, "ns", "workload.columns: is missing; csv needs it"),
        ({"file": "w", "format": "csv", "columns": NAMES}, "ns", "workload.time_unit: is missing; csv needs it: 's',"),
        (
            {"file": "w", "format": "azure", "time_unit": "s"},
            "ns",
            "workload.time_unit: only for csv, jsonl and parquet",
        ),
        ({"file": "w", "format": "azure", "columns": NAMES}, "ns", "workload.columns: only for csv, jsonl and parquet"),
        ({"file": "w", "format": "azure"}, "cost unit", "workload.format: 'azure': does not fit [cost], whose clock"),
        ({"file": "w", "format": "mooncake"}, "iteration", "workload.format: 'mooncake': does not fit [cost]"),
        (
            {"file": "w", "format": "csv", "columns": NAMES, "time_unit": "s"},
            "cost unit",
            "workload.time_unit: 's': does not fit [cost], whose clock counts in cost unit: what fits is 'unit'",
        ),
        (
            {"file": "w", "format": "csv", "columns": NAMES, "time_unit": "unit"},
            "ns",
            "workload.time_unit: 'unit': does not fit [cost], whose clock counts in ns: what fits is 's', 'ms'",
        ),
        ({"file": "w", "format": "csv", "columns": {**NAMES, "prio": "p"}}, "ns", "workload.columns.prio: unknown key"),
        ({"file": "w", "requests": []}, "ns", "workload.file: cannot stand beside requests"),
        ({"requests": [], "limit": 5}, "ns", "workload.limit: cannot stand beside requests"),
        ({"file": "w", "format": "azure", "limit": 0}, "ns", "workload.limit: 0: must be at least 1"),
    ],
)
def test_a_scenario_that_names_a_file_wrongly(workload, unit, expected):
    with pytest.raises(InputError) as caught:
        build(scenario(workload, unit))
    assert str(caught.value).startswith(expected)


def test_workload_option_counts_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "w.csv").write_text(AZURE_HEADER + "2023-11-16 18:15:46.6805900,374,44")
    monkeypatch.chdir(tmp_path)
    example = ROOT / "examples" / "azure-conversation.toml"
    (run,) = load(example, workload="w.csv").runs
    assert list(run.requests) == [Request("0", 0, 374, 44, 44)]
    with pytest.raises(InputError, match=r"^none\.csv: cannot be read"):
        load(example, workload="none.csv")
    with pytest.raises(InputError, match=r"azure-conversation\.toml: workload\.file: is missing: .* --workload PATH"):
        load(example)
    with pytest.raises(InputError, match=r"workload\.file: cannot stand beside requests"):
        load(ROOT / "examples" / "three-modes.toml", workload="w.csv")
