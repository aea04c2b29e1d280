"""Latency figures: against numpy on the samples written out, by hand, and in a run of a real trace."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner

from batchlab.cli.commands import cli
from batchlab.cli.large import milliseconds
from batchlab.core.tally import RESULTS, Tally
from batchlab.metrics.fold import Summary
from batchlab.metrics.latency import figures, latencies, throughput, weighted_figures
from batchlab.metrics.part import part_of
from batchlab.scenario import load
from batchlab.simulation import simulate
from batchlab.trace.figures import differences, figures_of
from batchlab.trace.state import Known

ROOT = Path(__file__).resolve().parents[1]
CONVERSATION = ROOT.parent / "shared" / "traces" / "azure-2023" / "AzureLLMInferenceTrace_conv.csv"
NOTHING = {"count": 0, "mean": None, "p50": None, "p90": None, "p95": None, "p99": None, "max": None}


def by_numpy(samples):
    return {
        "count": len(samples),
        "mean": np.mean(samples),
        **{f"p{q}": np.percentile(samples, q) for q in (50, 90, 95, 99)},
        "max": max(samples),
    }


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 99, 100, 101, 1000])
@pytest.mark.parametrize("span", [1, 5, 10**3, 10**12])
def test_figures_are_numpys(count, span):
    rng = random.Random(f"{count} {span}")
    samples = [rng.randint(0, span) for _ in range(count)]
    expected = pytest.approx(by_numpy(samples), rel=1e-12)
    assert figures(samples) == expected
    assert weighted_figures({s: samples.count(s) for s in samples}) == expected
    fractions = [s / 7 for s in samples]
    assert figures(fractions) == pytest.approx(by_numpy(fractions), rel=1e-12)


def test_whole_numbers_beyond_floats_stay_exact():
    big = 2**60
    assert figures([big + 1, big + 1, big + 3])["max"] == big + 3
    assert weighted_figures({big - 1: 1, big + 1: 1})["p50"] == big
    # In floats already the interpolation would lose the last digits: 2^53 + 1 is none.
    assert figures([2**53 + 1, 2**53 + 3])["p50"] == 2**53 + 2


def test_counts_of_zero_and_no_samples_at_all():
    assert figures([]) == weighted_figures({}) == weighted_figures({5: 0}) == NOTHING
    assert weighted_figures({5: 0, 7: 2})["count"] == 2


def test_memory_does_not_grow_with_the_counts():
    assert weighted_figures({1: 10**15, 2: 10**15})["p50"] == pytest.approx(1.5)


class Life(NamedTuple):
    """What became of a request, in the figures that latencies are made of."""

    arrival: int
    scheduled: int = -1
    first: int = -1
    last: int = -1
    tokens: int = 0
    completed: bool = True
    max_itl: int = 0


def tally_of(lives, gaps=()):
    tally = Tally(len(lives))
    for position, life in enumerate(lives):
        tally.first_scheduled[position], tally.first_time[position] = life.scheduled, life.first
        tally.last_time[position], tally.tokens[position] = life.last, life.tokens
        tally.max_itl[position] = life.max_itl if life.tokens else -1
        tally.result[position] = RESULTS.index("completed" if life.completed else "active")
    for gap, times in gaps:
        tally.gaps.add(gap, times)
    return tally, np.array([life.arrival for life in lives], np.int64)


def test_by_hand():
    lives = [
        Life(0, 10, 100, 400, 4),  # TPOT 100
        Life(50, 60, 90, 90, 1),  # one token: no TPOT
        Life(60, completed=False),  # rejected
        Life(70, 80, 170, -1, 2, completed=False),  # unfinished: TTFT only
    ]
    results, arrival = tally_of(lives, [(100, 3), (20, 1)])
    found = latencies(results, arrival)
    assert {name: (f["count"], f["mean"]) for name, f in found.items()} == {
        "ttft": (3, (100 + 40 + 100) / 3),
        "tpot": (1, 100.0),
        "itl": (4, 80.0),
        "e2el": (2, (400 + 40) / 2),
        "ntpot": (2, (100 + 40) / 2),
        "queue_time": (3, 10.0),
        "max_itl": (3, 0.0),
    }
    assert throughput(results, arrival, "ns") == {
        "completed": 2,
        "output_tokens": 5,
        "per": "s",
        "span": 400,
        "request_rate": 5_000_000.0,
        "output_token_rate": 12_500_000.0,
    }
    assert throughput(results, arrival, "cost unit")["output_token_rate"] == 5 / 400


def test_without_percentiles_there_are_counts_means_and_the_largest():
    """An empty list once went to numpy as places of floats, which it refuses."""
    lives = [Life(0, 10, 100, 400, 4, max_itl=200), Life(50, 60, 90, 90, 1), Life(60, completed=False)]
    results, arrival = tally_of(lives, [(50, 2), (200, 1)])
    gaps = (np.array([50, 200], np.int64), np.array([2, 1], np.int64))
    expected = {
        "ttft": {"count": 2, "mean": 70.0, "max": 100},
        "tpot": {"count": 1, "mean": 100.0, "max": 100.0},
        "itl": {"count": 3, "mean": 100.0, "max": 200},
        "e2el": {"count": 2, "mean": 220.0, "max": 400},
        "ntpot": {"count": 2, "mean": 70.0, "max": 100.0},
        "queue_time": {"count": 2, "mean": 10.0, "max": 10},
        "max_itl": {"count": 2, "mean": 100.0, "max": 200},
    }
    for found in (
        latencies(results, arrival, ()),
        latencies(results, arrival, (), gaps),
        latencies(part_of(results), arrival, ()),
    ):
        assert found == expected
    assert latencies(*tally_of([]), ())["ttft"] == {"count": 0, "mean": None, "max": None}


def test_nothing_was_completed():
    found = throughput(*tally_of([Life(0, completed=False)]), "ns")
    assert found["span"] is found["request_rate"] is found["output_token_rate"] is None
    assert latencies(*tally_of([])) == dict.fromkeys(
        ["ttft", "tpot", "itl", "e2el", "ntpot", "queue_time", "max_itl"], NOTHING
    )


def test_pooled_gaps_are_those_of_the_output_times():
    """In every policy, with preemptions: the counts against the times that are kept where a workload is written out."""
    for name in ("three-modes", "priority-preemption"):
        for run in load(ROOT / "examples" / f"{name}.toml").runs:
            summary = Summary()
            simulate(run, [summary])
            gaps = [b - a for r in summary.results for a, b in zip(r.output_times, r.output_times[1:], strict=False)]
            document = summary.document()
            assert document["latency"]["itl"] == pytest.approx(by_numpy(gaps), rel=1e-12)
            assert document["latency"]["max_itl"]["max"] == max(gaps)
            assert document["throughput"]["completed"] == document["results"]["completed"]
            assert [r.emitted for r in summary.results] == [len(r.output_times) for r in summary.results]


def test_milliseconds():
    assert [milliseconds(v) for v in (None, 0, 1, 12_345, 100_000, 1_234_567, 8_143_340_000_000)] == [
        "-",
        "0.00",
        "0.000001",
        "0.012345",
        "0.10",
        "1.23",
        "8,143,340.00",
    ]


def known(arrival, times):
    count = max(len(times), 1)
    found = Known(
        0,
        str(arrival),
        arrival,
        1,
        count,
        1,
        max_tokens=count,
        due=count,
        open_end=False,
        prefill_target=1,
        comes_at=arrival,
    )
    found.first_start = arrival
    for iteration, time in enumerate(times):
        found.emit(iteration, time, iteration == len(times) - 1)
    return found


def test_the_verifier_derives_the_same_figures_on_its_own():
    rng = random.Random(5)
    requests = [known(i, sorted(rng.sample(range(i + 1, 900), rng.randint(0, 9)))) for i in range(60)]
    lives = [
        Life(k.arrival, k.first_start, k.first_time, k.last_time, k.emitted, k.emitted > 0, k.max_gap)
        if k.emitted
        else Life(k.arrival, k.first_start, completed=False)
        for k in requests
    ]
    times = [rng.randint(1, 50) for _ in range(500)]
    gaps = {t: times.count(t) for t in times}
    derived = figures_of(requests, Counter(gaps), "ns")
    results, arrival = tally_of(lives, gaps.items())
    given = {"latency": latencies(results, arrival), "throughput": throughput(results, arrival, "ns")}
    assert [*differences("x", given, derived)] == []
    given["latency"]["itl"]["p99"] *= 1.001
    given["latency"]["ttft"]["count"] = 60.0
    del given["throughput"]["span"]
    assert len([*differences("x", given, derived)]) == 3


needs_traces = pytest.mark.skipif(not CONVERSATION.exists(), reason="the public traces are not here")


@needs_traces
def test_conversation_trace_and_its_verified_summary(tmp_path):
    trace, summary = tmp_path / "t.jsonl", tmp_path / "s.json"
    scenario = str(ROOT / "examples" / "azure-conversation.toml")
    arguments = ["run", scenario, "--workload", str(CONVERSATION), "--set", "workload.limit=500"]
    done = CliRunner().invoke(cli, [*arguments, "--trace", str(trace), "--summary", str(summary)])
    assert done.exit_code == 0, done.output
    assert "only the first 500 rows (limit = 500)" in done.output and "an oracle" in done.output
    document = json.loads(summary.read_text())
    assert document["results"] == {"completed": 500} and len(document["requests"]) == 500
    assert document["latency"]["ttft"] == pytest.approx(by_numpy([r["ttft"] for r in document["requests"]]), rel=1e-12)
    ends = [r["arrival"] + r["e2el"] for r in document["requests"]]
    assert document["throughput"]["request_rate"] == pytest.approx(500e9 / max(ends))
    assert document["latency"]["itl"]["count"] == sum(r["output"] - 1 for r in document["requests"])
    header = json.loads(trace.open().readline())
    assert header["source"]["name"] == CONVERSATION.name and header["source"]["requests"] == 500
    assert "requests" not in header and header["max_tokens_rule"] == "output"
    checked = CliRunner().invoke(cli, ["verify", str(trace), "--summary", str(summary)])
    assert checked.exit_code == 0, checked.output
    assert document["latency"]["itl"]["error"] == 2.0**-11
    document["latency"]["itl"]["p99"] *= 1.001
    summary.write_text(json.dumps(document))
    assert "latency.itl.p99" in CliRunner().invoke(cli, ["verify", str(trace), "--summary", str(summary)]).output


@needs_traces
def test_json_of_a_workload_file_has_no_entry_for_each_request():
    scenario = str(ROOT / "examples" / "azure-conversation.toml")
    arguments = ["run", scenario, "--workload", str(CONVERSATION), "--set", "workload.limit=20", "--json"]
    (document,) = json.loads(CliRunner().invoke(cli, arguments).output)["runs"]
    assert "requests" not in document and "schedule" not in document and document["latency"]["ttft"]["count"] == 20


def test_the_example_without_a_file_says_so():
    done = CliRunner().invoke(cli, ["run", str(ROOT / "examples" / "azure-conversation.toml")])
    assert "--workload PATH" in str(done.exception) and "\n" not in str(done.exception)
