"""Sessions whose next turn waits for the answer: from distributions and from files, in every engine that caches."""

import csv
import io
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from batchlab.cli.commands import cli
from batchlab.clients.columns import Columns
from batchlab.clients.request import Request
from batchlab.errors import InputError
from batchlab.events import Iteration
from batchlab.metrics.fold import Summary
from batchlab.scenario import build, load
from batchlab.simulation import Run, simulate
from batchlab.trace.verify import verify
from batchlab.trace.write import TraceWriter

COST = {"model": "linear", "unit": "ns", "per_iteration": 5_000, "prefill_token": 27, "decode_token": 15}
VLLM = {"policy": "vllm", "max_num_seqs": 4, "max_num_batched_tokens": 64, "block_size": 4}
CHUNKED = {"policy": "chunked", "max_num_seqs": 2, "max_num_batched_tokens": 16, "prefill_chunk": 8}


def generated(engine: dict[str, Any], seed: int, workload: dict[str, Any] | None = None, **more: Any) -> Run:
    generate = {
        "num_prompts": 60,
        "seed": seed,
        "arrivals": "poisson",
        "request_rate": 5_000,
        "prompt": {"distribution": "uniform", "min": 1, "max": 30},
        "output": {"distribution": "uniform", "min": 1, "max": 12},
        "turns": {"distribution": "uniform", "min": 1, "max": 6},
        "think_time": {"distribution": "uniform", "min": 0, "max": 400_000},
        **more,
    }
    (run,) = build({"engine": engine, "cost": COST, "workload": {"generate": generate, **(workload or {})}}).runs
    return run


def lives(run: Run) -> tuple[dict[str, Request], dict[str, int], Summary]:
    """The requests as they were sent, and when each had its last token, from the events alone."""
    sent, ended = {}, {}

    def look(event: Any) -> None:
        if isinstance(event, Request):
            sent[event.id] = event
        elif isinstance(event, Iteration):
            ended.update(dict.fromkeys(event.completed, event.end))

    summary = Summary()
    simulate(run, [summary, look])
    return sent, ended, summary


@pytest.mark.parametrize("seed", range(6))
def test_a_turn_comes_its_think_time_after_the_one_before_it(seed: int) -> None:
    run = generated({**VLLM, "num_gpu_blocks": 400, "enable_prefix_caching": seed % 2 == 0}, seed)
    sent, ended, summary = lives(run)
    assert isinstance(run.requests, Columns) and run.requests.sessions is not None
    assert len(sent) == len(ended) == len(run.requests) == 60 and summary.result_counts() == {"completed": 60}
    turns = [request for request in sent.values() if request.after is not None]
    assert len(turns) == int((run.requests.sessions.previous >= 0).sum()) > 20
    for turn in turns:
        assert turn.after is not None and turn.think_time is not None and 0 <= turn.think_time <= 400_000
        before = sent[turn.after]
        assert turn.arrival == ended[before.id] + turn.think_time
        assert turn.prompt > before.prompt + before.output
    firsts = [request for request in sent.values() if request.after is None]
    assert [r.arrival for r in firsts] == [run.requests[int(r.id)].arrival for r in firsts]


@pytest.mark.parametrize("engine", [VLLM | {"num_gpu_blocks": 40, "enable_prefix_caching": True}, CHUNKED])
@pytest.mark.parametrize("seed", range(3))
def test_traces_verify_and_are_the_same_each_time(engine: dict[str, Any], seed: int, tmp_path: Path) -> None:
    texts, folds = [], []
    for name in ("a", "b"):
        run = generated(engine, seed, deadline=900_000)
        if seed == 2:
            run.deadlines = "drop"
        summary = Summary()
        with (tmp_path / name).open("w") as file:
            simulate(run, [summary, TraceWriter(file, summary)])
        texts.append((tmp_path / name).read_bytes())
        folds.append(summary.document())
        (tmp_path / "summary").write_text(json.dumps(folds[-1]))
        report = verify(tmp_path / name, tmp_path / "summary")
        assert report.ok, [str(violation) for violation in report.violations]
    assert texts[0] == texts[1] and folds[0] == folds[1]


def test_cached_tokens_are_the_conversation_so_far_in_whole_blocks() -> None:
    """One client at a time and room for all: each turn finds the whole blocks of what the engine has computed."""
    run = generated(
        VLLM | {"num_gpu_blocks": 4_000, "enable_prefix_caching": True}, 5, request_rate=1e-3, shared_prefix=10
    )
    found: dict[str, int] = {}

    def look(event: Any) -> None:
        if isinstance(event, Iteration):
            found.update(event.cached)

    sent, _, summary = lives(run)
    simulate(run, [look])
    expected = {}
    for place, request in enumerate(sent.values()):
        # computed are the prompt and all of the answer but its last token, whose KV is never stored
        known = 10 if request.after is None else sent[request.after].prompt + sent[request.after].output - 1
        tokens = 0 if place == 0 else min(known, request.prompt - 1) // 4 * 4  # the last token is always computed
        if tokens:
            expected[request.id] = tokens
    assert {id: tokens for id, tokens in found.items() if tokens} == expected
    assert summary.totals()["cached_tokens"] == sum(expected.values()) > 1_000


def test_without_an_answer_the_session_ends() -> None:
    run = generated(CHUNKED | {"max_queue": 1}, 3, request_rate=200_000)
    sent, ended, summary = lives(run)
    counts = summary.result_counts()
    assert counts["rejected"] > 3 and len(sent) == sum(counts.values()) < 60
    assert {request.after for request in sent.values()} <= {None, *ended}
    columns = run.requests
    assert isinstance(columns, Columns) and columns.sessions is not None
    for position, previous in enumerate(
        columns.sessions.previous.tolist()
    ):  # of those who had an answer, the next came
        assert previous < 0 or (str(previous) in ended) == (str(position) in sent)


def test_rejected_turns_that_come_again_are_answered_in_the_end() -> None:
    run = generated(
        CHUNKED | {"max_queue": 1},
        3,
        request_rate=200_000,
        workload={"retry": {"limit": 30, "wait": 50_000, "factor": 1}},
    )
    sent, _, summary = lives(run)
    assert summary.result_counts() == {"completed": 60} and len(sent) == 60 and summary.totals()["retries"] > 10


def test_a_gap_and_a_think_time_can_stand_side_by_side() -> None:
    kinds = [
        {"name": "open", "prompt": 5, "output": 3, "turns": 3, "turn_gap": 1_000},
        {"name": "waits", "prompt": 5, "output": 3, "turns": 3, "think_time": 1_000},
    ]
    generate = {"num_prompts": 60, "seed": 1, "arrivals": "poisson", "request_rate": 5_000, "classes": kinds}
    (run,) = build({"engine": CHUNKED, "cost": COST, "workload": {"generate": generate}}).runs
    sent, ended, _ = lives(run)
    assert len(sent) == 60
    for request in sent.values():
        planned = run.requests[int(request.id)]
        if request.after is None:
            assert request.arrival == planned.arrival
        else:
            assert request.group == "waits" and request.arrival == ended[request.after] + 1_000


def rows_of_sessions(seed: int) -> list[dict[str, int]]:
    """What a log of chats holds: whole prompts, the new part of each, and whose turn it is."""
    rng = Random(seed)
    rows, history, turns, time = [], {}, {}, 0
    for _ in range(200):
        who = rng.randrange(20)
        new, output = rng.randint(1, 40), rng.randint(1, 20)
        whole = history.get(who, 0) + new
        history[who], turns[who] = whole + output, turns.get(who, 0) + 1
        time += rng.randint(0, 50)
        rows.append({"at": time, "whole": whole, "new": new, "out": output, "who": who, "turn": turns[who]})
    return rows


def written(rows: list[dict[str, int]], form: str, path: Path) -> Path:
    if form == "jsonl":
        path.write_text("".join(json.dumps({**row, "who": f"u{row['who']}"}) + "\n" for row in rows))
    elif form == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist([{**row, "who": f"u{row['who']}"} for row in rows]), path)
    else:
        text = io.StringIO(newline="")
        quoting = csv.QUOTE_ALL if form == "quoted" else csv.QUOTE_MINIMAL  # quotes are for the thorough reader
        writer = csv.DictWriter(text, list(rows[0]), quoting=quoting)
        writer.writeheader()
        writer.writerows({**row, "who": f"u{row['who']}"} for row in rows)
        path.write_text(text.getvalue(), newline="")
    return path


def from_file(path: Path, form: str, prompt: str = "whole", **more: Any) -> Run:
    names = {"arrival": "at", "prompt": prompt, "output": "out", "session": "who", "turn": "turn"}
    workload = {"file": str(path), "format": "csv" if form == "quoted" else form, "columns": names, "time_unit": "us"}
    engine = VLLM | {"num_gpu_blocks": 4_000, "enable_prefix_caching": True}
    (run,) = build({"engine": engine, "cost": COST, "workload": {**workload, "prompts": prompt, **more}}).runs
    return run


@pytest.mark.parametrize("form", ["csv", "quoted", "jsonl", "parquet"])
def test_sessions_of_a_file_are_the_same_however_it_is_written(form: str, tmp_path: Path) -> None:
    rows = rows_of_sessions(1)
    path = written(rows, form, tmp_path / "w")
    last: dict[int, int] = {}
    for prompt in ("whole", "new"):
        columns = from_file(path, form, prompt).requests
        assert isinstance(columns, Columns) and columns.sessions is not None and not columns.waits
        assert columns.prompt.tolist() == [row["whole"] for row in rows]
        assert columns.sessions.new.tolist() == [row["new"] for row in rows]
        last.clear()
        for position, row in enumerate(rows):
            assert columns.sessions.previous[position] == last.get(row["who"], -1)
            last[row["who"]] = position
    sent, ended, _ = lives(from_file(path, form, think_time=700))
    assert len(sent) == 200
    assert all(r.after is None or r.arrival == ended[r.after] + 700 for r in sent.values())
    assert sum(r.after is None for r in sent.values()) == 20


def test_sorting_sampling_and_slicing_keep_sessions_whole(tmp_path: Path) -> None:
    rows = rows_of_sessions(2)
    path = written(rows, "csv", tmp_path / "w")
    mixed = sorted(rows, key=lambda row: Random(row["at"]).random())  # rows of the same time stay as they are
    straight, shuffled = from_file(path, "csv"), from_file(written(mixed, "csv", tmp_path / "m"), "csv", sort=True)
    assert isinstance(straight.requests, Columns) and isinstance(shuffled.requests, Columns)
    assert straight.requests.prompt.tolist() == shuffled.requests.prompt.tolist()
    sampled = from_file(path, "csv", transform={"sample": 0.5, "seed": 4}).requests
    kept = {rows[int(request.id)]["who"] for request in sampled}
    assert 3 < len(kept) < 17 and len(sampled) == sum(row["who"] in kept for row in rows)
    sliced = from_file(path, "csv", transform={"from_time": 300_000, "to_time": 3_000_000}).requests
    begins = {row["who"]: row["at"] for row in reversed(rows)}
    start = rows[0]["at"]
    inside = [row for row in rows if begins[row["who"]] - start >= 300 and row["at"] - start < 3_000]
    assert [int(request.id) for request in sliced] == [rows.index(row) for row in inside] and len(inside) > 5


@pytest.mark.parametrize(
    ("change", "more", "expected"),
    [
        ({}, {"prompts": None}, "workload.prompts: is missing: 'whole' where"),
        ({"whole": 1}, {}, "request '3': a prompt of 1 tokens cannot hold the turn before it, '1' of 6 + 5"),
        ({"turn": 0}, {}, "request '3': turn 0 of its session comes after turn 0: turns must count up"),
        ({"who": ""}, {}, "line 5, column 'who': '': is empty; every request needs a session"),
        ({"turn": "NaN"}, {}, "line 5, column 'turn': 'NaN': must be a whole number"),
        ({"turn": -1}, {}, "line 5, column 'turn': '-1': must not be negative"),
        ({"turn": 2**63}, {}, "must be at most 2^31"),
        ({}, {"clients": 2}, "workload.clients: 2: would send the turns of a session side by side"),
        ({}, {"think_time": -1}, "workload.think_time: -1"),
    ],
)
def test_what_makes_no_session_is_refused(
    change: dict[str, Any], more: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    rows: list[Any] = [{"at": n, "whole": 5 + n, "out": 5, "who": f"u{n % 2}", "turn": n // 2} for n in range(4)]
    rows[2]["whole"] = rows[3]["whole"] = 50
    rows[3] |= change
    path = tmp_path / "w.csv"
    path.write_text("\n".join(",".join(map(str, row)) for row in (rows[0], *(row.values() for row in rows))) + "\n")
    with pytest.raises(InputError) as caught:
        from_file(path, "csv", **more)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"turn_gap": 5}, "turns need one of think_time"),
        ({"think_time": None}, "turns need one of think_time"),
        ({"turns": None}, "think_time needs turns"),
    ],
)
def test_how_a_session_goes_on_is_said_once(more: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        generated(CHUNKED, 1, **more)


def test_the_report_tells_who_waits_and_who_was_never_sent(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        """
[engine]
policy = "chunked"
max_num_seqs = 2
max_num_batched_tokens = 16
prefill_chunk = 8
max_queue = 1
[cost]
model = "linear"
unit = "ns"
per_iteration = 5_000
[workload.generate]
num_prompts = 60
seed = 3
arrivals = "poisson"
request_rate = 200_000
prompt = 20
output = 10
turns = 3
think_time = 100_000
"""
    )
    result = CliRunner().invoke(cli, ["run", str(path)])
    said = " ".join(result.output.split())
    assert result.exit_code == 0 and "and 40 as turns sent after the answer before them" in said
    assert "turns were never sent: a turn of their session before them was not answered" in said
    described = CliRunner().invoke(cli, ["workload", "describe", str(path), "--json"])
    assert json.loads(described.output)["requests"] == 60 and json.loads(described.output)["arrivals"] == 20


def test_a_think_time_beyond_all_time_is_one_line() -> None:
    from batchlab.errors import BatchlabError

    with pytest.raises(BatchlabError, match=r"2\^62"):
        lives(generated(CHUNKED, 3, think_time=2**62))


def test_first_turns_are_found_however_long_a_session_is() -> None:
    from batchlab.clients.sessions import Sessions

    zeros = np.zeros(1_000, np.int64)
    chain = Sessions(np.arange(-1, 999), zeros, zeros, zeros)
    assert not chain.first_turns.any()


def test_a_calm_engine_is_not_taken_for_one_whose_queue_grows() -> None:
    """Waits count from when turns really came: at 3 sessions a second hardly anybody waits in this example."""
    from batchlab.plan.probe import _growth

    summary = Summary()
    simulate(load(Path(__file__).parents[1] / "examples" / "sessions.toml").runs[0], [summary])
    assert abs(_growth(summary)) < 1e-3
