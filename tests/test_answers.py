"""Windows, groups, intervals and objectives of a run: against plain readings of their definitions."""

import io
import json
import math
import random
import statistics
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from batchlab.cli import main
from batchlab.cli.answers import _became, _latencies_of_groups, _print_groups
from batchlab.cli.commands import cli
from batchlab.core.tally import RESULTS, Tally
from batchlab.errors import InputError
from batchlab.events import Iteration
from batchlab.metrics.answers import answers, question, undecided
from batchlab.metrics.fold import Summary
from batchlab.metrics.intervals import batch_means, interval, student_t
from batchlab.metrics.latency import figures, gap_figures, latencies
from batchlab.metrics.part import part_of
from batchlab.metrics.window import parse_window, stationarity, steady_window
from batchlab.plan.trial import Trial, row_of
from batchlab.scenario import build, load
from batchlab.seeds import over_seeds
from batchlab.simulation import simulate
from batchlab.trace.encode import decode
from batchlab.trace.write import TraceWriter

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
GENERATED = str(EXAMPLES / "generated.toml")


def document_of(seed):
    """Two classes in front of few seats and blocks, with rejections, preemptions and deadlines."""
    rng = random.Random(seed)
    length = {"distribution": "exponential", "mean": rng.choice([10, 40]), "max": 120, "outside": "clip"}
    classes = [
        {"name": "short", "weight": 3, "prompt": length, "output": rng.choice([1, length])},
        {"name": "long", "prompt": 100, "output": length, "deadline": rng.choice([1, 20]) * 10**9},
    ]
    engine = {"max_num_seqs": rng.choice([2, 8]), "max_num_batched_tokens": 64}
    if seed % 2:
        engine |= {"policy": "chunked", "prefill_chunk": 32, "max_queue": rng.choice([3, 20])}
    else:
        engine |= {"policy": "vllm", "num_gpu_blocks": rng.choice([17, 40])}
    return {
        "engine": engine,
        "cost": {"model": "linear", "unit": "ns", "per_iteration": 10_000_000, "prefill_token": 300_001},
        "run": {"deadlines": "drop", "max_iterations": rng.choice([100_000, 300])},
        "workload": {
            "generate": {
                "num_prompts": 150,
                "seed": seed,
                "arrivals": "poisson",
                "request_rate": rng.choice([5, 40]),
                "classes": classes,
            }
        },
    }


def run_of(document):
    [run] = build(document).runs
    return run


def online(run, each_gap=False):
    summary = Summary(each_gap)
    simulate(run, [summary])
    return summary


def told(run, each_gap=False):
    """By way of events, into a trace and back."""
    file, first, second = io.StringIO(), Summary(each_gap), Summary(each_gap)
    simulate(run, [first, TraceWriter(file, first)])
    for line in file.getvalue().splitlines():
        second(decode(json.loads(line)))
    return first, second


QUESTIONS = [
    (None, ("ttft:300 tpot:20",), None, True),
    ("ttft:p99.9<=1s,tpot:mean<=10ms,attainment>=50%", ("e2el:2000",), "1.5s..11500ms", True),
    ("max_itl:max<=1s,itl:mean<=11ms", (), "0s..9s", False),
]


def test_online_and_from_a_saved_trace_the_same():
    seen, compared = set(), 0
    for seed in range(24):
        run = run_of(document_of(seed))
        quick, (events, trace) = online(run, each_gap=True), told(run, each_gap=True)
        seen |= set(quick.result_counts())
        for asked in [*QUESTIONS, (None, (), "steady", False)]:
            asked = question("ns", *asked)
            try:
                expected = answers(quick, asked)
            except InputError as error:
                for other in (events, trace):
                    with pytest.raises(InputError) as refused:
                        answers(other, asked)
                    assert str(refused.value) == str(error)
                continue
            compared += 1
            assert answers(events, asked) == expected
            assert answers(trace, asked) == expected  # gaps too: fewer than 4,096 different ones are kept exactly
    assert {"completed", "rejected", "expired"} < seen and compared > 70


def test_gaps_of_a_part_that_is_the_whole():
    """Number, mean and largest follow from the requests' own columns as from the histogram of all gaps."""
    preempted = 0
    for seed in range(24):
        summary = online(run_of(document_of(seed)))
        preempted += summary.tally.preemptions
        whole = latencies(part_of(summary.tally), summary.column("arrival"))["itl"]
        expected = gap_figures(summary.tally.gaps)
        assert {name: whole[name] for name in ("count", "max")} == {n: expected[n] for n in ("count", "max")}
        assert whole["mean"] == pytest.approx(expected["mean"], rel=1e-12)
        assert whole["p99"] is None
    assert preempted > 20


class Gaps:
    """All gaps between tokens, one by one and by request, from the events."""

    def __init__(self):
        self.last, self.gaps, self.of = {}, [], {}

    def __call__(self, event):
        if isinstance(event, Iteration):
            decodes = [id for id, phase, _ in event.scheduled if phase == "decode"]
            for id in [*decodes, *event.prefill_done]:
                if id in self.last:
                    self.gaps.append(event.end - self.last[id])
                    self.of.setdefault(id, []).append(event.end - self.last[id])
                self.last[id] = event.end


def test_percentiles_of_gaps_are_within_the_stated_bound():
    [run] = load(GENERATED).runs
    gaps = Gaps()
    simulate(run, [gaps])
    assert len(set(gaps.gaps)) > 4096
    exact = figures(gaps.gaps, [50, 90, 95, 99, Fraction(999, 10)])
    quick, (_, trace) = online(run), told(run)
    for summary in (quick, trace):
        found = answers(summary, question("ns", "itl:p99.9<=1s", (), None))["latency"]["itl"]
        assert {name: found[name] for name in ("count", "mean", "max")} == {
            name: exact[name] for name in ("count", "mean", "max")
        }
        for name in ("p50", "p90", "p95", "p99", "p99.9"):
            assert abs(found[name] - exact[name]) <= found["error"] * exact[name] and found["error"] == 2**-11
        assert any(found[name] != exact[name] for name in ("p50", "p90", "p95", "p99"))


def percentiles_of(gaps):
    if not gaps:
        return {"count": 0, **dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max"))}
    found = {f"p{p}": float(np.percentile(gaps, p)) for p in (50, 90, 95, 99)}
    return {"count": len(gaps), "mean": float(np.mean(gaps)), **found, "max": max(gaps)}


def test_gaps_of_windows_and_groups_are_those_of_their_requests():
    """Each gap written down by itself, from the events; the quick way keeps common steps once for all who took them."""
    compared = 0
    runs = [run_of(document_of(seed)) for seed in range(16)]
    runs += load(GENERATED, {"workload.generate.num_prompts": 120}).runs
    for run in runs:
        by_hand = Gaps()
        simulate(run, [by_hand])
        asked = question("ns", None, (), "1s..20s", by_group=True)
        for summary in (online(run, each_gap=True), *told(run, each_gap=True)):
            found = answers(summary, asked)
            inside = [r for r in run.requests if 10**9 <= r.arrival < 20 * 10**9]
            for group, figures_of in (*found["groups"].items(), (None, found)):
                ids = [r.id for r in inside if group is None or r.group == group]
                gaps = [gap for id in ids for gap in by_hand.of.get(id, ())]
                expected = percentiles_of(gaps)
                itl = figures_of["latency"]["itl"]
                assert itl == (pytest.approx(expected, rel=1e-12) if gaps else expected)
                compared += len(gaps)
    assert compared > 10_000


def test_gaps_are_kept_where_a_run_is_cut_short():
    """Those in step at the iteration limit leave it there."""
    for limit in (1, 50, 700):
        run = run_of({**document_of(3), "run": {"max_iterations": limit}})
        by_hand = Gaps()
        simulate(run, [by_hand])
        summary = online(run, each_gap=True)
        values, times = summary.tally.each_gap.of(np.ones(summary.tally.count, bool))
        assert dict(zip(values.tolist(), times.tolist(), strict=True)) == Counter(by_hand.gaps)


def test_an_objective_on_gaps_goes_with_a_window():
    run = run_of(document_of(1))
    summary = online(run, each_gap=True)
    found = answers(summary, question("ns", "itl:p99.9<=1s", (), "0s..9s"))
    assert found["objectives"][0]["value"] == found["latency"]["itl"]["p99.9"] > 0


def plainly(results, chosen, window):
    """Some figures of chosen requests, from their results one by one."""
    start, end = window
    mine = [r for r in results if chosen(r.request) and start <= r.request.arrival < end]
    ttft = [r.first_time - r.request.arrival for r in mine if r.first_time is not None]
    done = [r for r in mine if r.result == "completed"]
    inside = [r for r in results if chosen(r.request) and r.result == "completed" and start <= r.completed_time < end]
    good = [
        r
        for r in done
        if r.first_time - r.request.arrival <= 300_000_000
        and (r.emitted == 1 or Fraction(r.completed_time - r.first_time, r.emitted - 1) <= 20_000_000)
    ]
    seconds = (end - start) / 10**9
    return {
        "requests": len(mine),
        "ttft": None if not ttft else pytest.approx((statistics.fmean(ttft), np.percentile(ttft, 99.9), max(ttft))),
        "e2el": len(done),
        "rates": pytest.approx(
            (
                len(inside) / seconds,
                sum(r.emitted for r in inside) / seconds,
                sum(r.request.prompt for r in inside) / seconds,
            )
        ),
        "goodput": pytest.approx((len(good) / seconds, len(good) / len(mine) if mine else math.nan), nan_ok=True),
    }


def in_short(found):
    ttft = found["latency"]["ttft"]
    rates, good = found["throughput"], found["goodput"]
    share = good["attainment"]
    return {
        "requests": found["requests"],
        "ttft": None if not ttft["count"] else (ttft["mean"], ttft["p99.9"], ttft["max"]),
        "e2el": found["latency"]["e2el"]["count"],
        "rates": (rates["request_rate"], rates["output_token_rate"], rates["prompt_token_rate"]),
        "goodput": (good["goodput"], math.nan if share is None else share),
    }


def test_window_and_groups_are_their_definitions():
    rng = random.Random(5)
    for seed in range(24):
        summary = online(run_of(document_of(seed)))
        results = summary.results
        start = rng.randint(0, 2000)
        window = (start * 10**6, start * 10**6 + rng.randint(10**9, 10**10))
        asked = question("ns", "ttft:p99.9<=1s", ("ttft:300 tpot:20",), f"{start}ms..{window[1]}ns", True)
        found = answers(summary, asked)
        assert in_short(found) == plainly(results, lambda request: True, window)
        for name in ("short", "long"):
            expected = plainly(results, lambda request, name=name: request.group == name, window)
            assert in_short(found["groups"][name]) == expected


def test_without_a_window_rates_are_those_of_the_summary_and_groups_add_up():
    for seed in range(12):
        summary = online(run_of(document_of(seed)))
        document = summary.document(with_requests=False)
        found = answers(summary, question("ns", None, ("e2el:500",), None, True))
        assert found["latency"] == document["latency"]
        for name in ("request_rate", "output_token_rate"):
            assert found["throughput"][name] == document["throughput"][name]
            parts = [group["throughput"][name] for group in found["groups"].values()]
            assert sum(parts) == pytest.approx(found["throughput"][name])
        assert found["results"] == document["results"]
        assert sum(group["goodput"]["good"] for group in found["groups"].values()) == found["goodput"]["good"]
        assert found["goodput"]["attainment"] == found["goodput"]["good"] / 150  # of all, whatever became of them


def tally_of(lives):
    """(arrival, scheduled, last token) of each; last None: still running."""
    tally = Tally(len(lives))
    for position, (_, scheduled, last) in enumerate(lives):
        tally.result[position] = RESULTS.index("active" if last is None else "completed")
        tally.first_scheduled[position], tally.tokens[position] = scheduled, 1
        tally.first_time[position] = tally.last_time[position] = -1 if last is None else last
    return part_of(tally), np.array([life[0] for life in lives], np.int64)


def steady_of(lives, first_turns=None):
    part, arrival = tally_of(lives)
    return steady_window(part, arrival, np.array(first_turns or range(len(lives))))


def test_steady_window_by_hand():
    # Two run at once at most: the wave is two completions, the second at 20. The last arrival is at 70; the one from 60
    # ends after it, those before do not.
    lives = [(0, 0, 10), (5, 5, 20), (20, 20, 30), (30, 30, 40), (50, 50, 69), (60, 60, 75), (70, 75, 80)]
    window = steady_of(lives)
    assert (window.start, window.end) == (20, 60)
    assert "wave of 2" in window.rule
    assert window.holds(np.array([19, 20, 59, 60])).tolist() == [False, True, True, False]
    lives[3] = (30, 30, None)  # it never ends: from then on nobody is known to be undisturbed
    assert (steady_of(lives).start, steady_of(lives).end) == (20, 30)


def test_later_turns_alone_are_no_steady_load():
    # The turns of a session begin at 0 and 12, of another at 5 and 25: two at once, the second of them over at 30. The
    # last session begins at 60, when all that came before 50 have their last token.
    lives = [(0, 0, 10), (5, 5, 18), (12, 12, 20), (25, 25, 30), (40, 40, 45), (50, 50, 61), (60, 60, 70), (80, 80, 90)]
    window = steady_of(lives, [0, 1, 0, 1, 4, 5, 6, 6])
    assert (window.start, window.end, window.rule) == (30, 50, "after a wave of 2 sessions, before the drain")
    assert (steady_of(lives).start, steady_of(lives).end) == (18, 80)  # as if nobody waited for anything


def test_the_window_of_sessions_is_its_definition():
    """A session a second, three turns two seconds apart: from the trace as from the run, and by the definition."""
    turns = {"turns": 3, "think_time": 2_000_000_000, "prompt": 5, "output": 4}
    load = {"num_prompts": 300, "seed": 1, "arrivals": "poisson", "request_rate": 1, **turns}
    run = run_of(
        {
            "engine": {"policy": "vllm", "max_num_seqs": 8, "max_num_batched_tokens": 64},
            "cost": {"model": "linear", "unit": "ns", "per_iteration": 10_000_000},
            "workload": {"generate": load},
        }
    )
    asked = question("ns", None, (), "steady")
    summary = online(run)
    found = answers(summary, asked)
    lives = {result.request.id: result for result in summary.results}
    first = {}
    for id, result in lives.items():
        first[id] = id if result.request.after is None else first[result.request.after]
    begun = {id: result.first_scheduled for id, result in lives.items() if first[id] == id}
    ended = {root: max(result.completed_time for id, result in lives.items() if first[id] == root) for root in begun}
    wave = max(sum(begun[a] <= begun[b] < ended[a] for a in begun) for b in begun)
    last = max(lives[id].request.arrival for id in begun)
    late = [result.request.arrival for result in lives.values() if result.completed_time > last]
    assert found["window"]["from"] == sorted(ended.values())[wave - 1]
    assert found["window"]["to"] == min(late, default=last) < summary.end.time - 2_000_000_000
    assert found["stationarity"]["stationary"] is True
    assert all(answers(summary, asked) == found for summary in told(run))


@pytest.mark.parametrize("lives", [[(0, 0, 10)], [(0, 0, None)], [(0, 0, 10), (0, 0, 10), (10, 10, 20)]])
def test_too_short_to_have_a_steady_part(lives):
    with pytest.raises(InputError, match="the run is too short"):
        steady_of(lives)


@pytest.mark.parametrize(("rate", "stationary"), [(6, True), (14, False)])
def test_a_growing_queue_is_flagged(rate, stationary):
    """Eight seats, 100 iterations of 10 ms each: 8 requests a second are all that can be served."""
    document = {
        "engine": {"policy": "vllm", "max_num_seqs": 8, "max_num_batched_tokens": 64},
        "cost": {"model": "linear", "unit": "ns", "per_iteration": 10_000_000},
        "workload": {
            "generate": {
                "num_prompts": 3000,
                "seed": 4,
                "arrivals": "poisson",
                "request_rate": rate,
                "prompt": 1,
                "output": 100,
            }
        },
    }
    found = answers(online(run_of(document)), question("ns", None, (), "steady"))
    system = found["stationarity"]["in_system"]
    assert found["stationarity"]["stationary"] is stationary
    assert system["differ"] is not stationary
    if not stationary:
        # Requests pile up at rate - 8 a second: the halves' means lie half a window apart.
        grown = (rate - 8) * (found["window"]["to"] - found["window"]["from"]) / 10**9 / 2
        assert system["second_half"] - system["first_half"] == pytest.approx(grown, rel=0.1)
    assert not found["stationarity"]["completions"]["differ"]


def test_too_short_a_window_says_nothing_of_stationarity():
    part, arrival = tally_of([(0, 0, 3), (5, 5, 8)])
    assert stationarity(part, arrival, parse_window("0..19", "cost unit")) == {"stationary": None}


def test_students_t_is_the_tables():
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 10: 2.228, 19: 2.093, 30: 2.042, 120: 1.980}
    assert {freedom: round(student_t(0.95, freedom), 3) for freedom in table} == table
    assert round(student_t(0.99, 5), 3) == 4.032


def test_intervals_by_hand():
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2 and found.half_width == pytest.approx(4.303 / math.sqrt(3), rel=1e-4)
    assert found.holds(4.4) and not found.holds(4.5)
    assert interval([7.0]).half_width is None and not interval([7.0]).holds(7)
    assert interval([]).mean is None and interval([1.0, None]).mean is None
    rng = np.random.default_rng(3)
    samples = rng.exponential(5, 2105)
    batches = samples[:2100].reshape(20, 105)
    expected = 2.0930 * batches.mean(1).std(ddof=1) / math.sqrt(20)
    assert batch_means(samples)["mean"] == pytest.approx(expected, rel=1e-4)
    tails = 2.0930 * np.percentile(batches, 99, axis=1).std(ddof=1) / math.sqrt(20)
    assert batch_means(samples)["p99"] == pytest.approx(tails, rel=1e-4)
    assert batch_means(samples[:1999])["p99"] is None and batch_means(samples[:1999])["mean"] is not None
    assert batch_means(samples[:199]) == batch_means([]) == {"mean": None, "p99": None}


def test_any_percentile_is_numpys():
    rng = np.random.default_rng(1)
    for samples in (rng.integers(0, 10**9, 777), rng.exponential(3.0, 777)):
        wanted = [0, 5, Fraction(999, 10), Fraction(12345, 1000)]
        found = figures(samples, wanted)
        names = ["p0", "p5", "p99.9", "p12.345"]
        assert [found[name] for name in names] == pytest.approx(np.percentile(samples, [float(w) for w in wanted]))


def test_seeds_that_repeat_are_refused():
    with pytest.raises(ValueError, match="the seeds must differ"):
        over_seeds(lambda seed: run_of(document_of(1)), [1, 2, 1])


def test_headline_over_seeds():
    def run_of_seed(seed):
        [run] = load(EXAMPLES / "generated.toml", {"workload.generate.seed": seed}).runs
        return run

    found = over_seeds(run_of_seed, [1, 2, 3])
    single = [online(run_of_seed(seed)).document()["latency"]["ttft"]["p99"] for seed in (1, 2, 3)]
    assert found["ttft:p99"].mean == pytest.approx(statistics.fmean(single))
    assert found["ttft:p99"].half_width == pytest.approx(4.3027 * statistics.stdev(single) / math.sqrt(3), rel=1e-4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stedy", "must be FROM..TO, such as 60s..300s, or steady"),
        ("60s", "must be FROM..TO"),
        ("60..300", "needs units: s, ms, us or ns"),
        ("..5s", "a time must be a number of at least 0"),
        ("5s..nan", "a time must be a number of at least 0"),
        ("-1s..5s", "a time must be a number of at least 0"),
        ("1s..1s", "must end after it begins"),
        ("2s..1s", "must end after it begins"),
        ("1s..5sec", "unknown unit 'sec': s, ms, us or ns"),
        ("0s..4611686019s", "must be at most 2^62 ns"),
    ],
)
def test_windows_that_are_refused(text, said):
    with pytest.raises(InputError) as refused:
        parse_window(text, "ns")
    assert said in str(refused.value) and "\n" not in str(refused.value)


def command(*arguments):
    return CliRunner().invoke(cli, ["run", *arguments])


def refusal(monkeypatch, capsys, *arguments):
    """Exit code and what stderr says, as from a shell."""
    monkeypatch.setattr("sys.argv", ["batchlab", "run", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code, capsys.readouterr()


def test_goodput_as_vllm_writes_it():
    several = command(GENERATED, "--goodput", "ttft:50", "tpot:8", "--json")
    assert several.exit_code == 0
    one = command("--json", "--goodput", "ttft:50 tpot:8", GENERATED)
    repeated = command("--goodput", "ttft:50", "--goodput", "tpot:8", "--json", GENERATED)
    first = command("--json", "--goodput", "ttft:50", "tpot:8", GENERATED)
    equal = command("--json", "--goodput=ttft:50", "tpot:8", GENERATED)
    assert several.stdout == one.stdout == repeated.stdout == first.stdout == equal.stdout
    found = json.loads(several.stdout)["runs"][0]["answers"]["goodput"]
    assert found["targets"] == {"ttft": 50_000_000, "tpot": 8_000_000} and 0 < found["attainment"] < 1


def test_exit_codes_of_objectives():
    assert command(GENERATED, "--slo", "ttft:p99<=200ms").exit_code == 0
    missed = command(GENERATED, "--slo", "ttft:p99<=100ms,itl:p99<=50ms", "--json")
    assert missed.exit_code == 1
    objectives = json.loads(missed.stdout)["runs"][0]["answers"]["objectives"]
    assert [one["met"] for one in objectives] == [False, True]
    assert "NO" in command(GENERATED, "--slo", "ttft:p99<=100ms").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((GENERATED, "--slo", "tttf:p99<=1ms"), "did you mean 'ttft'"),
        ((GENERATED, "--slo", "attainment>=90%"), "needs targets for each request"),
        ((GENERATED, "--goodput", "ttft:1", "ttft:2"), "has ttft twice"),
        (("--goodput", "ttft:x", GENERATED), "must be METRIC:NUMBER in milliseconds"),
        ((GENERATED, "--goodput", "tpoot:8"), "did you mean 'tpot'"),
        ((GENERATED, "--window", "steady", "--set", "workload.generate.num_prompts=2"), "the run is too short"),
        ((GENERATED, "--window", "500s..600s"), "--window: '500s..600s': no request arrives in it"),
        ((str(EXAMPLES / "three-modes.toml"), "--by", "group"), "no request of this workload has a group"),
        ((str(EXAMPLES / "three-modes.toml"), "--slo", "ttft:p99<=1ms"), "the clock counts in cost units"),
    ],
)
def test_bad_input_is_one_line(arguments, said, monkeypatch, capsys):
    code, printed = refusal(monkeypatch, capsys, *arguments)
    assert code == 2 and said in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_a_written_out_scenario_has_answers_too():
    done = command(str(EXAMPLES / "three-modes.toml"), "--slo", "ttft:max<=28", "--goodput", "ttft:12.5", "--json")
    assert done.exit_code == 1  # the chunked run's slowest takes 30
    found = [run["answers"] for run in json.loads(done.stdout)["runs"]]
    assert [one["objectives"][0]["value"] for one in found] == [28, 28, 30]
    assert [one["objectives"][0]["met"] for one in found] == [True, True, False]
    assert "goodput" in command(str(EXAMPLES / "three-modes.toml"), "--goodput", "ttft:12.5").stdout


@pytest.mark.parametrize(
    ("first", "second", "differ"),
    [([5, 5], [6, 6], True), ([50, 50], [52, 52], False), ([0, 10], [0, 12], False)],
    ids=["apart", "within 10 %", "within three standard errors"],
)
def test_halves_by_hand(first, second, differ):
    """So many requests complete in each of 20 slices of 100 time units, ten like the first and ten like the second."""
    slices = [*first * 5, *second * 5]
    lives = [(100 * place, 100 * place, 100 * place + 1) for place, times in enumerate(slices) for _ in range(times)]
    found = stationarity(*tally_of(lives), parse_window("0..2000", "cost unit"))
    assert (
        found["completions"]["first_half"] == sum(first) / 2 and found["completions"]["second_half"] == sum(second) / 2
    )
    assert found["completions"]["differ"] is differ and found["stationary"] is not differ


def test_intervals_are_of_the_window_in_order_of_arrival():
    document = document_of(0)
    document["workload"]["generate"]["num_prompts"] = 1000
    document["run"]["max_iterations"] = 100_000
    summary = online(run_of(document))
    found = answers(summary, question("ns", None, (), "2s..15s"))
    inside = [r for r in summary.results if 2 * 10**9 <= r.request.arrival < 15 * 10**9]
    ttft = [r.first_time - r.request.arrival for r in inside if r.first_time is not None]
    size = len(ttft) // 20
    means = [statistics.fmean(ttft[size * batch : size * (batch + 1)]) for batch in range(20)]
    expected = 2.0930 * statistics.stdev(means) / math.sqrt(20)
    assert found["intervals"]["ttft"]["mean"] == pytest.approx(expected, rel=1e-4)


def test_a_narrow_terminal_loses_nothing_of_groups():
    document = document_of(1)
    document["workload"]["generate"]["classes"][0]["name"] = "from-a-gateway-" * 5
    found = answers(online(run_of(document)), question("ns", None, ("ttft:300",), None, True))["groups"]
    columns = [*_became(found).values(), *_latencies_of_groups(found, "ns").values()]
    printed = {}
    for width in (60, 80, 120, 300):
        out = Console(file=io.StringIO(), width=width)
        _print_groups(out, found, "ns")
        lines = out.file.getvalue().splitlines()
        assert max(map(len, lines)) <= width and "…" not in "".join(lines)
        printed[width] = " ".join(lines).split()
        assert "".join(printed[width]).count("from-a-gateway-") >= 2  # whole, or its beginning in several lines
    for cell in (cell for cells in columns for cell in cells if "gateway" not in cell):
        assert all(part in printed[width] for width in (60, 80, 120) for part in cell.split()), cell


NEAR = """
[engine]
policy = "vllm"
max_num_seqs = 8
max_num_batched_tokens = 512
[cost]
model = "linear"
unit = "ns"
per_iteration = 5_000_000
prefill_token = 20_011
decode_token = 1_009
context_token = 7
[workload.generate]
num_prompts = 300
seed = 3
arrivals = "poisson"
request_rate = 10
prompt = { distribution = "uniform", min = 1, max = 900 }
output = { distribution = "uniform", min = 20, max = 120 }
"""


def test_an_objective_on_gaps_is_judged_by_the_gaps_themselves(tmp_path, monkeypatch):
    """Within the histogram's error it cannot be told by that; a run that is asked keeps the gaps and knows."""
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(NEAR)
    each = Summary(keep_times=True)
    simulate(load("s.toml").runs[0], [each])
    gaps = sorted(gap for result in each.results for gap in np.diff(result.output_times).tolist())
    assert len(set(gaps)) > 4096  # so many that a histogram has them by ranges
    exact = float(np.percentile(gaps, 99))
    slo = f"itl:p99<={math.ceil(exact)}ns"
    below = f"itl:p99<={math.ceil(exact) - 1}ns"
    for text, met in ((slo, True), (below, False)):
        result = CliRunner().invoke(cli, ["run", "s.toml", "--json", "--slo", text])
        (found,) = json.loads(result.stdout)["runs"][0]["answers"]["objectives"]
        assert found == {"objective": text, "value": pytest.approx(exact), "met": met} and result.exit_code == (not met)
        assert row_of(Trial("s.toml", slo=text))["met"] == met
    coarse = Summary()
    simulate(load("s.toml").runs[0], [coarse])
    near, far = (answers(coarse, question("ns", text, (), None)) for text in (slo, "itl:p99<=1s,itl:max<=1s"))
    assert [sorted(one) for one in near["objectives"]] == [["error", "met", "objective", "value"]]
    assert undecided(near) and not undecided(far)
    for text, code in ((slo, 0), (below, 1)):
        result = CliRunner().invoke(cli, ["report", "s.toml", "--slo", text, "-o", "o.html"])
        assert result.exit_code == code and "too little" not in result.stderr


def test_a_class_is_held_to_its_own_targets_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (
        NEAR.partition("prompt =")[0]
        + """
    [[workload.generate.classes]]
    name = "short"
    prompt = 20
    output = 30
    goodput = "ttft:9"
    [[workload.generate.classes]]
    name = "long"
    prompt = 900
    output = 30
    goodput = "ttft:40 tpot:12"
    """
    )
    Path("s.toml").write_text(text)
    slo = "--slo=attainment>=1%"
    ran = json.loads(CliRunner().invoke(cli, ["run", "s.toml", "--json", slo]).stdout)["runs"][0]
    good = ran["answers"]["goodput"]
    assert 0.1 < good["attainment"] < 0.9
    summary = Summary()
    simulate(load("s.toml").runs[0], [summary])
    within = 0
    for one in summary.results:
        ttft = one.first_time - one.request.arrival
        tpot = (one.completed_time - one.first_time) / 29
        within += ttft <= 9e6 if one.request.group == "short" else ttft <= 40e6 and tpot <= 12e6
    assert good["good"] == within
    row = row_of(Trial("s.toml", slo="attainment>=1%"))
    assert (row["goodput"], row["attainment"], row["met"]) == (good["goodput"], good["attainment"], True)
    for_all = row_of(Trial("s.toml", goodput=("ttft:9",)))
    assert for_all["attainment"] < good["attainment"]
    share = [
        f"--slo=attainment>={100 * good['attainment'] - 0.01}%",
        f"--slo=attainment>={100 * good['attainment'] + 0.01}%",
    ]
    for option, code in zip(share, (0, 1), strict=True):
        assert CliRunner().invoke(cli, ["report", "s.toml", option, "-o", "o.html"]).exit_code == code
    done = CliRunner().invoke(
        cli, ["sweep", "s.toml", slo, "--grid", "engine.max_num_seqs=8", "-o", "t.parquet", "--json"]
    )
    assert json.loads(done.stdout)["rows"][0]["attainment"] == good["attainment"]
    done = CliRunner().invoke(cli, ["capacity", "s.toml", slo, "--requests", "60", "--seeds", "1", "--jobs", "1"])
    assert done.exit_code == 0 and "capacity" in done.stdout
