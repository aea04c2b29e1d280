"""Ctrl-C, as a terminal sends it to a command and all that it started: one line, 130, nothing half written."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchlab.errors import BatchlabError
from batchlab.files import whole_file
from batchlab.interrupts import uninterrupted
from batchlab.plan.pool import each

pytestmark = [pytest.mark.once, pytest.mark.skipif(sys.platform == "win32", reason="signals differ")]

SLOW = """
import pathlib, time

class Slow:
    def plan(self, view, batch):
        pathlib.Path(__file__).with_name("running").touch()
        time.sleep(0.05)
        batch.admit_waiting()
        batch.decode_all()
        batch.prefill_all()
"""
SCENARIO = """
[engine]
policy = "POLICY:Slow"
max_num_seqs = 2
max_num_batched_tokens = 64
[cost]
model = "linear"
unit = "ns"
per_iteration = 1_000_000
prefill_token = 1_000
decode_token = 1_000
[workload.generate]
num_prompts = 20
seed = 1
arrivals = "poisson"
request_rate = 8
prompt = { distribution = "uniform", min = 5, max = 8 }
output = { distribution = "fixed", value = 1_000_000 }
"""
EXAMPLE = Path(__file__).parents[1] / "examples" / "served.toml"
COMMANDS = {
    "run": ["run", "S", "--trace", "O", "--summary", "O2"],
    "compare": ["compare", "S", "--set", "engine.max_num_seqs=2,3"],
    "report": ["report", "S", "-o", "P"],
    "sweep": ["sweep", "S", "--grid", "engine.max_num_seqs=2,3", "-o", "O", "--jobs", "1"],
    "sweep on two cores": ["sweep", "S", "--grid", "engine.max_num_seqs=2,3", "-o", "O", "--jobs", "2"],
    "capacity": ["capacity", "S", "--slo", "ttft:p99<=1s", "--seeds", "2", "--jobs", "2"],
    "experiment": ["experiment", "S", "--short", "6", "--jobs", "2"],
    "tune": ["tune", "S", "--slo", "ttft:p99<=1s", "--space", "engine.max_num_seqs=2,3", "-o", "O", "--jobs", "1"],
}


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "batchlab", *words]
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def without_progress(told: str) -> str:
    """stderr, but for what capacity says that it is about to do."""
    return "".join(line for line in told.splitlines(True) if not line.startswith("batchlab: searching "))


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 120
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.02)


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    (tmp_path / "slow.py").write_text(SLOW)
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO.replace("POLICY", str(tmp_path / "slow.py")))
    return str(path)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_interrupted(name: str, scenario: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    places = {"S": scenario, "O": str(out / "o.parquet"), "O2": str(out / "summary.json"), "P": str(out / "p.html")}
    process = start(*(places.get(word, word) for word in COMMANDS[name]))
    wait_for((tmp_path / "running").exists, process)
    os.killpg(process.pid, signal.SIGINT)
    printed, told = process.communicate(timeout=120)
    assert (process.returncode, printed, without_progress(told)) == (130, "", "batchlab: interrupted\n")
    assert [path.name for path in out.iterdir() if not path.name.endswith(".journal")] == []  # of which more runs go on


@pytest.mark.parametrize(("number", "told"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "stopped by SIGTERM")])
def test_a_command_that_is_interrupted_while_it_is_loaded(number: signal.Signals, told: str) -> None:
    code = f"""
import signal, sys
class Signals:
    def find_spec(self, name, path, target=None):
        if name in ("numpy", "batchlab.cli.learn"):
            signal.raise_signal({number.value})
sys.meta_path.insert(0, Signals())
from batchlab.cli import main
sys.argv = ["batchlab", "engines"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", f"batchlab: {told}\n")


def test_a_command_that_waits_for_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = start("bench", f"http://127.0.0.1:{server.getsockname()[1]}", "--num-prompts", "3")
        server.settimeout(120)
        connection, _ = server.accept()
        os.killpg(process.pid, signal.SIGINT)
        printed, told = process.communicate(timeout=120)
        connection.close()
    assert (process.returncode, printed, told) == (130, "", "batchlab: interrupted\n")


def test_a_command_in_the_background_of_a_script(scenario: str, tmp_path: Path) -> None:
    """A shell has it ignore Ctrl-C, which is for the script; its other processes ignore it as well."""
    running = tmp_path / "running"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = start("capacity", scenario, "--slo", "ttft:p99<=1s", "--seeds", "2", "--jobs", "2")
    finally:
        signal.signal(signal.SIGINT, before)
    wait_for(running.exists, process)
    os.killpg(process.pid, signal.SIGINT)
    for _ in range(3):
        running.unlink()
        wait_for(running.exists, process)
    process.terminate()
    assert without_progress(process.communicate(timeout=120)[1]) == "batchlab: stopped by SIGTERM\n"


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_ends_a_program_waits_until_all_processes_are_started(number: int, processes: bool) -> None:
    started = []
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), uninterrupted(processes):
            signal.raise_signal(number)
            started.append("all")
        assert started == ["all"]
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs to see when processes begin")
@pytest.mark.parametrize(
    ("number", "times", "told"),
    [(signal.SIGTERM, 1, "stopped by SIGTERM"), (signal.SIGINT, 1, "interrupted"), (signal.SIGINT, 3, "interrupted")],
)
@pytest.mark.parametrize("after", [0, 0.002, 0.2])
def test_stopped_while_its_processes_start(
    scenario: str, tmp_path: Path, number: signal.Signals, times: int, told: str, after: float
) -> None:
    grid = "engine.max_num_seqs=1,2,3,4"
    process = start("sweep", scenario, "--grid", grid, "--jobs", "2", "-o", str(tmp_path / "t.parquet"))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(children.read_text().split()) < 2:
        assert process.poll() is None
    time.sleep(after)
    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.02)
    printed = without_progress(process.communicate(timeout=60)[1])
    assert (process.returncode, printed) == (128 + number, f"batchlab: {told}\n")


def test_one_of_the_processes_is_killed() -> None:
    with pytest.raises(BatchlabError, match="one of 2 processes was killed, perhaps because memory ran out"):
        list(each(os._exit, [1, 1, 1], 2))


@pytest.mark.parametrize("presses", [1, 50])
def test_a_load_that_is_interrupted_tells_what_has_ended(tmp_path: Path, presses: int) -> None:
    """However often Ctrl-C is pressed within a tenth of a second."""
    server = start("serve", str(EXAMPLE), "--port", "0")
    assert server.stderr is not None
    try:
        url = next(word for word in server.stderr.readline().split() if word.startswith("http://")).rstrip(",;")
        wanted = (
            "--scenario",
            str(EXAMPLE),
            "--set",
            "workload.generate.num_prompts=5000",
            "--ignore-eos",
            "--predict",
        )
        process = start("bench", url, *wanted, "--json", "--requests", str(tmp_path / "r.csv"))
        wait_for(lambda: completed(url) >= 5, process)
        for _ in range(presses):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.002)
        printed, told = process.communicate(timeout=120)
    finally:
        server.terminate()
        server.communicate(timeout=120)
    found = json.loads(printed)
    assert process.returncode == 130 and found["partial"] and "predicted" not in found
    ended = found["results"]["completed"]
    assert 1 <= ended == found["requests"] == found["latency"]["e2el"]["count"] < 5000
    assert found["notes"][0].startswith("PARTIAL: interrupted after ") and f"when {ended} requests" in found["notes"][0]
    assert told.startswith(f"batchlab: {found['notes'][0]}\n")
    assert len((tmp_path / "r.csv").read_text().splitlines()) == ended + 1


def completed(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        text = response.read().decode()
    return sum(int(line.split()[-1]) for line in text.splitlines() if 'result="completed"' in line)


def test_a_command_that_is_told_to_end(scenario: str, tmp_path: Path) -> None:
    process = start("run", scenario)
    wait_for((tmp_path / "running").exists, process)
    process.terminate()
    printed, told = process.communicate(timeout=120)
    assert (process.returncode, printed, told) == (143, "", "batchlab: stopped by SIGTERM\n")


def test_an_interrupt_while_a_file_is_made_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = open

    def makes_and_is_interrupted(*arguments: Any, **options: Any) -> None:
        plain(*arguments, **options).close()
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.open", makes_and_is_interrupted)
    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "t.jsonl"):
        pass
    assert not list(tmp_path.iterdir())
