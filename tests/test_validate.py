"""`validate` and `calibrate`: against runs whose true cost is known, since it made them, and against real ones."""

import json
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import profiles
import pytest
from click.testing import CliRunner
from test_recordings import as_recording

from batchlab import Limits, Request, Run, Summary, TraceWriter, costs, simulate
from batchlab.cli.commands import cli
from batchlab.cli.validate import parse_bounds
from batchlab.costs.linear import Linear
from batchlab.costs.roofline import Roofline
from batchlab.costs.table import Table
from batchlab.errors import InputError
from batchlab.policies import find as find_policy
from batchlab.policies import settings_of
from batchlab.policies.vllm import Vllm
from batchlab.scenario import build
from batchlab.validate.compare import amplification, compared
from batchlab.validate.recorded import recorded
from batchlab.validate.replay import Replay, prepare, replay
from batchlab.validate.traced import _series as traced_series
from batchlab.validate.traced import traced

pytestmark = pytest.mark.once

MEASURED = Path(__file__).resolve().parents[2] / "shared" / "measured"
TRUE = {"per_iteration": 9e6, "prefill_token": 40_000.0, "decode_token": 60_000.0, "context_token": 30.0}
COST = {"model": "linear", "unit": "ns", **TRUE}
EPOCH, CLOCK = 1_700_000_000.0, 5_000.0  # two clocks, as in a real run


class _Queued:
    """When the engine took each request in."""

    def __init__(self) -> None:
        self.at: dict[str, int] = {}

    def __call__(self, event: Any) -> None:
        for id in getattr(event, "arrived", ()):
            self.at[id] = event.start


def make_run(folder: Path, seed: int, count: int = 120, blocks: int | None = 900) -> Path:
    """A run as if it had been measured on an engine with COST."""
    chosen = random.Random(seed)
    requests, now = [], 0
    for position in range(count):
        length = chosen.choice((40, 200, 700, 1500)) + chosen.randint(0, 100)
        output = chosen.randint(1, 160)
        requests.append(Request(f"r{position}", now, length, output, output))
        now += int(chosen.expovariate(1 / 60e6))
    limits = Limits(32, 1024, num_gpu_blocks=None if blocks is None else blocks - 1, enable_prefix_caching=bool(blocks))
    run = Run(Vllm(async_scheduling=True), limits, costs.build(COST), requests, engine="vllm")
    summary, queued = Summary(), _Queued()
    simulate(run, [summary, queued])
    folder.mkdir(parents=True)
    rows = []
    for request in requests:
        result = summary.by_id[request.id]
        times = [queued.at[request.id], result.first_time, result.completed_time]
        stamps = [CLOCK + time / 1e9 for time in times if time is not None]
        row = {"request_id": request.id, "input_toks": request.prompt, "output_toks": request.output}
        row |= {"arrival_time": EPOCH + request.arrival / 1e9}
        rows.append(row | dict(zip(("queued_ts", "first_token_ts", "last_token_ts"), stamps, strict=True)))
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    meta: dict[str, Any] = {
        "vllm_version": "0.32.0",
        "engine_kwargs": {"max_num_seqs": 32, "max_num_batched_tokens": 1024, "max_model_len": None},
    }
    if blocks is not None:
        meta["kv_cache"] = {"num_gpu_blocks": blocks, "block_size": 16, "enable_prefix_caching": True}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def cost_file(folder: Path, **changed: object) -> Path:
    path = folder.parent / "cost.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**COST, **changed}.items()]
    path.write_text("\n".join(["[cost]", *lines]))
    return path


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(cli, [*map(str, arguments)], catch_exceptions=True)


# Validate


def test_kv_blocks_may_come_from_a_cost_that_knows_the_gpu(tmp_path: Path) -> None:
    run = recorded(make_run(tmp_path / "run", 1, blocks=None))
    cost = costs.build({"model": "roofline", "gpu": "h100-sxm", "llm": "llama-3.1-8b"})
    assert isinstance(cost, Roofline)
    blocks = cost.kv_blocks(0.5, 16, 1024)
    assert prepare(run, cost, {}).limits.num_gpu_blocks is None
    # one is vLLM's null block
    assert prepare(run, cost, {"gpu_memory_utilization": 0.5}).limits.num_gpu_blocks == blocks - 1
    with pytest.raises(InputError, match=r"gpu_memory_utilization: 0\.5: needs a cost model that knows GPU"):
        prepare(run, costs.build(COST), {"gpu_memory_utilization": 0.5})


@pytest.mark.parametrize("seed", range(4))
def test_the_cost_that_made_a_run_predicts_it(tmp_path: Path, seed: int) -> None:
    """Time stamps in s lose nanoseconds, and an arrival that falls on a step's end by them may wait a step longer."""
    run = recorded(make_run(tmp_path / "run", seed, blocks=900 if seed % 2 else None))
    found = replay(prepare(run, costs.build(COST), {}))
    assert seed % 2 == 0 or found.preemptions > 0
    errors = compared(run, found)["latency_s"]
    for cells in errors.values():
        assert all(abs(cell["error_pct"]) < 0.2 for cell in cells.values())


def test_a_cost_that_is_off_is_off_by_its_error_or_more(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 7)
    run = recorded(folder)
    slow = costs.build({**COST, **{name: 1.1 * value for name, value in TRUE.items()}})
    prepared = prepare(run, slow, {})
    cells = compared(run, replay(prepared))["latency_s"]
    assert 8 < cells["tpot"]["mean"]["error_pct"] < 13
    assert cells["ttft"]["mean"]["error_pct"] > 10  # a queue makes more of it
    moved = amplification(prepared, run)
    assert 0.8 < moved["tpot"]["mean"] < 1.3 and moved["ttft"]["mean"] > 1


def test_within_decides_the_exit_code(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 7)
    exact = cost_file(folder)
    good = invoke("validate", folder, "--cost", exact, "--within", "1%", "--json")
    assert good.exit_code == 0
    document = json.loads(good.stdout)
    assert document["missed"] == [] and document["vllm_version"] == "0.32.0" and document["steps"] > 100
    assert document["latency_s"]["e2e"]["p99"]["measured"] > 0
    off = cost_file(folder, per_iteration=9.9e6)
    assert invoke("validate", folder, "--cost", off).exit_code == 0
    bad = invoke("validate", folder, "--cost", off, "--within", "50%", "--within", "tpot=2%")
    assert bad.exit_code == 1
    assert "tpot mean: +" in bad.stderr and "allowed 2 %" in bad.stderr and "e2e" not in bad.stderr
    assert parse_bounds(("ttft=5%", "3%")) == {"ttft": 5, "tpot": 3, "itl": 3, "e2e": 3}
    with pytest.raises(InputError, match=r"'tft=5%': must be as .*\(did you mean 'ttft'\?\)"):
        parse_bounds(("tft=5%",))


def test_engines_of_a_data_parallel_run_take_requests_in_turn(tmp_path: Path) -> None:
    """Two engines with every request twice at a time do what one does with each of them."""
    folder = make_run(tmp_path / "run", 6, count=40)
    lines = (folder / "requests.jsonl").read_text().splitlines()
    twins = [json.loads(line) for line in lines for _ in range(2)]
    for place, row in enumerate(twins):
        row["request_id"] = f"r{place}"
    (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, twins)))
    meta = json.loads((folder / "meta.json").read_text())
    meta["engine_kwargs"]["data_parallel_size"] = 2
    (folder / "meta.json").write_text(json.dumps(meta))
    run = recorded(folder)
    found = replay(prepare(run, costs.build(COST), {}), ranks=run.ranks)
    assert run.ranks == 2 and "2 engines are simulated one by one" in run.notes[-2]
    assert found.last[::2] == found.last[1::2] and len(found.states) == 2
    assert all(abs(cell["error_pct"]) < 0.2 for cell in compared(run, found)["latency_s"]["e2e"].values())
    middle = run.last[len(run.last) // 2]
    assert found.state_at(middle).running == 2 * Replay(states=found.states[:1]).state_at(middle).running > 0
    refused = invoke("calibrate", folder, "-o", tmp_path / "cost.toml")
    assert "data_parallel_size: 2: must be 1" in str(refused.exception)


def with_engine(folder: Path, **kwargs: object) -> Path:
    meta = json.loads((folder / "meta.json").read_text())
    meta["engine_kwargs"] |= kwargs
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def test_engines_that_share_experts_wait_for_each_other(tmp_path: Path) -> None:
    """Steps that begin together end together; which thread is first changes nothing."""
    folder = with_engine(make_run(tmp_path / "run", 6, count=60), data_parallel_size=2, enable_expert_parallel=True)
    run = recorded(folder)
    assert run.lockstep and "2 engines share the experts" in run.notes[-2]
    spans: dict[int, list[tuple[int, int]]] = {}

    def watch(event: Any) -> None:
        if getattr(event, "scheduled", None):
            spans.setdefault(threading.get_ident(), []).append((event.start, event.end))

    changed = {"async_scheduling": False}
    found = replay(prepare(run, costs.build(COST), changed), [watch], run.ranks, run.lockstep)
    assert found == replay(prepare(run, costs.build(COST), changed), (), run.ranks, run.lockstep)
    alone = replay(prepare(run, costs.build(COST), changed), (), run.ranks)
    assert sum(found.last) > sum(alone.last)
    first, second = spans.values()
    ends = [{end for _, end in one} for one in (first, second)]
    assert len(ends[0] & ends[1]) > 200  # without waiting hardly any would fall together
    for one, other in ((first, second), (second, first)):
        for start, end in one:  # nobody ends a step while another is in one that began with it
            assert not [e for s, e in other if s == start and e != end]


def test_engines_in_step_take_what_the_cost_says_of_both(tmp_path: Path) -> None:
    """Two engines with the same requests are one whose every step has both shares of the experts' tokens."""
    folder = make_run(tmp_path / "run", 6, count=30)
    single = recorded(with_engine(folder))
    profiles.make(tmp_path / "p")
    rows = [(t, e, 1 + 0.1 * t + e) for t in (1, 64, 4096) for e in (0, 32, 64)]
    profiles.write(tmp_path / "p" / "moe.csv", "tokens,experts,time_us", rows)
    moe = {"model": "operators", "profile": str(tmp_path / "p"), "layers": 8, "hidden_size": 100}
    cost = costs.build({**moe, "experts": 128, "experts_per_token": 8, "expert_parallel": 2})
    expected = replay(prepare(replace(single, ranks=2, lockstep=True), cost, {})).last
    twins = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines() for _ in range(2)]
    rows_of = [json.dumps(row | {"request_id": f"r{place}"}) for place, row in enumerate(twins)]
    (folder / "requests.jsonl").write_text("\n".join(rows_of))
    run = recorded(with_engine(folder, data_parallel_size=2, enable_expert_parallel=True))
    found = replay(prepare(run, cost, {}), (), run.ranks, run.lockstep).last
    assert found[::2] == found[1::2] == expected


def test_an_engine_that_fails_in_step_ends_the_others(tmp_path: Path) -> None:
    folder = with_engine(make_run(tmp_path / "run", 6, count=20), data_parallel_size=4, enable_expert_parallel=True)
    run = recorded(folder)

    class Broken(Linear):
        def duration(self, work: Any) -> int:
            if self.timed > 40:
                raise InputError(None, "cost", None, "breaks")
            self.timed += 1
            return super().duration(work)

    with pytest.raises(InputError, match="cost: breaks"):
        replay(prepare(run, Broken("ns", 9e6), {}), (), run.ranks, run.lockstep)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tensor_parallel_size": 2}, "cost.tensor_parallel: 1: must be 2, as in the measured run"),
        ({"tensor_parallel_size": 0}, "meta.json: engine_kwargs.tensor_parallel_size: 0: must be an integer from 1 to"),
        ({"pipeline_parallel_size": 2}, "engine_kwargs.pipeline_parallel_size: 2: must be 1"),
        (
            {"tensor_parallel_size": 2, "enable_expert_parallel": True},
            "enable_expert_parallel: True: with tensor_parallel_size above 1 is not modelled",
        ),
        ({"max_num_seqs": "many"}, "meta.json: engine.max_num_seqs: 'many': must be an integer"),
        ({"max_num_batched_tokens": 2**63}, "meta.json: engine.max_num_batched_tokens: 9223372036854775808: must be"),
    ],
)
def test_a_run_of_another_system_than_the_cost_is_refused(
    tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    folder = with_engine(make_run(tmp_path / "run", 1, count=5), **changed)
    cost = costs.build({"model": "roofline", "gpu": "h100-sxm", "llm": "llama-3.1-8b"})
    with pytest.raises(InputError) as caught:
        prepare(recorded(folder), cost, {})
    assert message in str(caught.value)


def test_planned_arrivals_come_instead_of_the_measured_ones(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 9, count=20)
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    profiles.write(
        tmp_path / "load.csv",
        "arrival_time_ns,input_toks,output_toks",
        [(7_000 + 10**8 * place, row["input_toks"], row["output_toks"]) for place, row in enumerate(rows)],
    )
    run = recorded(folder, tmp_path / "load.csv")
    assert run.requests.arrival.tolist() == [10**8 * place for place in range(20)]
    assert run.sent == recorded(folder).sent  # what was measured stays
    assert replay(prepare(run, costs.build(COST), {})).sent == pytest.approx([0.1 * place for place in range(20)])
    profiles.write(tmp_path / "load.csv", "arrival_time_ns,input_toks,output_toks", [(0, 5, 5)] * 20)
    with pytest.raises(InputError, match=r"load\.csv: request 0, prompt: 5: the measured run has"):
        recorded(folder, tmp_path / "load.csv")


def test_the_state_over_time_is_compared(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 3, blocks=900)
    found = replay(prepare(recorded(folder), costs.build(COST), {}))
    rows = []
    for second in range(1, 8):
        _, running, waiting, used = found.state_at(float(second))
        assert used is not None and 0 <= used <= 1
        rows.append((second, running + 2, waiting, round(100 * used, 6)))
    profiles.write(folder / "timeseries.csv", "t,running,waiting,kv_cache_pct", rows)
    over_time = compared(recorded(folder), found)["over_time"]
    assert over_time["running"]["mean_absolute_error"] == 2
    assert over_time["waiting"]["mean_absolute_error"] == 0
    assert over_time["kv_cache_pct"]["mean_absolute_error"] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output_toks": 0}, "line 2, key 'output_toks': 0: must be an integer from 1 to 2^40"),
        ({"input_toks": 5.0}, "line 2, key 'input_toks': 5.0: must be an integer"),
        ({"input_toks": 2**63}, "line 2, key 'input_toks': 9223372036854775808: must be an integer"),
        ({"queued_ts": -1.0}, "line 2, key 'queued_ts': -1.0: must be a time stamp in s"),
        ({"queued_ts": 1e9}, "line 2: queued_ts, first_token_ts and last_token_ts must not fall"),
        ({"queued_ts": float("nan")}, "line 2: '{"),
        ({"request_id": "r0"}, "line 2: 'r0': must be unique; line 1 has it too"),
        ({"arrival_time": None}, "line 2, key 'arrival_time': must be a time stamp in s"),
    ],
)
def test_a_bad_record_is_told_by_line(tmp_path: Path, change: dict[str, object], message: str) -> None:
    folder = make_run(tmp_path / "run", 1, count=5)
    path = folder / "requests.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), **change})
    path.write_text("\n".join(lines))
    ended = invoke("validate", folder, "--cost", cost_file(folder))
    assert isinstance(ended.exception, InputError)
    assert str(ended.exception).startswith(f"{path}: {message}")


def test_what_a_run_lacks_is_told(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 1, count=5)
    meta = folder / "meta.json"
    refused = invoke("validate", folder, "--cost", cost_file(folder), "--set", "max_num_seq=3")
    expected = "--set: max_num_seq: no setting of policy vllm (did you mean 'max_num_seqs'?)"
    assert str(refused.exception) == expected
    for text, message in (
        ("{}", "engine_kwargs.max_num_seqs: is missing"),
        ("[]", "must be a JSON object"),
        ("{", "not valid JSON"),
        ('{"schema_version": 2}', "schema_version: 2: must be 1"),
        ('{"engine_kwargs": 3}', "engine_kwargs: 3: must be a JSON object"),
    ):
        meta.write_text(text)
        with pytest.raises(InputError, match=message):
            recorded(folder)
    meta.unlink()
    with pytest.raises(InputError, match=r"meta\.json: cannot be read"):
        recorded(folder)
    (tmp_path / "unit.toml").write_text('[cost]\nmodel = "unit"')
    with pytest.raises(InputError, match="must be 'ns'"):
        prepare(recorded(make_run(tmp_path / "other", 1, count=5)), costs.load(tmp_path / "unit.toml"), {})


def test_a_request_gets_its_token_two_updates_after_it_was_scheduled() -> None:
    """Asynchronous scheduling, steps of 10: B comes during step 1, is scheduled when that ends, and step 3 computes it,
    since the GPU then still has step 2 to do."""
    requests = [Request("A", 0, 1, 10, 10), Request("B", 5, 1, 2, 2)]
    cost = costs.build({"model": "linear", "unit": "ns", "per_iteration": 10})
    summary, queued = Summary(), _Queued()
    simulate(Run(Vllm(async_scheduling=True), Limits(4, 64), cost, requests), [summary, queued])
    assert queued.at == {"A": 0, "B": 10}
    assert summary.by_id["A"].output_times == list(range(10, 110, 10))
    assert summary.by_id["B"].output_times == [30, 40]


# Calibrate


def test_the_coefficients_that_made_measured_steps_are_found(tmp_path: Path) -> None:
    chosen = random.Random(2)
    rows = []
    for _ in range(60):
        q, n = chosen.choice((0, 100, 900)), chosen.choice((1, 8, 60))
        k, c = (chosen.randint(0, 500) if q else 0), chosen.randint(10, 3000)
        us = 9000 + 40 * q + 60 * n + 0.03 * (q + k + n * c)
        rows.append((q, k, n, c, us))
    profiles.write(tmp_path / "steps.csv", "prefill_tokens,prefill_context,decodes,decode_context,time_us", rows)
    ended = invoke("calibrate", tmp_path / "steps.csv", "-o", tmp_path / "cost.toml", "--json")
    assert ended.exit_code == 0, ended.output
    document = json.loads(ended.stdout)
    assert {name: document["cost"][name] for name in TRUE} == pytest.approx(TRUE)
    assert document["held_out_errors_pct"]["step"]["count"] == 12
    assert document["held_out_errors_pct"]["step"]["worst"] < 1e-6
    found = costs.load(tmp_path / "cost.toml")
    assert {name: found.describe()[name] for name in TRUE} == pytest.approx(TRUE, rel=1e-5)
    assert found.ranges["decodes"] == (1, 60)  # type: ignore[attr-defined]


def test_steps_that_are_not_linear_show_an_error_on_what_was_held_out(tmp_path: Path) -> None:
    rows = [(q, 1000 + q * q * q / 100) for q in range(10, 2000, 20)]
    profiles.write(tmp_path / "steps.csv", "prefill_tokens,time_us", rows)
    ended = invoke("calibrate", tmp_path / "steps.csv", "-o", tmp_path / "cost.toml", "--json")
    document = json.loads(ended.stdout)
    assert document["held_out_errors_pct"]["step"]["mean"] > 5
    assert all(document["cost"][name] >= 0 for name in TRUE)


@pytest.mark.parametrize("times", [(10_000, 10_000, 10_000, 40_000), (10_000, 10_400, 9_800, 10_100)])
def test_what_all_steps_come_to_together_is_said_beside_the_bias(tmp_path: Path, times: tuple[int, ...]) -> None:
    """Equal steps of four times in turn, so that every fifth has each as often as all have. The least sum of squared
    relative errors is that of c = sum(1 / t) / sum(1 / t^2); the sum of times is 4 c instead of the sum of these."""
    profiles.write(tmp_path / "steps.csv", "decodes,time_us", [(1, times[k % 4]) for k in range(100)])
    c = sum(1 / t for t in times) / sum(1 / t**2 for t in times)
    total, bias = 100 * (4 * c / sum(times) - 1), 25 * sum(c / t - 1 for t in times)
    command = ["calibrate", tmp_path / "steps.csv", "-o", tmp_path / "cost.toml"]
    found, shown = json.loads(invoke(*command, "--json").stdout), invoke(*command)
    step = found["held_out_errors_pct"]["step"]
    assert (step["total"], step["bias"]) == (pytest.approx(total), pytest.approx(bias))
    heading, row = (line for line in shown.stdout.splitlines() if line.startswith(("error of", "step")))
    assert "held out  total %  bias %" in heading and row.split()[2:4] == [f"{total:+.2f}", f"{bias:+.2f}"]
    assert f"all of it together by {total:+.1f} %" in (tmp_path / "cost.toml").read_text()
    said = [note for note in found["notes"] if "together come out" in note]
    assert bool(said) == (max(times) == 40_000) and all(f"{-total:.1f} % too short" in note for note in said)


def test_a_table_is_the_steps_themselves(tmp_path: Path) -> None:
    rows = [(q, n, 1000 + 2 * q + (50 if n == 4 else 10 * n)) for q in (0, 8, 16) for n in (1, 2, 4)]
    (tmp_path / "in").mkdir()
    profiles.write(tmp_path / "in" / "steps.csv", "prefill_tokens,decodes,time_us", rows)
    ended = invoke("calibrate", tmp_path / "in" / "steps.csv", "-o", tmp_path / "c.toml", "--model", "table", "--json")
    found = json.loads(ended.stdout)["held_out_errors_pct"]
    assert found["between prefill_tokens"]["worst"] == pytest.approx(0, abs=1e-9)
    off = 10 + 40 / 3 - 20  # two decodes, from those of one and four
    assert found["between decodes"]["worst"] == pytest.approx(100 * off / 1020)
    assert isinstance(costs.load(tmp_path / "c.toml"), Table)
    refused = invoke("calibrate", tmp_path, "-o", tmp_path / "d.toml", "--model", "table")
    assert "takes a CSV file" in str(refused.exception)


def test_a_trace_in_ns_is_fitted(tmp_path: Path) -> None:
    chosen = random.Random(4)
    requests = [Request(f"r{i}", i * 10**7, chosen.randint(1, 900), 40, 40) for i in range(30)]
    path = tmp_path / "trace.jsonl"
    with path.open("w") as file:
        summary = Summary()
        run = Run(Vllm(), Limits(16, 512, num_gpu_blocks=400), costs.build(COST), requests, engine="vllm")
        simulate(run, [summary, TraceWriter(file, summary)])
    assert summary.totals()["preemptions"] > 0
    ended = invoke("calibrate", path, "-o", tmp_path / "cost.toml", "--json")
    assert {name: json.loads(ended.stdout)["cost"][name] for name in TRUE} == pytest.approx(TRUE, rel=1e-6)


def test_the_coefficients_behind_served_requests_are_found(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 5, count=200, blocks=None)
    ended = invoke("calibrate", folder, "-o", tmp_path / "cost.toml", "--json")
    document = json.loads(ended.stdout)
    assert document["notes"] == [
        "the number of KV blocks is not recorded: KV memory is modelled only with --set num_gpu_blocks=N, or "
        "gpu_memory_utilization where the cost knows the GPU"
    ]
    found = np.array([document["cost"][name] for name in TRUE])
    typical = np.array([(1, 0, 8, 4000), (1, 0, 30, 25_000), (1, 700, 10, 7000)])
    assert typical @ found == pytest.approx(typical @ np.array(list(TRUE.values())), rel=0.02)
    errors = document["held_out_errors_pct"]
    assert errors["e2e"]["count"] == 40 and errors["e2e"]["mean"] < 2 and errors["tpot"]["mean"] < 1


@pytest.mark.parametrize("all_of_them", [False, True])
@pytest.mark.filterwarnings("error")
def test_what_was_measured_as_0_has_no_relative_error(tmp_path: Path, all_of_them: bool) -> None:
    """All tokens read at one moment. Of 40 requests the places 2, 7, 12, ... are held out."""
    folder = make_run(tmp_path / "run", 5, count=40, blocks=None)
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    held = [row for row in rows[2::5] if row["output_toks"] > 1]
    assert len(held) > 2
    for row in rows if all_of_them else held[1:2]:
        row["first_token_ts"] = row["last_token_ts"]
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ended = invoke("calibrate", folder, "-o", tmp_path / "cost.toml")
    text = (tmp_path / "cost.toml").read_text()
    assert ended.exit_code == 0 and not any(word in ended.output + text for word in ("inf ", "nan"))
    (row,) = (line.split() for line in ended.stdout.splitlines() if line.startswith("tpot"))
    if all_of_them:
        assert row == ["tpot", "0", "-", "-", "-", "-", "-", "-"]
        assert f"# Held out, {len(held)}: tpot was measured as 0" in text
        assert (
            f"tpot was measured as 0 for {len(held)} of {len(held)} requests held out: they have no relative error"
            in ended.stderr
        )
    else:
        assert row[1] == f"{len(held) - 1}" and f"# Held out, {len(held) - 1}: tpot is off by" in text
        assert (
            f"tpot was measured as 0 for 1 of {len(held)} requests held out: they have no relative error"
            in ended.stderr
        )


def trace_of(path: Path, cost: dict[str, Any], policy: Vllm, requests: list[Request]) -> Summary:
    with path.open("w") as file:
        summary = Summary()
        limits = Limits(16, 512, num_gpu_blocks=400, enable_prefix_caching=True)
        settings = {"async_scheduling": policy.async_scheduling}
        run = Run(policy, limits, costs.build(cost), requests, engine="vllm", settings=settings)
        simulate(run, [summary, TraceWriter(file, summary)])
    return summary


@pytest.mark.parametrize("overlapping", [False, True])
def test_a_trace_is_fitted_with_the_pairs_of_its_prefills(tmp_path: Path, overlapping: bool) -> None:
    """Also where steps overlap; and what is fitted predicts the trace that it is fitted to, and another one."""
    chosen = random.Random(4)
    pairs = {**COST, "prefill_pair": 20.0, "context_token": 900.0}
    for name in "ab":
        requests = [Request(f"r{i}", 7 + i * 10**7, chosen.randint(1, 2500), 40, 40) for i in range(60)]
        requests[9] = Request("r9", 9 * 10**7, 300, 40, 40, cancel_at=2 * 10**8)
        summary = trace_of(tmp_path / f"{name}.jsonl", pairs, Vllm(async_scheduling=overlapping), requests)
        assert summary.totals()["preemptions"] > 0 and summary.by_id["r9"].result == "cancelled"
    ended = invoke("calibrate", tmp_path / "a.jsonl", "-o", tmp_path / "cost.toml", "--json")
    assert ended.exit_code == 0
    document = json.loads(ended.stdout)
    for name in (*TRUE, "prefill_pair"):
        assert document["cost"][name] == pytest.approx(pairs[name], rel=1e-3)
    assert document["held_out_errors_pct"]["step"]["worst"] < 0.1
    for name in "ab":
        ended = invoke("validate", tmp_path / f"{name}.jsonl", "--cost", tmp_path / "cost.toml", "--json")
        assert ended.exit_code == 0, ended.output
        document = json.loads(ended.stdout)
        assert set(document["latency_s"]) == {"ttft", "ttft_queued", "tpot", "e2e", "itl"}
        for cells in document["latency_s"].values():
            assert all(abs(cell["error_pct"]) < 0.2 for cell in cells.values())
        assert "1 of 60 requests were not completed" in document["notes"][0]
        assert sum("what is called measured was simulated" in text for text in document["notes"]) == 1
        assert document["over_time"]["kv_cache_pct"]["mean_absolute_error"] < 1


@pytest.mark.parametrize("pair", [3, 2.5])
def test_pairs_are_what_attention_looks_at(tmp_path: Path, pair: float) -> None:
    """Each token of a prefill with itself and all before it, however the prompt is cut; `verify` counts the same."""
    cost = {"model": "linear", "unit": "ns", "per_iteration": 5, "prefill_pair": pair}
    trace_of(tmp_path / "t.jsonl", cost, Vllm(), [Request("a", 0, 700, 2, 2), Request("b", 0, 400, 1, 1)])
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    took = [line["end"] - line["start"] for line in lines if line["type"] == "iteration"]
    whole = sum(range(1, 701)) + sum(range(1, 401))  # chunks of 512, then 188 and 324, then 76
    assert sum(took) == pytest.approx(5 * len(took) + pair * whole, abs=len(took))
    assert took[0] == 5 + int(pair * sum(range(1, 513)) + 0.5)
    assert invoke("verify", tmp_path / "t.jsonl").exit_code == 0
    lines[1]["end"] += 1
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "t.jsonl").write_text(text)
    assert invoke("verify", tmp_path / "t.jsonl").exit_code == 1


def test_a_trace_that_is_no_measured_run_is_refused(tmp_path: Path) -> None:
    trace_of(tmp_path / "t.jsonl", {"model": "unit"}, Vllm(), [Request("a", 0, 5, 5, 5)])
    cost = tmp_path / "cost.toml"
    cost.write_text("\n".join(["[cost]", *(f"{key} = {json.dumps(value)}" for key, value in COST.items())]))
    ended = invoke("validate", tmp_path / "t.jsonl", "--cost", cost)
    assert "line 1, clock.unit: 'iteration': must be 'ns'" in str(ended.exception)
    ended = invoke("validate", tmp_path / "t.jsonl", "--cost", cost, "--workload", "x.csv")
    assert str(ended.exception).startswith("--workload: 'x.csv': has no use beside a trace")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("s.csv", "prefill_tokens,time_us\n5,nan\n", "line 2, time_us: 'nan': must be a number from 0 to 2^40"),
        ("s.csv", "prefill_tokens,time_us\n5,1\n", "1 steps are too few to fit: at least 6 are needed"),
        ("s.csv", "prefill_tokens,time_us\n0,1\n", "line 2: neither prefill_tokens nor decodes: the step is empty"),
        ("s.csv", "prefill_tokens\n5\n", "line 1: has no column 'time_us'"),
        ("s.jsonl", '{"clock": {"unit": "iteration"}}\n', "line 1, clock.unit: 'iteration': must be 'ns'"),
        ("s.jsonl", '{"clock": {"unit": "ns"}, "steps_in_flight": 4}\n', "line 1, steps_in_flight: 4: must be 1"),
        (
            "s.csv",
            "prefil_tokens,decodes,time_us\n5,1,1\n",
            "line 1: 'prefil_tokens': unknown column (did you mean 'pr",
        ),
        ("s.csv", "\n5,1,1\n", "line 1: is empty; it must name the columns: time_us, prefill_tokens"),
        ("s.jsonl", '{"clock": {"unit": "ns"}}\n{"type": "iteration"}\n', "line 2: not an iteration of a trace"),
    ],
)
def test_bad_steps_are_told_and_nothing_is_written(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    ended = invoke("calibrate", tmp_path / name, "-o", tmp_path / "cost.toml")
    assert isinstance(ended.exception, InputError)
    assert str(ended.exception).startswith(f"{tmp_path / name}: {message}")
    assert not (tmp_path / "cost.toml").exists()


STEP = "prefill_tokens,prefill_context,decodes,decode_context,time_us\n"
SINGLE = [f"0,0,{n},100.5,{9000 + 50 * n}" for n in range(1, 31)]


@pytest.mark.parametrize(
    ("rows", "tied"),
    [
        (
            ["10,0,8,256.25,9000"] * 30,
            ["per_iteration", "prefill_token", "decode_token", "context_token", "prefill_pair"],
        ),
        (SINGLE, ["decode_token", "context_token"]),  # of one context length
        ([f"0,0,{n},{90 + n * n % 7},{9000 + 50 * n}" for n in range(1, 31)], []),
        ([f"{n},0,0,0,{9000 + 50 * n}" for n in range(1, 31)], ["prefill_token", "context_token"]),  # whole prompts
    ],
)
def test_coefficients_that_steps_do_not_tell_apart_are_named(tmp_path: Path, rows: list[str], tied: list[str]) -> None:
    (tmp_path / "s.csv").write_text(STEP + "\n".join(rows) + "\n")
    ended = invoke("calibrate", tmp_path / "s.csv", "-o", tmp_path / "cost.toml", "--json")
    notes = json.loads(ended.stdout)["notes"]
    assert [f"do not tell {', '.join(tied)} apart" in note for note in notes] == ([True] if tied else [])


@pytest.mark.parametrize("model", ["linear", "table"])
@pytest.mark.parametrize(
    ("row", "told"), [("1.5,0,8,256.25,9000", "prefill_tokens: 1.5"), ("1,0,8.5,9,9", "decodes: 8.5")]
)
def test_a_step_has_whole_tokens_and_decodes(tmp_path: Path, model: str, row: str, told: str) -> None:
    (tmp_path / "s.csv").write_text(STEP + "\n".join([*SINGLE, row]) + "\n")
    refused = invoke("calibrate", tmp_path / "s.csv", "-o", tmp_path / "cost.toml", "--model", model)
    assert str(refused.exception) == f"{tmp_path / 's.csv'}: line 32, {told}: must be a whole number: a row is one step"
    assert not (tmp_path / "cost.toml").exists()


def test_calibrate_does_not_overwrite_its_data(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("prefill_tokens,time_us\n5,1\n")
    ended = invoke("calibrate", tmp_path / "s.csv", "-o", tmp_path / "s.csv")
    assert isinstance(ended.exception, InputError) and "would overwrite the data" in str(ended.exception)


# Real runs


@pytest.mark.skipif(not MEASURED.is_dir(), reason="the measurements are not here")
@pytest.mark.parametrize(
    ("gpu", "sms", "unequal", "bound"),
    [("rtx4090", 128, False, 2.0), ("rtxpro6000", 188, True, 2.0)],
)
def test_measured_runs_are_predicted_from_profiles(gpu: str, sms: int, unequal: bool, bound: float) -> None:
    run = recorded(MEASURED / f"vllm-0.19-{gpu}-llama-3.1-8b")
    profile = str(MEASURED / "op-profiles" / f"{gpu}-llama-3.1-8b-bf16-tp1")
    section = {"model": "operators", "profile": profile, "layers": 32}
    cost = costs.build(section | {"unequal_contexts": unequal, "sms": sms, "kv_heads": 8})
    cells = compared(run, replay(prepare(run, cost, {})))["latency_s"]
    for name in ("ttft", "tpot", "e2e"):
        for figure in ("mean", "p99"):
            assert abs(cells[name][figure]["error_pct"]) < bound
    assert np.isfinite([cell["predicted"] for of in cells.values() for cell in of.values()]).all()


# What a recording, or a client, knows of a run


RECORDED = Path(__file__).resolve().parent.parent / "examples" / "recorded-vllm.jsonl"


def slow_cost(folder: Path) -> Path:
    path = folder / "slow.toml"
    path.write_text('[cost]\nmodel = "linear"\nunit = "ns"\nper_iteration = 120_000_000\n')
    return path


def test_a_recording_of_a_live_engine_is_predicted(tmp_path: Path) -> None:
    """It has no end line and no output lengths: these are the tokens that each request got, counted here by hand."""
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    tokens: dict[str, int] = {}
    for line in lines[1:]:
        for id, phase, _ in line.get("scheduled", ()):
            tokens[id] = tokens.get(id, 0) + (phase == "decode")
        for id in line.get("prefill_done", ()):
            tokens[id] = tokens.get(id, 0) + 1
    run = traced(RECORDED)
    assert dict(zip((r.id for r in run.requests), run.output, strict=True)) == tokens
    assert run.vllm_version == "0.32.0" and run.notes == []
    found = json.loads(invoke("validate", RECORDED, "--cost", slow_cost(tmp_path), "--json").stdout)
    assert found["requests"] == 6 and found["preemptions"] == 1
    gaps = [
        at - before
        for id in tokens
        for before, at in pairwise(
            line["end"]
            for line in lines
            if line["type"] == "iteration" and (id in line["prefill_done"] or [id, "decode", 1] in line["scheduled"])
        )
    ]
    assert found["latency_s"]["itl"]["mean"]["measured"] == pytest.approx(sum(gaps) / len(gaps) / 1e9)


@pytest.mark.parametrize("cut", [30, 33, 36])
def test_a_recording_that_breaks_off_has_what_it_has(tmp_path: Path, cut: int) -> None:
    lines = RECORDED.read_text().splitlines()
    path = tmp_path / "cut.jsonl"
    path.write_text("\n".join(lines[:cut]) + "\n" + lines[cut][:70])
    done = sum(len(json.loads(line).get("completed", ())) for line in lines[:cut])
    run = traced(path)
    assert sum(np.isfinite(run.last)) == done
    assert run.notes == [f"{6 - done} of 6 requests were not completed: load, but in no latency"]
    assert invoke("validate", path, "--cost", slow_cost(tmp_path)).exit_code == 0
    assert invoke("calibrate", path, "-o", tmp_path / "fit.toml").exit_code == 0


def test_a_client_that_gave_up_gives_up_in_the_prediction_too(tmp_path: Path) -> None:
    """A recording tells it by the drop alone; the request would else run to its max_tokens."""
    requests = [Request("a", 0, 8, 30, 30), Request("b", 0, 8, 200, 200, cancel_at=1000)]
    cost = {"model": "linear", "unit": "ns", "per_iteration": 100}
    trace_of(tmp_path / "t.jsonl", cost, Vllm(), requests)
    lines = as_recording([json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()])
    path = tmp_path / "recorded.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = traced(path)
    assert [request.cancel_at for request in run.requests] == [None, 1000]
    found = replay(prepare(run, costs.build(cost), {}))
    assert found.steps == 30 and found.last[0] == pytest.approx(run.last[0])


def test_a_recording_of_an_engine_is_not_called_simulated() -> None:
    assert not traced(Path(__file__).parents[1] / "examples" / "recorded-vllm.jsonl").simulated


def test_the_names_of_blocks_say_which_prompts_share_tokens(tmp_path: Path) -> None:
    """Two prompts of 64 tokens, the first 48 of them the same: the second computes 16, in half the time."""
    requests = [{"id": id, "arrival": at, "prompt": 64, "output": 2} for id, at in (("a", 0), ("b", 5000))]
    for request in requests:
        request["prefix"] = [["p", 48]]  # type: ignore[assignment]
    engine = {"policy": "vllm", "max_num_seqs": 4, "max_num_batched_tokens": 64, "num_gpu_blocks": 40}
    engine |= {"block_size": 16, "enable_prefix_caching": True}
    cost = {"model": "linear", "unit": "ns", "per_iteration": 10, "prefill_token": 10}
    run = build({"engine": engine, "cost": cost, "workload": {"requests": requests}}).runs[0]
    summary = Summary()
    with (tmp_path / "t.jsonl").open("w") as file:
        simulate(run, [summary, TraceWriter(file, summary)])
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert "is not in this trace" in traced(tmp_path / "t.jsonl").notes[0]
    for request in lines[0]["requests"]:
        request["blocks"] = ["x", "y", "z", f"own {request['id']}"]
    path = tmp_path / "named.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    measured = traced(path)
    assert measured.notes == []
    found = replay(prepare(measured, costs.build(cost), {}))
    assert found.cached_tokens == 48
    assert [first - sent for first, sent in zip(found.first, found.sent, strict=True)] == pytest.approx(
        [650e-9, 170e-9]
    )


@pytest.mark.parametrize("policy", ["sarathi", "orca", "triton", "static", "tensorrt-llm"])
def test_a_trace_of_any_policy_is_predicted_by_its_own_rules(tmp_path: Path, policy: str) -> None:
    """Limits go by the policy's own names; the same cost gives the same times."""
    own: dict[str, dict[str, Any]] = {
        "sarathi": {"max_num_seqs": 4, "token_budget": 64},
        "orca": {"max_bs": 4, "n_slots": 4000},
        "triton": {"max_batch_size": 4},
        "static": {"max_num_seqs": 4, "max_num_batched_tokens": 512},
        "tensorrt-llm": {"max_batch_size": 4, "max_num_tokens": 512},
    }
    engine = {"policy": policy, **{k: v for k, v in own[policy].items() if k in settings_of(find_policy(policy))}}
    requests = [{"id": f"r{k}", "arrival": 300 * k, "prompt": 20 + k, "output": 3 + k % 3} for k in range(12)]
    cost = {"model": "linear", "unit": "ns", "per_iteration": 100, "prefill_token": 3}
    document = {"engine": engine, "cost": cost, "workload": {"requests": requests}}
    summary = Summary()
    with (tmp_path / "t.jsonl").open("w") as file:
        simulate(build(document).runs[0], [summary, TraceWriter(file, summary)])
    run = traced(tmp_path / "t.jsonl")
    found = replay(prepare(run, costs.build(cost), {}))
    assert found.last == pytest.approx(run.last) and found.first == pytest.approx(run.first)
    assert run.vllm_version is None


def test_clients_that_come_again_do_so_in_the_prediction(tmp_path: Path) -> None:
    """A queue with room for one: who finds it full comes again, and is served in the end."""
    requests = [{"id": f"r{k}", "arrival": 0, "prompt": 8, "output": 4} for k in range(4)]
    cost = {"model": "linear", "unit": "ns", "per_iteration": 100}
    engine = {"policy": "continuous", "max_num_seqs": 1, "max_num_batched_tokens": 8, "max_queue": 1}
    workload = {"requests": requests, "retry": {"limit": 9, "wait": 150}}
    run = build({"engine": engine, "cost": cost, "queue": {"order": "priority"}, "workload": workload}).runs[0]
    summary = Summary()
    with (tmp_path / "t.jsonl").open("w") as file:
        simulate(run, [summary, TraceWriter(file, summary)])
    assert sum(result.attempts > 1 for result in summary.results) > 0
    measured = traced(tmp_path / "t.jsonl")
    found = replay(prepare(measured, costs.build(cost), {}))
    assert found.last == pytest.approx(measured.last) and np.isfinite(measured.last).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [lines[0], lines[1], *lines[1:]], "request chat-1-977961ab: must be unique"),
        (lambda lines: [line for line in lines if '"type":"request"' not in line], "line 2: this line contradicts"),
        (lambda lines: [lines[0].replace('"vllm"', '"vlm"'), *lines[1:]], "line 1, engine: 'vlm': one of chunked"),
        (lambda lines: lines[:3], "no request was completed"),
        (lambda lines: lines[:1], "has no requests that were served"),
        (lambda lines: [lines[0].replace('"num_gpu_blocks":8', '"num_gpu_blocks":1'), *lines[1:]], "engine.max_model"),
    ],
)
def test_a_recording_that_will_not_do_is_told_in_one_line(
    tmp_path: Path, change: Callable[[list[str]], list[str]], message: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(change(RECORDED.read_text().splitlines())) + "\n")
    ended = invoke("validate", path, "--cost", slow_cost(tmp_path))
    assert isinstance(ended.exception, InputError)
    assert str(ended.exception).startswith(f"{path}: {message}")


def test_neither_a_folder_nor_a_trace(tmp_path: Path) -> None:
    for name in ("nothing", "steps.csv"):
        (tmp_path / "steps.csv").write_text("a")
        ended = invoke("validate", tmp_path / name, "--cost", slow_cost(tmp_path))
        assert str(ended.exception).endswith(
            f"{name}: a folder with requests.jsonl and meta.json expected, or a trace (.jsonl)"
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_runs": [[0, 0, 1]]}, "line 2, key 'prompt_runs': [[0, 0, 1]]: must be a list of [segment, start"),
        ({"prompt_runs": "x"}, "line 2, key 'prompt_runs': 'x': must be a list"),
        ({"max_tokens": 0}, "line 2, key 'max_tokens': 0: must be an integer from output_toks to 2^40"),
        ({"priority": 2**40}, "line 2, key 'priority': 1099511627776: must be an integer from -2^31 to 2^31"),
    ],
)
def test_what_a_client_knows_beside_is_checked(tmp_path: Path, change: dict[str, object], message: str) -> None:
    folder = make_run(tmp_path / "run", 1, count=5)
    path = folder / "requests.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), **change})
    path.write_text("\n".join(lines))
    with pytest.raises(InputError) as caught:
        recorded(folder)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_run_of_an_unknown_version_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 1, count=5)
    meta = json.loads((folder / "meta.json").read_text())
    del meta["vllm_version"]
    (folder / "meta.json").write_text(json.dumps(meta))
    ended = invoke("validate", folder, "--cost", cost_file(folder))
    assert ended.stdout.splitlines()[0].endswith("run: 5 requests")
    assert "which version served the run is not recorded; the rules are of vLLM 0.32.0" in ended.stderr


@pytest.mark.parametrize("name", ["s.csv", "t.csv"])
def test_a_csv_file_with_a_mark_at_its_beginning_reads(tmp_path: Path, name: str) -> None:
    rows = "".join(f"{k},{100 + k}\n" for k in range(1, 9))
    (tmp_path / name).write_text("prefill_tokens,time_us\n" + rows, encoding="utf-8-sig")
    model = "table" if name == "t.csv" else "linear"
    assert invoke("calibrate", tmp_path / name, "-o", tmp_path / "cost.toml", "--model", model).exit_code == 0
    assert costs.load(tmp_path / "cost.toml").unit == "ns"


def test_a_fit_that_no_cost_could_hold_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("prefill_tokens,time_us\n" + "5,1e11\n" * 8)
    ended = invoke("calibrate", tmp_path / "s.csv", "-o", tmp_path / "cost.toml")
    assert ": too long a time for " in str(ended.exception) and not (tmp_path / "cost.toml").exists()


def test_the_state_of_a_trace_is_compared_over_time_however_long_its_steps_are() -> None:
    """Ends at 0, 1, 2, 3 ms, 1 s and 4 s, with 1, 2, 3, 4, 2 and 0 requests: by hand (1 + 2 + 3 + 4 * 997 + 2 * 3000)
    / 4000 over time, and 2 over the steps."""
    ends = (0, 1_000_000, 2_000_000, 3_000_000, 10**9, 4 * 10**9)
    states = [(end, running, 0, None) for end, running in zip(ends, (1, 2, 3, 4, 2, 0), strict=True)]
    rows = traced_series(states, 0, None)
    assert sum(row["running"] for row in rows) / len(rows) == pytest.approx(9994 / 4000, abs=0.01)
    gaps = {round(b["t"] - a["t"], 9) for a, b in pairwise(rows)}
    assert gaps == {0.004}
    assert [row["running"] for row in traced_series(states[3:4], 0, None)] == [4]
