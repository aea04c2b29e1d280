"""The mock server over HTTP, also for clients that mean no good. Time is virtual, so figures are exact."""

import asyncio
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import virtual_time
from click.testing import CliRunner
from mock_server import QueueOrder, Served, a_run, served

from batchlab.cli.commands import cli
from batchlab.errors import InputError
from batchlab.policies.vllm import Vllm
from batchlab.scenario import load
from batchlab.serve import server as server_module
from batchlab.trace.verify import verify

pytestmark = pytest.mark.once

EXAMPLE = Path(__file__).parents[1] / "examples" / "served.toml"
PATHS = {
    "/v1/completions": {"prompt": "hello there"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}


async def post(server: Served, body: Any, path: str = "/v1/completions") -> tuple[int, Any, Any]:
    """Status, headers, document."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession() as http, http.post(server.url + path, data=data) as response:
        return response.status, response.headers, json.loads(await response.read())


async def stream(server: Served, body: dict[str, Any], path: str = "/v1/completions") -> list[tuple[float, Any]]:
    """The events of a stream with their times in ms."""
    found = []
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as http, http.post(server.url + path, json={**body, "stream": True}) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream"
        async for line in response.content:
            if line.startswith(b"data: "):
                data = line[6:].strip()
                found.append((round(1000 * loop.time(), 3), data.decode() if data == b"[DONE]" else json.loads(data)))
    return found


async def metrics(server: Served) -> dict[str, float]:
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/metrics") as response:
        text = await response.text()
    rows = [line for line in text.splitlines() if not line.startswith("#")]
    return {row.partition("{")[0]: float(row.rpartition(" ")[2]) for row in rows}


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_has_the_tokens_that_were_asked_for(path: str) -> None:
    async def main() -> None:
        async with served() as server:
            status, _, whole = await post(server, {**PATHS[path], "max_tokens": 7, "return_token_ids": True}, path)
            assert (status, whole["usage"]["completion_tokens"]) == (200, 7)
            (choice,) = whole["choices"]
            assert (len(choice["token_ids"]), choice["finish_reason"]) == (7, "length")
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            again = await post(server, {"prompt": text, "max_tokens": 1})
            assert again[2]["usage"]["prompt_tokens"] == 7  # the output counts as many tokens by the rule for texts
            asked = {
                **PATHS[path],
                "max_tokens": 7,
                "return_token_ids": True,
                "stream_options": {"include_usage": True},
            }
            *chunks, usage, done = [event for _, event in await stream(server, asked, path)]
            assert done == "[DONE]"
            assert usage["usage"] == whole["usage"]
            assert usage["choices"] == []
            ids = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
            assert ids == choice["token_ids"]
            assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 6 + ["length"]
            default = await post(server, PATHS[path], path)
            assert default[2]["usage"]["completion_tokens"] == 16

    virtual_time.run(main())


def test_tokens_of_prompts() -> None:
    async def main() -> None:
        async with served() as server:
            for prompt, tokens in [
                ("a", 1),
                ("abcd", 1),
                ("abcde", 2),
                ("éé€", 2),
                ([5, 6, 7], 3),
                ([[5, 6]], 2),
                (["abcd"], 1),
            ]:
                _, _, found = await post(server, {"prompt": prompt, "max_tokens": 1})
                assert found["usage"]["prompt_tokens"] == tokens, prompt
            messages = [
                {"role": "system", "content": [{"type": "text", "text": "abcdefgh"}]},
                {"role": "user", "content": "ab"},
            ]
            _, _, found = await post(server, {"messages": messages, "max_tokens": 1}, "/v1/chat/completions")
            assert found["usage"]["prompt_tokens"] == 1 + 2 + 1 + 1

    virtual_time.run(main())


def test_tokens_come_at_simulated_times_also_in_bundles() -> None:
    async def main() -> None:
        async with served() as server:
            events = await stream(server, {"prompt": "abc", "max_tokens": 5})
            assert [ms for ms, _ in events] == pytest.approx([10, 20, 30, 40, 50, 50], abs=1.5)
        async with served(tokens_per_chunk=2) as server:
            start = 1000 * asyncio.get_running_loop().time()
            events = await stream(server, {"prompt": "abc", "max_tokens": 5, "return_token_ids": True})
            assert [ms - start for ms, _ in events] == pytest.approx([20, 40, 50, 50], abs=1.5)
            assert [event["choices"][0]["token_ids"] for _, event in events[:-1]] == [[0, 1], [2, 3], [4]]

    virtual_time.run(main())


WRONG: list[tuple[str, Any, int, str | None]] = [
    ("/v1/completions", b"", 400, None),
    ("/v1/completions", b"{", 400, None),
    ("/v1/completions", b"[" * 100_000, 400, None),
    ("/v1/completions", b"\xff\xfe", 400, None),
    ("/v1/completions", b'{"prompt": "\xc3"}', 400, None),
    ("/v1/completions", b'{"prompt": "\\ud800"}', 400, None),
    ("/v1/completions", b"null", 400, None),
    ("/v1/completions", {}, 400, "prompt"),
    ("/v1/completions", {"prompt": ""}, 400, "prompt"),
    ("/v1/completions", {"prompt": []}, 400, "prompt"),
    ("/v1/completions", {"prompt": ["a", "b"]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [1, -1]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [1.5]}, 400, "prompt"),
    ("/v1/completions", {"prompt": 5}, 400, "prompt"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "max_tokens": -1}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 2**63}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 1.0}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "max_tokens": "1"}, 400, "max_tokens"),
    ("/v1/completions", b'{"prompt": "a", "max_tokens": NaN}', 400, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 100}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": [1] * 90}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 2, "min_tokens": 5}, 400, "min_tokens"),
    ("/v1/completions", {"prompt": "a", "n": 2}, 400, "n"),
    ("/v1/completions", {"prompt": "a", "echo": True}, 400, "echo"),
    ("/v1/completions", {"prompt": "a", "logprobs": 3}, 400, "logprobs"),
    ("/v1/completions", {"prompt": "a", "priority": 2**40}, 400, "priority"),
    ("/v1/completions", {"prompt": "a", "deadline_ms": 0}, 400, "deadline_ms"),
    ("/v1/completions", {"prompt": "a", "stream": "yes"}, 400, "stream"),
    ("/v1/completions", {"prompt": "a", "model": "other"}, 404, "model"),
    ("/v1/completions", b" " * (server_module.MOST_BYTES + 1), 413, None),
    ("/v1/chat/completions", {"prompt": "a"}, 400, "messages"),
    ("/v1/chat/completions", {"messages": []}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"content": "a"}]}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages"),
    ("/v1/embeddings", {"input": "a"}, 404, None),
    ("/health", {}, 405, None),
]


def test_what_is_wrong_gets_4xx_in_the_form_of_openai() -> None:
    async def main() -> None:
        async with served(a_run(max_model_len=100)) as server:
            for path, body, status, param in WRONG:
                found, _, document = await post(server, body, path)
                assert found == status, (body, document)
                assert document.keys() == {"error"}
                error = document["error"]
                assert error.keys() == {"message", "type", "param", "code"}
                assert (error["code"], error["param"]) == (status, param), (body, error)
                assert error["message"]
            assert server.engine.iterations == 0  # nothing of it came to the scheduler

    virtual_time.run(main())


MALFORMED = [
    b"GARBAGE\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /health HTTP/9.9\r\nHost: a\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost a\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: abc\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
]


@pytest.mark.parametrize("data", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_http_gets_400_and_is_closed(data: bytes) -> None:
    async def main() -> bytes:
        async with served() as server:
            return await server.raw(data)

    head, _, body = virtual_time.run(main()).partition(b"\r\n\r\n")
    assert re.match(rb"HTTP/1\.[01] 400 ", head)
    assert json.loads(body)["error"]["code"] == 400


def test_old_pipelining_slow_and_half_closed_clients() -> None:
    body = b'{"prompt": "a", "max_tokens": 2, "stream": true}'
    head = b"POST /v1/completions HTTP/1.%d\r\nHost: a\r\nContent-Length: %d\r\n\r\n"

    async def main() -> None:
        async with served() as server:
            loop = asyncio.get_running_loop()
            old = await server.raw(head % (0, len(body)) + body)
            assert old.startswith(b"HTTP/1.0 200 OK")
            assert b"chunked" not in old
            assert old.count(b"data: ") == 3
            two = head % (1, len(body)) + body + b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            answers = await server.raw(two)
            assert answers.count(b"HTTP/1.1 200 OK") == 2
            before = loop.time()
            assert await server.raw(b"POST /v1/comp") == b""  # and then nothing more
            assert loop.time() - before == pytest.approx(server_module.PATIENCE, abs=1)
            slow = await server.raw(head % (1, 1000) + body)  # the body never ends
            assert b" 408 " in slow.split(b"\r\n")[0]
            await server.raw(head % (1, len(body)) + body, half_close=True)  # it is gone, as for uvicorn
            await asyncio.sleep(1)
            assert server.engine.core.unfinished == 0

    virtual_time.run(main())


@pytest.mark.parametrize("streams", [True, False])
def test_killed_clients_free_their_seats(streams: bool) -> None:
    async def main() -> None:
        async with served(a_run(seats=4)) as server:
            body = json.dumps({"prompt": "a", "max_tokens": 10**6, "stream": streams}).encode()
            head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
            writers = []
            for _ in range(10):
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(head + body)
                writers.append(writer)
            await asyncio.sleep(0.5)
            seen = await metrics(server)
            assert (seen["vllm:num_requests_running"], seen["vllm:num_requests_waiting"]) == (4, 6)
            for writer in writers[1:]:
                writer.transport.abort()
            await asyncio.sleep(0.5)
            seen = await metrics(server)
            assert (seen["vllm:num_requests_running"], seen["vllm:num_requests_waiting"]) == (1, 0)
            assert server.engine.ended == {"cancelled": 9}
            status, _, _ = await post(server, {"prompt": "b", "max_tokens": 3})
            assert status == 200

    virtual_time.run(main())


def test_a_full_queue_is_429_with_retry_after() -> None:
    async def main() -> None:
        async with served(a_run(seats=1, max_queue=2), retry_after=7) as server:
            asked = [asyncio.create_task(post(server, {"prompt": "a", "max_tokens": 5})) for _ in range(6)]
            answers = await asyncio.gather(*asked)
            assert sorted(status for status, _, _ in answers) == [200, 200, 429, 429, 429, 429]
            for status, headers, document in answers:
                assert headers.get("Retry-After") == ("7" if status == 429 else None)
                assert status == 200 or document["error"]["message"] == "queue full"

    virtual_time.run(main())


@pytest.mark.parametrize(
    ("bound", "said"),
    [({"max_num_queued_reqs": 2}, "max_num_queued_reqs"), ({"max_num_queued_tokens": 8}, "max_num_queued_tokens")],
)
def test_vllms_own_bounds_are_503_as_from_vllm(bound: dict[str, int], said: str) -> None:
    async def main() -> None:
        async with served(a_run(seats=1, num_gpu_blocks=64, policy=Vllm(**bound)), retry_after=7) as server:
            asked = [asyncio.create_task(post(server, {"prompt": [1] * 4, "max_tokens": 5})) for _ in range(5)]
            answers = await asyncio.gather(*asked)
            assert sorted(status for status, _, _ in answers) == [200, 200, 503, 503, 503]
            for status, headers, document in answers:
                assert "Retry-After" not in headers
                assert status == 200 or document["error"] == {
                    "message": f"{said} reached",
                    "type": "ServiceUnavailableError",
                    "param": None,
                    "code": 503,
                }

    virtual_time.run(main())


def test_priorities_deadlines_and_shedding() -> None:
    run = a_run(seats=1, max_queue=2, shed=True, queue=QueueOrder("priority"), deadlines="drop")

    async def main() -> None:
        async with served(run) as server:
            order: list[str] = []

            async def ask(name: str, **more: Any) -> tuple[int, Any]:
                status, _, document = await post(server, {"prompt": "a", "max_tokens": 10, **more})
                order.append(name)
                return status, document

            asked = []
            waits = [("first", {}), ("late", {"priority": 5}), ("soon", {"priority": 0}), ("sooner", {"priority": -1})]
            for name, more in waits:
                asked.append(asyncio.create_task(ask(name, **more)))
                await asyncio.sleep(0.02)
            answers = await asyncio.gather(*asked)
            assert order == ["late", "first", "sooner", "soon"]  # `late` was shed for `sooner`
            assert [status for status, _ in answers] == [200, 429, 200, 200]
            assert "shed" in answers[1][1]["error"]["message"]
            status, document = await ask("expires", deadline_ms=45)
            assert (status, document["error"]["message"]) == (504, "deadline passed")
            events = await stream(server, {"prompt": "a", "max_tokens": 10, "deadline_ms": 45})
            assert [isinstance(event, dict) and "error" in event for _, event in events[-2:]] == [True, False]
            assert events[-2][1]["error"]["code"] == 504  # the status was out already
            assert len(events) - 2 in (4, 5)

    virtual_time.run(main())


def test_ids_models_and_health() -> None:
    async def main() -> None:
        async with served() as server, aiohttp.ClientSession() as http:
            for wanted in ("cmpl-mine", "cmpl-mine-1", "cmpl-mine-2"):
                headers = {"X-Request-Id": "mine"}
                async with http.post(f"{server.url}/v1/completions", json={"prompt": "a"}, headers=headers) as response:
                    assert (await response.json())["id"] == wanted
            async with http.get(f"{server.url}/v1/models") as response:
                assert [model["id"] for model in (await response.json())["data"]] == ["mock"]
            async with http.get(f"{server.url}/health") as response:
                assert response.status == 200

    virtual_time.run(main())


def test_an_id_is_kept_no_longer_than_it_is_needed() -> None:
    """For a trace for ever, since it names everybody once; else while its request is there."""

    async def ask(server: Served, http: aiohttp.ClientSession) -> str:
        headers = {"X-Request-Id": "mine"}
        async with http.post(f"{server.url}/v1/completions", json={"prompt": "a"}, headers=headers) as response:
            return str((await response.json())["id"])

    async def main() -> None:
        async with served(traced=False) as server, aiohttp.ClientSession() as http:
            assert [await ask(server, http) for _ in range(3)] == ["cmpl-mine"] * 3
            at_once = await asyncio.gather(*(ask(server, http) for _ in range(3)))
            assert len(set(at_once)) == 3 and "cmpl-mine" in at_once
            assert await ask(server, http) == "cmpl-mine"

    virtual_time.run(main())


def test_a_prompt_is_found_in_the_prefix_cache() -> None:
    async def main() -> str:
        async with served(a_run(num_gpu_blocks=64, enable_prefix_caching=True, policy=Vllm())) as server:
            for last in (1, 2):
                await post(server, {"prompt": [*range(64), last], "max_tokens": 1})
            await post(server, {"prompt": [1, *range(1, 65)], "max_tokens": 1})
        return server.trace

    rows = [json.loads(line) for line in virtual_time.run(main()).splitlines()]
    cached = [entry for row in rows if row["type"] == "iteration" for entry in row["cached"]]
    assert [tokens for _, tokens in cached] == [0, 64, 0]


def test_the_trace_of_a_server_verifies(tmp_path: Path) -> None:
    async def main() -> str:
        async with served(a_run(seats=2, max_queue=3, num_gpu_blocks=40)) as server:
            bodies = [{"prompt": [1] * (10 + 37 * k % 90), "max_tokens": 3 + k % 7} for k in range(12)]
            asked = [asyncio.create_task(post(server, body)) for body in bodies]
            await asyncio.sleep(0.025)
            asked[1].cancel()
            await asyncio.gather(*asked[2:])
            left = asyncio.create_task(post(server, {"prompt": "a", "max_tokens": 1000}))
            await asyncio.sleep(0.1)
        assert (await left)[0] == 503  # shut down under it
        return server.trace

    path = tmp_path / "trace.jsonl"
    path.write_text(virtual_time.run(main()), encoding="utf-8")
    assert verify(path).ok


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "batchlab", *map(str, arguments)]


def test_the_command_serves_on_loopback_until_it_is_stopped(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    options = ["--port", "0", "--set", "cost.per_iteration=1_000_000", "--trace", trace]
    process = subprocess.Popen(command("serve", EXAMPLE, *options), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    try:
        url = re.search(r"http://127\.0\.0\.1:\d+", first)
        assert url, first
        sent = ["--num-prompts", "5", "--random-input-len", "8", "--random-output-len", "4", "--json"]
        done = subprocess.run(command("bench", url[0], *sent), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["results"] == {"completed": 5}
    finally:
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(30) == 0
    assert "served 5 requests" in rest
    assert verify(trace).ok


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "cost.unit=cost unit"], "--set cost.unit: 'cost unit': must be 'ns'"),
        (["--set", "engine.policy=['vllm', 'sarathi']"], "choose one with --policy"),
        (["--host", "256.1.1.1"], "--host: '256.1.1.1:0': cannot listen there"),
        (["--trace", "/nowhere/at/all"], "cannot be written"),
    ],
)
def test_what_cannot_be_served_is_one_line(options: list[str], said: str) -> None:
    done = subprocess.run(
        command("serve", EXAMPLE, "--port", "0", *options), capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_port_that_is_taken_is_said_of_the_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = CliRunner().invoke(cli, ["serve", str(EXAMPLE), "--port", str(port)])
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == f"--port: {port}: cannot listen there on 127.0.0.1: {os.strerror(errno.EADDRINUSE)}"


def test_prompt_tokens_are_counted_as_vllm_does() -> None:
    """Once for each prompt, with its first token: also those of the prefix cache, and not again after a preemption."""

    async def main() -> None:
        small = {"engine.num_gpu_blocks": 8, "engine.max_model_len": 100, "engine.enable_prefix_caching": True}
        (run,) = load(EXAMPLE, small).runs
        async with served(run) as server:
            prompts = [list(range(start, start + 48)) for start in (100, 200, 100)]
            bodies = [{"prompt": prompt, "max_tokens": 40} for prompt in prompts]
            answers = await asyncio.gather(*(post(server, body) for body in bodies))
            assert [status for status, _, _ in answers] == [200, 200, 200]
            seen = await metrics(server)
            assert seen["vllm:num_preemptions_total"] > 0
            assert (seen["vllm:prompt_tokens_total"], seen["vllm:generation_tokens_total"]) == (144, 120)

    virtual_time.run(main())
