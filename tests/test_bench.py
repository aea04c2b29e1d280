"""The load tester, against the mock server in virtual time, and against servers that behave badly."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import virtual_time
from aiohttp import web
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from mock_server import a_run, served

from batchlab.bench import outputs
from batchlab.bench.client import Outcome, Stream
from batchlab.bench.figures import Result, document, result_of
from batchlab.bench.load import Measured, Plan
from batchlab.bench.prompts import Prompts
from batchlab.bench.run import Where, bench
from batchlab.bench.scrape import Sample, parse, series_figures
from batchlab.bench.target import Target, base_of, find, session
from batchlab.cli.commands import cli
from batchlab.clients.identity import prompt_runs
from batchlab.clients.request import Request, TokenIdentity
from batchlab.clients.workload import FileTable
from batchlab.errors import InputError
from batchlab.metrics.answers import Question, question
from batchlab.metrics.fold import Summary
from batchlab.metrics.looks import missed
from batchlab.scenario import load
from batchlab.simulation import Run, simulate
from batchlab.trace.verify import verify
from batchlab.validate.recorded import recorded

pytestmark = pytest.mark.once

MS = 10**6
NOTHING = Question()
OPEN = Plan()
EXAMPLE = Path(__file__).parents[1] / "examples" / "served.toml"


def evenly(count: int, gap_ms: int, prompt: int = 8, output: int = 4) -> list[Request]:
    return [Request(f"q{k}", k * gap_ms * MS, prompt, output, output) for k in range(count)]


def measured(
    run: Run, requests: list[Request], plan: Plan = OPEN, where: dict[str, Any] | None = None, **settings: Any
) -> tuple[Result, str]:
    """What the load tester finds at a mock server, and the server's trace."""

    async def main() -> tuple[Result, str]:
        async with served(run, **settings) as server:
            result = await bench(Where(server.url, **(where or {})), requests, plan)
        return result, server.trace

    return virtual_time.run(main())


def test_scenario_11_coordinated_omission() -> None:
    """Server time 0.5 s, 8 requests evenly at 10/s, one in flight: from send 0.5 s; truly at most 3.3 s, mean 1.9 s."""
    requests = evenly(8, gap_ms=100, output=1)
    result, _ = measured(a_run(seats=8, step_ms=500), requests, Plan(max_concurrency=1), where={"scrape_interval": 0})
    found = document(result, NOTHING)
    close = {"abs": 15 * MS}
    assert found["latency"]["e2el_from_send"]["max"] == pytest.approx(500 * MS, **close)
    assert found["latency"]["e2el"]["max"] == pytest.approx(3300 * MS, **close)
    assert found["latency"]["e2el"]["mean"] == pytest.approx(1900 * MS, **close)
    assert found["load"]["requested_rate"] == pytest.approx(10)
    assert found["load"]["achieved_rate"] == pytest.approx(2, abs=0.05)
    assert (found["load"]["held_back"], found["load"]["max_in_flight"]) == (7, 1)
    (note,) = found["notes"]
    assert "the requested rate was not reached" in note
    assert "the cap on requests in flight held 7 back, for up to 2.8" in note


def test_scenario_12_chunk_bundling() -> None:
    """100 tokens at 10 ms each, four to a chunk: icl 40 ms, vLLM's tpot 9.70 ms, true itl 10.0 ms."""
    result, _ = measured(a_run(step_ms=10), [Request("a", 0, 8, 100, 100)], tokens_per_chunk=4)
    latency = document(result, NOTHING)["latency"]
    assert (latency["icl"]["count"], latency["itl"]["count"]) == (24, 96)
    assert latency["icl"]["mean"] == pytest.approx(40 * MS, rel=0.01)
    assert latency["itl"]["mean"] == pytest.approx(10 * MS, rel=0.01)
    assert latency["tpot"]["mean"] == pytest.approx(9.70 * MS, abs=0.01 * MS)
    assert document(result, NOTHING)["tokens"]["output"] == 100


def test_a_thousand_streams_at_once() -> None:
    requests = [Request(f"q{k}", 0, 1 + k % 5, 2 + k % 7, 2 + k % 7) for k in range(1000)]
    result, _ = measured(a_run(seats=1000, step_ms=50), requests)
    assert {o.result for o in result.outcomes} == {"completed"}
    assert [o.tokens for o in result.outcomes] == [r.output for r in requests]
    assert [sum(tokens for _, tokens in o.chunks) for o in result.outcomes] == [r.output for r in requests]
    assert [o.prompt for o in result.outcomes] == [r.prompt for r in requests]
    assert result.measured.most == 1000


def test_what_is_measured_is_what_is_predicted(tmp_path: Path) -> None:
    """The same run simulated, with the arrivals of the workload and with those that the server saw."""
    rng = random.Random(1)
    requests = [Request(f"q{k}", k * 37 * MS, rng.randint(5, 300), n := rng.randint(1, 12), n) for k in range(40)]
    run = a_run(seats=4, step_ms=20, budget=128, max_queue=20)
    result, trace = measured(run, requests)
    summary = Summary()
    simulate(Run(run.policy, run.limits, run.cost, requests), [summary])
    predicted, found = summary.document(), document(result, NOTHING)
    assert found["results"] == predicted["results"] == {"completed": 40}
    for name in ("ttft", "tpot", "itl", "e2el", "ntpot", "max_itl"):
        assert found["latency"][name]["count"] == predicted["latency"][name]["count"]
        for figure in ("mean", "p50", "p99", "max"):
            value, wanted = found["latency"][name][figure], predicted["latency"][name][figure]
            assert value == pytest.approx(wanted, abs=25 * MS), (name, figure)  # one step, and what HTTP takes
    path = tmp_path / "trace.jsonl"
    path.write_text(trace, encoding="utf-8")
    assert verify(path).ok
    rows = [json.loads(line) for line in trace.splitlines()]
    came = [r["id"] for r in rows if r["type"] == "request"]
    assert came == [r.id for r in requests]  # named by X-Request-Id, in order


def test_cancelled_requests_hang_up() -> None:
    requests = [Request("stays", 0, 8, 20, 20), Request("goes", 0, 8, 100, 100, cancel_at=95 * MS)]
    result, trace = measured(a_run(), requests)
    stays, goes = result.outcomes
    assert (stays.result, goes.result, goes.reason) == ("completed", "cancelled", "by its client")
    assert sum(tokens for _, tokens in goes.chunks) in (8, 9)
    assert document(result, NOTHING)["results"] == {"cancelled": 1, "completed": 1}
    drops = [drop for row in map(json.loads, trace.splitlines()) for drop in row.get("dropped", ())]
    assert [(drop["id"], drop["result"]) for drop in drops] == [("goes", "cancelled")]


@pytest.mark.parametrize("retries", [0, 5])
def test_refused_requests_come_again_when_the_server_says_so(retries: int) -> None:
    requests = evenly(6, gap_ms=0, output=20)
    result, _ = measured(a_run(seats=1, max_queue=1), requests, Plan(max_retries=retries), retry_after=1)
    found = document(result, NOTHING)
    if retries:
        assert found["results"] == {"completed": 6}
        assert found["retries"] > 0
        again = [o for o in result.outcomes if o.retries]
        assert all(o.sent - o.intended >= 1000 * MS * o.retries for o in again)
    else:
        fine = found["results"]["completed"]
        assert fine in (1, 2)  # whether the first has left the queue when the others come
        assert found["results"] == {"completed": fine, "rejected": 6 - fine}
        assert found["reasons"] == {"429: queue full": 6 - fine}
        assert found["latency"]["ttft"]["count"] == fine


def test_a_closed_loop_never_has_more_in_flight_and_says_what_it_is() -> None:
    result, _ = measured(a_run(seats=8), evenly(9, gap_ms=0, output=3), Plan(clients=3, think_time=100 * MS))
    found = document(result, NOTHING)
    assert (found["loop"], found["load"]["max_in_flight"], found["load"]["requested_rate"]) == ("closed", 3, None)
    assert found["latency"]["e2el"]["max"] < 60 * MS  # three steps of 10 ms, from the sending
    assert [o.sent // (100 * MS) for o in result.outcomes] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_the_servers_own_view_on_the_same_clock() -> None:
    where = {"scrape_interval": 0.2}
    result, _ = measured(a_run(seats=2, num_gpu_blocks=100), evenly(4, gap_ms=0, output=100), where=where)
    assert [round(sample.t / MS, -1) for sample in result.series][:4] == [0, 200, 400, 600]
    assert [(s.running, s.waiting) for s in result.series[1:5]] == [(2, 2)] * 4
    assert document(result, NOTHING)["server"]["running"]["max"] == 2


def test_what_is_counted_beside_the_regular_looks_is_not_lost() -> None:
    """The interval is longer than the load: without a look at either end nothing would be counted."""
    asked, looks = 0, []

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return await says(TOKEN, LAST)(request)

    async def metrics(_: web.Request) -> web.StreamResponse:
        looks.append(asked)
        return web.Response(text=f"vllm:num_preemptions_total {asked}\nvllm:num_requests_running 9\n")

    async def main() -> Result:
        async with another(handler, metrics=metrics) as url:
            return await bench(Where(url, scrape_interval=60), evenly(3, gap_ms=5), Plan(num_warmups=1))

    found = document(asyncio.run(main()), NOTHING)
    assert (looks, found["server"]["preemptions"]) == ([1, 4], 3)  # the warm-up was before
    first, last = found["series"]
    assert first["t"] == 0 < last["t"] and (first["running"], last["running"]) == (None, None)
    assert (found["server"]["running"], found["server"]["samples"]) == (None, 0)  # before and after nothing of it runs


@pytest.mark.parametrize("early", [True, False])
def test_ctrl_c_waits_for_no_last_look_and_loses_nothing_during_it(early: bool) -> None:
    looks = 0

    async def main() -> Result:
        ended, looking = asyncio.Event(), asyncio.Event()

        async def metrics(_: web.Request) -> web.StreamResponse:
            nonlocal looks
            looks += 1
            if looks > 1:
                looking.set()
                await asyncio.sleep(1)
            return web.Response(text="vllm:num_preemptions_total 0\n")

        def done(ready: int, _: int) -> None:
            if ready:
                ended.set()

        async with another(says(TOKEN, LAST), metrics=metrics) as url:
            requests = evenly(2, gap_ms=3_600_000 if early else 5)
            running = asyncio.create_task(bench(Where(url, scrape_interval=60), requests, Plan(), 0, done, keep=True))
            await asyncio.wait_for((ended if early else looking).wait(), 30)
            running.cancel()
            return await running

    result = asyncio.run(main())
    assert (len(result.outcomes), result.measured.cut is None, looks) == ((1, False, 1) if early else (2, True, 2))
    assert len(result.series) == 1


def test_warm_ups_are_not_counted() -> None:
    result, trace = measured(a_run(), evenly(2, gap_ms=5), Plan(num_warmups=3))
    assert len(result.outcomes) == 2
    assert sum(json.loads(line)["type"] == "request" for line in trace.splitlines()) == 5


def test_equal_segments_are_equal_tokens() -> None:
    shared = [TokenIdentity(((7, 0, 20), (-2 * k - 1, 0, 10)), -2 * k - 2) for k in range(2)]
    requests = [Request(f"q{k}", 0, 30, 1, 1, tokens=shared[k]) for k in range(2)]
    first, second = (Prompts(requests, 3, 1000).ids(k) for k in range(2))
    assert first[:20] == second[:20]
    assert first[20:] != second[20:]
    assert (len(first), min(first) >= 10, max(first) < 1000) == (30, True, True)
    assert Prompts(requests, 4, 1000).ids(0) != first
    assert len(Prompts(requests, 3, 1000).text(0).split()) == 30


@given(st.data())
def test_a_stream_may_come_in_any_pieces(data: st.DataObject) -> None:
    held = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=8))
    by = data.draw(st.sampled_from(["token_ids", "usage", "each usage", "nothing"]))
    events, total = [], 0
    for place, tokens in enumerate(held):
        total += tokens
        choice: dict[str, Any] = {"text": "é" * tokens, "finish_reason": "stop" if place == len(held) - 1 else None}
        event: dict[str, Any] = {"choices": [choice]}
        if by == "token_ids":
            choice["token_ids"] = list(range(tokens))
        if by == "each usage":
            event["usage"] = {"completion_tokens": total, "prompt_tokens": 3}
        events.append(event)
    if by == "usage":
        events.append({"choices": [], "usage": {"completion_tokens": total, "prompt_tokens": 3}})
    line_end = data.draw(st.sampled_from(["\n\n", "\r\n\r\n", "\n: a comment\n\n"]))
    text = "".join(f"data: {json.dumps(event, ensure_ascii=False)}{line_end}" for event in events)
    raw = f"{text}data: [DONE]{line_end}".encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    outcome = Outcome(0, 0, 0)

    async def parts() -> AsyncIterator[bytes]:
        for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
            yield raw[start:end]

    asyncio.run(Stream(outcome, lambda: 5).read(parts()))
    assert outcome.result == "completed"
    assert len(outcome.chunks) == len(held)
    assert outcome.tokens == (len(held) if by == "nothing" else total)
    one_each = total == len(held)
    wanted = {
        "token_ids": "token_ids",
        "each usage": "usage",
        "nothing": "chunks",
        "usage": "usage" if one_each else "total",
    }
    assert outcome.counted == wanted[by]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 6)), min_size=1, max_size=8), min_size=1, max_size=5
    )
)
def test_the_figures_follow_from_the_chunks(answers: list[list[tuple[int, int]]]) -> None:
    outcomes, requests = [], []
    for position, gaps in enumerate(answers):
        times = np.cumsum([gap for gap, _ in gaps]).tolist()
        chunks = [(10 + at, tokens) for at, (_, tokens) in zip(times, gaps, strict=True)]
        outcomes.append(Outcome(position, 0, 0, 10, chunks[-1][0], "completed", chunks=chunks))
        output = sum(tokens for _, tokens in gaps)
        requests.append(Request(str(position), 0, 1, output, output))
    result = result_of(Target("", "", "openai", "m"), Plan(), requests, Measured(outcomes, 1, 0.0, 1), [])
    found = document(result, question("ns", "itl:p50<=1s", ("ttft:1000",), None))
    firsts = [o.chunks[0][0] for o in outcomes]
    lasts = [o.chunks[-1][0] for o in outcomes]
    sizes = [r.output for r in requests]
    latency = found["latency"]
    assert latency["ttft"]["mean"] == pytest.approx(np.mean(firsts))
    assert latency["ttft_from_send"]["mean"] == pytest.approx(np.mean(firsts) - 10)
    assert latency["itl"]["count"] == sum(sizes) - sum(o.chunks[0][1] for o in outcomes)
    assert latency["icl"]["count"] == sum(len(o.chunks) - 1 for o in outcomes)
    if latency["itl"]["count"]:
        spans = sum(last - first for first, last in zip(firsts, lasts, strict=True))
        assert latency["itl"]["mean"] == pytest.approx(spans / latency["itl"]["count"])
    several = [(b - a) / (n - 1) for a, b, n in zip(firsts, lasts, sizes, strict=True) if n > 1]
    assert latency["tpot"]["count"] == len(several)
    if several:
        assert latency["tpot"]["mean"] == pytest.approx(np.mean(several))
    assert found["throughput"]["output_tokens"] == sum(sizes)
    assert found["answers"]["goodput"]["good"] == sum(first <= 10**9 for first in firsts)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def another(
    handler: Handler, models: Any = ("m",), version: Any = None, metrics: Handler | None = None
) -> AsyncIterator[str]:
    """Another server, which answers completions as it likes."""

    async def named(request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": name} for name in models]})

    app = web.Application()
    app.add_routes([web.get("/v1/models", named), web.post("/v1/completions", handler)])
    if metrics is not None:
        app.add_routes([web.get("/metrics", metrics)])
    if version is not None:

        async def told(request: web.Request) -> web.StreamResponse:
            return web.json_response(version)

        app.add_routes([web.get("/version", told)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def says(*events: str, status: int = 200, headers: Any = None, hang: bool = False, cut: bool = False) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers=headers)
        await response.prepare(request)
        for event in events:
            await response.write(event.encode())
        if hang:
            await asyncio.sleep(10**6)
        if cut and request.transport is not None:
            request.transport.abort()
        return response

    return handler


TOKEN = 'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n'
LAST = 'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n'
BAD: dict[str, tuple[Handler, str, str]] = {
    "503": (says('{"error": {"message": "busy"}}', status=503), "rejected", "503: busy"),
    "a plain 429": (says("slow down", status=429), "rejected", "429: slow down"),
    "400": (says('{"detail": "too long"}', status=400), "rejected", "400: too long"),
    "500": (says("oops", status=500), "failed", "500: oops"),
    "error in the stream": (
        says('data: {"error": {"message": "queue full", "code": 503}}\n\ndata: [DONE]\n\n'),
        "rejected",
        "in the stream: queue full",
    ),
    "error after a token": (says(TOKEN, 'data: {"error": "died"}\n\n'), "failed", "in the stream: died"),
    "cut off": (says(TOKEN, cut=True), "failed", "connection: "),
    "ends early": (says(TOKEN), "failed", "the stream broke off"),
    "nothing": (says(), "failed", "the stream broke off"),
    "no reason": (says(TOKEN, "data: [DONE]\n\n"), "failed", "no finish_reason before [DONE]"),
    "no token": (
        says('data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\n'),
        "failed",
        "an answer without a token",
    ),
    "garbage": (says("data: {{{\n\n"), "failed", "not an event of OpenAI's API: "),
    "a list": (says("data: [1]\n\n"), "failed", "not an event of OpenAI's API: "),
    "hangs": (says(TOKEN, hang=True), "failed", "took longer than 2 s"),
    "no DONE": (says(TOKEN, LAST), "completed", ""),
}


@pytest.mark.parametrize("name", BAD)
def test_servers_that_behave_badly(name: str) -> None:
    handler, result, reason = BAD[name]

    async def main() -> Result:
        async with another(handler) as url:
            return await bench(Where(url, timeout=2, scrape_interval=0), evenly(2, gap_ms=1), Plan())

    found = virtual_time.run(main())
    assert [(o.result, o.reason[: len(reason)]) for o in found.outcomes] == [(result, reason)] * 2
    shown = document(found, NOTHING)
    assert shown["results"] == {result: 2}
    assert shown["latency"]["e2el"]["count"] == (2 if result == "completed" else 0)
    json.dumps(shown, allow_nan=False)


@pytest.mark.parametrize(
    ("status", "model", "said"),
    [
        (404, None, r"status 404: gone"),
        (401, None, r"status 401: gone"),
        (200, "n", r"--model: 'n': not served here; there is m, nn|did you mean"),
    ],
)
def test_a_wrong_target_is_one_line(status: int, model: str | None, said: str) -> None:
    async def main() -> None:
        async with another(says('{"error": {"message": "gone"}}', status=status), ("m", "nn")) as url:
            await bench(Where(url, model=model), evenly(3, gap_ms=1), Plan())

    with pytest.raises(InputError, match=said) as caught:
        virtual_time.run(main())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://a", "http://", "http://a:99999", "http://a/?x=1", "http://[::1"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="must be the address of a server"):
        base_of(url)


def test_an_address_may_end_in_v1() -> None:
    assert base_of("http://a:8000/v1/") == base_of("http://a:8000") == "http://a:8000"
    assert base_of("https://a/prefix/v1") == "https://a/prefix"


def test_metrics_of_several_engines_are_put_together() -> None:
    text = """# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="a}b c"} 3.0
vllm:num_requests_running{engine="1",model_name="a"} 4.0
vllm:gpu_cache_usage_perc{engine="0"} 0.2
vllm:gpu_cache_usage_perc{engine="1"} 0.4
vllm:num_preemptions_total 1e1
vllm:num_requests_waiting_by_reason{a="b"} 9
"""
    assert parse(text, 5) == Sample(5, 7.0, None, pytest.approx(0.3), 10.0)
    timed = 'vllm:num_requests_running{a="\\"} 1"} 2 1395066363000\nvllm:num_requests_waiting 3 1395066363000\n'
    assert parse(timed, 5) == Sample(5, 2.0, 3.0)
    nothing = "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc x\n"
    assert parse(nothing, 5) is None
    assert parse("go_goroutines 5\n", 5) is None


def test_only_looks_while_the_load_runs_count() -> None:
    """0 before it, then 3, 3, 2: a mean of 8/3."""
    series = [Sample(0, preemptions=1), *(Sample(k, n, 0, 0.5, 1) for k, n in ((1, 3), (2, 3), (3, 2)))]
    found = series_figures([*series, Sample(4, preemptions=5)])
    assert found is not None and (found["samples"], found["preemptions"]) == (3, 4)
    assert found["running"] == {"mean": pytest.approx(8 / 3), "max": 3}


def test_gauges_that_contradict_the_clients_are_told() -> None:
    """One in flight for 80 of 100 ns: of 7 looks 5.6 should find it, of 6 only 4.8, which says nothing yet."""
    spans = [(0, 50), (20, 80)]
    (said,) = missed(7 * [(0.0, 0.0)], spans, 100)
    assert "0 of 7 looks found a request" in said and "80 % of the time, 1.1 in the mean" in said
    assert missed(6 * [(0.0, 0.0)], spans, 100) == [] == missed([], spans, 100)
    assert missed([*(6 * [(0.0, 0.0)]), (0.0, 1.0)], spans, 100) == []  # one waits: it was seen
    assert missed([(None, None), *(6 * [(0.0, 0.0)])], spans, 100) == []
    assert missed(99 * [(0.0, 0.0)], [], 100) == []


def test_files_that_others_read(tmp_path: Path) -> None:
    requests = [Request(f"q{k}", k * 15 * MS, 10 + k, 3 + k % 2, 3 + k % 2) for k in range(6)]
    requests.append(Request("gone", 90 * MS, 5, 50, 50, cancel_at=150 * MS))
    result, _ = measured(a_run(), requests, where={"scrape_interval": 0.04})
    found = document(result, NOTHING)

    with (tmp_path / "requests.parquet").open("wb") as file:
        outputs.write_table(result, file, "requests.parquet")
    table = pq.read_table(tmp_path / "requests.parquet").to_pylist()
    assert [row["id"] for row in table] == [r.id for r in requests]
    assert [row["result"] for row in table] == ["completed"] * 6 + ["cancelled"]
    assert [row["chunks"] for row in table[:6]] == [r.output for r in requests[:6]]

    (tmp_path / "vllm.json").write_text(json.dumps(outputs.vllm_result(result, found)))
    read = FileTable(file="vllm.json", format="vllm-bench", drop_empty=True, sort=True).read(tmp_path, "ns")
    assert read.prompt.tolist() == [r.prompt for r in requests[:6]]
    assert read.output.tolist() == [r.output for r in requests[:6]]

    (scenario,) = load(EXAMPLE).runs
    with outputs.run_folder(tmp_path / "run"):
        outputs.write_run(result, tmp_path / "run", replace(scenario, requests=requests))
    run = recorded(tmp_path / "run")
    assert run.requests.field("output") == [r.output for r in requests[:6]]
    assert run.first == pytest.approx(
        [o.chunks[0][0] / 1e9 - result.outcomes[0].sent / 1e9 for o in result.outcomes[:6]]
    )
    assert run.series and all(row["t"] > 0 for row in run.series)  # not the look before the load
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_gpu_blocks", "async_scheduling")
    assert [run.engine[name] for name in names] == [8, 256, 2048, 513, False]


@pytest.mark.parametrize("text", [False, True])
def test_a_saved_run_keeps_what_is_known_of_it(tmp_path: Path, text: bool) -> None:
    """Shared prefixes, limits, priorities and the engine's settings; not what a server of words counts itself."""
    (scenario,) = load(EXAMPLE).runs
    runs = ((0, 0, 32),)
    requests = [
        Request(f"q{k}", k * 20 * MS, 40, 3, 9, k % 2, tokens=TokenIdentity((*runs, (-2 * k - 1, 0, 8)), -2 * k - 2))
        for k in range(4)
    ]
    result, _ = measured(a_run(), requests, plan=Plan(exact=True, text=text))
    with outputs.run_folder(tmp_path / "run"):
        outputs.write_run(result, tmp_path / "run", replace(scenario, requests=requests))
    run = recorded(tmp_path / "run")
    assert [request.priority for request in run.requests] == [0, 1, 0, 1]
    assert [request.max_tokens for request in run.requests] == [3] * 4
    assert run.engine["policy"] == scenario.engine and run.tensor_parallel is None
    assert run.vllm_version is None and any("measured by a client" in note for note in run.notes)
    known = [prompt_runs(run.requests, k, request) for k, request in enumerate(run.requests)]
    shared = {of[0] for of in known}
    assert len(shared) == (4 if text else 1) and len({of[-1][0] for of in known}) == 4
    if not text:
        assert next(iter(shared))[1:] == (0, 32)


@pytest.mark.parametrize(
    ("answer", "version"), [({"version": "0.32.0+cpu"}, "0.32.0"), ([3], None), ({"version": 3}, None), (None, None)]
)
def test_the_version_that_a_server_says(answer: Any, version: str | None) -> None:
    async def main() -> str | None:
        async with another(says("full", status=429), version=answer) as url, session({}) as http:
            return (await find(http, url, "openai", None, None, {})).version

    assert asyncio.run(main()) == version


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["http://127.0.0.1:9"], "cannot be reached"),
        (["http://127.0.0.1:9", "--request-rate", "0"], "--request-rate: '0': must be a number above 0"),
        (["http://127.0.0.1:9", "--request-rate", "nan"], "--request-rate: 'nan'"),
        (
            ["http://127.0.0.1:9", "--request-rate", "1", "--burstiness", "0"],
            "--burstiness: 0.0: must be at least 0.01",
        ),
        (["http://127.0.0.1:9", "--closed-loop", "2", "--max-concurrency", "2"], "--max-concurrency"),
        (["http://127.0.0.1:9", "--closed-loop", "2", "--request-rate", "4"], "--request-rate: '4': does not go with"),
        (["http://127.0.0.1:9", "--closed-loop", "2", "--burstiness", "2"], "--burstiness: 2.0: does not go with"),
        (["http://127.0.0.1:9", "--think-time", "1"], "--think-time: needs --closed-loop"),
        (["http://127.0.0.1:9", "--header", "a"], "--header: 'a': must be KEY=VALUE"),
        (["http://127.0.0.1:9", "--extra-body", "[1]"], "--extra-body: '[1]': must be a JSON object"),
        (["http://127.0.0.1:9", "--extra-body", '{"a": NaN}'], "must be a JSON object"),
        (
            ["http://127.0.0.1:9", "--scenario", str(EXAMPLE), "--save-run", "/dev/null/run"],
            "/dev/null/run: cannot be written: Not a directory",
        ),
        (
            ["http://127.0.0.1:9", "--scenario", str(EXAMPLE), "--save-run", "/nowhere/at/all"],
            "/nowhere/at/all: cannot be written: No such file or directory",
        ),
        (["http://127.0.0.1:9", "--scrape-interval", "0.1"], "--scrape-interval: 0.1: must be 0, or at least 0.2"),
        (["http://127.0.0.1:9", "--endpoint", "x"], "--endpoint: 'x': must begin with /"),
        (["http://127.0.0.1:9", "--slo", "ttft<=1"], "--slo"),
        (["http://127.0.0.1:9", "--predict"], "--predict: needs --scenario"),
        (["http://127.0.0.1:9", "--set", "a.b=1"], "--set: 'a.b=1': needs --scenario"),
        (["http://127.0.0.1:9", "--scenario", str(EXAMPLE), "--num-prompts", "1"], "--num-prompts: does not go with"),
        (["http://127.0.0.1:9", "--scenario", str(EXAMPLE), "--set", "cost.unit=cost unit"], "must be 'ns'"),
        (["http://127.0.0.1:9", "--requests", "x.txt"], "must end in .parquet, .arrow or .csv"),
        (["http://127.0.0.1:9", "--requests", "x.csv", "--save-detailed", "x.csv"], "is named twice"),
    ],
)
def test_wrong_options_are_one_line(options: list[str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        CliRunner().invoke(cli, ["bench", *options], catch_exceptions=False)
    assert said in str(caught.value)


def test_exit_codes_and_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missed objective is 1, and so is a load of which nothing was completed."""
    invoke = CliRunner().invoke

    async def at(handler: Handler, *options: str) -> Any:
        async with another(handler) as url:
            arguments = ["bench", url, "--num-prompts", "3", "--random-input-len", "4", *options]
            return await asyncio.to_thread(invoke, cli, arguments, catch_exceptions=False)

    fine = asyncio.run(at(says(TOKEN, LAST), "--slo", "ttft:p99<=100s"))
    assert fine.exit_code == 0, fine.output
    assert "3 completed" in fine.output
    assert "every chunk is taken for one token" in fine.output
    assert asyncio.run(at(says(TOKEN, LAST), "--slo", "ttft:p99<=1ns")).exit_code == 1
    refused = asyncio.run(at(says("full", status=429)))
    assert refused.exit_code == 1
    assert "3 times: 429: full" in refused.output
    assert "TTFT" not in refused.output
