"""The controlled experiment on servers: our own mock server is the engine, so what is true of it is known."""

import contextlib
import errno
import json
import math
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from test_experiment import KEY, made

from batchlab.bench.client import Outcome
from batchlab.bench.engine import words_of
from batchlab.bench.figures import result_of
from batchlab.bench.load import Measured as Load
from batchlab.bench.load import Plan
from batchlab.bench.rounds import (
    TABLE,
    Arm,
    Cold,
    _measured,
    change,
    left_open,
    reading,
    resolved,
    settled,
    token_times,
    without_ratio,
)
from batchlab.bench.target import Target
from batchlab.cli.commands import cli
from batchlab.cli.experiment_rounds import Experiment, _number, tell
from batchlab.errors import InputError
from batchlab.plan.experiment import Part, read, requests_of
from batchlab.plan.trial import Trial

pytestmark = pytest.mark.once

SCENARIO = """
[engine]
policy = "vllm"
max_num_seqs = 8
max_num_batched_tokens = 64
num_gpu_blocks = 400
[cost]
model = "linear"
unit = "ns"
per_iteration = 2_000_000
prefill_token = 100_000
[workload.generate]
num_prompts = 16
seed = 3
arrivals = "poisson"
request_rate = 40
prompt = { distribution = "uniform", min = 10, max = 400 }
output = { distribution = "uniform", min = 4, max = 20 }
"""
WITH_PID = "import os, sys; open(sys.argv[1], 'a').write(f'{os.getpid()} '); os.execv(sys.argv[2], sys.argv[2:])"

NO_HTTP = """
import socket, sys
there = socket.create_server(("127.0.0.1", int(sys.argv[2])))
while True:
    with there.accept()[0] as line:
        line.sendall(b"SSH-2.0-none\\r\\n")
        line.recv(4096)
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return str(path)


def engine(tmp_path: Path, scenario: str, value: str = "{value}") -> str:
    """The mock server with the setting, that notes its process."""
    serve = [sys.executable, "-m", "batchlab", "serve", scenario, "--set", f"{KEY}={value}", "--port", "{port}"]
    return shlex.join([sys.executable, "-c", WITH_PID, str(tmp_path / "pids"), *serve])


def pids(tmp_path: Path) -> list[int]:
    path = tmp_path / "pids"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def arguments(scenario: str, command: str, *more: str) -> list[str]:
    vary = f"--vary={KEY}=32,256"
    return ["experiment", scenario, vary, "--short=150", "--jobs=1", "--rounds=2", "--engine", command, *more]


def test_what_the_mock_server_is_known_to_do_is_measured(tmp_path: Path, scenario: str) -> None:
    result = CliRunner().invoke(cli, arguments(scenario, engine(tmp_path, scenario), "--json"))
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert len(found["rounds"]) == 2
    for arms in found["rounds"]:
        assert [arm["value"] for arm in arms] == [32, 256]
        for place, arm in enumerate(arms):
            assert arm["failed"] == 0 and arm["cold"]["start"] > 0 and arm["cold"]["first_ttft"] > 0
            for number, run in enumerate(arm["measured"]):
                predicted = found["predicted"][2 * number + place]
                assert run["requests"] == predicted["requests"]
                # From the intended time on HTTP and a busy machine only add. Between two tokens they may take away: a
                # first token that comes late is closer to the next.
                for metric in ("ttft", "e2el"):
                    assert run["latency"][metric]["mean"] > 0.9 * predicted["latency"][metric]["mean"]
    assert set(found["reading"]) == {"short", "long", "mixed"}
    assert len(pids(tmp_path)) == 4 and not any(map(alive, pids(tmp_path)))


def test_a_command_may_go_on_in_the_next_line() -> None:
    assert words_of("vllm serve M \\\n  --x {value} \\ \n  --port {port}") == [
        "vllm",
        "serve",
        "M",
        "--x",
        "{value}",
        "--port",
        "{port}",
    ]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("vllm 'serve {value} {port}", "cannot be split into words: No closing quotation"),
        ("vllm serve --port {port}", "must hold {value}"),
        ("vllm serve --max-num-batched-tokens {value}", "must hold {port}"),
        ("no-such-program {value} {port}", "'no-such-program': cannot be started: No such file or directory"),
        (
            f"{sys.executable} -c 'print(\"no memory\"); raise SystemExit(3)' {{value}} {{port}}",
            "the server ended with 3 before it was ready; the end of its log: no memory",
        ),
        (
            f"{sys.executable} -c 'import time; time.sleep(60)' {{value}} {{port}}",
            "the server did not answer /health in time; the end of its log: nothing",
        ),
        (
            f"{sys.executable} -c {shlex.quote(NO_HTTP)} {{value}} {{port}}",
            "the server did not answer /health in time; the end of its log: nothing",
        ),
    ],
)
def test_a_server_that_cannot_be_had_is_one_line(scenario: str, command: str, said: str) -> None:
    options = arguments(scenario, command, "--ready-within=0.7")
    done = subprocess.run([sys.executable, "-m", "batchlab", *options], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("batchlab: --engine") and said in done.stderr and done.stderr.count("\n") == 1


def test_no_shell_reads_the_command(tmp_path: Path, scenario: str) -> None:
    command = f"echo {{value}} {{port}} ; touch {tmp_path}/made $(touch {tmp_path}/made)"
    result = CliRunner().invoke(cli, arguments(scenario, command))
    assert "ended with 0 before it was ready; the end of its log: 32 " in str(result.exception)
    assert "; touch" in str(result.exception) and not (tmp_path / "made").exists()


def is_there(group: int) -> bool:
    """Whether one of the group still runs; those that have ended may wait for whoever adopted them."""
    if not Path("/proc/self/stat").exists():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, 0)
            return True
        return False
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group, *_ = path.read_text().rpartition(")")[2].split()
            if int(its_group) == group and state != "Z":
                return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_is_gone_after_an_interruption(tmp_path: Path, scenario: str, number: signal.Signals) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    words = [sys.executable, "-c", WITH_PID, str(tmp_path / "pids"), sys.executable, "-c", child, "{value}", "{port}"]
    options = arguments(scenario, shlex.join(words))
    running = subprocess.Popen([sys.executable, "-m", "batchlab", *options], stderr=subprocess.PIPE)
    end = time.monotonic() + 30
    while not pids(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    running.send_signal(number)
    _, told = running.communicate(timeout=60)
    assert running.returncode != 0 and b"Traceback" not in told
    (group,) = pids(tmp_path)
    end = time.monotonic() + 20
    while is_there(group) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_there(group)


def test_a_machine_that_drifts_does_not_hide_a_change() -> None:
    rng = random.Random(5)
    one, other = [], []
    for _ in range(4):
        drift, noise = rng.uniform(0.5, 2), rng.uniform(0.98, 1.02)
        one.append(made(128, itl__p99=100 * drift, ttft_long__p50=100 * drift))
        other.append(made(512, itl__p99=300 * drift * noise, ttft_long__p50=100 * drift * rng.uniform(0.5, 2)))
    found = change(one, other, ("itl", "p99"))
    assert found is not None and resolved(found) and found[1] < found[0] < found[2]
    assert found[0] == pytest.approx(2, rel=0.05)
    back = change(other, one, ("itl", "p99"))
    assert back is not None and (1 + back[0]) * (1 + found[0]) == pytest.approx(1)
    assert not resolved(change(one, other, ("ttft long", "p50")))
    assert not resolved(change(one[:1], other[:1], ("itl", "p99")))
    first, second = settled(one, other)
    assert second.latency["ttft long"]["p50"] == first.latency["ttft long"]["p50"]
    assert second.latency["itl"]["p99"] > 2 * first.latency["itl"]["p99"]
    assert read(first, second, KEY)[0].startswith("no rule applies")  # the longer TTFT is not above the noise


def test_what_the_noise_hides_has_no_direction_but_a_number_of_rounds() -> None:
    """Ratios of 1.1 times e^0.25 and e^-0.25 in turn: their logarithms have the mean log 1.1 = 0.0953 and, over four
    rounds, the standard deviation 0.25 * sqrt(4 / 3) = 0.2887. By a table t is 2.028 with 36 degrees of freedom and
    2.026 with 37: 2.028 * 0.2887 / sqrt(37) = 0.0963 does not suffice, 2.026 * 0.2887 / sqrt(38) = 0.0949 does."""
    one = [made(128) for _ in range(4)]
    other = [made(512, ttft__mean=110 * math.exp(sign * 0.25)) for sign in (1, -1, 1, -1)]
    found = change(one, other, ("ttft", "mean"))
    assert found is not None and found[0] == pytest.approx(0.1) and not resolved(found)
    assert left_open(one, other) == {"TTFT, mean": 38}
    said = "not resolved by 4 rounds; as noisy as these, so many would be needed: TTFT mean 38"
    assert reading(one, other, KEY) == [said]
    clear = [made(512, itl__p99=300, ttft_long__p50=50) for _ in other]
    assert "= 128 has the shorter ITL P99" in reading(one, clear, KEY)[0]


def test_a_reading_of_rounds_rests_on_the_rows_of_their_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Not on the P95 of TTFT, of which there is no row; how many wait there is one of, of how long they do none."""
    one = [made(8, waiting=4.0) for _ in range(3)]
    hidden = [made(64, ttft__p95=value, queue_time__mean=value, waiting=4.0) for value in (40, 41, 42)]
    assert left_open(one, [made(64, ttft__p95=value, waiting=4.0) for value in (40, 400, 10)]) == {}
    assert reading(one, hidden, KEY) == ["no rule applies: no trade beyond 5 % between ITL, TTFT and throughput"]
    better = [made(64, itl__p99=50, ttft__mean=75, waiting=4.0) for _ in one]
    said = "max_num_batched_tokens = 64 is better in all of it: ITL P99 50 % and TTFT mean 25 % shorter"
    assert reading(one, better, KEY) == [said]
    assert reading(one, [made(64, ttft__mean=50, waiting=4.0) for _ in one], KEY) == [
        "no rule applies; max_num_batched_tokens = 64 has TTFT mean 50 % shorter"
    ]
    trade = [made(64, itl__p99=200, ttft_long__p50=50, waiting=1.0) for _ in one]
    assert reading(one, trade, "engine.max_num_seqs") == [
        "max_num_seqs = 8 has the shorter ITL P99 and the longer TTFT of long prompts: 4.00 requests in the mean wait "
        "to be scheduled, not 1.00"
    ]
    arms = [
        [Arm(value, Cold(value, 1.0, 1, 1), 3 * [run], 0) for value, run in ((8, a), (64, b))]
        for a, b in zip(one, trade, strict=True)
    ]
    predicted = [run for _ in range(3) for run in (one[0], trade[0])]
    arms[1][0].measured[2] = replace(one[1], load="mixed", notes=("CLIENT SATURATED: 3 of 5 requests",))
    tell(Experiment("engine.max_num_seqs", predicted, arms), None)
    printed = capsys.readouterr()
    shown = printed.out.splitlines()
    assert printed.err == "batchlab: round 2, mixed prompts at 8: CLIENT SATURATED: 3 of 5 requests\n"
    rows = [line for line in shown if line.startswith(tuple({name.split(",")[0] for name in TABLE}))]
    shows = [line for line in rows if "equal" not in line]
    assert len(shows) == 9  # three rows of each load; what is equal has no interval
    assert f"of {len(shows)} changes with an interval about one in twenty leaves out 0 % by chance" in shown
    assert {line.split("  ")[0] for line in rows} == set(TABLE)
    equal = [line.split("  ")[0] for line in rows if line.split()[-3:] == ["equal", "+0", "%"]]
    resolved_rows = {"TTFT of long, p50", "ITL, p99", "waiting, mean"}
    assert set(equal) == set(TABLE) - resolved_rows and "not resolved (" not in "".join(shown)


def test_a_reading_has_the_shares_of_its_table() -> None:
    """Ratios of 1/5 and 1/3 by rounds: in the mean 1/sqrt(15), 74 % less; of the sums it would be 1 - 60/200 = 70 %."""
    one = [made(8, itl__p99=value) for value in (50, 150, 50, 150)]
    other = [made(64, itl__p99=value) for value in (10, 50, 10, 50)]
    found = change(one, other, ("itl", "p99"))
    assert found is not None and found[0] == pytest.approx(15**-0.5 - 1)
    assert reading(one, other, KEY) == ["no rule applies; max_num_batched_tokens = 64 has ITL P99 74 % shorter"]


def test_how_many_wait_is_the_mean_of_the_rounds() -> None:
    """As in the table, whatever the first round had: of 3, 5 and 4, and of 0.5, 1 and 0.75."""
    one = [made(8, waiting=waiting) for waiting in (3.0, 5.0, 4.0)]
    other = [made(64, itl__p99=200, ttft_long__p50=50, waiting=waiting) for waiting in (0.5, 1.0, 0.75)]
    (line,) = reading(one, other, "engine.max_num_seqs")
    assert line.endswith("4.00 requests in the mean wait to be scheduled, not 0.75")


def test_more_rounds_are_asked_for_than_there_were() -> None:
    """Ratios e^0.03 times e^a and e^-a, a so that the interval is 0.04 wide to each side: it holds 0 % and goes beyond
    5 % = e^0.0488. Narrower than 0.03 it leaves out 0 %, narrower than 0.0188 it would hold nothing beyond 5 %."""
    t = 12.7062  # with one degree of freedom
    one = [made(128) for _ in range(2)]
    other = [made(512, itl__p50=100 * math.exp(0.03 + sign * 0.04 / t)) for sign in (1, -1)]
    found = change(one, other, ("itl", "p50"))
    assert found is not None and math.log1p(found[2]) == pytest.approx(0.07, abs=1e-5) and not resolved(found)
    assert left_open(one, other) == {"ITL, p50": 3}
    rng = random.Random(2)
    for count in (2, 3, 5):
        for _ in range(200):
            ratios = [math.exp(rng.gauss(rng.uniform(-0.1, 0.1), rng.uniform(0, 0.1))) for _ in range(count)]
            runs = [made(512, itl__p50=100 * ratio) for ratio in ratios]
            assert all(number > count for number in left_open(count * one[:1], runs).values())


def test_every_row_that_is_not_resolved_is_named() -> None:
    """Each row by itself, a tenth and ten times as much in turn; which of them a rule compares is another question."""
    one = [made(128, waiting=4.0, preemptions=5) for _ in range(2)]
    for row, (name, statistic) in TABLE.items():
        of = name if statistic is None else f"{name.replace(' ', '_')}__{statistic}"
        before = getattr(one[0], name) if statistic is None else 100
        other = [made(512, **{"waiting": 4.0, "preemptions": 5, of: before * factor}) for factor in (0.1, 10)]
        assert list(left_open(one, other)) == [row]
        said = reading(one, other, KEY)
        assert said[-1].endswith(f"so many would be needed: {row.replace(', p', ' P').replace(', ', ' ')} over 1,000")


def test_zeros_on_both_sides_are_equal_and_one_alone_is_named() -> None:
    """Nobody waits at either value: that is no change. From nobody to four there is no ratio, which is said."""
    idle, busy = made(128, waiting=0.0, preemptions=0), made(512, waiting=4.0, preemptions=0)
    assert change([idle] * 2, [replace(idle, value=512)] * 2, TABLE["waiting, mean"]) == (0, 0, 0)
    assert reading([idle] * 2, [replace(idle, value=512)] * 2, KEY) == [
        "no rule applies: no trade beyond 5 % between ITL, TTFT and throughput"
    ]
    for one, other in (([idle] * 2, [busy] * 2), ([idle, busy], [busy, busy])):
        assert change(one, other, TABLE["waiting, mean"]) is None and left_open(one, other) == {}
        assert without_ratio(one, other) == ["waiting, mean"]
        assert reading(one, other, KEY) == ["not compared, since a round has 0 on one side alone: waiting mean"]
    unseen = [replace(idle, waiting=None)] * 2
    assert without_ratio(unseen, [busy] * 2) == [] == without_ratio([idle] * 2, unseen)


def test_a_program_that_is_not_there_is_noticed_before_anything_is_simulated(
    scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def simulated(*_: object) -> None:
        raise AssertionError("too early")

    monkeypatch.setattr("batchlab.cli.experiment._measure", simulated)
    for program, reason in (("no-such-program", errno.ENOENT), (scenario, errno.EACCES)):
        done = CliRunner().invoke(cli, arguments(scenario, f"{program} {{value}} {{port}}"))
        assert isinstance(done.exception, InputError)
        told = str(done.exception)
        assert told.startswith("--engine: ") and told.endswith(f": cannot be started: {os.strerror(reason)}")


def test_a_change_of_less_than_is_looked_for_is_not_asked_for() -> None:
    one, nearly = [made(128) for _ in range(3)], [made(512, ttft__mean=100 + k) for k in (1, -1, 2)]
    assert left_open(one, nearly) == {}  # equal within 5 %, and that is known
    assert reading(one, nearly, KEY)[0].startswith("no rule applies")
    wild = [made(512, ttft__mean=value) for value in (1, 100, 10_000)]
    assert left_open(one, wild) == {"TTFT, mean": 1001}
    assert "TTFT mean over 1,000" in reading(one, wild, KEY)[0]
    assert reading(one[:1], wild[:1], KEY)[0].startswith("not resolved: one round")


def test_why_p90_may_go_the_other_way_is_said() -> None:
    def with_p90(run, value):
        return replace(run, latency={**run.latency, "itl": {**run.latency["itl"], "p90": value}})

    small, large = made(128, itl__p99=100, ttft_long__p50=120), made(512, itl__p99=300, ttft_long__p50=100)
    found = read(with_p90(small, 90), with_p90(large, 20), KEY)
    assert (
        "finer chunks" in found[0]
        and "78 % shorter at max_num_batched_tokens = 512" in found[1]
        and "more gaps hold a chunk" in found[1]
    )
    assert len(read(with_p90(small, 20), with_p90(large, 20), KEY)) == 1


def test_a_server_that_dies_in_a_round_is_not_as_fast_as_before(scenario: str) -> None:
    """One answer of four tokens after a second, and whoever comes later fails, the last one after eight."""
    trial = Trial(scenario)
    part = Part(trial, "mixed", 32, 150, 0.0)
    _, requests = requests_of(part)
    requests = requests.take(np.arange(2))
    answered = Outcome(0, 0, 0, result="completed", end=10**9, chunks=[(10**9 - k, 1) for k in (30, 20, 10, 0)])
    for end, rate in ((8 * 10**9, 0.125), (5 * 10**8, 1.0)):
        outcomes = [answered, Outcome(1, 0, 0, sent=1, end=end, reason="connection: gone")]
        target = Target("", "", "openai", "m")
        found = _measured(part, requests, result_of(target, Plan(), list(requests), Load(outcomes, end, 0.1, 2), []))
        assert (found.request_rate, found.output_token_rate) == (rate, 4 * rate)


def test_tokens_of_a_chunk_are_spread_over_the_time_since_the_one_before() -> None:
    outcome = Outcome(0, 0, 0, chunks=[(100, 2), (130, 3), (140, 1)])
    assert token_times(outcome) == [100, 110, 120, 130, 140]
    assert token_times(Outcome(0, 0, 0)) == []


def test_small_figures_that_differ_do_not_look_alike() -> None:
    assert [_number(value) for value in (0, 0.0035, 0.0019, 0.1, -0.004, 1234.567)] == [
        "0.00", "0.0035", "0.0019", "0.10", "-0.004", "1,234.57",
    ]  # fmt: skip
