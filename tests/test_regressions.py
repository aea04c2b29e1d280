"""What was broken once: each case found by somebody who tried to break the tool."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from batchlab import InputError, Limits, Request, Run, StalledError, Summary, simulate
from batchlab.cli.commands import cli
from batchlab.clients.request import TokenIdentity
from batchlab.conform.cases import conform_case
from batchlab.core.blocks import HashedBlocks, Tokens
from batchlab.core.sequence import Sequence
from batchlab.costs.unit import Unit
from batchlab.policies.vllm import Vllm
from batchlab.scenario import build
from batchlab.trace.verify import verify
from batchlab.trace.write import TraceWriter
from batchlab.vllm_command import parse

ROOT = Path(__file__).parents[1]
CASES = ROOT.parent / "shared" / "vllm-cases"


def run_cli(*arguments: object, cwd: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "batchlab", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False, **more)


class Sleeper:
    def plan(self, view: Any, batch: Any) -> None:
        """Schedules nothing, for ever."""


@pytest.mark.parametrize("idle", ["step", "jump"])
def test_an_idle_policy_ends_on_a_clock_that_counts(idle: Any) -> None:
    run = Run(Sleeper(), Limits(), Unit(idle=idle), [Request("a", 1, 2, 2, 2)], max_iterations=50)
    if idle == "step":  # a policy may wait for a time of its own: only the limit ends it
        assert simulate(run).termination == "iteration_limit"
    else:
        with pytest.raises(StalledError, match="scheduled nothing"):
            simulate(run)


def test_no_livelock_is_told_while_a_cancellation_may_resolve_it() -> None:
    """Two equal requests evict each other until b's client gives up; then a runs to its end."""
    policy = Vllm(scheduling_policy="priority", long_prefill_token_threshold=2, scheduler_reserve_full_isl=False)
    limits = Limits(4, 8, num_gpu_blocks=8, block_size=1, max_model_len=8)
    requests = [Request("a", 0, 6, 2, 2), Request("b", 0, 6, 2, 2, cancel_at=20)]
    summary = Summary()
    assert simulate(Run(policy, limits, Unit(), requests), [summary]).termination == "all_terminal"
    assert {r.request.id: r.result for r in summary.results} == {"a": "completed", "b": "cancelled"}


def test_a_token_on_its_way_may_be_the_last() -> None:
    """Asynchronous: the pool is full, but the request's last token is already sampled, so nothing has failed."""
    limits = Limits(1, 8, num_gpu_blocks=2, block_size=2)
    for asynchronous in (False, True):
        summary = Summary()
        simulate(Run(Vllm(async_scheduling=asynchronous), limits, Unit(), [Request("a", 0, 3, 2, 5)]), [summary])
        assert summary.result_counts() == {"completed": 1}


def test_a_pool_knows_more_chains_than_it_has_blocks() -> None:
    pool = HashedBlocks(4, 1, caching=True)
    for n in range(5000):
        seq = Sequence(n, str(n), 0, 3, 1, tokens=Tokens([(n + 1, 0, 3)], -n - 1))
        assert pool.lookup(seq) == []
        pool.allocate(seq, [], 3)
        pool.register(seq, 3)
        assert pool.lookup(seq) == seq.blocks[:2]
        pool.release(seq)
        assert pool.free == 4


@pytest.mark.parametrize("option", ["--trace", "--summary", "--requests"])
def test_no_output_overwrites_what_a_cost_model_is_read_from(option: str, tmp_path: Path) -> None:
    for name in ("steps.csv", "ladder.csv"):
        shutil.copy(ROOT / "examples" / name, tmp_path / name)
    text = (ROOT / "examples" / "measured-steps.toml").read_text()
    (tmp_path / "s.toml").write_text(text)
    steps = tmp_path / "steps.csv"
    before = steps.read_bytes()
    done = CliRunner().invoke(cli, ["run", str(tmp_path / "s.toml"), option, str(steps)])
    assert isinstance(done.exception, InputError) and "a file of its cost model" in str(done.exception)
    assert steps.read_bytes() == before


def test_runs_of_tokens_are_equal_however_they_are_written() -> None:
    whole, parts = Tokens([(1, 0, 6)], 9), Tokens([(1, 0, 4), (1, 4, 2)], 9)
    assert [whole.runs(position, 3) for position in (0, 3)] == [parts.runs(position, 3) for position in (0, 3)]
    ids = TokenIdentity(tuple((1, n, 1) for n in range(6)), 9)
    assert Tokens(ids.prompt, 9).runs(0, 6) == (1, 0, 6)


def small(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "engine": {"policy": "continuous", "max_num_seqs": 1, "max_num_batched_tokens": 8},
        "cost": {"model": "unit", "idle": "jump"},
        "workload": {"requests": [{"id": id, "arrival": 0, "prompt": 4, "output": 2} for id in "ABCD"]},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        document[section] = {**document.get(section, {}), name: value}
    return document


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (small(workload__retry={"limit": 3, "wait": 10**12, "factor": 10**12}), "2\\^62"),
        (small(workload__retry={"limit": 2**40, "wait": 1, "factor": 1}), "at most 1000"),
        (small(engine__max_queue=0), "engine.max_queue: 0: must be at least 1"),
        (small(workload__think_time=3), "needs clients"),
    ],
)
def test_settings_that_lead_nowhere_are_refused(document: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        build(document)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("steps_in_flight = 0", "steps_in_flight"),
        ("steps_in_flight = 'x'", "steps_in_flight"),
        ("holds = 'weird'", "holds"),
        ("batching = 'weird'", "batching"),
        ("takes = ('bogus',)", "bogus"),
    ],
)
def test_attributes_of_ones_own_policy_are_checked(tmp_path: Path, body: str, told: str) -> None:
    (tmp_path / "own.py").write_text(f"class P:\n    {body}\n    def plan(self, view, batch): ...\n", encoding="utf-8")
    done = run_cli("run", ROOT / "examples" / "three-modes.toml", "--policy", "own.py:P", cwd=tmp_path)
    assert done.returncode == 2 and told in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("line", ["batch.pad(-1)", "batch.pad(2**62)", "raise SystemExit(0)"])
def test_a_policy_that_breaks_is_told_in_one_line(tmp_path: Path, line: str) -> None:
    text = f"class P:\n    def plan(self, view, batch):\n        {line}\n"
    (tmp_path / "own.py").write_text(text, encoding="utf-8")
    done = run_cli("run", ROOT / "examples" / "three-modes.toml", "--policy", "own.py:P", cwd=tmp_path)
    assert done.returncode == 1 and "iteration 0" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def test_an_output_overwrites_neither_an_input_nor_another_output(tmp_path: Path) -> None:
    for name in ("chunk-size.toml", "streams-and-long-prompts.csv", "three-modes.toml"):
        (tmp_path / name).write_bytes((ROOT / "examples" / name).read_bytes())
    (tmp_path / "t.static.toml").write_bytes((tmp_path / "three-modes.toml").read_bytes())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for arguments in (
        ("chunk-size.toml", "--trace", "streams-and-long-prompts.csv"),
        ("t.static.toml", "--trace", "t.toml"),
        ("three-modes.toml", "--mode", "static", "--trace", "x", "--summary", "./x"),
    ):
        done = run_cli("run", *arguments, cwd=tmp_path)
        assert done.returncode == 2 and "would overwrite" in done.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "target.jsonl").write_text("old", encoding="utf-8")
    (tmp_path / "link.jsonl").symlink_to("target.jsonl")
    scenario = ROOT / "examples" / "priority-preemption.toml"
    assert run_cli("run", scenario, "--trace", "link.jsonl", cwd=tmp_path).returncode == 0
    assert (tmp_path / "link.jsonl").is_symlink() and verify(tmp_path / "target.jsonl").ok


@pytest.mark.skipif(sys.platform == "win32", reason="another shell there")
def test_a_closed_stdout_loses_no_result_in_silence(tmp_path: Path) -> None:
    """As with a full disk below it; what prints nothing there does not need it."""
    scenario = ROOT / "examples" / "priority-preemption.toml"
    lost = (2, "batchlab: cannot write the output: Bad file descriptor\n")

    def closed(arguments: str, streams: str = ">&-") -> tuple[int, str]:
        command = f'"{sys.executable}" -m batchlab {arguments} {streams}'
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    assert closed(f'run "{scenario}" --trace t.jsonl') == lost and verify(tmp_path / "t.jsonl").ok
    for arguments in ("verify t.jsonl", "explain t.jsonl --json", "show t.jsonl", "engines", "--version", "--help"):
        assert closed(arguments) == lost, arguments
    assert closed("export t.jsonl requests -o t.csv") == (0, "") and (tmp_path / "t.csv").read_text().count("\n") > 1
    assert closed("engines", "<&- >&-") == lost and closed("engines", "<&- >&- 2>&-") == (2, "")


@pytest.mark.skipif(sys.platform == "win32", reason="file names are text there")
def test_a_name_that_is_no_utf8_can_be_traced(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe.toml")
    (tmp_path / name).write_bytes((ROOT / "examples" / "priority-preemption.toml").read_bytes())
    done = run_cli("run", name, "--trace", "t.jsonl", cwd=tmp_path)
    assert done.returncode == 0 and verify(tmp_path / "t.jsonl").ok


def case(**changes: Any) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((CASES / "067.json").read_text(encoding="utf-8"))
    for key, value in changes.items():
        place = recorded["scenario"]["requests"][0] if key in ("output", "prompt", "arrival_step", "id") else recorded
        place = recorded["scenario"] if key in ("policy", "watermark", "aborts", "max_num_seqs") else place
        place[key] = value
    return recorded


@pytest.mark.parametrize(
    "changes",
    [
        {"output": 0},
        {"prompt": 0},
        {"prompt": None},
        {"arrival_step": 2**63},
        {"id": "q01"},
        {"policy": "weird"},
        {"watermark": [None]},
        {"max_num_seqs": 1e-9},
        {"aborts": [{"step": {}, "id": "q00"}]},
        {"aborts": [{"step": 1, "id": "nobody"}]},
        {"trace": [{"step": 3}]},
        {"trace": [7]},
    ],
    ids=str,
)
def test_a_recorded_case_that_is_none_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "case.json"
    path.write_text(json.dumps(case(**changes)), encoding="utf-8")
    with pytest.raises(InputError):
        conform_case(path)


def test_of_two_aborts_the_earlier_counts() -> None:
    from batchlab.conform.vllm import scenario_run

    scenario = case(aborts=[{"step": 9, "id": "q00"}, {"step": 5, "id": "q00"}])["scenario"]
    assert scenario_run(scenario).requests[0].cancel_at == 5


def test_times_follow_from_the_cost_in_the_header(tmp_path: Path) -> None:
    """A wrong end, and a start later than the arrival that ends an idle time, break the rule `clock`."""
    document = small()
    document["cost"] = {"model": "linear", "unit": "ns", "prefill_token": 2.5, "decode_token": 3, "context_token": 0.25}
    document["workload"]["requests"][3]["arrival"] = 500
    (run,) = build(document).runs
    path = tmp_path / "t.jsonl"
    summary = Summary()
    with path.open("w", encoding="utf-8") as file:
        simulate(run, [summary, TraceWriter(file, summary)])
    assert verify(path).ok
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    late = next(n for n, line in enumerate(lines) if line["type"] == "iteration" and line["start"] == 500)
    for number, field in ((1, "end"), (late, "start")):
        wrong = [dict(line) for line in lines]
        wrong[number][field] += 1
        path.write_text("".join(json.dumps(line) + "\n" for line in wrong), encoding="utf-8")
        assert "clock" in {violation.rule for violation in verify(path).violations}


def test_lengths_in_a_command_are_exact() -> None:
    assert parse("vllm serve m --max-num-batched-tokens 1.5k").settings["max_num_batched_tokens"] == 1500
    with pytest.raises(InputError, match="whole number"):
        parse("vllm serve m --max-num-batched-tokens 1.0005k")


def closed(policy: str, requests: list[dict[str, Any]], engine: dict[str, Any], **workload: Any) -> dict[str, Any]:
    return {
        "engine": {"policy": policy, **engine},
        "cost": {"model": "linear", "unit": "ns", "per_iteration": 100},
        "run": {"deadlines": "drop"},
        "workload": {"requests": requests, **workload},
    }


@pytest.mark.parametrize(
    "document",
    [
        closed(
            "triton",
            [
                {"id": "A", "arrival": 0, "prompt": 1, "output": 20},
                {"id": "B", "arrival": 0, "prompt": 1, "output": 2, "deadline": 3000},
                {"id": "C", "arrival": 100000, "prompt": 1, "output": 1, "deadline": 400},
            ],
            {"max_batch_size": 1, "default_queue_policy": {"max_queue_size": 1}},
            clients=3,
            think_time=1,
            retry={"limit": 5, "wait": 300, "factor": 1},
        ),
        closed(
            "fastertransformer",
            [
                {"id": "A", "arrival": 0, "prompt": 1, "output": 5, "cancel_at": 150},
                {"id": "B", "arrival": 0, "prompt": 1, "output": 1},
            ],
            {"max_bs": 1},
            clients=1,
        ),
    ],
    ids=["retries count from the sending", "sent in an iteration without length"],
)
def test_closed_loops_verify(tmp_path: Path, document: dict[str, Any]) -> None:
    (run,) = build(document).runs
    summary, path = Summary(), tmp_path / "t.jsonl"
    with path.open("w", encoding="utf-8") as file:
        simulate(run, [summary, TraceWriter(file, summary)])
    assert verify(path).violations == []
    for result in summary.results:
        if result.request.deadline is not None and result.result == "rejected":
            assert result.request.arrival < 100000, "the sending counts, not the file"


@pytest.mark.parametrize(
    "engine", [{"max_queue_delay_microseconds": 3}, {"default_queue_policy": {"default_timeout_microseconds": 1}}]
)
def test_times_of_an_engine_need_a_clock_in_ns(engine: dict[str, Any]) -> None:
    document = small()
    document["engine"] = {"policy": "triton", "max_batch_size": 2, **engine}
    (run,) = build(document).runs
    with pytest.raises(InputError, match="must be 'ns'"):
        run.check()
