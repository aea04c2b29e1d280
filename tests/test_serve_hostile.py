"""The mock server against clients and operators that mean no good, or do not look."""

import asyncio
import gzip
import json
import re
import socket
import struct
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import virtual_time
from mock_server import Served, a_run, served
from pydantic import ValidationError

from batchlab.policies.vllm import Vllm
from batchlab.serve.engine import Engine
from batchlab.serve.protocol import Answer, ApiError, Chat, Completion, parse
from batchlab.trace.verify import verify

pytestmark = pytest.mark.once

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"


def verified(trace: str, folder: Path) -> list[dict[str, Any]]:
    """The rows of a trace, which is right in itself."""
    path = folder / "trace.jsonl"
    path.write_text(trace, encoding="utf-8")
    found = verify(path)
    assert found.ok, found
    return [json.loads(line) for line in trace.splitlines()]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Completion, {"prompt": [-1] * 5000}),
        (Completion, {"prompt": ["a"] + [1] * 5000}),
        (Completion, {"prompt": [[-1] * 5000]}),
        (Chat, {"messages": [5] * 5000}),
        (Chat, {"messages": [{"role": "user", "content": [5] * 5000}]}),
    ],
)
def test_a_list_of_wrong_things_is_refused_at_the_first(kind: Any, body: Any) -> None:
    """Each error costs about a kilobyte, and a body may hold ten million."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(json.dumps(body))
    assert caught.value.error_count() <= 5


@pytest.mark.parametrize("content", [5, [5], [{"type": "image_url"}], {"text": "a"}])
def test_a_wrong_content_is_named_by_its_place_in_the_body(content: Any) -> None:
    body = {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": content}]}
    with pytest.raises(ApiError) as caught:
        parse(Chat, json.dumps(body).encode())
    said = "messages[1].content: must be a text, or a list of parts of type text"
    assert (caught.value.status, caught.value.message, caught.value.param) == (400, said, "messages")


def test_a_body_that_is_said_to_be_too_long_is_refused_before_it_comes() -> None:
    async def main() -> bytes:
        async with served() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(HEAD + b"Content-Length: 99999999999\r\n\r\n")
            begin = asyncio.get_running_loop().time()
            found = await reader.readuntil(b"}}")
            assert (
                asyncio.get_running_loop().time() - begin < 1
            )  # of virtual time, in which nothing has to be waited for
            writer.close()
            return found

    head, _, text = virtual_time.run(main()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ") and b"longer than 33,554,432 bytes" in text


def test_a_client_that_asks_whether_to_go_on_is_told_so() -> None:
    """curl does for bodies above 1 MB, and waits a second for the answer."""
    body = b'{"prompt": "a", "max_tokens": 2}'

    async def main() -> None:
        async with served() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(HEAD + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
            writer.close()

    virtual_time.run(main())


def test_a_compressed_body_is_not_unpacked() -> None:
    """400 MB of blanks are 400 kB: unpacking them would keep everybody else waiting."""
    body = gzip.compress(b" " * 1_000_000 + b'{"prompt": "a"}')

    async def main() -> None:
        async with served() as server:
            for encoding, status in ((b"gzip", b"415"), (b"br", b"415"), (b"identity", b"400")):
                head = HEAD + b"Connection: close\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n"
                assert (await server.raw(head % (encoding, len(body)) + body)).startswith(b"HTTP/1.1 %s" % status)

    virtual_time.run(main())


def test_a_body_that_cannot_be_read_is_answered_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> bytes:
        async with served() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n")
            await asyncio.sleep(0.1)
            writer.write(b"ZZ\r\nabc\r\n")
            found = await reader.read()
            writer.close()
            return found

    assert virtual_time.run(main()).startswith(b"HTTP/1.1 4")
    assert caplog.records == []


SAMPLE = re.compile(r'(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\{model_name="(?P<label>(?:[^"\\]|\\["\\n])*)"[^{}]*\} \S+')


def test_metrics_are_prometheus_text_whatever_the_model_is_called() -> None:
    """A line each, each metric after its type and said once, labels escaped: the rules of the text format."""

    async def main() -> str:
        async with served(a_run(num_gpu_blocks=10), 'a"b\\c\nd') as server, aiohttp.ClientSession() as http:
            async with http.post(f"{server.url}/v1/completions", json={"prompt": "a"}) as response:
                assert response.status == 200
            async with http.get(f"{server.url}/metrics") as response:
                return await response.text()

    typed: list[str] = []
    text = virtual_time.run(main())
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        kind = re.fullmatch(r"# TYPE (\S+) (gauge|counter)", line)
        if kind:
            assert kind[1] not in typed
            typed.append(kind[1])
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            assert sample["name"] == typed[-1]
            assert sample["label"] == r"a\"b\\c\nd"
            float(line.rpartition(" ")[2])
    assert "batchlab:requests_total" in typed


def test_a_server_ends_at_once_also_in_a_step_of_a_quarter_of_an_hour(tmp_path: Path) -> None:
    """A cost model in the wrong unit: Ctrl-C does not wait for the step; the trace says when it would have ended."""

    async def main() -> tuple[str, float, int]:
        async with served(a_run(step_ms=1_000_000)) as server, aiohttp.ClientSession() as http:
            asked = asyncio.create_task(http.post(f"{server.url}/v1/completions", json={"prompt": "a"}))
            await asyncio.sleep(1)
            before = asyncio.get_running_loop().time()
            server.engine.stop()
            status = (await asked).status
            took = asyncio.get_running_loop().time() - before
        return server.trace, took, status

    trace, took, status = virtual_time.run(main())
    assert status == 503
    assert took < 1
    rows = verified(trace, tmp_path)
    (request,) = (row for row in rows if row["type"] == "request")
    steps = [row for row in rows if row["type"] == "iteration"]
    assert steps[0]["end"] - steps[0]["start"] == 1_000_000_000_000
    assert request["cancel_at"] <= steps[-1]["start"]
    assert rows[-1]["termination"] == "all_terminal"


def test_deadlines_of_those_that_have_ended_are_forgotten() -> None:
    async def main() -> None:
        engine = Engine(a_run(seats=64, step_ms=1, deadlines="drop"))
        serving = asyncio.create_task(engine.serve())
        for k in range(1000):
            live = engine.submit(f"q{k}", 4, 2, deadline=2**61)
            if k % 20 == 19:
                await live.beyond(2)
        assert engine.ended["completed"] >= 980
        assert len(engine._give_up) < 200
        late = engine.submit("late", 4, 100, deadline=5_000_000)  # and the others are kept
        await live.beyond(10**9)
        await late.beyond(10**9)
        assert late.result == "expired"
        engine.stop()
        await serving

    virtual_time.run(main(), look=0)


@pytest.mark.parametrize("streams", [True, False])
def test_clients_that_vanish_in_every_phase_leave_nothing_behind(streams: bool, tmp_path: Path) -> None:
    """While sending, in the queue, in a prefill in chunks, in decode, with the last token: 50 times, at odd moments."""

    async def vanish(server: Served, k: int) -> None:
        body = json.dumps({"prompt": [k] * (1 + 61 * k % 300), "max_tokens": 1 + k % 9, "stream": streams}).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        sent = body[: len(body) // 2] if k % 10 == 0 else body
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + sent)
        await asyncio.sleep(0.0037 * (k * 7 % 50))
        if k % 3:
            writer.transport.abort()
        else:
            writer.close()

    async def main() -> str:
        run = a_run(seats=3, budget=64, num_gpu_blocks=60, policy=Vllm())
        async with served(run) as server, aiohttp.ClientSession() as http:
            await asyncio.gather(*(vanish(server, k) for k in range(50)))
            await asyncio.sleep(2)
            core = server.engine.core
            assert (core.unfinished, len(core.running), len(core.waiting)) == (0, 0, 0)
            assert core.kv is not None
            assert core.kv.free == core.kv.num_blocks
            assert not server.engine._lives
            assert not server.engine._coming
            for _ in range(3):  # and one that stays, on one connection
                async with http.post(f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 2}) as response:
                    assert (await response.json())["usage"]["completion_tokens"] == 2
        return server.trace

    rows = verified(virtual_time.run(main()), tmp_path)
    assert sum(row["type"] == "request" for row in rows) >= 40


def test_clients_that_hang_up_between_two_writes_are_no_errors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each resets its connection when its last token is about to go out: of the two writes left the second fails."""
    sockets: list[socket.socket] = []
    chunk = Answer.chunk

    def reset(answer: Answer, start: int, end: int, last: bool) -> bytes:
        if last:
            sockets.pop().close()
        return chunk(answer, start, end, last)

    async def main() -> None:
        async with served(a_run(seats=8, step_ms=1)) as server:
            for k in range(30):
                body = json.dumps({"prompt": "a", "max_tokens": 1 + k % 3, "stream": True}).encode()
                client = socket.create_connection(("127.0.0.1", server.port))
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset
                sockets.append(client)
                client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                while sockets:
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            assert server.engine.core.unfinished == 0

    monkeypatch.setattr(Answer, "chunk", reset)
    virtual_time.run(main())
    assert not caplog.records
