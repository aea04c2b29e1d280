"""What the load tester tells of a run, on the terminal and in files, and what it keeps to itself."""

import asyncio
import base64
import contextlib
import io
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from aiohttp import web
from click.testing import CliRunner
from mock_server import a_run
from rich.console import Console
from test_bench import EXAMPLE, LAST, MS, NOTHING, TOKEN, another, evenly, measured, says
from test_bench_hostile import against

from batchlab.bench import outputs
from batchlab.bench.client import Outcome
from batchlab.bench.figures import Result, document, result_of
from batchlab.bench.load import Measured, Plan
from batchlab.bench.run import Where, bench
from batchlab.bench.target import Target, base_of
from batchlab.cli import bench_tables
from batchlab.cli.bench import _other_wait
from batchlab.cli.commands import cli
from batchlab.errors import InputError
from batchlab.metrics.answers import question
from batchlab.scenario import load
from batchlab.validate.recorded import recorded

pytestmark = pytest.mark.once


def test_a_run_replaces_the_one_that_is_there(tmp_path: Path) -> None:
    """All of it: a look at /metrics that the new run did not have must not be the old one's."""
    (scenario,) = load(EXAMPLE).runs
    requests = evenly(2, gap_ms=1)
    for result in (against(says(TOKEN, LAST), requests=requests), against(says(TOKEN, LAST), requests=requests[:1])):
        with outputs.run_folder(tmp_path / "run"):
            outputs.write_run(result, tmp_path / "run", replace(scenario, requests=requests))
        if len(result.requests) == 2:
            (tmp_path / "run" / "timeseries.csv").write_text("t,running,waiting,kv_cache_pct\n")
    run = recorded(tmp_path / "run")
    assert len(run.requests) == 1 and run.series == []
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["meta.json", "requests.jsonl"]


def test_what_a_client_cannot_know_is_not_called_measured(tmp_path: Path) -> None:
    (scenario,) = load(EXAMPLE).runs
    requests = evenly(5, gap_ms=5)
    result = against(says(TOKEN, LAST), requests=requests)
    with outputs.run_folder(tmp_path / "run"):
        outputs.write_run(result, tmp_path / "run", replace(scenario, requests=requests))
    arguments = ["validate", str(tmp_path / "run"), "--cost", str(EXAMPLE)]
    shown = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert "TTFT from arrival" in shown.output and "queued_ts" not in shown.output
    found = json.loads(CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert "ttft_queued" not in found["latency_s"] and "ttft_queued" not in found["amplification_pct_per_pct"]
    assert set(found["latency_s"]) == {"ttft", "tpot", "e2e"}


@pytest.mark.parametrize(("ms", "saturated"), [(20, False), (999, False), (1000, True)])
def test_a_busy_moment_is_no_saturated_client(ms: int, saturated: bool) -> None:
    requests = evenly(2, gap_ms=1)
    outcomes = [Outcome(k, k * MS, k * MS, sent=k * MS, result="rejected", first_sent=k * MS) for k in range(2)]
    found = document(
        result_of(Target("", "", "openai", "m"), Plan(), requests, Measured(outcomes, ms * MS, 0.99, 2), []), NOTHING
    )
    assert found["load"]["saturated"] is saturated
    assert any(line.startswith("CLIENT SATURATED") for line in found["notes"]) is saturated


def made(outcomes: list[Outcome], plan: Plan | None = None, **measured: Any) -> Result:
    """The result of a load of four tokens each, of which this became."""
    elapsed = measured.pop("elapsed", max(o.end for o in outcomes))
    target, requests = Target("", "", "openai", "m"), evenly(len(outcomes), gap_ms=0)
    return result_of(target, plan or Plan(), requests, Measured(outcomes, elapsed, 0.1, 2, **measured), [])


def ended(k: int, at_ms: int, result: str, reason: str = "") -> Outcome:
    """A request that was to go out k seconds after the start, and its end."""
    chunks = [((at_ms - 30 + 10 * n) * MS, 1) for n in range(4)] if result == "completed" else []
    times = {"sent": k * 1000 * MS, "first_sent": k * 1000 * MS, "end": (at_ms + 5 * (result == "completed")) * MS}
    return Outcome(k, k * 1000 * MS, k * 1000 * MS, result=result, reason=reason, chunks=chunks, **times)


REFUSED = "connection: Connect call failed"


def test_a_server_that_dies_is_not_as_fast_as_it_was_before() -> None:
    """Five requests, one a second, of which two are answered, 100 ms after they were sent: 2 of 4 s are 0.5 a second;
    up to the last answer it would be 2 of 1.1 s. What came after the last token counts only where nothing else does."""
    dead = [ended(k, k * 1000, "failed", REFUSED) for k in (2, 3, 4)]
    found = document(
        made([ended(0, 100, "completed"), ended(1, 1100, "completed"), *dead]),
        question("ns", None, ("e2el:500",), None),
    )
    assert found["throughput"]["request_rate"] == found["answers"]["throughput"]["request_rate"] == 0.5
    assert found["throughput"]["output_token_rate"] == 2.0 and found["answers"]["goodput"]["goodput"] == 0.5
    assert found["notes"] == [
        "of 5 requests 3 failed: E2E and TPOT are of the others, TTFT of whoever got a token",
        f"the server was gone from 1.1 s on: all 3 that ended later failed: {REFUSED}",
    ]
    fine = document(made([ended(0, 100, "completed"), ended(1, 1100, "completed")]), NOTHING)
    assert fine["throughput"]["request_rate"] == pytest.approx(2 / 1.1) and fine["notes"] == []
    cut = document(made([ended(0, 100, "completed")], elapsed=4000 * MS, cut=1), NOTHING)
    assert cut["throughput"]["request_rate"] == 0.25


def test_chunks_that_are_read_together_are_told() -> None:
    """20 requests have three gaps each: four of 60 that are 0 are 7 %, three are 5 % and nothing to tell."""

    def result(together: int) -> Result:
        outcomes = [ended(k, 1000 * k + 100, "completed") for k in range(20)]
        for outcome in outcomes[:together]:
            outcome.chunks[3] = (outcome.chunks[2][0], 1)
        return made(outcomes)

    found = document(result(4), NOTHING)
    assert found["notes"] == ["7 % of ITL's gaps are 0: this client read chunks that came together at one moment"]
    assert document(result(3), NOTHING)["notes"] == []


def test_rejected_requests_at_the_end_are_not_called_failed() -> None:
    full, done = "503: full", ended(0, 100, "completed")
    lost = [ended(k, k * 1000, "rejected", full) for k in (1, 2)]
    begin = "nothing was completed from 0.1 s on: all"
    assert document(made([done, *lost]), NOTHING)["notes"][1] == f"{begin} 2 that ended later were rejected: {full}"
    both = document(
        made([done, ended(1, 1000, "failed", REFUSED), *(ended(k, 2000, "rejected", full) for k in (2, 3))]), NOTHING
    )
    assert both["notes"][1] == f"{begin} 3 that ended later failed or were rejected: {REFUSED}; {full}"


def test_requests_that_fail_before_others_are_answered_are_no_end_of_the_server() -> None:
    mixed = [ended(0, 500, "rejected", "429: full"), ended(1, 1400, "failed", "took"), ended(2, 9000, "completed")]
    assert document(made(mixed), NOTHING)["notes"] == [
        "of 3 requests 1 failed and 1 were rejected: E2E and TPOT are of the others, TTFT of whoever got a token"
    ]
    assert document(made(mixed[:2]), NOTHING)["notes"] == []  # there are no latencies


def test_a_saved_run_of_which_requests_failed_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(where: Where, requests: Any, *_: Any, **__: Any) -> Result:
        outcomes = [ended(0, 100, "completed"), *(ended(k, 1000 * k, "failed", REFUSED) for k in (1, 2))]
        return result_of(Target("", "", "openai", "m"), Plan(), requests, Measured(outcomes, 2000 * MS, 0.1, 2), [])

    monkeypatch.setattr("batchlab.bench.run.bench", lost)
    words = ["bench", "http://127.0.0.1:9", "--scenario", str(EXAMPLE), "--save-run", str(tmp_path / "run")]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0 and "of 3 requests 2 failed" in done.stderr
    said = f"{tmp_path / 'run'}: 2 of 3 requests were not completed and are left out: what the server spent on them"
    assert said in done.stderr


@pytest.mark.parametrize(
    ("waits", "told"), [([], None), ([1.0, 1.0], None), ([3.0, 1.0], "2 s in the mean, 3 s at most")]
)
def test_attempts_after_the_first_are_told(
    waits: list[float], told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = [ended(0, 100, "completed"), ended(1, 5000, "completed"), ended(2, 2100, "completed")]
    outcomes[1].waits, outcomes[1].retries = waits, len(waits)
    found = document(made(outcomes, Plan(max_retries=3)), NOTHING)
    found["load"]["asked_rate"] = None
    bench_tables.print_bench(found)
    line = "1 request needed more than one attempt: 5 attempts in all"
    assert (line in capsys.readouterr().out.splitlines()) is bool(waits)
    assert (found["retries"], found["retried"]) == (len(waits), int(bool(waits)))
    said = _other_wait(found["retry_wait"])
    wait = "of the prediction: it waits 1 s before another attempt; the server asked for "
    assert said == ([] if told is None else [wait + told])


def test_the_waits_before_attempts_are_those_that_the_server_asked_for() -> None:
    run = a_run(seats=1, max_queue=1)
    result, _ = measured(run, evenly(3, gap_ms=1, output=30), Plan(max_retries=20), retry_after=2)
    waits = [wait for o in result.outcomes for wait in o.waits]
    assert waits and set(waits) == {2.0} and len(waits) == document(result, NOTHING)["retries"]


@pytest.mark.parametrize("clients", [None, 2])
def test_a_closed_loop_has_no_rate_of_sending(clients: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(made([ended(k, k * 1000 + 100, "completed") for k in range(4)], Plan(clients=clients)), NOTHING)
    found["load"]["asked_rate"] = None
    bench_tables.print_bench(found)
    shown = capsys.readouterr().out
    assert ("sent 1.000 requests/s" in shown) is (clients is None) and "completed 1.290 requests/s" in shown
    assert found["load"]["achieved_rate"] == (1.0 if clients is None else None)


def test_files_of_an_interrupted_run_say_so(tmp_path: Path) -> None:
    whole = against(says(TOKEN, LAST))
    for cut, mark in ((None, None), (3, b"true")):
        result = replace(whole, measured=replace(whole.measured, cut=cut))
        saved = outputs.vllm_result(result, document(result, NOTHING))
        assert saved.get("partial") == (None if cut is None else True)
        path = tmp_path / f"{cut}.parquet"
        with path.open("wb") as file:
            outputs.write_table(result, file, str(path))
        metadata = pq.read_schema(path).metadata
        assert (metadata or {}).get(b"partial") == mark


def test_ctrl_c_again_does_not_cut_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = against(says(TOKEN, LAST))
    write = outputs.write_table

    async def interrupted(*_: Any, **__: Any) -> Result:
        os.kill(os.getpid(), signal.SIGINT)
        with contextlib.suppress(asyncio.CancelledError):  # as the load does, which keeps what has ended
            await asyncio.sleep(60)
        return replace(whole, measured=replace(whole.measured, cut=1))

    def press_and_write(*given: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        write(*given)

    monkeypatch.setattr("batchlab.bench.run.bench", interrupted)
    monkeypatch.setattr(outputs, "write_table", press_and_write)
    before = signal.getsignal(signal.SIGINT)
    try:
        done = CliRunner().invoke(cli, ["bench", "http://127.0.0.1:9", "--requests", str(tmp_path / "r.csv")])
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.exit_code == 130 and "PARTIAL" in done.output
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 1 + len(whole.requests)


def test_a_password_in_the_address_is_sent_and_shown_nowhere() -> None:
    seen = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("Authorization"))
        return await says(TOKEN, LAST)(request)

    async def main() -> Any:
        async with another(handler) as url:
            address = url.replace("//", "//u:s%40cret@")
            arguments = ["bench", address, "--num-prompts", "2", "--random-input-len", "4"]
            shown = await asyncio.to_thread(CliRunner().invoke, cli, arguments, catch_exceptions=False)
            document = await asyncio.to_thread(CliRunner().invoke, cli, [*arguments, "--json"], catch_exceptions=False)
            own = ["--header", "Authorization=Bearer k"]
            await asyncio.to_thread(CliRunner().invoke, cli, [*arguments, *own], catch_exceptions=False)
            return shown, document, url

    shown, found, url = asyncio.run(main())
    assert seen == 4 * ["Basic " + base64.b64encode(b"u:s@cret").decode()] + 2 * ["Bearer k"]
    assert shown.exit_code == found.exit_code == 0
    assert json.loads(found.stdout)["url"] == f"{url}/v1/completions"
    for text in (shown.output, found.output):
        assert "cret" not in text and "u:" not in text


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://u:secret@nohost.invalid:80", "http://nohost.invalid:80: cannot be reached: "),
        ("http://u:secret@127.0.0.1:9/v1", "http://127.0.0.1:9: cannot be reached: "),
        ("http://u:se/cret@127.0.0.1:9", "URL: 'http://...@127.0.0.1:9': must be"),
        ("ftp://u:secret@127.0.0.1:9", "URL: 'ftp://...@127.0.0.1:9': must be"),
    ],
)
def test_a_password_is_in_no_error(url: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        CliRunner().invoke(cli, ["bench", url, "--num-prompts", "2"], catch_exceptions=False)
    assert str(caught.value).startswith(said) and "cret" not in str(caught.value)


def test_an_address_keeps_what_was_typed_but_for_the_credentials() -> None:
    assert base_of("http://a:80/v1") == "http://a:80"
    assert base_of("https://u@[::1]:443/x/v1/") == "https://[::1]:443/x"
    assert base_of("http://u:p@a") == "http://a"


@contextlib.asynccontextmanager
async def plain(answer: bytes) -> AsyncIterator[int]:
    """A port where everybody is answered alike."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("scheme", "answer", "said"),
    [
        ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", "no TLS is spoken there: is it http:// instead of https://?"),
        ("http", b"220 mail.example.com ESMTP\r\n\r\n", "no answer in HTTP: "),
        ("http", b"\x16\x03\x01\x02\x00\r\n\r\n", "no answer in HTTP: "),
    ],
)
def test_what_speaks_something_else_is_said_as_that(scheme: str, answer: bytes, said: str) -> None:
    async def main() -> None:
        async with plain(answer) as port:
            await bench(Where(f"{scheme}://127.0.0.1:{port}", scrape_interval=0), evenly(1, gap_ms=1), Plan())

    with pytest.raises(InputError) as caught:
        asyncio.run(main())
    _, between, rest = str(caught.value).partition(": cannot be reached: ")  # before it, the port may be any number
    assert between and rest.startswith(said) and "400" not in rest and "message=" not in rest


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_lines_below_the_table_break_between_their_parts(width: int) -> None:
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    parts = ["sent 279.179 requests/s", "at most 5 in flight", "send lag p99 14.56 ms, max 15.07 ms", "8 % of a core"]
    bench_tables._say_parts(out, parts, "; ")
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert " ".join(lines) == "; ".join(parts) and max(map(len, lines)) <= width
    assert all(line.endswith(";") for line in lines[:-1])


CLASSES = """
[[workload.generate.classes]]
name = "late"
weight = 1
prompt = 20
output = 3
goodput = "ttft:0.000001"
[[workload.generate.classes]]
name = "loose"
weight = 1
prompt = 20
output = 3
goodput = "e2el:100000 ttft:100000"
[[workload.generate.classes]]
name = "free"
weight = 1
prompt = 20
output = 3
"""


def test_each_request_is_held_to_the_targets_of_its_class(tmp_path: Path) -> None:
    """Measured and predicted: a nanosecond is never met, 100 s always, and without targets who is completed is good."""
    path = tmp_path / "classes.toml"
    text = EXAMPLE.read_text(encoding="utf-8").partition("\nprompt = ")[0]
    path.write_text(text + CLASSES, encoding="utf-8")
    late = sum(request.group == "late" for request in load(path).runs[0].requests)
    assert 0 < late < 30

    async def at(*options: str) -> Any:
        arguments = ["--scenario", str(path), "--set", "workload.generate.request_rate=1000", *options]
        async with another(says(TOKEN, LAST)) as url:
            return await asyncio.to_thread(CliRunner().invoke, cli, ["bench", url, *arguments], catch_exceptions=False)

    told = asyncio.run(at("--slo", "attainment>=99%", "--predict", "--json"))
    assert told.exit_code == 1
    found = json.loads(told.stdout)
    for answers in (found["answers"], found["predicted"]["answers"]):
        assert answers["goodput"]["good"] == 30 - late and answers["goodput"]["attainment"] == (30 - late) / 30
        assert answers["goodput"]["targets_of_groups"] == {
            "late": {"ttft": 1},
            "loose": {"e2el": 100_000 * MS, "ttft": 100_000 * MS},
        }
        assert [(one["value"], one["met"]) for one in answers["objectives"]] == [((30 - late) / 30, False)]
    assert "late: TTFT" in asyncio.run(at()).stdout  # without being asked, as `run` says it
    for_all = asyncio.run(at("--slo", "attainment>=99%", "--goodput", "ttft:100000"))
    assert for_all.exit_code == 0 and "30 of all 30 requests, 100.00 %" in for_all.stdout
