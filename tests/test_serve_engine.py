"""The live loop is the simulation: whatever comes and goes, its trace verifies and is that of a simulated run."""

import asyncio
import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import virtual_time
from laws_runs import POLICIES, document_for, make_run

from batchlab.clients.request import Request
from batchlab.core.limits import Limits
from batchlab.costs.linear import Linear
from batchlab.errors import InputError, StalledError
from batchlab.metrics.fold import Summary
from batchlab.policies.continuous import Continuous
from batchlab.policies.static import Static
from batchlab.policies.vllm import Vllm
from batchlab.serve.engine import HUNG_UP, SHUTDOWN, Engine, Live
from batchlab.simulation import Run, simulate
from batchlab.trace.verify import verify
from batchlab.trace.write import TraceWriter

SEEDS = range(6)
LONG = 10**6
"""Virtual seconds after which a run is in a livelock, or waits for something that does not come."""


def a_run(policy: str, seed: int) -> Run:
    """A random run of a policy, on a clock of ns."""
    run = make_run(json.loads(document_for(policy, seed)), seed)
    if run.cost.unit != "ns":
        run = replace(run, cost=Linear("ns", 2_000_000, 100_000, 300_000))
    if getattr(run.policy, "padding", None) == "all":  # refused: it has to know all requests before
        run.policy.padding = "batch"
    return replace(run, max_iterations=None)


async def live_trace(run: Run, sent: list[Request], rng: Random) -> tuple[str, list[Live], Engine]:
    """Send requests to an engine at about their arrivals, hang up on some, and return its trace."""
    file, summary = io.StringIO(), Summary()
    engine = Engine(run, [summary, TraceWriter(file, summary)])
    serving = asyncio.create_task(engine.serve())
    lives = []
    for r in sorted(sent, key=lambda r: r.arrival):
        await asyncio.sleep(rng.choice([0, 0, 1e-6, 0.003, 0.02]))
        more = {"priority": r.priority, "deadline": r.deadline, "tokens": r.tokens}
        lives.append(engine.submit(r.id, r.prompt, r.max_tokens, **more))
        if rng.random() < 0.3:
            for wait in rng.sample([0, 0.001, 0.05, 0.001], rng.choice([1, 1, 2])):
                asyncio.get_running_loop().call_later(wait, engine.cancel, lives[-1])
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LONG):
            await asyncio.gather(*(live.beyond(1 << 62) for live in lives))
    engine.stop()
    await serving
    return file.getvalue(), lives, engine


def simulated_trace(run: Run, trace: str, sent: list[Request]) -> str:
    """The trace of a simulation of the requests that a trace has."""
    tokens = {r.id: r.tokens for r in sent}
    rows = [json.loads(line) for line in trace.splitlines()]
    rows = [{k: v for k, v in row.items() if k != "type"} for row in rows if row["type"] == "request"]
    requests = [Request(**row, tokens=tokens[row["id"]]) for row in rows]
    nobody = {"name": None, "sha256": None, "requests": None}
    run = replace(run, requests=requests, inline=False, retry=None, clients=None, source=nobody)
    file, summary = io.StringIO(), Summary()
    simulate(run, [summary, TraceWriter(file, summary)])
    return file.getvalue()


def lines(trace: str, *kinds: str) -> list[dict[str, Any]]:
    return [row for row in map(json.loads, trace.splitlines()) if row["type"] in kinds]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_live_trace_is_that_of_a_simulation_of_what_came(policy: str, tmp_path: Path) -> None:
    compared = cancelled = 0
    for seed in SEEDS:
        run = a_run(policy, seed)
        sent = list(run.requests)
        trace, lives, engine = virtual_time.run(live_trace(run, sent, Random(seed)), look=0)
        path = tmp_path / f"{seed}.jsonl"
        path.write_text(trace, encoding="utf-8")
        report = verify(path)
        assert report.ok, (seed, report)
        assert all(live.result is not None for live in lives)
        assert engine.core.unfinished == 0
        drops = [drop for row in lines(trace, "iteration") for drop in row.get("dropped", ())]
        cancelled += sum(drop["result"] == "cancelled" for drop in drops)
        try:
            simulated = simulated_trace(a_run(policy, seed), trace, sent)
        except StalledError:  # a livelock; the engine went on until it was stopped
            assert any(drop["reason"] == SHUTDOWN for drop in drops)
            continue
        trace = trace.replace(SHUTDOWN, HUNG_UP)
        for found, wanted in zip(lines(trace, "iteration", "end"), lines(simulated, "iteration", "end"), strict=True):
            assert found == wanted, seed
        for live in lives:
            assert live.result != "completed" or live.tokens == live.total
        compared += bool(lives)
    assert compared > len(SEEDS) / 3
    assert cancelled > 0


def plain(seats: int = 1, **limits: Any) -> Run:
    """vLLM's rules with steps of 10 ms."""
    bounds = {"max_num_seqs": seats, "max_num_batched_tokens": 64, **limits}
    return Run(Vllm(), Limits(**bounds), Linear("ns", 10_000_000), [], engine="vllm")


def test_a_client_that_hangs_up_frees_its_seat_in_the_next_step() -> None:
    async def main() -> None:
        engine = Engine(plain(seats=1))
        serving = asyncio.create_task(engine.serve())
        first, second = engine.submit("a", 5, 1000), engine.submit("b", 5, 2)
        await asyncio.sleep(0.1)
        assert (first.tokens, second.tokens) == (10, 0) or (first.tokens, second.tokens) == (9, 0)
        engine.cancel(first)
        engine.cancel(first)
        await second.beyond(2)
        assert (first.result, second.tokens) == ("cancelled", 2)
        await second.beyond(3)
        assert second.result == "completed"
        engine.cancel(second)  # too late
        engine.stop()
        await serving
        assert engine.ended == {"cancelled": 1, "completed": 1}

    virtual_time.run(main(), look=0)


def test_tokens_come_at_the_times_of_the_cost_model() -> None:
    async def main() -> list[float]:
        engine = Engine(plain())
        serving = asyncio.create_task(engine.serve())
        live = engine.submit("a", 100, 3)  # two prefill steps of a budget of 64
        times = []
        for tokens in (1, 2, 3):
            await live.beyond(tokens)
            times.append(round(asyncio.get_running_loop().time(), 6))
        engine.stop()
        await serving
        return times

    assert virtual_time.run(main(), look=0) == [0.02, 0.03, 0.04]


def test_a_clock_that_does_not_count_ns_is_refused() -> None:
    async def main() -> None:
        Engine(replace(plain(), cost=Linear("cost unit", 1)))

    with pytest.raises(InputError, match=r"cost.unit: 'cost unit': must be 'ns'"):
        virtual_time.run(main(), look=0)


def test_a_policy_that_has_to_know_all_requests_before_is_refused() -> None:
    async def main() -> None:
        Engine(replace(plain(), policy=Static(padding="all")))

    with pytest.raises(InputError, match=r"engine\.padding: 'all': needs to know all requests"):
        virtual_time.run(main(), look=0)


def test_a_request_that_the_policy_cannot_run_is_refused() -> None:
    async def main() -> None:
        engine = Engine(replace(plain(), policy=Continuous()))
        engine.submit("a", 64, 1)
        with pytest.raises(InputError, match="request 'b': prompt: 65"):
            engine.submit("b", 65, 1)

    virtual_time.run(main(), look=0)


def test_an_error_of_the_policy_ends_the_engine() -> None:
    class Broken(Vllm):
        def plan(self, view: Any, batch: Any) -> Any:
            raise RuntimeError("no plan")

    async def main() -> None:
        engine = Engine(replace(plain(), policy=Broken()))
        engine.submit("a", 1, 1)
        await engine.serve()

    with pytest.raises(RuntimeError, match="no plan"):
        virtual_time.run(main(), look=0)
