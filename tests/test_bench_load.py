"""Who sends when: sessions, closed loops, retries and deadlines of the load tester, in virtual time."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import virtual_time
from click.testing import CliRunner
from mock_server import a_run, served
from test_bench import MS, NOTHING, OPEN, evenly, measured

from batchlab.bench.figures import Result, document
from batchlab.bench.load import Plan
from batchlab.bench.run import Where, bench
from batchlab.cli.bench import _plan, _predicted
from batchlab.cli.commands import cli
from batchlab.clients.request import Request
from batchlab.metrics.fold import Summary
from batchlab.scenario import load
from batchlab.simulation import simulate

pytestmark = pytest.mark.once

SESSIONS = """
[engine]
policy = "chunked"
max_num_seqs = 8
max_num_batched_tokens = 4096
prefill_chunk = 4096
[cost]
model = "linear"
unit = "ns"
per_iteration = 10_000_000
[workload]
file = "turns.csv"
format = "csv"
time_unit = "ms"
columns = { arrival = "at", prompt = "in", output = "out", session = "who", turn = "turn" }
prompts = "whole"
think_time = 1_000_000_000
"""
TURNS = "at,in,out,who,turn\n0,8,5,a,1\n0,20,5,a,2\n100,8,3,b,1\n100,30,2,a,3\n"


def test_a_turn_goes_out_when_the_one_before_was_answered(tmp_path: Path) -> None:
    """Steps of 10 ms. Session a: 5 tokens until 50 ms, a second of thinking, 5 tokens until 1,100 ms, a second, 2."""
    (tmp_path / "turns.csv").write_text(TURNS)
    (tmp_path / "s.toml").write_text(SESSIONS)
    (run,) = load(tmp_path / "s.toml").runs
    result, _ = measured(replace(run, requests=[]), run.requests)
    intended = [round(o.intended / MS) for o in result.outcomes]
    assert intended == pytest.approx([0, 1050, 100, 2100], abs=4)
    summary = Summary()
    simulate(run, [summary])
    found, predicted = document(result, NOTHING), summary.document()
    assert found["results"] == predicted["results"] == {"completed": 4}
    assert found["latency"]["e2el"]["mean"] == pytest.approx(predicted["latency"]["e2el"]["mean"], abs=15 * MS)


def test_a_session_ends_with_a_turn_that_is_not_answered(tmp_path: Path) -> None:
    """No place in the queue for the one that comes second: its later turns never go out, as in the simulation."""
    (tmp_path / "turns.csv").write_text("at,in,out,who,turn\n0,8,50,b,1\n50,8,5,c,1\n100,8,5,a,1\n100,20,5,a,2\n")
    (tmp_path / "s.toml").write_text(SESSIONS)
    (run,) = load(tmp_path / "s.toml", {"engine.max_num_seqs": 1, "engine.max_queue": 1}).runs
    result, _ = measured(replace(run, requests=[]), run.requests)
    summary = Summary()
    simulate(run, [summary])
    assert [(o.position, o.result) for o in result.outcomes] == [(0, "completed"), (1, "completed"), (2, "rejected")]
    assert document(result, NOTHING)["results"] == summary.document()["results"] == {"completed": 2, "rejected": 1}


def test_after_its_last_answer_nobody_thinks() -> None:
    """Two clients, two requests each of 40 ms, a minute in between; the run is over when the last answer is there."""
    result, _ = measured(a_run(), evenly(4, gap_ms=0), Plan(clients=2, think_time=60_000 * MS))
    assert result.measured.elapsed == pytest.approx(60_080 * MS, abs=20 * MS)
    assert [round(o.intended / MS / 1000) for o in result.outcomes] == [0, 0, 60, 60]


def test_attempts_after_the_first_do_not_make_the_rate_smaller() -> None:
    """One seat, no place behind it: every second request is refused at first. All went out at 10/s all the same."""
    run = a_run(seats=1, max_queue=1)
    requests = evenly(20, gap_ms=100, output=15)
    result, _ = measured(run, requests, Plan(max_retries=20), retry_after=1)
    found = document(result, NOTHING)
    assert found["retries"] > 0
    assert found["load"]["achieved_rate"] == pytest.approx(10, rel=0.02)
    assert found["load"]["late"] == 0
    assert not [note for note in found["notes"] if "rate" in note]


def deadline(count: int, gap_ms: int, within_ms: int, output: int) -> list[Request]:
    return [replace(r, deadline=within_ms * MS) for r in evenly(count, gap_ms, output=output)]


def test_a_deadline_counts_from_the_arrival_also_of_one_that_is_held_back() -> None:
    """One in flight of 200 ms each, all due at once with 500 ms to go: the third has 100 ms left, the fourth none."""
    run = a_run(seats=4, deadlines="drop")
    result, _ = measured(run, deadline(4, 0, 500, output=20), Plan(max_concurrency=1))
    assert [o.result for o in result.outcomes] == ["completed", "completed", "failed", "failed"]
    assert [round(o.end / MS, -2) for o in result.outcomes] == [200, 400, 500, 500]


@pytest.mark.parametrize(("within_ms", "attempts"), [(700, 0), (1500, 1)])
def test_nobody_comes_again_after_the_deadline(within_ms: int, attempts: int) -> None:
    """A queue that is full for three seconds, and a second until the next attempt."""
    run = a_run(seats=1, max_queue=1)
    requests = [
        *evenly(2, 1, output=300),
        replace(evenly(1, 0)[0], id="late", arrival=50 * MS, deadline=within_ms * MS),
    ]
    result, _ = measured(run, requests, Plan(max_retries=9))
    assert (result.outcomes[2].result, result.outcomes[2].retries) == ("rejected", attempts)


EXAMPLE = Path(__file__).parents[1] / "examples" / "served.toml"
GIVEN = dict.fromkeys(("closed_loop", "think_time", "max_concurrency")) | {
    "max_retries": 0,
    "num_warmups": 0,
    "ignore_eos": True,
    "text": False,
    "backend": "openai",
}


def test_think_time_goes_with_the_clients_of_a_scenario() -> None:
    (run,) = load(EXAMPLE, {"workload.clients": 3, "workload.think_time": 5}).runs
    assert _plan(GIVEN, run).think_time == 5
    assert _plan({**GIVEN, "think_time": 2.0}, run) == replace(_plan(GIVEN, run), think_time=2000 * MS)


def test_what_is_predicted_comes_again_as_the_load_does() -> None:
    """[workload.retry] is not how the load is sent: without --max-retries a refused request is refused."""
    again = {"limit": 5, "wait": 10 * MS, "factor": 1}
    full = {"engine.max_num_queued_reqs": 1, "engine.max_num_seqs": 1}
    (run,) = load(EXAMPLE, {"workload.retry": again, **full}).runs
    without, twice = _predicted(run, OPEN), _predicted(run, Plan(max_retries=2))
    summary = Summary()
    simulate(replace(run, retry=None), [summary])
    assert without["results"] == summary.document()["results"]
    assert without["results"]["rejected"] > twice["results"]["rejected"]


@pytest.mark.parametrize("command", ["run", "bench"])
def test_a_cap_does_not_go_with_sessions_that_wait(command: str, tmp_path: Path) -> None:
    (tmp_path / "turns.csv").write_text(TURNS)
    path = tmp_path / "s.toml"
    path.write_text(SESSIONS)
    words = {
        "run": ["run", str(path), "--set", "workload.max_concurrency=2"],
        "bench": ["bench", "http://127.0.0.1:9", "--scenario", str(path), "--max-concurrency", "2"],
    }[command]
    outcome = CliRunner().invoke(cli, words)
    assert "here turns of sessions wait for the answer before them" in str(outcome.exception)


def test_what_is_cancelled_gives_what_has_ended_if_it_is_to_be_kept() -> None:
    """40 ms each, one every 30 ms: at 200 ms those of 0 to 150 ms have ended, and that of 180 ms is under way."""

    async def main(keep: bool) -> Result | None:
        async with served(a_run()) as server:
            where = Where(server.url)
            task = asyncio.create_task(bench(where, evenly(100, gap_ms=30), OPEN, keep=keep))
            await asyncio.sleep(0.205)
            task.cancel()
            await asyncio.wait([task])
            return None if task.cancelled() else task.result()

    assert virtual_time.run(main(keep=False)) is None
    result = virtual_time.run(main(keep=True))
    assert result is not None and result.measured.cut in (1, 2)
    ended = [o.position for o in result.outcomes]
    assert ended == list(range(len(ended))) and len(ended) in (5, 6)
    found = document(result, NOTHING)
    assert found["partial"] and found["results"] == {"completed": len(ended)}
    assert not document(measured(a_run(), evenly(2, gap_ms=30))[0], NOTHING)["partial"]


def test_a_held_back_request_misses_the_step_that_a_simulated_one_is_in() -> None:
    """Steps of 20 ms, two places, two tokens each, never idle: a place freed at 40 ms is used from 60 ms on."""
    requests = [Request(f"q{k}", min(k, 1) * 10 * MS, 8, 2, 2) for k in range(6)]
    run = a_run(step_ms=20)
    result, _ = measured(run, requests, Plan(max_concurrency=2))
    summary = Summary()
    simulate(replace(run, requests=requests, max_concurrency=2, inline=False), [summary])
    first = [o.chunks[0][0] / MS for o in result.outcomes]
    assert first == pytest.approx([20, 40, 80, 100, 140, 160], abs=9)
    assert [r.first_time for r in summary.results] == [t * MS for t in (20, 40, 60, 80, 100, 120)]


def test_what_is_predicted_of_objectives_stands_beside() -> None:
    async def main() -> Any:
        (run,) = load(EXAMPLE).runs
        async with served(run) as server:
            words = ["bench", server.url, "--scenario", str(EXAMPLE), "--ignore-eos", "--predict"]
            asked = ["--slo", "ttft:p99<=500s,attainment>=0%", "--goodput", "ttft:60"]
            plain = await asyncio.to_thread(CliRunner().invoke, cli, [*words, *asked])
            machine = await asyncio.to_thread(CliRunner().invoke, cli, [*words, *asked, "--json"])
        return plain, machine

    plain, machine = asyncio.run(main())
    assert plain.exit_code == machine.exit_code == 0
    alone = CliRunner().invoke(
        cli, ["run", str(EXAMPLE), "--slo", "ttft:p99<=500s,attainment>=0%", "--goodput", "ttft:60", "--json"]
    )
    expected = json.loads(alone.stdout)["runs"][0]["answers"]
    predicted = json.loads(machine.stdout)["predicted"]["answers"]
    assert (predicted["objectives"], predicted["goodput"]) == (expected["objectives"], expected["goodput"])
    heading = next(line for line in plain.stdout.splitlines() if line.startswith("objective"))
    assert heading.split() == ["objective", "value", "met", "predicted"]
    assert sum("within TTFT 60" in line for line in plain.stdout.splitlines()) == 2
    assert not any(line.startswith("queue time") and "measured" in line for line in plain.stdout.splitlines())
