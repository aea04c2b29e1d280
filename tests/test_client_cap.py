"""A client that holds requests back: when each is sent, what counts from where, and what the trace says of it."""

import io
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from batchlab.cli.commands import cli
from batchlab.clients.capped import Capped
from batchlab.clients.request import Request
from batchlab.errors import InputError
from batchlab.events import Iteration
from batchlab.explain.explainer import Explainer
from batchlab.explain.reasons import Reason
from batchlab.metrics.fold import Summary
from batchlab.scenario import build
from batchlab.simulation import simulate
from batchlab.trace.encode import decode
from batchlab.trace.verify import verify
from batchlab.trace.write import TraceWriter

MS = 10**6
EXAMPLE = Path(__file__).parents[1] / "examples" / "client-cap.toml"


def document(seed: int, cap: int | None) -> dict[str, Any]:
    """Few seats, a bounded queue with retries, deadlines, and clients that hang up; written out or generated."""
    rng = random.Random(seed)
    workload: dict[str, Any] = {"retry": {"limit": 3, "wait": 40 * MS}}
    if cap is not None:
        workload["max_concurrency"] = cap
    if seed % 3:
        time, requests = 0, []
        for number in range(60):
            time += rng.choice([0, 5, 30]) * MS
            more = {}
            if rng.random() < 0.2:
                more["deadline"] = rng.randint(50, 900) * MS
            if rng.random() < 0.2:
                more["cancel_at"] = time + rng.randint(0, 900) * MS
            lengths = {"prompt": rng.randint(1, 90), "output": rng.randint(1, 12)}
            requests.append({"id": f"q{number}", "arrival": time, **lengths, **more})
        rng.shuffle(requests)
        workload["requests"] = requests
    else:
        length = {"distribution": "uniform", "min": 1, "max": 40}
        workload["generate"] = {"num_prompts": 60, "seed": seed, "arrivals": "poisson", "request_rate": 40}
        workload["generate"] |= {"prompt": length, "output": length}
    engine: dict[str, Any] = {"policy": "chunked", "prefill_chunk": 32, "max_queue": rng.choice([2, 50])}
    if seed % 2:
        engine = {"policy": "vllm", "num_gpu_blocks": 12, "async_scheduling": seed % 4 == 1}
    engine |= {"max_num_seqs": 4, "max_num_batched_tokens": 64}
    cost = {"model": "linear", "unit": "ns", "per_iteration": 10 * MS, "prefill_token": 300_001}
    return {"engine": engine, "cost": cost, "workload": workload, "run": {"deadlines": rng.choice(["keep", "drop"])}}


def ends_of(event: Any) -> list[str]:
    """Who has its result in this iteration."""
    if not isinstance(event, Iteration):
        return []
    gone = [rejection.id for rejection in event.rejected if rejection.retry_at is None]
    return [*event.completed, *(drop.id for drop in event.dropped), *gone]


@pytest.mark.parametrize("cap", [1, 3, 7])
@pytest.mark.parametrize("seed", range(12))
def test_each_is_sent_when_a_place_is_free(tmp_path: Path, seed: int, cap: int) -> None:
    """In order of arrival the n-th goes out at its arrival, or when so many have ended that one of `cap` is free."""
    (run,) = build(document(seed, cap)).runs
    file, summary, events = io.StringIO(), Summary(), []
    simulate(run, [summary, TraceWriter(file, summary), events.append])
    told = {event.id: event for event in events if isinstance(event, Request)}
    arrivals = sorted(range(len(run.requests)), key=lambda position: run.requests[position].arrival)
    ends = sorted(event.end for event in events for _ in ends_of(event))
    assert len(told) == len(ends) == 60
    for number, position in enumerate(arrivals):
        request = run.requests[position]
        free = 0 if number < cap else ends[number - cap]
        assert told[request.id].comes == max(request.arrival, free)
        assert told[request.id].arrival == request.arrival
    flying: set[str] = set()
    for event in events:
        if isinstance(event, Iteration):
            flying |= set(event.arrived)
            assert len(flying) <= cap
            flying -= set(ends_of(event))
    trace, said = tmp_path / "trace.jsonl", tmp_path / "summary.json"
    trace.write_text(file.getvalue())
    said.write_text(json.dumps(summary.document()))
    assert verify(trace, said).ok
    read = Summary()
    for line in file.getvalue().splitlines():
        read(decode(json.loads(line)))
    assert read.document() == summary.document()


@pytest.mark.parametrize("seed", range(4))
def test_a_cap_that_never_binds_changes_nothing(seed: int) -> None:
    found = []
    for cap in (None, 60):
        (run,) = build(document(seed, cap)).runs
        summary = Summary()
        simulate(run, [summary])
        found.append(summary.document(with_requests=False))
        assert summary.sent() is None and "load" not in found[-1]
    assert found[0] == found[1]


def test_scenario_11_in_simulation(tmp_path: Path) -> None:
    """0.5 s of service, 8 requests evenly at 10/s, one at a time: the k-th ends at 0.5 (k + 1), 0.5 + 0.4 k after it
    was to go out: at most 3.3 s, 1.9 s in the mean. From the sending 0.5 s; and 2/s of 10/s were sent."""
    outputs = {name: tmp_path / f"{name}.json" for name in ("summary", "trace")}
    options = [f"--{name}={path}" for name, path in outputs.items()]
    table = tmp_path / "requests.csv"
    result = CliRunner().invoke(cli, ["run", str(EXAMPLE), "--json", f"--requests={table}", *options])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["runs"]
    latency = found["latency"]
    assert (latency["e2el"]["max"], latency["e2el"]["mean"]) == (3300 * MS, 1900 * MS)
    assert latency["e2el_from_send"]["mean"] == latency["e2el_from_send"]["max"] == 500 * MS
    assert (latency["ttft"]["max"], latency["ttft_from_send"]["max"]) == (2850 * MS, 50 * MS)
    assert found["load"] == {
        "requested_rate": 10,
        "achieved_rate": 2,
        "held_back": 7,
        "longest_held_back": 2800 * MS,
    }
    assert verify(outputs["trace"], outputs["summary"]).ok
    rows = [line.split(",") for line in table.read_text().splitlines()]
    names = [name.strip('"') for name in rows[0]]
    columns = {name: [int(row[names.index(name)]) for row in rows[1:]] for name in ("sent", "ttft_from_send", "ttft")}
    assert columns["sent"] == [500 * MS * k for k in range(8)]
    assert columns["ttft_from_send"] == [50 * MS] * 8
    assert columns["ttft"] == [(50 + 400 * k) * MS for k in range(8)]
    shown = CliRunner().invoke(cli, ["run", str(EXAMPLE)]).output
    assert "at most 1 in flight" in shown
    held = "the cap on requests in flight held 7 back, for up to 2,800.000 ms"
    assert f"sent 2.000 of 10.000 requests/s requested: {held}" in shown


@pytest.mark.parametrize("seed", range(6))
def test_explain_has_the_time_at_the_client(seed: int) -> None:
    (run,) = build(document(seed, 3)).runs
    explainer = Explainer("all")
    simulate(run, [explainer])
    held = 0
    for life in explainer.lives.values():
        spans, request = life.spans or [], life.request
        assert life.end is not None
        assert all(one.end == other.start for one, other in itertools.pairwise(spans))
        if spans:
            assert (spans[0].start, spans[-1].end) == (request.arrival, life.end)
        assert life.times[Reason.HELD] == request.comes - request.arrival
        assert sum(life.times) == life.end - request.arrival
        held += life.times[Reason.HELD] > 0
    assert held > 20


def test_those_due_at_once_go_out_in_order_of_arrival() -> None:
    client = Capped([Request("late", 30, 1, 1, 1), *(Request(f"q{k}", 10, 1, 1, 1) for k in range(3))], 2)
    assert [entry[:2] for entry in client.due(99)] == [(10, 1), (10, 2)]
    assert client.next_arrival is None
    client.ended(1, 25, True)
    client.ended(2, 25, False)
    assert client.next_arrival == 25
    sent = client.due(99)
    assert [(time, position, r.arrival, r.held_until) for time, position, r in sent] == [
        (25, 3, 10, 25),
        (30, 0, 30, None),
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arrival": "held_until"}, "later than arrival"),
        ({"held_until": 600 * MS}, "arrival 600000000, but seen at 500000000 already"),
        ({"held_until": None}, "arrival 100000000, but not seen at"),
    ],
)
def test_verify_refuses_another_sending(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    trace = tmp_path / "trace.jsonl"
    assert CliRunner().invoke(cli, ["run", str(EXAMPLE), f"--trace={trace}"]).exit_code == 0
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    row = next(row for row in rows if row["type"] == "request" and row["id"] == "1")
    assert row["held_until"] == 500 * MS
    for key, value in change.items():
        row[key] = row[value] if isinstance(value, str) else value
    if row["held_until"] is None:
        del row["held_until"]
    trace.write_text("".join(json.dumps(one) + "\n" for one in rows))
    found = verify(trace)
    assert not found.ok and any(said in str(one) for one in found.violations)


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({"max_concurrency": 0}, "workload.max_concurrency: 0: must be at least 1"),
        ({"max_concurrency": 2**63}, "workload.max_concurrency: 9223372036854775808: must be at most"),
        ({"max_concurrency": 1.0}, "workload.max_concurrency: 1.0: must be an integer"),
        ({"max_concurrency": 2, "clients": 3}, "a closed loop of N clients never has more than N"),
        ({"max_concurrency": 2, "think_time": 3}, "workload.think_time: 3: needs clients"),
    ],
)
def test_what_does_not_go_together_is_one_line(workload: dict[str, Any], said: str) -> None:
    made = document(3, None)
    made["workload"] |= workload
    with pytest.raises(InputError) as error:
        build(made)
    assert said in str(error.value)


def test_sessions_that_wait_have_no_cap() -> None:
    made = document(3, 2)
    made["workload"]["generate"] |= {"turns": 3, "think_time": 5}
    with pytest.raises(InputError, match="turns of sessions wait for the answer"):
        build(made)
