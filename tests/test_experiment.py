"""The controlled comparison: what it measures against a plain run, and what each rule of its reading says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from batchlab.cli.commands import cli
from batchlab.errors import InputError
from batchlab.plan.experiment import Measured, Part, measure, parts, read
from batchlab.plan.trial import Trial
from batchlab.scenario import load

pytestmark = pytest.mark.once

SCENARIO = """
[engine]
policy = "vllm"
max_num_seqs = 8
max_num_batched_tokens = 256
num_gpu_blocks = 400
[cost]
model = "linear"
unit = "ns"
per_iteration = 5_000_000
prefill_token = 100_000
[workload.generate]
num_prompts = 80
seed = 3
arrivals = "poisson"
request_rate = 4
prompt = { distribution = "lognormal", median = 300, sigma = 1.2, max = 3000, outside = "clip" }
output = { distribution = "uniform", min = 1, max = 40 }
"""
KEY = "engine.max_num_batched_tokens"


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return str(path)


def alone(scenario, tmp_path, *arguments):
    """The summary of a plain run, with each request and its tokens' latencies."""
    path = tmp_path / "summary.json"
    result = CliRunner().invoke(cli, ["run", scenario, "--summary", str(path), *arguments])
    assert result.exit_code == 0, result.output
    return json.loads(path.read_text())


def test_without_warm_up_it_measures_what_run_does(scenario, tmp_path):
    found = measure(Part(Trial(scenario), "mixed", 256, 512, 0.0))
    plain = alone(scenario, tmp_path)
    for metric in ("ttft", "e2el", "queue_time", "tpot", "itl"):
        for name in ("count", "mean", "p50", "p99", "max"):
            assert found.latency[metric][name] == pytest.approx(plain["latency"][metric][name], rel=1e-9), (
                metric,
                name,
            )
    assert found.request_rate == pytest.approx(plain["throughput"]["request_rate"])
    assert found.output_token_rate == pytest.approx(plain["throughput"]["output_token_rate"])
    short = sorted(one["ttft"] for one in plain["requests"] if one["prompt"] <= 512)
    assert found.latency["ttft short"]["max"] == short[-1]
    assert found.latency["ttft short"]["count"] + found.latency["ttft long"]["count"] == 80


def test_the_warm_up_is_served_and_not_measured(scenario, tmp_path):
    plain = alone(scenario, tmp_path)["requests"]
    last = max(one["arrival"] for one in plain)
    kept = [one for one in plain if one["arrival"] >= int(0.4 * last)]
    found = measure(Part(Trial(scenario), "mixed", 256, 512, 0.4))
    assert found.requests == len(kept) < 80
    assert found.latency["ttft"]["max"] == max(one["ttft"] for one in kept)
    assert found.latency["itl"]["count"] == sum(one["output"] - 1 for one in kept)


def test_loads_are_parts_of_one_load(scenario):
    counts = {load: measure(Part(Trial(scenario), load, 256, 300, 0.0)) for load in ("short", "long", "mixed")}
    assert counts["short"].requests + counts["long"].requests == counts["mixed"].requests == 80
    assert counts["short"].latency["ttft long"]["count"] == counts["long"].latency["ttft short"]["count"] == 0


def test_kv_use(tmp_path):
    """A prompt of 64 tokens in steps of 16: three of nine blocks are taken when the last step but one ends."""
    path = tmp_path / "s.toml"
    text = SCENARIO.replace("num_prompts = 80", "num_prompts = 1").replace("blocks = 400", "blocks = 10")
    lines = [
        "prompt = 64" if x.startswith("prompt") else "output = 1" if x.startswith("output") else x
        for x in text.split("\n")
    ]
    path.write_text("\n".join(lines))
    found = measure(Part(Trial(str(path), {KEY: 16}), "mixed", 16, 512, 0.0))
    assert found.kv_use == pytest.approx(3 / 9)
    assert found.cached == 0 and found.preemptions == 0


def test_smaller_chunks_trade_ttft_of_long_prompts_for_itl(scenario):
    command = ["experiment", scenario, f"--vary={KEY}=64,1024", "--slo=itl:p99<=20ms", "--jobs=1"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output
    expected = (
        "mixed: max_num_batched_tokens = 64 has the shorter ITL P99 and the longer TTFT of long prompts: finer chunks"
    )
    assert f"{expected}; it meets the objectives" in result.stdout
    document = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
    assert [(one["load"], one["value"]) for one in document["runs"]] == [
        (load, value) for load in ("short", "long", "mixed") for value in (64, 1024)
    ]
    small, large = document["runs"][4:]
    assert small["latency"]["itl"]["p99"] < large["latency"]["itl"]["p99"]
    assert small["latency"]["ttft long"]["p50"] > large["latency"]["ttft long"]["p50"]
    assert (small["met"], large["met"]) == (True, False)


def made(value, **changes):
    """A run in which everything takes 100."""
    figures = {"count": 9, "mean": 100, "p50": 100, "p90": 100, "p95": 100, "p99": 100}
    names = ("ttft", "ttft short", "ttft long", "itl", "queue_time")
    latency = {name: dict(figures) for name in names}
    latency["queue_time"]["mean"] = 10
    for key in [key for key in changes if "__" in key]:
        metric, statistic = key.split("__")
        latency[metric.replace("_long", " long").replace("_short", " short")][statistic] = changes.pop(key)
    return replace(Measured("mixed", value, "ns", 9, latency, 1.0, 100.0, 0.5, 0.0, 0, None), **changes)


WORSE = (
    {"itl__p50": 120},
    {"itl__p90": 120},
    {"ttft_short__p99": 119},
    {"ttft_long__p99": 109},
    {"queue_time__p99": 120},
)
"""In each the second value is worse in one figure of the table."""


def test_the_rules_of_the_reading():
    base = made(1024)
    assert read(base, made(2048), KEY) == ["no rule applies: no trade beyond 5 % between ITL, TTFT and throughput"]
    for other, words in (
        (made(2048, itl__p99=120, ttft_long__p50=80), "= 1024 has the shorter ITL P99"),
        (made(2048, itl__p99=80, ttft_long__p50=120), "= 2048 has the shorter ITL P99"),
        (made(2048, output_token_rate=110.0, ttft__p95=120), "= 2048 has more throughput and a worse TTFT P95"),
        (made(2048, output_token_rate=125.0, ttft__p95=104), "= 1024 has 20 % less throughput"),
        (
            made(2048, itl__p99=50, ttft__p95=75),
            "= 2048 is better in all of it: ITL P99 50 % and TTFT P95 25 % shorter",
        ),
        (made(2048, cached=0.4), "repeat both with enable_prefix_caching = false"),
        (made(2048, preemptions=3), "preemptions 0 and 3"),
    ):
        for pair in ((base, other), (other, base)):
            found = read(*pair, KEY)
            assert len(found) == 1 and (words in found[0] or "preemptions 3 and 0" in found[0]), found
    full = made(1024, kv_use=0.97, queue_time__mean=60)
    assert "look at KV blocks and input lengths" in read(full, replace(full, value=2048), KEY)[0]
    for not_full in (made(1, kv_use=0.94, queue_time__mean=60), made(1, kv_use=0.99), made(1, kv_use=None)):
        assert "no rule applies" in read(full, not_full, KEY)[0]
    for near in (
        made(2048, itl__p99=104, ttft_long__p50=80),
        made(2048, itl__p99=120, ttft_long__p50=96),
        made(2048, output_token_rate=104.0, ttft__p95=120),
        made(2048, output_token_rate=104.0, ttft__p95=104),
        *(made(2048, itl__p99=50, ttft__p95=75, **worse) for worse in WORSE),
        made(2048, itl__p99=50),
        made(2048, cached=0.04),
    ):
        for pair in ((base, near), (near, base)):
            assert "no rule applies" in read(*pair, KEY)[0], near
    better = made(2048, itl__p99=50, ttft__p95=75)
    assert read(base, replace(better, preemptions=3), KEY) == ["preemptions 0 and 3: part of the work is done twice"]
    assert "no rule applies" in read(replace(base, met=True), replace(better, met=False), KEY)[0]
    assert read(base, made(2048, itl__p99=200, itl__p90=40), KEY) == [
        "no rule applies; max_num_batched_tokens = 1024 has ITL P99 50 % shorter; "
        "max_num_batched_tokens = 2048 has ITL P90 60 % shorter"
    ]
    assert "it does not meet" in read(made(1, met=False), made(2, itl__p99=120, ttft_long__p50=80), KEY)[0]


def test_a_figure_that_falls_to_nothing_is_shorter_by_all_of_it():
    waits, none = made(1024), made(2048, queue_time__p99=0)
    for pair in ((waits, none), (none, waits)):
        assert read(*pair, KEY) == ["no rule applies; max_num_batched_tokens = 2048 has queue time P99 100 % shorter"]
    at_once = made(2048, ttft__p95=0, itl__p99=0)
    assert read(waits, at_once, KEY) == [
        "max_num_batched_tokens = 2048 is better in all of it: ITL P99 100 % and TTFT P95 100 % shorter"
    ]
    assert read(none, replace(none, value=1024), KEY) == [
        "no rule applies: no trade beyond 5 % between ITL, TTFT and throughput"
    ]
    assert read(made(64, itl__p90=125, ttft_long__p50=200, itl__p99=80), made(512), KEY)[1].startswith(
        "ITL P90 goes the other way, 20 % shorter at max_num_batched_tokens = 512: with 64 a prompt is spread"
    )


def test_each_run_is_loaded_once(tmp_path, monkeypatch):
    """More KV blocks than the GPU has room for: both values' notes are told, from the runs that were measured."""
    loaded = []

    def loading(*arguments, **how):
        loaded.append(arguments)
        return load(*arguments, **how)

    monkeypatch.setattr("batchlab.plan.trial.load", loading)
    example = str(Path(__file__).parents[1] / "examples" / "capacity-conversation.toml")
    small = ["--set=workload.generate.num_prompts=40", "--set=engine.num_gpu_blocks=90000", "--short=200"]
    command = ["experiment", example, "--vary=engine.block_size=16,32", *small, "--jobs=1"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output
    notes = [line for line in result.stderr.splitlines() if "num_gpu_blocks = 90,000, but only" in line]
    assert ["of 16 tokens fit" in notes[0], "of 32 tokens fit" in notes[1], len(notes)] == [True, True, 2]
    assert len(loaded) == 2 + 3 * 2  # both values are looked at first, then three loads at each


def test_chunks_are_the_cause_only_of_settings_that_change_them():
    few = made(8, itl__p99=80, ttft_long__p50=300, queue_time__mean=20_000_000, output_token_rate=80.0)
    many = made(64, queue_time__mean=5_000_000)
    trade = "has the shorter ITL P99 and the longer TTFT of long prompts"
    assert read(few, many, "engine.max_num_seqs") == [
        f"max_num_seqs = 8 {trade}: requests wait 20.00 ms in the mean to be scheduled, not 5.00",
        "max_num_seqs = 8 has 20 % less throughput",
    ]
    assert read(few, many, "cost.prefill_token")[0].startswith(f"prefill_token = 8 {trade}: requests wait")
    assert read(
        replace(few, latency={**few.latency, "queue_time": many.latency["queue_time"]}), many, "cost.scale"
    ) == [
        f"scale = 8 {trade}",
        "scale = 8 has 20 % less throughput",
    ]
    for key in ("engine.long_prefill_token_threshold", "engine.prefill_chunk", KEY):
        assert read(few, many, key)[0].endswith(f"{trade}: finer chunks")
    slow = made(64, output_token_rate=110.0, ttft__p95=120)
    assert read(made(8), slow, "engine.max_num_seqs")[0].endswith("TTFT P95: waiting in larger batches")
    assert read(made(8), slow, "cost.scale") == ["scale = 64 has more throughput and a worse TTFT P95"]


@pytest.mark.parametrize(("blocks", "told"), [(60, True), (2000, False)])
def test_full_kv_memory_is_read_from_runs(scenario, tmp_path, blocks, told):
    """The same load: where few blocks are the queue's reason, both values say so; with many neither does."""
    path = tmp_path / "kv.toml"
    path.write_text(SCENARIO.replace("blocks = 400", f"blocks = {blocks}").replace("max = 900", "max = 700"))
    rates = ["--set=workload.generate.request_rate=9", "--vary=engine.max_num_batched_tokens=64,128", "--jobs=1"]
    document = json.loads(CliRunner().invoke(cli, ["experiment", str(path), *rates, "--json"]).stdout)
    assert any("look at KV blocks and input lengths" in line for line in document["reading"]["mixed"]) is told


@pytest.mark.parametrize(("values", "told"), [("256,4096", True), ("256,512", False)])
def test_waiting_in_larger_batches_is_read_from_runs(tmp_path, values, told):
    """Long prompts and hardly any output, for a short time: many prompts in one step share its fixed time, so that the
    last answer comes sooner; but a prompt that would have been done early waits for all others in its step.
    """
    text = SCENARIO.replace("max_num_seqs = 8", "max_num_seqs = 16").replace("num_gpu_blocks = 400\n", "")
    text = text.replace("prefill_token = 100_000", "prefill_token = 200_000").replace("seed = 3", "seed = 4")
    text = text.replace("num_prompts = 80", "num_prompts = 20").replace("request_rate = 4", "request_rate = 2")
    (tmp_path / "s.toml").write_text(text.replace("median = 300", "median = 900").replace("max = 40", "max = 2"))
    command = ["experiment", str(tmp_path / "s.toml"), f"--vary={KEY}={values}", "--jobs=1", "--json"]
    document = json.loads(CliRunner().invoke(cli, command).stdout)
    said = "max_num_batched_tokens = 4096 has more throughput and a worse TTFT P95: waiting in larger batches"
    assert (said in document["reading"]["mixed"]) is told
    if not told:
        assert not any("waiting in larger batches" in line for line in document["reading"]["mixed"])


@pytest.mark.parametrize(("shared", "told"), [(200, True), (2, False)])
def test_repeated_prefixes_are_read_from_runs(tmp_path, shared, told):
    """All prompts begin with the same tokens: enough of them, and the run with the cache is another experiment."""
    path = tmp_path / "prefix.toml"
    text = SCENARIO.replace("request_rate = 4", f"request_rate = 4\nshared_prefix = {shared}")
    path.write_text(text)
    vary = "--vary=engine.enable_prefix_caching=false,true"
    document = json.loads(CliRunner().invoke(cli, ["experiment", str(path), vary, "--jobs=1", "--json"]).stdout)
    said = any("repeat both with enable_prefix_caching = false" in line for line in document["reading"]["mixed"])
    assert said is told


def test_turns_of_a_session_are_not_taken_apart():
    result = CliRunner().invoke(
        cli, ["experiment", str(Path(__file__).parents[1] / "examples" / "generated.toml"), "--jobs=1"]
    )
    assert isinstance(result.exception, InputError), result.output
    assert "turns of a session belong together" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vary=engine.max_num_seqs=1"], "an experiment changes one thing"),
        (["--vary=engine.max_num_seqs=1,2,3"], "an experiment changes one thing"),
        (["--vary=engine.max_num_seqs=2,2"], "--vary engine.max_num_seqs: 2: given twice"),
        (["--vary=engine.max_num_seq=1,2"], "did you mean 'max_num_seqs'?"),
        (["--vary=engine.max_num_seqs=1,2", "--set=engine.max_num_seqs=3"], "--vary has this key too"),
        (["--short=5000"], "--short: 5000: leaves no long prompts"),
        (["--warm-up=nan"], "--warm-up: nan: must be a share"),
        (["--warm-up=1"], "--warm-up: 1.0: must be a share"),
        (["--slo=itl:p99<=5"], "needs a unit"),
        (["--set=workload.clients=2"], "an experiment needs a file or [workload.generate], and no clients"),
    ],
)
def test_bad_input_is_one_line(scenario, arguments, message):
    result = CliRunner().invoke(cli, ["experiment", scenario, "--jobs=1", *arguments])
    assert isinstance(result.exception, InputError), result.output
    assert message in str(result.exception)


def test_an_experiment_is_held_to_times_alone(tmp_path):
    with pytest.raises(InputError, match="'attainment>=60%': an experiment is held to times alone"):
        parts(Trial("s.toml", slo="ttft:p99<=1s,attainment>=60%"), {"engine.max_num_seqs": [1, 2]}, 512, 0.1)
