"""What a client measures and what is so: chunks of a stream, and the queue that a load tester's own cap hides."""

import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from batchlab.cli.commands import cli
from batchlab.events import Iteration
from batchlab.metrics.answers import answers, question
from batchlab.metrics.fold import Summary
from batchlab.scenario import build
from batchlab.simulation import simulate
from batchlab.trace.encode import decode
from batchlab.trace.write import TraceWriter

pytestmark = pytest.mark.once

MS = 10**6
FIGURES = ("count", "mean", "p50", "p90", "p95", "p99", "max")


def document(requests: Any, per_iteration: int, seats: int, **workload: Any) -> dict[str, Any]:
    engine = {"policy": "continuous", "max_num_seqs": seats, "max_num_batched_tokens": 100}
    cost = {"model": "linear", "unit": "ns", "per_iteration": per_iteration}
    return {"engine": engine, "cost": cost, "workload": {"requests": requests, **workload}}


def test_a_hundred_tokens_in_chunks_of_four() -> None:
    """100 tokens at 10 ms each: true ITL 10.0 ms, but ICL 40 ms and a TPOT of 960 / 99 = 9.70 ms."""
    (run,) = build(document([{"id": "A", "arrival": 0, "prompt": 1, "output": 100}], 10 * MS, 1)).runs
    summary = Summary(keep_times=True)
    simulate(run, [summary])
    found = answers(summary, question("ns", None, (), None, chunk=4))
    assert {found["latency"]["itl"][figure] for figure in ("mean", "p50", "p99", "max")} == {10 * MS}
    assert found["latency"]["tpot"]["mean"] == 10 * MS
    assert {found["chunks"]["icl"][figure] for figure in ("mean", "p50", "p99", "max")} == {40 * MS}
    assert found["chunks"]["icl"]["count"] == 24 and found["chunks"]["ttft"]["mean"] == 40 * MS
    assert found["chunks"]["tpot"]["mean"] / MS == pytest.approx(9.70, abs=0.005)


def generated(seed: int) -> dict[str, Any]:
    generate = {
        "num_prompts": 60,
        "seed": seed,
        "arrivals": "poisson",
        "request_rate": 20,
        "prompt": {"distribution": "uniform", "min": 1, "max": 90},
        "output": {"distribution": "uniform", "min": 1, "max": 30},
        "deadline": 2_000 * MS,
    }
    drop = {**document([], 5 * MS, 4), "workload": {"generate": generate}, "run": {"deadlines": "drop"}}
    if seed % 2:
        drop["engine"] = {"policy": "vllm", "max_num_seqs": 4, "max_num_batched_tokens": 100, "async_scheduling": True}
    return drop


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tokens", [1, 3, 7, 1000])
def test_chunks_of_any_size_online_and_from_a_trace_as_counted_by_hand(tokens: int, seed: int) -> None:
    (run,) = build(generated(seed)).runs
    file, online, later = io.StringIO(), Summary(keep_times=True), Summary(keep_times=True)
    simulate(run, [online, TraceWriter(file, online)])
    events = [decode(json.loads(line)) for line in file.getvalue().splitlines()]
    for event in events:
        later(event)
    ask = question("ns", None, (), None, chunk=tokens)
    found = answers(online, ask)
    assert found == answers(later, ask)
    out: dict[str, list[int]] = {}
    for result in online.results:
        assert result.output_times is not None
        out[result.request.id] = result.output_times
    count = sum(len(times) for times in out.values())
    assert count == online.tally.emitted > 300
    icl, ttft, tpot = [], [], []
    for result in online.results:
        times, seen = out[result.request.id], []
        for number, time in enumerate(times, 1):
            if number % tokens == 0 or (number == len(times) and result.result == "completed"):
                seen.append(time)
        icl += [after - before for before, after in itertools.pairwise(seen)]
        ttft += [seen[0] - result.request.arrival] if seen else []
        if result.result == "completed" and len(times) > 1:
            tpot.append((seen[-1] - seen[0]) / (len(times) - 1))
    for name, samples in (("icl", icl), ("ttft", ttft), ("tpot", tpot)):
        assert found["chunks"][name]["count"] == len(samples)
        if samples:
            assert found["chunks"][name]["mean"] == pytest.approx(np.mean(samples))
            assert found["chunks"][name]["p99"] == pytest.approx(np.percentile(samples, 99))
    if tokens == 1:
        assert found["chunks"]["icl"] == pytest.approx({key: found["latency"]["itl"][key] for key in FIGURES})
        assert found["chunks"]["ttft"] == found["latency"]["ttft"]


def test_kept_times_are_the_ends_of_the_iterations_that_bring_tokens() -> None:
    (run,) = build(generated(0)).runs
    summary, times = Summary(keep_times=True), {}

    def look(event: Any) -> None:
        if isinstance(event, Iteration):
            decodes = [id for id, phase, _ in event.scheduled if phase == "decode"]
            for id in [*decodes, *event.prefill_done]:
                times.setdefault(id, []).append(event.end)

    simulate(run, [summary, look])
    assert {r.request.id: r.output_times for r in summary.results if r.output_times} == times
    assert "output_times" not in summary.document()["requests"][0]


def test_the_queue_that_a_cap_of_one_client_hides() -> None:
    """0.5 s of service, 8 requests evenly at 10/s. From the intended arrival: max 3.3 s, mean 1.9 s; from the sending
    of a client that waits for its last answer first: 0.5 s, whatever the queue; and 2/s were reached of 10/s."""
    requests = [{"id": str(n), "arrival": 100 * MS * n, "prompt": 1, "output": 1} for n in range(8)]
    figures = {}
    for clients in (None, 1):
        more = {} if clients is None else {"clients": clients}
        (run,) = build(document(requests, 500 * MS, 1, **more)).runs
        summary = Summary()
        simulate(run, [summary])
        figures[clients] = summary.document()
    true, sent = (figures[clients]["latency"]["e2el"] for clients in (None, 1))
    assert true["max"] == 3_300 * MS and true["mean"] == 1_900 * MS
    assert sent["max"] == sent["mean"] == 500 * MS
    assert {figures[clients]["throughput"]["request_rate"] for clients in figures} == {2.0}


def test_run_shows_chunks(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        """
[engine]
policy = "continuous"
max_num_seqs = 1
max_num_batched_tokens = 9
[cost]
model = "linear"
unit = "ns"
per_iteration = 10_000_000
[workload]
requests = [{ id = "A", arrival = 0, prompt = 1, output = 100 }]
"""
    )
    result = CliRunner().invoke(cli, ["run", str(path), "--chunk-tokens", "4"])
    lines = [line.split() for line in result.output.splitlines()]
    assert result.exit_code == 0 and ["ICL", "24", *["40.00"] * 6] in lines and ["TPOT", "1", *["9.70"] * 6] in lines
    for wrong in ("0", "-1", "x", str(2**63)):
        refused = CliRunner().invoke(cli, ["run", str(path), "--chunk-tokens", wrong])
        assert refused.exit_code == 2


CLASSES = """
[engine]
policy = "continuous"
max_num_seqs = 3
max_num_batched_tokens = 400
[cost]
model = "linear"
unit = "ns"
per_iteration = 10_000_000
[workload.generate]
num_prompts = 200
seed = 2
arrivals = "poisson"
request_rate = 10
[[workload.generate.classes]]
name = "chat"
prompt = 50
output = 20
goodput = "ttft:100 tpot:11"
[[workload.generate.classes]]
name = "batch"
prompt = 300
output = 20
goodput = "e2el:300"
[[workload.generate.classes]]
name = "any"
prompt = 20
output = 5
"""


def test_each_class_has_its_own_objective(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(CLASSES)
    arguments = ["run", str(path), "--by", "group", "--json", "--summary", str(tmp_path / "summary.json")]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)["runs"][0]["answers"]
    met: dict[str, list[bool]] = {"chat": [], "batch": [], "any": []}
    for entry in json.loads((tmp_path / "summary.json").read_text())["requests"]:
        chat = entry["ttft"] <= 100 * MS and (entry["e2el"] - entry["ttft"]) / (entry["output"] - 1) <= 11 * MS
        met[entry["group"]].append({"chat": chat, "batch": entry["e2el"] <= 300 * MS, "any": True}[entry["group"]])
    for name, of_class in met.items():
        assert found["groups"][name]["goodput"]["good"] == sum(of_class)
        assert found["groups"][name]["goodput"]["requests"] == len(of_class) > 40
    assert 0 < sum(met["chat"]) < len(met["chat"]) and 0 < sum(met["batch"]) < len(met["batch"])
    assert found["goodput"]["good"] == sum(map(sum, met.values())) and found["goodput"]["requests"] == 200
    said = CliRunner().invoke(cli, ["run", str(path), "--slo", "attainment>=100%"])
    assert said.exit_code == 1 and "chat: TTFT 100.00 ms, TPOT 11.00 ms; batch: E2E 300.00 ms" in said.output
    for_all = CliRunner().invoke(cli, ["run", str(path), "--goodput", "ttft:100"])
    assert "requests/s within TTFT 100.00 ms: " in for_all.output
    path.write_text(CLASSES.replace("e2el:300", "itl:5"))
    refused = CliRunner().invoke(cli, ["run", str(path)]).exception
    told = "a request has many ITLs: give tpot, or max_itl"
    assert str(refused) == f"{path}: workload.generate.classes[1].goodput: 'itl:5': {told}"
    key = "workload.generate.classes.batch.goodput"
    for option in ("--set", "--grid"):
        command = ["run", str(path)] if option == "--set" else ["sweep", str(path), "-o", str(tmp_path / "t.parquet")]
        refused = CliRunner().invoke(cli, [*command, option, f"{key}=ttft:9x"]).exception
        assert str(refused) == f"{option} {key}: 'ttft:9x': must be METRIC:NUMBER in milliseconds, such as ttft:500"
    assert not (tmp_path / "t.parquet").exists()
