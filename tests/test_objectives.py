"""Objectives and targets: what is read, what is refused, and goodput against a plain reading of its definition."""

import random
from fractions import Fraction

import numpy as np
import pytest

from batchlab.core.tally import RESULTS, Tally
from batchlab.errors import InputError
from batchlab.metrics.latency import latencies
from batchlab.metrics.objectives import good, goodput, parse, parse_targets, time_bound

pytestmark = pytest.mark.once


def test_what_is_read():
    found = parse("ttft:p99<=500ms, itl:p99.90 <= 0.05 s,e2el:mean<=7,attainment>=99.5%").objectives
    assert [(o.figure, o.bound, o.timed) for o in found] == [
        ("ttft:p99", 500_000_000, True),
        ("itl:p99.9", 50_000_000, True),
        ("e2el:mean", 7, False),
        ("attainment", Fraction(995, 1000), False),
    ]
    assert parse("ttft:p50<=1us,ttft:p05<=3ns").percentiles() == (5, 50)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be METRIC:STATISTIC<=VALUE, such as ttft:p99<=500ms"),
        ("ttft", "must be METRIC:STATISTIC<=VALUE"),
        ("tttf:p99<=1ms", "unknown metric 'tttf' (did you mean 'ttft'?): ttft, tpot,"),
        ("ttft<=1ms", "needs a statistic: ttft:p99<=..."),
        ("ttft:<=1ms", "needs a statistic"),
        ("ttft:maxx<=1ms", "unknown statistic 'maxx': mean, max, or a percentile from p0 to below p100 (did you mean"),
        ("ttft:p100<=1ms", "unknown statistic 'p100'"),
        ("ttft:p-1<=1ms", "unknown statistic 'p-1'"),
        ("ttft:p99>=1ms", "must be METRIC:STATISTIC<=VALUE"),
        ("ttft:p99<1ms", "must be METRIC:STATISTIC<=VALUE"),
        ("ttft:p99<=-1ms", "a number of at least 0"),
        ("ttft:p99<=nan", "a number of at least 0"),
        ("ttft:p99<=1e3ms", "unknown unit 'e3ms'"),
        ("ttft:p99<=", "a number of at least 0"),
        ("ttft:p99<=1.2.3ms", "a number of at least 0"),
        ("ttft:p99<=1msec", "unknown unit 'msec' (did you mean 'ms'?): s, ms, us or ns"),
        ("ttft:p99<=4611686018427387905ns", "must be at most 2^62 ns"),
        ("ttft:p99<=1ms,ttft:p99.0<=2ms", "has ttft:p99 twice"),
        ("ttft:p99<=1ms,", "must be METRIC:STATISTIC<=VALUE"),
        ("attainment:p99>=90%", "must be attainment>=SHARE"),
        ("attainment<=90%", "must be attainment>=SHARE"),
        ("attainment>=101%", "the share must lie between 0 and 1"),
        ("ttft.p99<=500ms", "a metric has a colon behind it: ttft:p99<=500ms"),
        ("queue_time_p99.9<=1ms", "a metric has a colon behind it: queue_time:p99.9<=1ms"),
        ("itl mean<=1ms", "a metric has a colon behind it: itl:mean<=1ms"),
        ("attainment>=1ms", "the share must lie between 0 and 1"),
    ],
)
def test_what_is_refused(text, said):
    with pytest.raises(InputError) as refused:
        parse(text)
    assert str(refused.value).startswith("--slo: ") and said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([""], "must be METRIC:NUMBER"),
        (["ttft"], "must be METRIC:NUMBER in milliseconds, such as ttft:500"),
        (["ttft:500ms"], "must be METRIC:NUMBER in milliseconds"),
        (["ttft:-1"], "must be METRIC:NUMBER"),
        (["ttft:nan"], "must be METRIC:NUMBER"),
        (["ttft=500"], "'ttft=500': a metric has a colon behind it: ttft:500"),
        (["tpot:50", "max_itl<=50ms"], "'max_itl<=50ms': a metric has a colon behind it: max_itl:50"),
        (["tpoot=1"], "unknown metric (did you mean 'tpot'?)"),
        (["tpoot:1"], "unknown metric (did you mean 'tpot'?)"),
        (["itl:1"], "a request has many ITLs: give tpot, or max_itl"),
        (["ttft:1", "tpot:2 ttft:3"], "has ttft twice"),
        (["ttft:9223372036854"], "must be at most 2^62"),
    ],
)
def test_targets_that_are_refused(texts, said):
    with pytest.raises(InputError) as refused:
        parse_targets(texts)
    assert str(refused.value).startswith("--goodput: ") and said in str(refused.value)


def test_targets_are_in_milliseconds_or_in_the_clocks_unit():
    assert parse_targets(["ttft:500 tpot:0.5", "e2el:1"]) == {"ttft": 5 * 10**8, "tpot": 500_000, "e2el": 10**6}
    assert parse_targets(["ttft:1.5"], "cost unit") == {"ttft": Fraction(3, 2)}


def test_units_must_fit_the_clock():
    with pytest.raises(InputError, match="needs a unit: s, ms, us or ns"):
        parse("ttft:p99<=500").check({}, "ns")
    with pytest.raises(InputError, match="the clock counts in cost units: give a number alone"):
        parse("ttft:p99<=500ms").check({}, "cost unit")


def random_tally(rng, count=60):
    """Requests with every result, and the same as plain rows."""
    tally = Tally(count)
    rows = []
    for position in range(count):
        arrival, wait, first = rng.randint(0, 1000), rng.randint(0, 60), rng.randint(1, 60)
        tokens = rng.choice([1, 1, 2, 3, 10])
        gaps = [rng.randint(1, 30) for _ in range(tokens - 1)]
        result = rng.choice(["completed"] * 6 + ["rejected", "failed", "cancelled", "expired", "active", "pending"])
        tally.result[position] = RESULTS.index(result)
        if result not in ("rejected", "pending"):
            tally.first_scheduled[position] = arrival + wait
            tally.first_time[position] = arrival + wait + first
            tally.last_time[position] = arrival + wait + first + sum(gaps)
            tally.tokens[position] = tokens
            tally.max_itl[position] = max(gaps, default=0)
        rows.append((arrival, wait, first, gaps, result))
    return tally, np.array([row[0] for row in rows], np.int64), rows


def plainly(row, targets):
    """The definition, word for word, on one request."""
    _, wait, first, gaps, result = row
    if result != "completed":
        return False
    e2el = wait + first + sum(gaps)
    values = {"ttft": wait + first, "e2el": e2el, "ntpot": Fraction(e2el, len(gaps) + 1), "queue_time": wait}
    values["max_itl"] = max(gaps, default=0)
    if gaps:
        values["tpot"] = Fraction(sum(gaps), len(gaps))
    return all(values.get(metric, 0) <= most for metric, most in targets.items())


def test_goodput_is_its_definition():
    rng = random.Random(11)
    shares = set()
    for _ in range(200):
        tally, arrival, rows = random_tally(rng)
        chosen = rng.sample(["ttft", "tpot", "e2el", "ntpot", "queue_time", "max_itl"], rng.randint(1, 3))
        targets = {metric: Fraction(rng.randint(0, 400), rng.choice([1, 2, 3, 7])) for metric in chosen}
        expected = [plainly(row, targets) for row in rows]
        assert good(tally, arrival, targets).tolist() == expected
        found = goodput(tally, arrival, targets, "cost unit")
        ends = [a + w + f + sum(g) for a, w, f, g, result in rows if result == "completed"]
        assert found["attainment"] == sum(expected) / len(rows)  # of all, whatever became of them
        assert found["goodput"] == sum(expected) / (max(ends) - min(arrival))
        shares.add(sum(expected))
    assert len(shares) > 10


def test_the_bound_itself_is_met_and_nothing_is_rounded():
    tally = Tally(1)
    tally.result[0], tally.first_time[0], tally.last_time[0], tally.tokens[0] = RESULTS.index("completed"), 0, 10, 4
    arrival = np.zeros(1, np.int64)
    assert good(tally, arrival, {"tpot": Fraction(10, 3)}).all()
    assert not good(tally, arrival, {"tpot": Fraction(10, 3) - Fraction(1, 10**30)}).any()
    tally.last_time[0] = 2**62
    assert good(tally, arrival, {"e2el": Fraction(2**62)}).all()
    assert not good(tally, arrival, {"e2el": Fraction(2**62 - 1)}).any()


def test_one_token_passes_between_tokens_and_nothing_at_all_passes_nothing():
    tally = Tally(1)
    tally.result[0], tally.first_time[0], tally.last_time[0], tally.tokens[0] = RESULTS.index("completed"), 5, 5, 1
    tally.first_scheduled[0], tally.max_itl[0] = 1, 0
    arrival = np.zeros(1, np.int64)
    assert goodput(tally, arrival, {"tpot": Fraction(0)})["attainment"] == 1
    objectives = parse("itl:p99<=0,tpot:mean<=0,ttft:mean<=5,ttft:max<=4")
    checked = objectives.check(latencies(tally, arrival), "cost unit")
    assert [(value, met) for _, value, met in checked] == [(None, True), (None, True), (5, True), (5, False)]
    nothing = objectives.check(latencies(Tally(0), np.zeros(0, np.int64)), "cost unit")
    assert [(value, met) for _, value, met in nothing] == [(None, False)] * 4


def test_what_the_figures_do_not_have():
    figures = latencies(Tally(0), np.zeros(0, np.int64))
    with pytest.raises(InputError, match=r"ttft:p99\.9 is not among the figures"):
        parse("ttft:p99.9<=1ms").check(figures)
    with pytest.raises(InputError, match="needs targets for each request: --goodput"):
        parse("attainment>=0.9").check(figures)
    [(_, value, met)] = parse("attainment>=90%").check({**figures, "attainment": 0.9})
    assert (value, met) == (0.9, True)
    for share in range(1, 100):  # reached exactly is reached, whatever floats make of it
        assert parse(f"attainment>={share}%").objectives[0].met_by(share / 100)
        assert parse(f"tpot:mean<={share / 10}").objectives[0].met_by(share / 10)


@pytest.mark.parametrize("micro", ["us", "\u00b5s", "\u03bcs"])
def test_microseconds_in_either_letter(micro):
    assert time_bound(f"500{micro}", "--slo", "", "5s") == (Fraction(500_000), True)
