"""A real server over HTTP on loopback: its recording follows clients that leave, and outlives a kill."""

import http.client
import json
import threading
from pathlib import Path
from typing import Any

import serving
from driving import holds

from batchlab.trace.verify import verify


def ask(server: serving.Server, number: int, tokens: int, leave_after: int | None = None) -> int:
    """One streamed completion; leave_after: the client hangs up after so many events. Returns the events seen."""
    body: dict[str, Any] = {"model": server.model, "prompt": [3 + number] * (40 + 7 * number), "stream": True}
    body |= {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    seen = 0
    try:
        headers = {"Content-Type": "application/json", "X-Request-Id": f"r{number}"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        assert answer.status == 200
        for line in answer:
            seen += line.startswith(b"data: {")
            if leave_after is not None and seen >= leave_after:
                break
    except (OSError, http.client.HTTPException):  # the server was killed
        pass
    finally:
        connection.close()
    return seen


def test_a_server_its_clients_and_its_sudden_death(model: Path, trace: Path) -> None:
    with serving.server(model, trace) as server:
        clients = [
            threading.Thread(target=ask, args=(server, n, 30, 5 if n % 4 == 3 else None), daemon=True)
            for n in range(20)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join(timeout=60)
        assert 1 <= ask(server, 20, 10) <= 10  # an event may hold several tokens
        before = trace.read_bytes()
        last = threading.Thread(target=ask, args=(server, 21, 400), daemon=True)
        last.start()
        while trace.read_bytes().count(b"\n") < before.count(b"\n") + 20:  # some of its tokens are out
            assert server.process.poll() is None
        server.kill()
        last.join(timeout=60)
    data = trace.read_bytes()
    assert data.startswith(before) and data.endswith(b"\n")
    assert '"cmpl-r21-0-' in data.decode(), "the request that was under way"
    assert "1 active" in holds(trace)
    ids = [json.loads(line)["id"] for line in data.splitlines() if b'"type":"request"' in line]
    assert [name.split("-")[1] for name in sorted(ids, key=lambda name: int(name.split("-")[1][1:]))] == [
        f"r{n}" for n in range(22)
    ]
    trace.write_bytes(data[:-10])  # as if the kill had come within a write
    report = verify(trace)
    line = data.count(b"\n")
    assert report.ok and report.note is not None and report.note.startswith(f"line {line} is cut off and left out; 1 ")
    holds(trace)


def test_whom_a_policys_door_refuses_is_told_so_over_http(model: Path, trace: Path) -> None:
    with serving.server(model, trace, serving.POLICY, "vllm max_num_queued_reqs=0") as server:
        for stream, status in ((False, 500), (True, 200)):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            body = {"model": server.model, "prompt": [5] * 20, "max_tokens": 5, "stream": stream}
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == status
            assert b"InternalServerError" in answer.read()
            connection.close()
    assert holds(trace).endswith("2 rejected")
