"""Tuning: no row of the front is dominated, a seed decides all, a kill changes nothing, and the flags say what ran."""

import itertools
import json
import math
import shlex
import sys
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from plan_samples import SCENARIO

from batchlab.cli.commands import cli
from batchlab.errors import InputError
from batchlab.plan import tune as tuning
from batchlab.plan.capacity import find
from batchlab.plan.propose import Proposer
from batchlab.plan.space import default_space, doublings, range_of
from batchlab.plan.trial import Trial, row_of, run_of
from batchlab.plan.tune import Axis, Tuning, _mark
from batchlab.vllm_command import parse

pytestmark = pytest.mark.once

SPACE = {
    "engine.max_num_batched_tokens": [4, 16, 32, 64, 128, 256],
    "engine.max_num_seqs": [4, 8, 16, 32],
    "engine.long_prefill_token_threshold": [0, 16, 64],
    "engine.scheduling_policy": ["fcfs", "priority"],
}
SLO = "ttft:p99<=900ms,itl:p99<=8ms"


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return str(path)


def tuning_of(scenario, **changed):
    return Tuning(scenario, SLO, **{"space": SPACE, "maximize": "throughput", "trials": 20, **changed})


def better(row, other):
    """By the definition, from the figures themselves."""
    up, down = "output_token_rate", ("slo.ttft:p99", "slo.itl:p99")
    no_worse = row[up] >= other[up] and all(row[key] <= other[key] for key in down)
    return no_worse and (row[up] > other[up] or any(row[key] < other[key] for key in down))


def test_the_front_is_what_nothing_dominates(scenario):
    seen = 0
    for seed in range(3):
        found = tuning.run(tuning_of(scenario, seed=seed), None, 1)
        rows = [row for row in found.rows if row["error"] is None]
        assert len(found.rows) >= 21 and found.size == 144
        settings = [tuple(row[key] for key in SPACE) for row in found.rows]
        assert len(set(settings)) == len(settings) and settings[0] == (64, 8, 0, "fcfs")
        front = [row for row in rows if row["pareto"]]
        assert not [1 for row in front for other in rows if better(other, row)]
        for row in rows:  # whatever is not on it is dominated by a row that is, or the same as one
            same = [o for o in front if all(o[a.column] == row[a.column] for a in tuning_of(scenario).axes())]
            assert row["pareto"] or same or any(better(other, row) for other in front)
        best = found.recommended
        assert best["pareto"] and best["met"]
        assert best["output_token_rate"] == max(row["output_token_rate"] for row in front if row["met"])
        seen += len(front)
    assert seen > 6


def test_no_change_is_recommended_that_changes_nothing(scenario):
    after = 0
    for seed in range(4):
        rows = tuning.run(tuning_of(scenario, seed=seed, trials=10), None, 1).rows
        [best] = [row for row in rows if row["recommended"]]
        figures = [axis.column for axis in tuning_of(scenario).axes()]
        for key in SPACE:
            if best[key] != rows[0][key]:
                back = {**{other: best[other] for other in SPACE}, key: rows[0][key]}
                [without] = [row for row in rows if back.items() <= row.items()]
                assert [without[name] for name in figures] != [best[name] for name in figures]
        after += len(rows) - 11
    assert after > 0


def test_what_did_not_come_to_its_end_keeps_nothing_off_the_front(scenario):
    space = {"run.max_iterations": [60, 10**6], "engine.max_num_seqs": [4, 8, 16]}
    found = tuning.run(tuning_of(scenario, space=space), None, 1)
    cut = [row for row in found.rows if row["error"] is not None]
    assert cut and not any(row["pareto"] for row in cut)
    whole = tuning.run(tuning_of(scenario, space={"engine.max_num_seqs": [4, 8, 16]}), None, 1)
    assert found.recommended is not None and whole.recommended is not None
    figures = [axis.column for axis in tuning_of(scenario).axes()]
    assert [found.recommended[name] for name in figures] == [whole.recommended[name] for name in figures]


def test_an_objective_without_a_value_is_met_as_everywhere(scenario):
    single = {"workload.generate.output": 1}  # one token has no gap behind it
    asked = Tuning(scenario, "itl:p99<=8ms", {"engine.max_num_seqs": [4, 8]}, overrides=single)
    for maximize in ("capacity", "throughput"):
        found = tuning.run(replace(asked, maximize=maximize), None, 1)
        assert found.met and found.recommended is not None and found.recommended["slo.itl:p99"] is None


def test_a_setting_that_the_scenario_leaves_open_is_recommended_only_if_it_matters(scenario):
    space = {"engine.max_num_seqs": [8], "engine.max_num_queued_reqs": [10**6], "cost.context_token": [0]}
    found = tuning.run(tuning_of(scenario, space=space, overrides={"engine.max_num_seqs": 1}), None, 1)
    assert (found.tried, found.size) == (1, 1) and found.taken_back > 0
    row = found.recommended
    assert row is not None and (row["engine.max_num_seqs"], row["engine.max_num_queued_reqs"]) == (8, None)


def test_the_rate_is_not_tuned_where_it_is_searched(scenario):
    asked = tuning_of(scenario, maximize="capacity", space={"workload.generate.request_rate": [1, 2]})
    with pytest.raises(InputError, match=r"--space workload\.generate\.request_rate: capacity finds the rate"):
        tuning.run(asked, None, 1)
    with pytest.raises(InputError, match=r"--space engine\.watermark: nan: must be a fraction, at least 0 and below 1"):
        tuning.run(tuning_of(scenario, space={"engine.watermark": [math.nan]}), None, 1)


def test_every_row_is_the_run_of_its_settings(scenario):
    for row in tuning.run(tuning_of(scenario, trials=8), None, 1).rows:
        if row["error"] is None:
            alone = row_of(Trial(scenario, {key: row[key] for key in SPACE}, slo=SLO))
            assert {key: row[key] for key in alone} == alone


def test_a_seed_and_nothing_else_decides(scenario, tmp_path):
    for name, jobs in (("a", 1), ("b", 2)):
        tuning.run(tuning_of(scenario, trials=12), tmp_path / f"{name}.parquet", jobs)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    tried = {
        seed: [
            tuple(row[key] for key in SPACE)
            for row in tuning.run(tuning_of(scenario, trials=4, seed=seed), None, 1).rows
        ]
        for seed in (0, 1)
    }
    assert tried[0] != tried[1]


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory):
    """The table of a tuning of 12 trials that ran through."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "scenario.toml").write_text(SCENARIO)
    tuning.run(tuning_of(str(folder / "scenario.toml"), trials=12), folder / "t.parquet", 1)
    return (folder / "t.parquet").read_bytes()


@pytest.mark.parametrize("count", [0, 1, 4, 12, 13])
def test_killed_and_resumed_is_the_same_file(scenario, tmp_path, never_killed, count):
    def killed(ready, of):
        if ready == count:
            raise KeyboardInterrupt

    parts = tmp_path / "parts.parquet"
    asked = tuning_of(scenario, trials=12)
    with pytest.raises(KeyboardInterrupt):
        tuning.run(asked, parts, 1, killed)
    assert not parts.exists()
    told = []
    tuning.run(asked, parts, 1, lambda ready, of: told.append((ready, of)))
    whole = pq.read_table(parts).num_rows
    assert whole >= 13 and told == [(ready, max(ready, 13)) for ready in range(count, whole + 1)]
    assert parts.read_bytes() == never_killed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.parquet", "scenario.toml"]


def test_a_journal_of_another_tuning_is_refused(scenario, tmp_path):
    output = tmp_path / "t.parquet"

    def killed(ready, of):
        if ready == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuning.run(tuning_of(scenario), output, 1, killed)
    for changed in ({"seed": 1}, {"trials": 21}, {"maximize": "goodput"}, {"goodput": ("ttft:1",)}):
        with pytest.raises(InputError, match="journal of another"):
            tuning.run(tuning_of(scenario, **changed), output, 1)


def test_a_small_space_runs_whole(scenario):
    space = {key: SPACE[key] for key in list(SPACE)[:2]}
    found = tuning.run(tuning_of(scenario, space=space, trials=24), None, 1)
    tried = [tuple(row[key] for key in space) for row in found.rows]
    assert tried[0] == (64, 8) and sorted(tried) == sorted(itertools.product(*space.values()))
    refused = [row for row in found.rows if row["error"]]
    assert {row["engine.max_num_batched_tokens"] for row in refused} == {4, 16}  # below the seats
    assert not any(row["pareto"] or row["recommended"] for row in refused)


def test_capacity_is_what_capacity_finds(scenario, monkeypatch):
    monkeypatch.setattr("batchlab.plan.binding.changes", lambda *_: [])  # only the rates are compared
    space = {"engine.max_num_batched_tokens": [32, 256]}
    found = tuning.run(tuning_of(scenario, space=space, maximize="capacity"), None, 1)
    for row in found.rows:
        trial = Trial(scenario, {key: row[key] for key in space}, slo=SLO)
        assert row["capacity"] == find(trial, 1, 1).answer.rate


def test_a_trace_is_tuned_for_capacity(tmp_path, monkeypatch):
    """What stretches it is the rate; its parts, which give an interval, are not asked for."""
    monkeypatch.setattr("batchlab.plan.binding.changes", lambda *_: [])
    rows = "".join(f"{place * 0.5:.1f},10,5\n" for place in range(60))
    (tmp_path / "trace.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO.partition("[workload")[0] + '[workload]\nfile = "trace.csv"\nformat = "vidur"\n')
    space = {"engine.max_num_seqs": [1, 8]}
    found = tuning.run(Tuning(str(path), "ttft:max<=12ms", space=space, maximize="capacity", trials=2), None, 1)
    seen = []
    for row in found.rows:
        answer = find(Trial(str(path), {key: row[key] for key in space}, slo="ttft:max<=12ms"), 1, 1).answer
        assert row["capacity"] == answer.rate and answer.sample.name == "whole trace"
        seen.append(answer.rate)
    assert max(seen) > min(seen) > 2


def test_a_capacity_that_a_short_load_gives_is_called_uncertain(scenario, monkeypatch):
    monkeypatch.setattr("batchlab.plan.binding.changes", lambda *_: [])
    said = "the load lasts less than 20 times as long as a request: not steady; give more requests"
    space = {"engine.max_num_batched_tokens": [32, 256]}
    seen = []
    for count in (150, 1000):
        load = {"workload.generate.num_prompts": count}
        asked = tuning_of(scenario, space=space, maximize="capacity", overrides=load)
        found = tuning.run(asked, None, 1)
        short = []
        for row in found.rows:
            trial = Trial(scenario, {**load, **{key: row[key] for key in space}}, slo=SLO)
            assert row["capacity_short"] is (said in find(trial, 1, 1).caveats)
            short += [row["capacity"]] if row["capacity_short"] and (row["pareto"] or row is found.rows[0]) else []
        caveats = [text for text in tuning.caveats(asked, found) if said in text]
        named = ", ".join(f"{rate:,.4g}" for rate in sorted(short, reverse=True))
        assert caveats == ([f"at a capacity of {named} {said}"] if short else [])
        seen.append(bool(short))
    assert seen == [True, False]


def test_a_capacity_at_which_the_search_ended_is_said_to_be_that(scenario, monkeypatch):
    """1,024 times 0.01 a second: one seat, which a request has for a tenth of a second, is less, eight are more."""
    monkeypatch.setattr("batchlab.plan.binding.changes", lambda *_: [])
    space = {"engine.max_num_seqs": [1, 8]}
    slowly = {"workload.generate.request_rate": 0.01}
    asked = replace(tuning_of(scenario, space=space, maximize="capacity", overrides=slowly), slo="ttft:p99<=3600s")
    found = tuning.run(asked, None, 1)
    by_seats = {row["engine.max_num_seqs"]: row for row in found.rows}
    assert [by_seats[seats]["capacity_unbound"] for seats in (1, 8)] == [False, True]
    assert by_seats[1]["capacity"] < by_seats[8]["capacity"] == 10.24
    (told,) = [text for text in tuning.caveats(asked, found) if "without a miss" in text]
    assert told == "at a capacity of 10.24 the search ended without a miss: the objectives do not bind"


@pytest.mark.parametrize("options", [[], ["--set=engine.async_scheduling=true"], ["--set=engine.block_size=32"]])
def test_the_flags_read_back_give_the_same_run(scenario, options):
    def command(*arguments):
        done = CliRunner().invoke(cli, [*arguments, scenario, *options, "--slo", SLO, "--json"])
        return json.loads(done.stdout)

    space = [f"--space={key}={','.join(map(str, values))}" for key, values in SPACE.items()]
    found = command("tune", *space, "--trials=10", "--jobs=1", "--maximize=throughput")
    [row] = [row for row in found["rows"] if row["recommended"]]
    read = parse(f"vllm serve M {found['flags']}")
    assert not read.unknown
    assert {f"engine.{key}": value for key, value in read.settings.items()}.items() >= {
        k: row[k] for k in SPACE
    }.items()
    again = command("run", "--from-command", f"vllm serve M {found['flags']}")["runs"][0]
    for metric in ("ttft", "itl", "e2el"):
        assert {f"{metric}.{name}": value for name, value in again["latency"][metric].items()}.items() <= row.items()
    assert again["iterations"] == row["iterations"] and again["time"] == row["time"]


def test_the_table_and_the_file(scenario, tmp_path):
    output = tmp_path / "t.parquet"
    space = ["--space=engine.max_num_batched_tokens=16..128", "--space=engine.max_num_seqs=8", "--maximize=throughput"]
    done = CliRunner().invoke(cli, ["tune", scenario, "--slo", SLO, *space, "--jobs=1", "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert "4 of 4 combinations" in done.stdout or "3 of 4 combinations" in done.stdout
    assert "as it is" in done.stdout and "recommended: " in done.stdout
    flags = next(line for line in done.stdout.splitlines() if line.startswith("recommended: "))
    assert "--max-num-batched-tokens" in shlex.split(flags)
    table = pq.read_table(output)
    about = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    assert json.loads(about["varied"]) == ["engine.max_num_batched_tokens", "engine.max_num_seqs"]
    assert [axis["column"] for axis in json.loads(about["axes"])] == [
        "output_token_rate",
        "slo.ttft:p99",
        "slo.itl:p99",
    ]
    assert table.schema.field("slo.ttft:p99").metadata == {b"unit": b"ns"}
    assert sum(table.column("recommended").to_pylist()) == 1


def test_nothing_meets_is_exit_1(scenario):
    """No rate does either: the nearest is the one with which the most requests are within."""
    space = "--space=engine.max_num_seqs=2,8"
    command = ["tune", scenario, "--slo", "ttft:p99<=8ms", space, "--jobs=1"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 1 and "no combination tried meets ttft:p99<=8ms at the load as it is" in done.stdout
    document = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
    as_it_is, other = document["rows"]
    assert not document["met"] and as_it_is["capacity"] == other["capacity"] == 0
    assert as_it_is["attainment"] > other["attainment"] and as_it_is["recommended"]
    assert f"most requests within all targets, though it misses: as it is: {document['command']}" in done.stdout


@pytest.mark.parametrize("maximize", ["capacity", "goodput"])
def test_above_all_capacity_the_nearest_is_recommended_and_said_to_miss(scenario, maximize):
    above = ["--set=workload.generate.request_rate=500", "--space=engine.max_num_seqs=4,64", "--jobs=1"]
    command = ["tune", scenario, "--slo", "ttft:p90<=400ms", *above, f"--maximize={maximize}"]
    done = CliRunner().invoke(cli, [*command, "--json"])
    document = json.loads(done.stdout)
    assert done.exit_code == 1 and not document["met"]
    assert not any(row["met"] for row in document["rows"])
    [row] = [row for row in document["rows"] if row["recommended"]]
    assert row["pareto"] and row["engine.max_num_seqs"] != 8
    figure = "capacity" if maximize == "capacity" else "attainment"
    assert row[figure] == max(row[figure] for row in document["rows"] if row["pareto"]) > 0
    flags = shlex.split(document["flags"])
    assert flags[flags.index("--max-num-seqs") + 1] == str(row["engine.max_num_seqs"])
    most = "capacity" if maximize == "capacity" else "requests within all targets"
    printed = CliRunner().invoke(cli, command).stdout
    assert f"most {most}, though it misses: {document['command']}" in printed and "recommended" not in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--space=engine.max_num_seqs=0,4"], "--space engine.max_num_seqs: 0: must be at least 1"),
        (["--space=engine.max_num_seq=4"], "--space engine.max_num_seq: unknown key (did you mean 'max_num_seqs'?)"),
        (["--space=engine.max_num_seqs=4..x"], "a range is KEY=LOW..HIGH"),
        (["--space=engine.max_num_seqs=8..4"], "a range is KEY=LOW..HIGH"),
        (["--space=engine.max_num_seqs=4", "--set=engine.max_num_seqs=4"], "--space has this key too"),
        (["--slo=ttft:p99<=500"], "needs a unit"),
        (["--slo=attainment>=90%"], "attainment needs targets for each request"),
        (["--goodput", "ttft:x"], "must be METRIC:NUMBER"),
        (["-o", "t.csv"], "t.csv: must end in .parquet"),
        (["-o", ""], "the name of the file to write is empty"),
        (["--set=engine.max_num_batched_tokens=4"], "must be at least max_num_seqs = 8"),
        (["--set=workload.clients=4"], "a closed loop has no request rate"),
    ],
)
def test_bad_input_is_one_line(scenario, arguments, message):
    slo = [] if any(one.startswith("--slo") for one in arguments) else ["--slo", SLO]
    done = CliRunner().invoke(cli, ["tune", scenario, *slo, "--jobs=1", *arguments])
    assert isinstance(done.exception, InputError), done.output
    assert message in str(done.exception) and "\n" not in str(done.exception)


def test_without_optuna_it_says_what_to_install(scenario, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"pip install 'batchlab\[plan\]'"):
        tuning.run(tuning_of(scenario), None, 1)


def test_the_space_of_a_policy_is_in_its_own_terms(scenario):
    own = default_space(run_of(Trial(scenario)))
    assert list(own) == [
        f"engine.{n}" for n in ("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold")
    ]
    assert own["engine.max_num_seqs"][:2] == [8, 16]  # its own value is among them
    overrides = {"engine.policy": "sarathi", "engine.token_budget": 64}
    text = SCENARIO.replace("max_num_batched_tokens", "token_budget").replace("num_gpu_blocks = 100\n", "")
    with open(scenario, "w") as file:
        file.write(text.replace('"vllm"', '"sarathi"'))
    assert "engine.token_budget" in default_space(run_of(Trial(scenario, overrides)))


@given(st.integers(0, 50), st.integers(0, 2000))
def test_a_range_is_its_doublings(low, high):
    values = doublings(low, high)
    assert values == sorted(set(values)) and all(low <= value <= high for value in values if value)
    assert all(b == 2 * a for a, b in itertools.pairwise(values) if a)
    if low <= high:
        assert range_of(f"k={low}..{high}") == f"k={','.join(map(str, values))}"


def test_proposals_are_new_until_the_space_is_used_up():
    space = {"a": [1, 2, 3], "b": ["x", "y"], "c": [True, False]}
    proposer = Proposer(space, [True], 0)
    tried = []
    for _ in range(4):
        batch = proposer.ask(3)
        proposer.tell(batch, [None if one["a"] == 2 else [one["a"]] for one in batch])
        tried += [tuple(one.values()) for one in batch]
    assert sorted(tried) == sorted(itertools.product(*space.values()))


def test_the_optimiser_finds_more_than_chance_does():
    """On a slope in three settings, of 1,000 combinations 40 are looked at: the best is nearer to the top."""
    space = {key: list(range(10)) for key in "abc"}
    found = []
    for seed in range(5):
        proposer, best = Proposer(space, [True], seed), 0
        for _ in range(5):
            batch = proposer.ask(8)
            values = [sum(one.values()) for one in batch]
            proposer.tell(batch, [[value] for value in values])
            best = max(best, *values)
        found.append(best)
    assert sum(found) / len(found) >= 25.5  # the best of 40 at random is 23.74 in the mean, over 4,000 draws


COSTED = SCENARIO[: SCENARIO.index("num_gpu_blocks")] + (
    '[cost]\nmodel = "roofline"\ngpu = "h100-sxm"\nllm = "llama-3.1-8b"\ntensor_parallel = 2\n'
    + SCENARIO[SCENARIO.index("[workload") :]
)
PASTED = "vllm serve Qwen/Qwen3-32B -tp 4 --max-num-batched-tokens 128 --port 8000 --enable-prefix-caching"


def test_the_baseline_is_the_command_and_its_recommendation_pastes_back(tmp_path):
    path = tmp_path / "costed.toml"
    path.write_text(COSTED.replace("max_num_batched_tokens = 64\n", ""))  # only the command has it
    space = ["--space=engine.max_num_batched_tokens=32,256", "--space=cost.tensor_parallel=2,8"]
    common = [str(path), "--slo", "ttft:p99<=60s", "--json"]

    def call(*arguments):
        done = CliRunner().invoke(cli, [*arguments])
        assert done.exit_code == 0, (done.output, done.exception)
        return json.loads(done.stdout)

    found = call("tune", *common, *space, "--jobs=1", "--maximize=throughput", "--from-command", PASTED)
    first = found["rows"][0]
    assert (first["engine.max_num_batched_tokens"], first["cost.tensor_parallel"]) == (128, 4)
    [row] = [row for row in found["rows"] if row["recommended"]]
    words = shlex.split(found["command"])
    assert words[:3] == ["vllm", "serve", "Qwen/Qwen3-32B"] and "--port" in words
    assert words[words.index("--tensor-parallel-size") + 1] == str(row["cost.tensor_parallel"])
    trial = {"engine.max_num_batched_tokens": row["engine.max_num_batched_tokens"]}
    settings = ["cost.llm=qwen3-32b", f"cost.tensor_parallel={row['cost.tensor_parallel']}"]
    settings += [
        "engine.async_scheduling=true",
        "engine.enable_prefix_caching=true",
        "engine.gpu_memory_utilization=0.92",
    ]
    settings += [f"{key}={value}" for key, value in trial.items()]
    by_hand = call("compare", str(path), "--json", *(f"--set={setting}" for setting in settings))
    again = call("compare", str(path), "--json", "--from-command", found["command"])
    assert again["common"] == by_hand["common"]
    run = call("run", *common, "--from-command", found["command"])["runs"][0]
    assert run["time"] == row["time"] and run["iterations"] == row["iterations"]


@pytest.mark.parametrize(
    ("file", "more"),
    [
        ("", ""),
        ("max_num_seqs = 1024\nmax_num_batched_tokens = 8192\ngpu_memory_utilization = 0.92\n", ""),
        ("max_num_seqs = 512\n", " --max-num-seqs 512 --max-num-batched-tokens 8192"),
        ("block_size = 32\n", " --block-size 32"),
        ("long_prefill_token_threshold = 8\n", " --long-prefill-token-threshold 0"),
        ("block_size = 16\n", ""),
        ("watermark = 0.01\n", " --watermark 0.01"),
    ],
)
def test_of_a_pasted_command_only_what_has_to_be_is_changed(tmp_path, file, more):
    """vLLM 0.32.0 on an H100: 1,024 seats, 8,192 tokens, 0.92 of the memory; blocks of 16, no threshold."""
    path = tmp_path / "costed.toml"
    load = COSTED[COSTED.index("[cost]") :]
    path.write_text(f'[engine]\npolicy = "vllm"\n{file}{load}')
    pasted = "vllm serve Qwen/Qwen3-32B -tp 4 --port 8000"
    space = ["--space=engine.long_prefill_token_threshold=0", "--space=engine.block_size=16"]
    made = ["--slo", "ttft:p99<=60s", "--json", "--from-command"]
    done = CliRunner().invoke(cli, ["tune", str(path), *space, "--jobs=1", "--maximize=throughput", *made, pasted])
    found = json.loads(done.stdout)
    [row] = [row for row in found["rows"] if row["recommended"]]
    assert found["command"] == pasted + more
    again = json.loads(CliRunner().invoke(cli, ["run", str(path), *made, found["command"]]).stdout)["runs"][0]
    assert again["time"] == row["time"] and again["iterations"] == row["iterations"]


def test_without_a_command_one_is_made_that_pastes_back(tmp_path):
    path = tmp_path / "costed.toml"
    stored = 'tensor_parallel = 2\nweight_dtype = "fp8"\nkv_dtype = "fp8"\ndtype = "fp16"\n'
    path.write_text(
        COSTED.replace("tensor_parallel = 2\n", stored).replace("[cost]", "gpu_memory_utilization = 0.8\n[cost]")
    )
    space = ["--space=engine.max_num_batched_tokens=32,256", "--space=engine.max_num_seqs=4"]
    made = ["tune", str(path), "--slo", "ttft:p99<=60s", *space, "--jobs=1", "--maximize=throughput", "--json"]
    found = json.loads(CliRunner().invoke(cli, made).stdout)
    assert found["command"].startswith("vllm serve meta-llama/Llama-3.1-8B --dtype float16 --quantization fp8 ")
    [row] = [row for row in found["rows"] if row["recommended"]]
    given = {key: row[key] for key in ("engine.max_num_batched_tokens", "engine.max_num_seqs")}

    def facts(*options):
        return json.loads(CliRunner().invoke(cli, ["compare", str(path), "--json", *options]).stdout)["common"]

    assert facts("--from-command", found["command"]) == facts(*(f"--set={key}={value}" for key, value in given.items()))


def test_as_it_is_on_the_front_is_called_so(scenario):
    command = ["tune", scenario, "--slo", SLO, "--space=engine.max_num_seqs=8,4", "--maximize=throughput", "--jobs=1"]
    document = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
    printed = CliRunner().invoke(cli, command).stdout
    assert document["rows"][0]["pareto"] and "as it is, front" in printed


def test_of_what_is_equal_in_what_is_maximised_the_fewest_changes_are_recommended():
    """However the objectives are written: a little less TTFT is no reason to change anything."""
    own = {"engine.max_num_seqs": 8}
    axes = [Axis("capacity", True), Axis("slo.ttft:p99", False), Axis("slo.itl:p99", False)]
    figures = [(5.0, 583.0, 85.8), (5.0, 573.0, 161.5), (4.0, 500.0, 80.0)]
    rows = [
        {
            "engine.max_num_seqs": seats,
            "error": None,
            "met": True,
            **dict(zip((a.column for a in axes), row, strict=True)),
        }
        for seats, row in zip((8, 16, 4), figures, strict=True)
    ]
    _mark(rows, axes, own, "capacity")
    assert [row["pareto"] for row in rows] == [True, True, True]
    assert [row["recommended"] for row in rows] == [True, False, False]
