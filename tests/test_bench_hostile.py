"""The load tester against servers whose answers are not what they should be in any of many ways."""

import asyncio
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import virtual_time
from aiohttp import web
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_server import a_run, served
from test_bench import EXAMPLE, LAST, MS, NOTHING, TOKEN, Handler, another, evenly, says

from batchlab.bench.client import MOST_COUNTED, Outcome, Stream
from batchlab.bench.figures import Result, document, result_of
from batchlab.bench.load import Measured, Plan
from batchlab.bench.run import Where, bench
from batchlab.bench.target import Target
from batchlab.cli.commands import cli
from batchlab.clients.request import Request
from batchlab.errors import InputError

pytestmark = pytest.mark.once


def against(handler: Handler, plan: Plan | None = None, requests: list[Request] | None = None, **where: Any) -> Result:
    async def main() -> Result:
        async with another(handler) as url:
            given = {"timeout": 2, "scrape_interval": 0, **where}
            return await bench(Where(url, **given), requests or evenly(2, gap_ms=1), plan or Plan())

    return virtual_time.run(main())


def ends(usage: str) -> Handler:
    return says(TOKEN, f'data: {{"choices": [{{"text": "a", "finish_reason": "stop"}}], "usage": {usage}}}\n\n')


def event(text: str) -> Handler:
    return says(f"data: {text}\n\n")


NO_EVENT = "not an event of OpenAI's API: "
HOSTILE: dict[str, tuple[Handler, str, str]] = {
    "choices: 5": (event('{"choices": 5}'), "failed", NO_EVENT),
    "choices: a text": (event('{"choices": "abc"}'), "failed", NO_EVENT),
    "choices: null in it": (event('{"choices": [null]}'), "failed", NO_EVENT),
    "delta: a text": (event('{"choices": [{"delta": "x"}]}'), "failed", NO_EVENT),
    "token_ids: 5": (event('{"choices": [{"token_ids": 5}]}'), "failed", NO_EVENT),
    "usage: 5": (event('{"usage": 5}'), "failed", NO_EVENT),
    "deep": (event("[" * 200_000), "failed", NO_EVENT),
    "deep error": (says("[" * 200_000, status=500), "failed", "500: [["),
    "counts: text": (ends('{"completion_tokens": "5"}'), "failed", NO_EVENT),
    "counts: negative": (ends('{"completion_tokens": -7}'), "failed", NO_EVENT),
    "counts: a fraction": (ends('{"completion_tokens": 1.5}'), "failed", NO_EVENT),
    "counts: NaN": (ends('{"completion_tokens": NaN}'), "failed", NO_EVENT),
    "counts: true": (ends('{"completion_tokens": true}'), "failed", NO_EVENT),
    "counts: 2^63": (ends(f'{{"completion_tokens": 2, "prompt_tokens": {2**63}}}'), "failed", NO_EVENT),
    "counts: too many": (ends(f'{{"completion_tokens": {MOST_COUNTED + 1}}}'), "failed", NO_EVENT),
    "code: 10^30": (event(f'{{"error": {{"message": "x", "code": {10**30}}}}}'), "rejected", "in the stream: x"),
    "a page": (says("<p>hello</p>", headers={"Content-Type": "text/html"}), "failed", "no stream of events, but text/"),
    "not streamed": (
        says('{"choices": [{"text": "a"}]}', headers={"Content-Type": "application/json"}),
        "failed",
        "no stream of events, but application/json",
    ),
    "no gzip": (says(TOKEN, LAST, headers={"Content-Encoding": "gzip"}), "failed", "connection: "),
    "unknown charset": (says("x", status=500, headers={"Content-Type": "a/b; charset=nonsense"}), "failed", "500: x"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_answer_of_a_wrong_form_is_that_requests_failure_alone(name: str) -> None:
    handler, result, reason = HOSTILE[name]
    found = against(handler)
    assert [(o.result, o.reason[: len(reason)]) for o in found.outcomes] == [(result, reason)] * 2
    assert all(o.status is None or 100 <= o.status < 600 for o in found.outcomes)
    json.dumps(document(found, NOTHING), allow_nan=False)


def test_a_server_that_counts_nothing_says_zero() -> None:
    found = against(ends('{"completion_tokens": 0, "prompt_tokens": 0}'))
    assert [(o.result, o.counted, o.tokens) for o in found.outcomes] == [("completed", "chunks", 2)] * 2
    json.dumps(document(found, NOTHING), allow_nan=False)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
NAMES = ("choices", "usage", "error", "text", "delta", "content", "token_ids", "finish_reason", "completion_tokens")
likely = st.recursive(
    values, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
)


@settings(max_examples=200, deadline=None)
@given(st.lists(likely, max_size=4))
def test_whatever_events_say_there_are_strict_figures(documents: list[Any]) -> None:
    async def parts() -> Any:
        for k, said in enumerate(documents):
            outcome.sent, now[0] = 0, (k + 1) * MS
            yield f"data: {json.dumps(said)}\n\n".encode()

    now = [0]
    outcome = Outcome(0, 0, 0)
    asyncio.run(Stream(outcome, lambda: now[0]).read(parts()))
    assert outcome.result != "completed" or outcome.tokens >= 1
    assert outcome.result == "completed" or outcome.reason
    requests = [Request("a", 0, 1, 1, 1)]
    result = result_of(Target("", "", "openai", "m"), Plan(), requests, Measured([outcome], 1, 0.0, 1), [])
    json.dumps(document(result, NOTHING), allow_nan=False)


@pytest.mark.parametrize("after", ["inf", "nan", "1e300", "1e999", "-5", "soon", "3600"])
def test_a_strange_retry_after_ends_the_request(after: str) -> None:
    """Each is answered in the end: at once, after the usual second, or not tried again."""
    found = against(says("x", status=429, headers={"Retry-After": after}), Plan(max_retries=1))
    assert [o.reason for o in found.outcomes] == ["429: x"] * 2
    assert [o.retries for o in found.outcomes] == [0 if after in ("1e300", "3600") else 1] * 2
    assert found.measured.elapsed < 3000 * MS


def test_nothing_of_an_attempt_is_left_for_the_next() -> None:
    answers = [
        says("busy", status=503),
        says('data: {"usage": {"prompt_tokens": 9, "completion_tokens": 9}}\n\n', TOKEN, LAST),
    ]

    async def handler(request: web.Request) -> web.StreamResponse:
        return await answers.pop(0)(request)

    (outcome,) = against(handler, Plan(max_retries=1), evenly(1, gap_ms=1)).outcomes
    assert (outcome.status, outcome.retries, outcome.result, outcome.retry_after) == (200, 1, "completed", None)
    outcome.begin(5)
    fresh = Outcome(0, 0, 0, sent=5, retries=1, waits=[1.0], end=outcome.end)
    assert outcome == fresh


@pytest.mark.parametrize(("timeout", "seconds"), [(2.0, 2), (0.5, 1), (600.0, 10)])
def test_a_server_that_never_answers_is_waited_for_no_longer_than_a_request(timeout: float, seconds: int) -> None:
    async def main() -> float:
        hold = asyncio.Event()

        async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await hold.wait()
            writer.close()

        server = await asyncio.start_server(nothing, "127.0.0.1", 0)
        async with server:
            where = Where(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout=timeout)
            begin = asyncio.get_running_loop().time()
            with pytest.raises(InputError, match="cannot be reached: no answer in time"):
                await bench(where, evenly(1, gap_ms=1), Plan())
            took = asyncio.get_running_loop().time() - begin
            hold.set()
        return took

    assert virtual_time.run(main()) == pytest.approx(seconds, abs=0.2)


def test_a_redirect_is_not_followed() -> None:
    reached = []

    async def handler(request: web.Request) -> web.StreamResponse:
        reached.append(request.method)
        raise web.HTTPTemporaryRedirect("http://127.0.0.1:9/other")

    with pytest.raises(InputError, match=r"status 307: it redirects: give the address itself, http://127.0.0.1:9/oth"):
        against(handler, requests=evenly(1, gap_ms=1))
    assert reached == ["POST"]


def test_a_line_without_an_end_is_read_in_linear_time_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchlab.bench.client.LONGEST_LINE", 1 << 20)
    read = 0

    async def parts() -> Any:
        nonlocal read
        while True:
            read += 4096
            yield b"a" * 4096

    outcome = Outcome(0, 0, 0)
    asyncio.run(Stream(outcome, lambda: 0).read(parts()))
    assert (outcome.result, outcome.reason) == ("failed", "a line of over 1 MiB")
    assert read == (1 << 20) + 4096


def test_an_answer_that_never_ends_is_read_no_further_than_it_says_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchlab.bench.target.MOST_BYTES", 1 << 16)
    monkeypatch.setattr("batchlab.bench.client.MOST_CHUNKS", 1000)
    sent = 0

    async def page(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=503, headers={"Content-Type": "text/plain; charset=no-such"})
        await response.prepare(request)
        while sent < 1 << 26:
            await response.write(b"busy " * 1000)
            sent += 5000
        return response

    (outcome,) = against(page, requests=evenly(1, gap_ms=1)).outcomes
    assert outcome.result == "rejected" and outcome.reason.startswith("503: busy busy")
    assert sent < 1 << 26

    async def tokens(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(TOKEN.encode())

    (outcome,) = against(tokens, requests=evenly(1, gap_ms=1)).outcomes
    assert (outcome.result, outcome.reason) == ("failed", "an answer of over 1,000 events")


def test_ids_that_no_header_may_have_are_sent_encoded() -> None:
    requests = [Request(id, 0, 4, 2, 2) for id in ("a\nX-Evil: b", "q\u00e9", "plain 1")]

    async def main() -> tuple[Result, str]:
        async with served(a_run()) as server:
            return await bench(Where(server.url, scrape_interval=0), requests, Plan()), server.trace

    result, trace = virtual_time.run(main())
    assert [o.result for o in result.outcomes] == ["completed"] * 3
    rows = [json.loads(line) for line in trace.splitlines()]
    assert {row["id"] for row in rows if row["type"] == "request"} <= {"a%0AX-Evil%3A%20b", "q%C3%A9", "plain 1"}


def test_a_stalled_server_shows_in_latencies_from_the_intended_times() -> None:
    """One at a time each 100 ms, 20 ms each; the fourth stalls 2 s, and those held behind it say so."""
    count = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        await asyncio.sleep(2.0 if count == 4 else 0.02)
        return await says(LAST)(request)

    result = against(handler, Plan(max_concurrency=1), evenly(10, gap_ms=100), timeout=10)
    expected, free = [], 0.0
    for k in range(10):  # a queue with one place, by hand
        free = max(free, 100.0 * k) + (2000 if k == 3 else 20)
        expected.append(free - 100 * k)
    found = [(o.chunks[0][0] - o.intended) / MS for o in result.outcomes]
    assert found == pytest.approx(expected, abs=15)
    from_send = sorted((o.chunks[0][0] - o.sent) / MS for o in result.outcomes)
    assert from_send == pytest.approx([20] * 9 + [2000], abs=15)


def test_requests_go_out_while_more_are_made() -> None:
    """All at once is many; the first are answered before the last prompt is there."""
    events: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        events.append("served")
        return await says(LAST)(request)

    class Watched(list[Request]):
        def __getitem__(self, place: Any) -> Any:
            if place == 199:
                events.append("last made")
            return super().__getitem__(place)

    against(handler, requests=Watched(evenly(200, gap_ms=0)))
    assert events.index("served") < events.index("last made")


@pytest.mark.parametrize(
    "options", [["--timeout", "nan"], ["--scrape-interval", "nan"], ["--closed-loop", "2", "--think-time", "nan"],
                ["--random-range-ratio", "nan"]]
)  # fmt: skip
def test_nan_is_no_number(options: list[str]) -> None:
    done = CliRunner().invoke(cli, ["bench", "http://127.0.0.1:9", *options])
    assert done.exit_code == 2
    assert "is not a number" in done.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--request-rate", "1e-300"], "--request-rate: '1e-300': the last of 1,000 arrivals lies beyond 2^62 ns"),
        (["--request-rate", "1e300"], "--request-rate: 1e+300: must be at most 1000000000"),
        (["--request-rate", "-inf"], "--request-rate: '-inf': must be a number above 0, or inf"),
        (["--burstiness", "nan"], "--burstiness: nan: must be at least 0.01"),
        (["--burstiness", "1e300", "--request-rate", "1"], "--burstiness: 1e+300: must be at most 10000"),
        (["--random-input-len", str(2**40)], "1<=x<=16777216"),
        (["--random-input-len", str(2**24), "--random-range-ratio", "0.9"], "at most 16,777,216 tokens can be sent"),
        (["--extra-body", '{"temperature": 1e999}'], "--extra-body: '{\"temperature\": 1e999}': must be a JSON object"),
        *(
            ([option, value], f"Invalid value for '{option}'")
            for option in ("--num-prompts", "--random-output-len", "--seed", "--max-concurrency", "--closed-loop")
            for value in ("-1", "1e3", "nan", "inf", "")
        ),
        *(([option, str(2**63)], f"'{option}'") for option in ("--num-prompts", "--seed", "--vocab-size")),
        *(
            ([option, value], f"Invalid value for '{option}'")
            for option in ("--timeout", "--scrape-interval", "--think-time")
            for value in ("-1", "inf", "1e300")
        ),
    ],
)
def test_extreme_numbers_are_one_clear_line(options: list[str], said: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = CliRunner().invoke(cli, ["bench", "http://127.0.0.1:9", *options])
    told = str(done.exception) if isinstance(done.exception, InputError) else done.output
    assert said in told
    assert isinstance(done.exception, InputError) or done.exit_code == 2


@pytest.mark.parametrize("value", ["-1", "nan", "1e300", str(2**63), "0.5"])
@pytest.mark.parametrize("option", ["--port", "--tokens-per-chunk", "--retry-after"])
def test_extreme_numbers_of_the_server_too(option: str, value: str) -> None:
    done = CliRunner().invoke(cli, ["serve", str(EXAMPLE), option, value])
    assert done.exit_code == 2
    assert f"Invalid value for '{option}'" in done.output


def test_a_run_of_which_nothing_was_completed_is_told_and_not_saved(tmp_path: Path) -> None:
    async def main() -> Any:
        async with another(says("full", status=429)) as url:
            arguments = ["bench", url, "--scenario", str(EXAMPLE), "--save-run", str(tmp_path / "run"), "--json"]
            return await asyncio.to_thread(CliRunner().invoke, cli, arguments, catch_exceptions=False)

    done = asyncio.run(main())
    assert done.exit_code == 1
    assert json.loads(done.stdout)["results"] == {"rejected": 30}
    assert "not written: no request was completed" in done.stderr
    assert list(tmp_path.iterdir()) == []
