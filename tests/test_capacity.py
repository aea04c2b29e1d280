"""Capacity: where closed forms say it is, met at the answer and missed just above, monotone in the objective."""

import csv
import io
import itertools
import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from batchlab.cli.capacity import _changes, _samples
from batchlab.cli.columns import print_folded
from batchlab.cli.commands import cli
from batchlab.errors import InputError
from batchlab.metrics.objectives import parse
from batchlab.plan.binding import binding
from batchlab.plan.capacity import few, find, of_one_load, over, refuse_count
from batchlab.plan.probe import probe
from batchlab.plan.search import FARTHEST, STEPS, edge, lattice
from batchlab.plan.trial import Trial

pytestmark = pytest.mark.once

ONE_STEP = 2 ** (1 / STEPS)
TRACE = Path(__file__).parents[2] / "shared" / "traces" / "azure-2023" / "AzureLLMInferenceTrace_conv.csv"
ENGINE = """
[engine]
policy = "vllm"
max_num_seqs = 1
max_num_batched_tokens = 64
[cost]
model = "linear"
unit = "ns"
per_iteration = 10_000_000
"""
EVEN = """
[workload.generate]
num_prompts = 300
seed = 0
arrivals = "constant"
request_rate = 7
prompt = 10
output = 1
"""
RANDOM = EVEN.replace('"constant"', '"poisson"').replace(
    "output = 1", "output = { distribution = 'uniform', min = 1, max = 30 }"
)


@pytest.fixture
def write(tmp_path):
    def write(text, name="scenario.toml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def rates_alone(monkeypatch):
    """Without the searches for what binds, where a test is about the rate."""
    monkeypatch.setattr("batchlab.plan.binding.changes", lambda *_: [])


@given(st.sets(st.integers(-FARTHEST, FARTHEST)), st.sets(st.integers(-FARTHEST, FARTHEST)), st.data())
def test_search_ends_at_an_edge_and_is_monotone(tight, more, data):
    line = range(-FARTHEST, data.draw(st.integers(-FARTHEST, FARTHEST + 1)))
    tight = tight | set(line)
    answers = []
    for met in (tight, tight | more):
        low, high = edge(met.__contains__, data.draw(st.integers(-50, 50)) if not answers else 0, 16)
        answers.append(low)
        assert (low is None) == (-FARTHEST not in met and low is None)
        assert low is None or low in met
        assert high is None or high not in met
        if low is not None and high is not None:
            assert high == low + 1


@given(st.sets(st.integers(-FARTHEST, FARTHEST)), st.sets(st.integers(-FARTHEST, FARTHEST)), st.integers(-50, 50))
def test_what_is_met_more_often_is_never_less(tight, more, start):
    found = [edge(met.__contains__, start)[0] for met in (tight, tight | more)]
    assert found[0] is None or (found[1] is not None and found[1] >= found[0])


@given(st.integers(-FARTHEST, FARTHEST), st.integers(-FARTHEST, FARTHEST), st.integers(1, 40))
@example(FARTHEST, FARTHEST, 4)  # the second search of what binds begins where the first ended
@example(-FARTHEST, 2 - FARTHEST, 4)
def test_search_finds_the_edge_of_a_line(last, start, step):
    looked_at = []
    low, high = edge(lambda place: looked_at.append(place) or place <= last, start, step)
    assert all(-FARTHEST <= place <= FARTHEST for place in looked_at)
    assert {low, high} <= {*looked_at, None}
    assert low == last
    assert high == (None if last == FARTHEST else last + 1)


def test_one_server_with_even_arrivals(write, rates_alone):
    """Each request takes one step of 10 ms: up to 100 a second nobody waits, beyond that the wait grows for ever."""
    scenario = write(ENGINE + EVEN)
    for slo, highest in (("ttft:max<=10ms", 100), ("itl:p99<=1ms,ttft:mean<=99s", 102)):
        found = find(Trial(scenario, slo=slo), 1, 1)
        assert highest / ONE_STEP < found.answer.rate <= highest, slo
    assert found.answer.missed is not None and found.answer.missed.missed == ["the queue grows"]


def test_a_wait_that_is_allowed_raises_it_by_as_much(write, rates_alone):
    """At rate r the last of 300 waits 299 (10 ms - 1/r); objectives on the maximum know when that is too long."""
    found = find(Trial(write(ENGINE + EVEN), slo="ttft:max<=40ms"), 1, 1)
    highest = 1 / (0.01 - 0.03 / 299)
    assert highest / ONE_STEP < found.answer.rate <= highest


@pytest.mark.parametrize("slo", ["ttft:p99<=200ms", "e2el:p90<=400ms,itl:p99<=10ms", "ttft:p99.5<=1s"])
def test_met_at_the_answer_and_missed_just_above_on_the_same_seeds(write, rates_alone, slo):
    found = find(Trial(write(ENGINE.replace("seqs = 1", "seqs = 4") + RANDOM), slo=slo), 3, 1)
    assert len({one.sample.trial.overrides["workload.generate.seed"] for one in found.found}) == 3
    for one in found.found:
        assert probe(one.sample, lattice(one.sample, one.place)).met
        above = probe(one.sample, lattice(one.sample, one.place + 1))
        assert not above.met and above.missed
    rates = sorted(one.rate for one in found.found)
    assert found.answer.rate == rates[1] and found.interval == (rates[0], rates[2])


def test_a_looser_objective_never_gives_less(write):
    scenario = write(ENGINE.replace("seqs = 1", "seqs = 3") + RANDOM)
    rates = [
        [
            of_one_load(Trial(scenario, {"workload.generate.seed": seed}, slo=f"ttft:p95<={bound}ms")).rate
            for seed in (0, 1)
        ]
        for bound in (11, 20, 60, 200, 1000)
    ]
    for tight, loose in itertools.pairwise(rates):
        assert all(a <= b for a, b in zip(tight, loose, strict=True))
    assert rates[0] != rates[-1]


def test_what_binds(write):
    """One seat, and steps that cost the same whatever is in them: a second seat serves twice as many."""
    text = ENGINE + EVEN.replace("output = 1", "output = 20")
    seats = find(Trial(write(text), slo="ttft:p99<=100ms"), 1, 1)
    by_name = {(one.name, one.after): one.rate for one in seats.changes}
    assert by_name["engine.max_num_seqs", 2] == pytest.approx(2 * seats.answer.rate, rel=0.05)
    assert by_name["step time", None] == pytest.approx(2 * seats.answer.rate, rel=0.15)
    assert by_name["engine.max_num_batched_tokens", 128] == seats.answer.rate
    blocks = text.replace("seqs = 1", "seqs = 64\nnum_gpu_blocks = 3")  # two are usable, which is one request
    result = CliRunner().invoke(
        cli, ["capacity", write(blocks), "--slo", "ttft:p99<=100ms", "--seeds", "1", "--jobs", "1"]
    )
    assert result.exit_code == 0, result.output
    assert "engine.num_gpu_blocks: 129 instead of 3 gives" in result.stdout  # then the seats are taken
    compute = text.replace("seqs = 1", "seqs = 64").replace("per_iteration = 10_000_000", "prefill_token = 1_000_000")
    result = CliRunner().invoke(
        cli, ["capacity", write(compute), "--slo", "ttft:p99<=100ms", "--seeds", "1", "--jobs", "1"]
    )
    tried = "tried: max_num_seqs 32 to 64, max_num_batched_tokens 64 to 256"  # fewer tokens than seats: refused
    assert f"no limit changed alone raises the capacity by 5 % ({tried}); steps in half the time" in result.stdout


def test_a_clients_own_cap_binds(write):
    """Steps of 10 ms whatever is in them, answers of 20 tokens: a client with one in flight has one each 200 ms."""
    text = ENGINE.replace("seqs = 1", "seqs = 8") + "[workload]\nmax_concurrency = 1\n"
    capped = find(Trial(write(text + EVEN.replace("output = 1", "output = 20")), slo="ttft:p99<=100ms"), 1, 1)
    # the queue may grow by 2 % of the time that passes, hence up to 1 / (0.2 s * 0.98)
    assert 5 / ONE_STEP < capped.answer.rate <= 5 / 0.98
    rates = {one.after: one.rate for one in capped.changes if one.name == "workload.max_concurrency"}
    assert rates[2] == pytest.approx(2 * capped.answer.rate, rel=0.05)
    assert all(one.rate == capped.answer.rate for one in capped.changes if one.name.startswith("engine."))
    assert "; workload.max_concurrency: " in binding(capped.answer, capped.changes)


def test_what_nothing_limits_gains_nothing(write):
    """Objectives that hold at every rate within reach: no change can give more than the end of that reach."""
    text = ENGINE.replace("seqs = 1", "seqs = 64") + EVEN.replace("request_rate = 7", "request_rate = 0.0001")
    found = find(Trial(write(text), slo="ttft:p99<=1s"), 1, 1)
    assert found.answer.missed is None and found.answer.rate == pytest.approx(0.0001 * 2 ** (FARTHEST / STEPS))
    assert {one.rate for one in found.changes if one.rate is not None} == {found.answer.rate}
    assert binding(found.answer, found.changes).startswith("no objective; no limit changed alone raises the capacity")


def test_a_budget_two_steps_away_is_found(write):
    """A chunk of 256 or of 128 tokens between two tokens is too long, one of 64 is not. With long chunks no request may
    come before the one before it has ended, 266 + 19 * 10 ms; with short ones a new one only waits for its four chunks.
    """
    text = ENGINE.replace("seqs = 1", "seqs = 16").replace("tokens = 64", "tokens = 256")
    long = EVEN.replace("prompt = 10", "prompt = 256").replace("output = 1", "output = 20")
    scenario = write(text + "prefill_token = 1_000_000\n" + long)
    found = find(Trial(scenario, slo="itl:max<=100ms"), 1, 1)
    assert 1 / 0.456 / ONE_STEP < found.answer.rate <= 1 / 0.456
    by_name = {(one.name, one.after): one.rate for one in found.changes}
    budget = "engine.max_num_batched_tokens"
    assert by_name[budget, 128] <= found.answer.rate and by_name[budget, 512] == by_name[budget, 1024]
    assert by_name[budget, 64] > 1.4 * found.answer.rate
    assert by_name[budget, 32] is not None  # it went on from there
    assert binding(found.answer, found.changes).startswith(f"itl:max; {budget}: 64 instead of 256 gives +")


def test_the_nearest_miss_is_told_of_all_that_was_tried(write):
    """A prompt of 100 tokens takes two steps of 10 ms within 64, and one within 128: 2.22 and 1.11 times 9 ms."""
    scenario = write(ENGINE + EVEN.replace("prompt = 10", "prompt = 100"))
    command = ["capacity", scenario, "--slo", "ttft:p90<=9ms", "--seeds=1", "--jobs=1"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 1
    tried = "(tried: max_num_seqs 1 to 2, max_num_batched_tokens 16 to 256)"
    assert f"no limit changed alone meets them at any rate {tried}" in result.stdout
    nearest = "1.11 times the bound with engine.max_num_batched_tokens = 128, 2.22 times the bound as it is"
    assert f"; {nearest}; 1.11 times the bound with steps in half the time" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("engine.max_num_batched_tokens")]
    # seven steps of 16 tokens, four of 32, then one within any budget
    assert [(row[2], row[3], row[-1]) for row in rows] == [
        ("16", "none", "70.00"),
        ("32", "none", "40.00"),
        ("128", "none", "10.00"),
        ("256", "none", "10.00"),
    ]
    document = json.loads(CliRunner().invoke(cli, [*command, "--json", "--gpu-price=2"]).stdout)
    assert document["changes"][-1]["excess"] == pytest.approx(10 / 9)
    assert document["cost"] == {
        "gpu_price": 2.0,
        "gpus": 1,
        "per_million_output_tokens": None,
        "per_million_tokens": None,
    }


def test_an_answer_of_a_short_load_is_called_uncertain(write):
    """99.5 % of 300 requests leave one and a half beyond, 90 % leave thirty."""
    scenario = write(ENGINE.replace("seqs = 1", "seqs = 64") + EVEN)  # more seats would only take longer to be tried
    command = ["capacity", scenario, "--seeds=1", "--jobs=1", "--slo"]
    for slo, caveats in (
        ("ttft:p90<=100ms,itl:p99<=10ms", []),
        ("ttft:p99.5<=100ms", ["300 requests a run: ttft:p99.5 is decided by fewer than 10 of them"]),
    ):
        assert json.loads(CliRunner().invoke(cli, [*command, slo, "--json"]).stdout)["caveats"] == caveats
        printed = CliRunner().invoke(cli, [*command, slo]).stdout
        assert all(f"uncertain: {caveat}" in printed for caveat in caveats)
        assert ("requests/s, UNCERTAIN, at" in printed) is bool(caveats)


def test_a_load_has_to_be_long_beside_its_sessions(write, rates_alone):
    """A session of three turns of 10 ms, one a second: 2 gaps and 3 steps. A hundred of them last 99 s."""
    for gap, steady in ((3_100_000_000, False), (100_000_000, True)):
        for key in ("think_time", "turn_gap"):
            text = EVEN.replace("output = 1", f"output = 1\nturns = 3\n{key} = {gap}").replace("rate = 7", "rate = 1")
            found = find(Trial(write(ENGINE + text), slo="ttft:p50<=10ms"), 1, 1)
            at = probe(found.answer.sample, 1.0)
            within = 30_000_000 if key == "think_time" else 10_000_000  # the others are within their gaps
            assert at.lasts == 2 * gap + within and at.span >= 99_000_000_000
            caveats = replace(found, answer=replace(found.answer, met=at)).caveats
            assert ("the load lasts less than 20 times as long as a session" in str(caveats)) is not steady


def test_a_change_that_a_short_load_decides_is_called_uncertain(tmp_path):
    """As `run` has it: so many seconds from the first request to the last, and so many for one in the mean."""
    example = str(Path(__file__).parents[1] / "examples" / "capacity-conversation.toml")
    command = ["capacity", example, "--requests=400", "--seeds=1", "--slo=ttft:p90<=500ms,itl:p99<=50ms", "--jobs=1"]
    found = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
    changes = found["changes"]
    for change in changes[:-1]:  # the last is of no setting
        own = [f"--set={change['name']}={change['after']}", f"--set=workload.generate.request_rate={change['rate']}"]
        more = ["--set=workload.generate.num_prompts=400", f"--requests={tmp_path / 'requests.csv'}"]
        assert CliRunner().invoke(cli, ["run", example, *own, *more]).exit_code == 0
        with open(tmp_path / "requests.csv") as file:
            rows = [(int(row["arrival"]), int(row["e2el"])) for row in csv.DictReader(file)]
        arrivals, lasts = [arrival for arrival, _ in rows], sum(took for _, took in rows) / len(rows)
        assert change["short"] is (max(arrivals) - min(arrivals) < 20 * lasts)
    short = sum(change["short"] for change in changes)
    assert 0 < short < len(changes)
    caveat = (
        f"with {short} of the {len(changes)} changes the load lasts less than 20 times as long as a request: "
        "not steady; give more requests"
    )
    assert (found["caveats"], found["caveats_of_changes"]) == ([], [caveat])
    assert f"uncertain: {caveat}" in CliRunner().invoke(cli, command).stdout.splitlines()


def test_a_client_whose_requests_never_all_come_has_an_answer_too(write):
    """Four in flight at most, and the run is over before the fifth ends: most requests were never sent."""
    text = EVEN.replace("[workload.generate]", "[workload]\nmax_concurrency = 4\n[workload.generate]")
    scenario = write(ENGINE + "[run]\nmax_iterations = 3\n" + text)
    result = CliRunner().invoke(cli, ["capacity", scenario, "--seeds=1", "--jobs=1", "--slo=ttft:p99<=100ms"])
    assert result.exit_code == 1 and "iteration_limit" in result.stdout


def test_who_shares_a_prefix_has_no_session(write, rates_alone):
    found = find(
        Trial(write(ENGINE + EVEN.replace("output = 1", "output = 1\nshared_prefix = 1")), slo="ttft:p50<=1s"), 1, 1
    )
    assert found.run.requests.sessions is not None
    short = replace(found, answer=replace(found.answer, met=replace(found.answer.met, span=1)))
    assert short.caveats == ["the load lasts less than 20 times as long as a request: not steady; give more requests"]


def test_nothing_meets_it(write):
    command = ["capacity", write(ENGINE + EVEN), "--slo", "ttft:p99<=9ms", "--seeds", "2", "--jobs", "1"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 1
    assert "\nno rate meets ttft:p99<=9ms, UNCERTAIN; at 0.00684 requests/s" in result.stdout
    assert "ttft:p99 10.00" in result.stdout  # the nearest miss: what an idle engine takes
    assert "no limit changed alone meets them at any rate (tried: " in result.stdout
    document = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
    assert document["capacity"] is None and document["samples"][0]["missed"]["values"] == {"ttft:p99": 10_000_000}


def test_a_limit_that_lets_nothing_meet_it_is_named(write):
    """A prompt of 100 tokens takes two steps of 10 ms within a budget of 64, and one within 128."""
    scenario = write(ENGINE + EVEN.replace("prompt = 10", "prompt = 100"))
    result = CliRunner().invoke(cli, ["capacity", scenario, "--slo", "ttft:p99<=15ms", "--seeds=1", "--jobs=1"])
    assert result.exit_code == 1
    assert "binds: ttft:p99; engine.max_num_batched_tokens: 128 instead of 64 meets them" in result.stdout


def test_the_cost_of_tokens(write):
    scenario = write(ENGINE + EVEN.replace("output = 1", "output = 20"))
    command = ["capacity", scenario, "--slo", "ttft:p99<=100ms", "--seeds", "1", "--jobs", "1", "--json"]
    document = json.loads(CliRunner().invoke(cli, [*command, "--gpu-price", "3"]).stdout)
    output_tokens_an_hour = Fraction(document["capacity"]) * 3600 * 20  # at even arrivals the rate is exact
    assert document["cost"]["per_million_output_tokens"] == pytest.approx(float(3 * 10**6 / output_tokens_an_hour))
    assert document["cost"]["per_million_tokens"] == pytest.approx(float(3 * 10**6 / (output_tokens_an_hour * 30 / 20)))


def test_the_printed_price_follows_from_what_is_printed(write):
    """Poisson arrivals: the rate that was drawn is another than the one asked for, and the price is of that."""
    text = EVEN.replace('arrivals = "constant"', 'arrivals = "poisson"').replace("output = 1", "output = 20")
    command = ["capacity", write(ENGINE + text), "--slo=ttft:p99<=200ms", "--seeds=1", "--jobs=1", "--gpu-price=3"]
    result, unpriced = (CliRunner().invoke(cli, one) for one in (command, command[:-1]))
    price, came = re.search(
        r"hour(?:, UNCERTAIN)?: (\S+) per million output.*at the (\S+) requests/s that came", result.stdout
    ).groups()
    capacity = re.search(r"capacity (\S+) requests/s", result.stdout)[1]
    assert came != capacity
    for each in (result, unpriced):  # both rates are printed, with a price and without
        assert f" at that rate ({came} requests/s that came); prompt mean 10.0" in each.stdout
    assert float(price) == pytest.approx(3 / (float(came) * 3600 * 20 / 1e6), rel=0.01)
    assert "goodput: requests within TTFT 200.00 ms, over the time to the end of the last" in result.stdout
    heading, row = (
        re.split(r" {2,}", line.strip())
        for line in result.stdout.splitlines()
        if "goodput (" in line or line.startswith("seed 0 ")
    )
    shown = dict(zip(heading, row[1:], strict=False))
    assert 0 < float(shown["goodput (requests/s)"]) <= float(came) and shown["attainment"].endswith(" %")


def test_turns_that_wait_for_answers_have_not_come_in_that_time(write, rates_alone):
    """Four turns of each session, which begin within seconds and go on for minutes: no such rate ever came."""
    text = RANDOM.replace("num_prompts = 300", "num_prompts = 200") + "turns = 4\nthink_time = 60_000_000_000\n"
    text += 'goodput = "ttft:500 e2el:2000"\n'
    command = ["capacity", write(ENGINE + text), "--slo=ttft:p99<=2s", "--seeds=1", "--jobs=1", "--gpu-price=3"]
    printed = CliRunner().invoke(cli, command).stdout
    met = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)["samples"][0]["met"]
    assert "that came" not in printed and "within TTFT 500.00 ms, E2E 2,000.00 ms, over" in printed
    rate = f"{met['offered']:,.3g} requests/s in the long run, later turns counted"
    assert (
        f"200 requests a run, of sessions that begin within {met['span'] / 1e9:,.0f} s at that rate ({rate})" in printed
    )
    price = re.search(
        rf"^1 GPU at 3 an hour, UNCERTAIN: (\S+) per million .* at {re.escape(rate)}$", printed, re.MULTILINE
    )
    assert float(price[1]) == pytest.approx(3e6 / (met["offered"] * 3600 * met["output_mean"]), rel=0.01)


def test_the_document_has_the_curve_and_says_what_it_is_of(write):
    """Attainment against rate, of every run that the search made: a report draws it from the document alone."""
    scenario = write(ENGINE.replace("seqs = 1", "seqs = 4") + RANDOM)
    slo = "ttft:p90<=200ms,itl:p99<=10ms"
    result = CliRunner().invoke(cli, ["capacity", scenario, "--slo", slo, "--seeds", "2", "--jobs", "1", "--json"])
    document = json.loads(result.stdout)
    assert document["settings"]["max_num_seqs"] == 4 and document["policy"] == "vllm"
    assert document["cost_model"] == {"model": "linear", **document["cost_model"]}
    assert document["load"]["requests"] == 300 and document["load"]["prompt_mean"] == 10
    assert document["load"]["source"].startswith("generated workload, ") and 1 < document["load"]["output_mean"] < 30
    assert (document["unit"], document["rates_per"], document["scenario"]) == ("ns", "s", "scenario.toml")
    assert [(one["figure"], one["bound"], one["unit"]) for one in document["objectives"]] == [
        ("ttft:p90", 200e6, "ns"),
        ("itl:p99", 10e6, "ns"),
    ]
    for sample in document["samples"]:
        tried = sample["tried"]
        rates = [one["rate"] for one in tried]
        assert rates == sorted(set(rates)) and len(rates) > 5
        assert sample["met"] in tried and sample["missed"] in tried
        for one in tried:  # a percentile within its bound has that share of the requests within it, and the other way
            within = one["attained"]["ttft:p90"]
            assert (within >= 0.9) if one["values"]["ttft:p90"] <= 200e6 else (within <= 0.91)
            assert one["attainment"] <= within and one["goodput"] <= one["offered"] * 1.01
        assert tried[0]["attainment"] > tried[-1]["attainment"]


def test_the_rate_at_a_share_of_good_requests(write, rates_alone):
    """DistServe's goodput: the highest rate at which so many requests meet their targets. At even arrivals beyond 100 a
    second the k-th waits k (10 ms - 1/r), so that a tenth of 300 is beyond what the 270th waits.
    """
    command = ["capacity", write(ENGINE + EVEN), "--slo", "attainment>=90%", "--seeds=1", "--jobs=1", "--json"]
    found = json.loads(CliRunner().invoke(cli, [*command, "--goodput", "ttft:40"]).stdout)
    highest = 1 / (0.01 - 0.03 / 269)
    assert highest / ONE_STEP < found["capacity"] <= highest
    assert found["samples"][0]["met"]["values"] == {"attainment": found["samples"][0]["met"]["attainment"]}


def test_a_narrow_terminal_loses_nothing(write):
    slo = "ttft:p99<=1s,e2el:p90<=4s,itl:p99<=11ms,tpot:mean<=11ms"
    found = find(Trial(write(ENGINE + RANDOM), slo=slo), 2, 1)
    printed = {}
    for width in (60, 80, 120, 300):
        out = Console(file=io.StringIO(), width=width)
        for columns in (_samples(found, "ns", "requests/s"), _changes(found, "requests/s")):
            print_folded(out, columns, tuple(columns)[1:-1])
        text = out.file.getvalue()
        assert max(map(len, text.splitlines())) <= width and "…" not in text
        printed[width] = text.split()
    for width in (60, 80, 120):
        assert all(cell in printed[width] for cell in printed[300] if any(c.isdigit() for c in cell))


def test_a_rate_of_sessions_is_called_so(write):
    text = EVEN.replace("output = 1", "output = 1\nturns = 3\nturn_gap = 100_000_000")
    command = ["capacity", write(ENGINE + text), "--slo", "ttft:max<=40ms", "--seeds=1", "--jobs=1", "--gpu-price=1"]
    result = CliRunner().invoke(cli, command)
    assert re.search(r"\ncapacity 3[0-6]\.\d sessions/s, UNCERTAIN, at ttft", result.stdout)
    found = find(Trial(write(ENGINE + text), slo="ttft:max<=40ms"), 1, 1)
    assert 30 < found.answer.rate < 36  # three turns of 10 ms
    assert found.answer.met.offered == pytest.approx(3 * found.answer.rate, rel=0.1)
    cost = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)["cost"]
    assert cost["per_million_output_tokens"] == pytest.approx(1e6 / 3600 / found.answer.met.offered)


def test_rejected_requests_are_no_capacity(write):
    """Above the longest that fits in a hundredth part of all; below it they are served beside each other."""
    long = EVEN.replace("prompt = 10", "prompt = { distribution = 'uniform', min = 1, max = 100 }")
    engine = ENGINE.replace("seqs = 1", "seqs = 1\nmax_model_len = 98")
    result = CliRunner().invoke(
        cli, ["capacity", write(engine + long), "--slo", "ttft:p99<=1s", "--seeds=1", "--jobs=1"]
    )
    assert result.exit_code == 1 and "% of the requests not completed" in result.stdout


def test_a_trace_is_stretched(write, tmp_path):
    rows = "".join(f"{place * 0.5:.1f},10,1\n" for place in range(201))
    (tmp_path / "trace.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    scenario = write(ENGINE + '[workload]\nfile = "trace.csv"\nformat = "vidur"\n')
    found = find(Trial(scenario, slo="ttft:max<=10ms"), 5, 2)
    assert [one.sample.name for one in found.found][:2] == ["whole trace", "part 1 of 4"]
    assert found.answer.sample.rate == 2.0
    assert 100 / ONE_STEP < found.answer.rate <= 100
    assert all(100 / ONE_STEP < rate <= 100.01 for rate in found.interval)
    result = CliRunner().invoke(cli, ["capacity", scenario, "--slo", "ttft:max<=10ms", "--jobs=1"])
    assert (
        "the trace's times are stretched, all by one factor, so that its bursts stay; by itself it has 2 requests/s"
        in (result.stdout)
    )
    with pytest.raises(InputError, match=r"--requests: 9: is for \[workload.generate\]"):
        refuse_count(Trial(scenario), 9)
    (tmp_path / "trace.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "1.0,10,1\n" * 5)
    with pytest.raises(InputError, match=r"scenario\.toml: workload: all requests come at once: capacity stretches"):
        find(Trial(scenario, slo="ttft:max<=10ms"), 1, 1)


@pytest.mark.parametrize(
    ("seconds", "parts"),
    [
        ([*range(20), *range(60, 81)], ["part 1 of 4", "part 4 of 4"]),  # nobody comes in between
        ([0, 1], []),  # one request in the first part, one in the last
    ],
)
def test_parts_of_a_trace_without_a_rate_are_left_out(write, tmp_path, seconds, parts):
    rows = "".join(f"{second}.0,10,1\n" for second in seconds)
    (tmp_path / "trace.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    scenario = write(ENGINE + '[workload]\nfile = "trace.csv"\nformat = "vidur"\n')
    arguments = ["capacity", scenario, "--slo", "ttft:max<=10ms", "--jobs=1"]
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [one["sample"] for one in found["samples"]] == ["whole trace", *parts]
    low, high = found["interval"]
    assert 100 / ONE_STEP < low <= high <= 100.01 or (not parts and low == high == found["capacity"])
    said = f"{4 - len(parts)} of its 4 parts are left out: nobody comes then, or all at once"
    assert said in CliRunner().invoke(cli, arguments).stdout


def test_an_interval_is_called_after_what_it_is_over():
    """Of a trace the parts alone, as the whole of it is the answer; of seeds all."""
    assert over(["whole trace", "part 1 of 4", "part 4 of 4"]) == "2 parts of the trace"
    assert over(["whole trace", "part 2 of 4"]) == "1 part of the trace"
    assert over(["seed 1", "seed 2", "seed 3"]) == "3 seeds"
    assert over(["seed 1"]) == over(["whole trace"]) == ""


def test_a_trace_below_all_its_parts_is_said_to_be(write, tmp_path):
    """Even traffic of 10 a second for a quarter of the time, then of 2 a second: each alone can be 100 a second, and
    when the first is, all of it comes at 4 / 10 of that."""
    seconds = [*(place / 10 for place in range(100)), *(10 + place / 2 for place in range(61))]
    rows = "".join(f"{second},10,1\n" for second in seconds)
    (tmp_path / "trace.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    scenario = write(ENGINE + '[workload]\nfile = "trace.csv"\nformat = "vidur"\n')
    arguments = ["capacity", scenario, "--slo", "ttft:max<=10ms", "--jobs=1"]
    found = json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).stdout)
    assert 40 / ONE_STEP < found["capacity"] <= 40.01 < 100 / ONE_STEP < found["interval"][0]
    assert "the whole trace is not within what its parts take" in CliRunner().invoke(cli, arguments).stdout


def test_the_parts_of_a_trace_of_sessions_are_those_in_which_sessions_begin(write, tmp_path):
    """Three turns, 20.25 s apart, of sessions that begin within 31 s of 71: each quarter of those 31 s has eight."""
    rows = sorted((begin + 20.25 * turn, f"s{begin}", turn) for begin in range(32) for turn in range(3))
    lines = [f"{at},{10 + 11 * turn},1,{session}" for at, session, turn in rows]
    (tmp_path / "trace.csv").write_text("\n".join(["arrived_at,prompt,output,session", *lines, ""]))
    columns = "columns = { arrival = 'arrived_at', prompt = 'prompt', output = 'output', session = 'session' }"
    units = "format = 'csv'\nprompts = 'whole'\ntime_unit = 's'"
    scenario = write(ENGINE + f'[workload]\nfile = "trace.csv"\n{columns}\n{units}\n')
    result = CliRunner().invoke(cli, ["capacity", scenario, "--slo", "ttft:max<=10ms", "--jobs=1", "--json"])
    assert result.exit_code == 0, result.output
    samples = json.loads(result.stdout)["samples"]
    # of the last part, which ends with the trace, all turns are left
    assert [one["met"]["requests"] for one in samples] == [96, 8, 8, 8, 24]


def test_a_rate_that_cannot_be_tried_names_no_option_that_nobody_gave(write):
    sample = find(Trial(write(ENGINE + EVEN), slo="ttft:p99<=100ms"), 1, 1).answer.sample
    with pytest.raises(InputError, match=r"^a rate of -1: workload\.generate\.request_rate: -1"):
        sample.at(-1)


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (('"constant"\nrequest_rate = 7', '"all-at-once"'), [], "has no rate that lasts"),
        (
            ("[workload.generate]", "[workload]\nclients = 3\n[workload.generate]"),
            [],
            "closed loop has no request rate",
        ),
        (("", ""), ["--slo", "ttft:p99<=10"], "needs a unit"),
        (("", ""), ["--slo", "ttfd:p99<=10ms"], "did you mean 'ttft'?"),
        (("", ""), ["--slo", "attainment>=90%"], "attainment needs targets"),
        (("", ""), ["--gpu-price", "nan"], "--gpu-price: nan: must be a number above 0 and below 1e9"),
        (("", ""), ["--gpu-price", "1e308"], "--gpu-price: 1e+308: must be a number above 0 and below 1e9"),
        (("", ""), ["--gpu-price=-1"], "--gpu-price: -1.0: must be a number above 0"),
        (("", ""), ["--set", "engine.max_num_seq=3"], "did you mean 'max_num_seqs'?"),
        (("", ""), ["--policy", "vlm"], "vlm"),
        (("", ""), ["--requests", "2000000000000"], "--requests"),
        (
            ("", ""),
            ["--set", "workload.generate.num_prompts=1"],
            "workload.generate.num_prompts: one request has no rate",
        ),
        (("", ""), ["--goodput", "ttft:x"], "must be METRIC:NUMBER"),
        (('"vllm"', '["vllm", "vllm-v0"]'), [], "names several"),
    ],
)
def test_bad_input_is_one_line(write, change, arguments, message):
    scenario = write((ENGINE + EVEN).replace(*change))
    slo = [] if "--slo" in arguments else ["--slo", "ttft:p99<=10ms"]
    result = CliRunner().invoke(cli, ["capacity", scenario, "--jobs=1", "--seeds=1", *slo, *arguments])
    assert isinstance(result.exception, InputError), result.output
    assert message in str(result.exception)


def test_requests_that_are_written_out_have_no_rate(write):
    scenario = write(ENGINE + '[workload]\nrequests = [{ id = "A", arrival = 0, prompt = 1, output = 1 }]\n')
    with pytest.raises(InputError, match="have no rate to change"):
        find(Trial(scenario, slo="ttft:p99<=1s"), 1, 1)


def test_a_budget_far_below_is_found_across_what_dips(write):
    """Any chunk of more than 100 ms misses unless nobody decodes then, so that a prompt that takes two such chunks
    waits longer for it than one that takes one: half and a quarter of the budget are no better, an eighth is.
    """
    text = ENGINE.replace("seqs = 1", "seqs = 16").replace("tokens = 64", "tokens = 1024")
    long = EVEN.replace("prompt = 10", "prompt = 256").replace("output = 1", "output = 20")
    scenario = write(text + "prefill_token = 1_000_000\n" + long)
    found = find(Trial(scenario, slo="itl:max<=150ms"), 1, 1)
    budget = "engine.max_num_batched_tokens"
    by_name = {one.after: one.rate for one in found.changes if one.name == budget}
    assert by_name[512] <= found.answer.rate and by_name[256] <= found.answer.rate
    assert by_name[128] > 1.4 * found.answer.rate
    assert set(by_name) >= {64, 128, 256, 512, 2048, 4096}
    assert binding(found.answer, found.changes).startswith(f"itl:max; {budget}: 128 instead of 1,024 gives +")


def test_how_far_it_is_is_said_where_there_is_no_terminal(write):
    """One seat: the second, and further ones, gain, so that there are rounds after the first."""
    scenario = write(ENGINE + EVEN.replace("output = 1", "output = 20"))
    command = ["capacity", scenario, "--slo=ttft:p99<=100ms", "--seeds=2", "--jobs=1", "--requests=50"]
    first, second, *more = CliRunner().invoke(cli, command).stderr.splitlines()
    each = "about 10 runs of 50 requests each"
    assert first == f"batchlab: searching 2 loads as it is, {each}"
    assert second == f"batchlab: searching 6 changes of one thing alone, {each}"  # 2 seats; 16, 32, 128, 256 tokens
    assert more and all(re.fullmatch(rf"batchlab: searching \d changes? more, {each}", line) for line in more)


@pytest.mark.parametrize(
    ("share", "requests", "told"), [("99%", 999, 1), ("99%", 1000, 0), ("90%", 99, 1), ("50%", 20, 0)]
)
def test_a_share_may_be_the_matter_of_a_handful_too(share, requests, told):
    found = few(parse(f"attainment>={share}").objectives, requests)
    assert len(found) == told and all("attainment is decided by fewer than 10" in line for line in found)
