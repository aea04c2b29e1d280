"""`show`, `export` and the timeline as people see them."""

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from random import Random

import pytest
from rich.cells import cell_len
from rich.console import Console
from test_hostile_ids import batchlab

from batchlab import Summary, load, simulate
from batchlab.cli import sparks
from batchlab.cli.names import shown_id
from batchlab.cli.timeline import Timeline, print_timeline
from batchlab.clients.request import Request
from batchlab.errors import shorten_id
from batchlab.export import charts
from batchlab.export.names import labels
from batchlab.export.spans import KINDS, Mark
from batchlab.export.strip import Strip

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of a small run and of a large one."""
    folder = tmp_path_factory.mktemp("show")
    small = str(ROOT / "examples" / "priority-preemption.toml")
    assert batchlab(folder, "run", small, "--trace", "small.jsonl").returncode == 0
    large = str(ROOT / "examples" / "ladder.toml")
    assert batchlab(folder, "run", large, "--policy", "vllm", "--trace", "large.jsonl").returncode == 0
    lines = (folder / "small.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "cut.jsonl").write_text("".join(lines[:4]), encoding="utf-8")
    return folder


def test_show_prints_what_run_prints(folder: Path) -> None:
    for example, trace, skipped in (("priority-preemption", "small", 1), ("vllm", "vllm", 1)):
        file = str(ROOT / "examples" / f"{example}.toml")
        printed = batchlab(folder, "run", file, "--trace", f"{trace}.jsonl").stdout
        shown = batchlab(folder, "show", f"{trace}.jsonl")
        assert shown.returncode == 0 and not shown.stderr
        assert shown.stdout.splitlines()[skipped:] == printed.splitlines()[skipped:]
        document = json.loads(batchlab(folder, "show", f"{trace}.jsonl", "--json").stdout)
        (same,) = json.loads(batchlab(folder, "run", file, "--json").stdout)["runs"]
        del document["trace"]
        assert document == same


def test_a_large_run_is_charts_and_any_part_of_it_can_be_seen(folder: Path) -> None:
    shown = batchlab(folder, "show", "large.jsonl").stdout
    assert "how often" in shown and "over time" in shown and "throughput" in shown and "iteration 0" not in shown
    part = batchlab(folder, "show", "large.jsonl", "--iterations", "100..103")
    assert part.returncode == 0 and "iteration 100" in part.stdout and "103" in part.stdout
    document = json.loads(batchlab(folder, "show", "large.jsonl", "--iterations", "100..103", "--json").stdout)
    assert [line["iteration"] for line in document["schedule"]] == [100, 101, 102, 103] and "requests" not in document


def test_a_trace_that_breaks_off_is_shown_up_to_there(folder: Path) -> None:
    for command in (["show", "cut.jsonl"], ["export", "cut.jsonl", "chrome", "-o", "cut.json"]):
        done = batchlab(folder, *command)
        assert done.returncode == 0 and "has no end line" in done.stderr
    assert "the trace breaks off after 3 iterations" in batchlab(folder, "show", "cut.jsonl").stdout


def test_a_large_load_whose_trace_breaks_off_before_the_first_iteration_has_no_charts(folder: Path) -> None:
    header = json.loads((folder / "small.jsonl").read_text(encoding="utf-8").splitlines()[0])
    request = {"type": "request"} | header.pop("requests")[0]
    lines = [header, *(request | {"id": f"r{number}"} for number in range(1000))]
    (folder / "begun.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    done = batchlab(folder, "show", "begun.jsonl")
    assert done.returncode == 0 and "has no end line" in done.stderr and "over time" not in done.stdout
    assert "the trace breaks off after 0 iterations, at 0 iterations: 1,000 pending" in done.stdout


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["show", "none.jsonl"], "none.jsonl: a readable file expected"),
        (["show", "small.jsonl", "--iterations", "7"], "must be FROM..TO, such as 100..150"),
        (["show", "small.jsonl", "--iterations", "5..3"], "the smaller number first"),
        (["show", "small.jsonl", "--iterations", "0..200"], "must be 1 to 200 iterations"),
        (["show", "small.jsonl", "--iterations", "6..9"], "the trace has 6, from 0 on"),
        (["export", "small.jsonl", "chrome", "-o", "x.csv"], "chrome is written as .json"),
        (["export", "small.jsonl", "requests", "-o", "x.parqet"], "(did you mean '.parquet'?)"),
        (["export", "small.jsonl", "timeline", "-o", "x"], "timeline is written as .png or .svg"),
        (["export", "small.json", "chrome", "-o", "small.json"], "would overwrite the trace itself"),
        (["export", "small.jsonl", "chrome", "-o", "no/such.json"], "cannot be written"),
        (["export", "small.jsonl", "everything", "-o", "x.json"], "is not one of"),
        (["export", "small.jsonl", "chrome"], "Missing option"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_no_file(folder: Path, command: list[str], expected: str) -> None:
    before = sorted(folder.iterdir())
    done = batchlab(folder, *command)
    assert done.returncode == 2 and expected in done.stderr and not done.stdout
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("width", [20, 60, 80, 120])
def test_a_narrow_timeline_has_several_bands_and_loses_nothing(width: int) -> None:
    """Every cell of every request stands in some band, no line is wider than the terminal, columns stand in line."""
    timeline = Timeline()
    ids = [f"請求{n}🦜" if n % 3 else f"{n}" * 40 for n in range(1, 9)]
    (run,) = load(ROOT / "examples" / "vllm.toml").runs
    names = dict(zip((request.id for request in run.requests), ids, strict=False))
    run.requests = [Request(names[r.id], r.arrival, r.prompt, r.output, r.max_tokens) for r in run.requests]
    end = simulate(run, [timeline])
    out = io.StringIO()
    screen = Console(file=out, width=width, force_terminal=True, color_system=None, highlight=False)
    print_timeline(screen, timeline, list(timeline.cells), range(end.iterations))
    lines = out.getvalue().splitlines()
    assert all(cell_len(line) <= width for line in lines)
    table = lines[: max(n for n, line in enumerate(lines) if line.startswith(("請求", "3333")) or ".." in line) + 1]
    numbers = [int(word) for line in table if line.startswith("iteration") for word in line.split()[1:]]
    assert numbers == list(range(end.iterations))
    shown = sorted(word for line in table if line and not line.startswith("iteration") for word in line.split()[1:])
    assert shown == sorted(str(cell) for row in timeline.cells.values() for cell in row.values())


def test_marks_of_one_iteration_share_a_cell() -> None:
    timeline = Timeline()
    for kind in ("preempted", "preempted", "dropped"):
        timeline._tell(Mark("a", kind, 0, 4))
    assert str(timeline.cells["a"][4]) == "PPx"


def test_charts_of_characters_where_only_ascii_can_be_printed(folder: Path) -> None:
    environment = {"PYTHONIOENCODING": "ascii", "PATH": "", "COLUMNS": "60"}
    command = [sys.executable, "-m", "batchlab", "show", "large.jsonl"]
    done = subprocess.run(command, cwd=folder, capture_output=True, env=environment, timeout=60)
    assert done.returncode == 0 and b"\\u" not in done.stdout and b"@" in done.stdout


def test_what_requests_tell_over_time_is_what_iterations_tell() -> None:
    """Without preemptions and rejections, a request begins when it leaves the queue and is under way until it ends."""
    quick, slow, strip = Summary(), Summary(), Strip()
    for observers in ([quick], [slow, strip]):
        simulate(load(ROOT / "examples" / "generated.toml").runs[0], observers)
    assert quick.totals() == slow.totals() and quick.totals()["preemptions"] == 0
    assert sparks._of_requests(quick, 20)[1].keys() == {"not begun", "begun, not done"}
    means, most = sparks._of_requests(quick, 20)[1]["begun, not done"]
    assert most == strip.most_of("batch")
    assert means.tolist() == pytest.approx(sparks._of_strip(strip, "batch", 20).tolist(), rel=0.02, abs=0.05)


@pytest.mark.parametrize("what", list(charts.CHARTS))
def test_charts_are_the_same_bytes_each_time_and_warn_of_nothing(folder: Path, what: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for trace in ("small", "large", "cut"):
            for ending in ("svg", "png"):
                made = []
                for _ in range(2 if trace == "small" else 1):
                    done = batchlab(folder, "export", f"{trace}.jsonl", what, "-o", f"c.{ending}")
                    assert done.returncode == 0 and not done.stdout, done.stderr
                    made.append((folder / f"c.{ending}").read_bytes())
                assert len(set(made)) == 1 and len(made[0]) > 2000


def test_names_that_the_font_lacks_are_escapes() -> None:
    assert charts.printable("請a") == "\\u8acba"
    assert charts.printable("\x1b[0m") == "\\x1b[0m"
    assert charts.printable("$x$") == "$x$"
    assert len(charts.printable("y" * 10_000)) == charts.NAME


def test_names_alike_in_their_heads_and_tails_are_kept_apart() -> None:
    """Different names have different labels, none longer than asked for; what fits stays as it is."""
    rng = Random(5)
    for most in (8, 18, 24):
        for _ in range(200):
            letters = rng.choice(["ab", "a", "請a~.", "xyz0123456789"])
            lengths = [rng.choice([1, most - 1, most, most + 1, 40]) for _ in range(rng.randint(1, 40))]
            names = list(dict.fromkeys("".join(rng.choices(letters, k=length)) for length in lengths))
            found = labels(names, most, cell_len)
            assert len(set(found)) == len(names) and all(cell_len(label) <= most for label in found), (names, found)
            assert all(label == name for name, label in zip(names, found, strict=True) if cell_len(name) <= most)
    same = [f"user-0001-turn-{n}-of-a-conversation" for n in (1, 2)]
    assert labels(same, 24) == ["user-0001-..nversation~1", "user-0001-..nversation~2"]


def test_the_wait_between_attempts_is_drawn(folder: Path) -> None:
    """examples/retry.toml: B comes again at 2, C at 2 and at 6; every kind of span has a look, and so a key."""
    assert set(charts.LOOKS) == set(KINDS)
    chart = charts.TimelineChart()
    for run in load(ROOT / "examples" / "retry.toml").runs:
        simulate(run, chart.observers)
    waits = {
        id: [(s.start, s.end) for s in lane.spans if s.kind == "retrying"] for id, lane in chart.lanes.rows.items()
    }
    assert waits["A"] == [] and waits["B"] == [(0, 2)] and waits["C"] == [(0, 2), (2, 6)]
    retry = str(ROOT / "examples" / "retry.toml")
    assert batchlab(folder, "run", retry, "--trace", "retry.jsonl").returncode == 0
    assert batchlab(folder, "export", "retry.jsonl", "timeline", "-o", "retry.svg").returncode == 0
    assert "backoff before the next attempt" in (folder / "retry.svg").read_text(encoding="utf-8")


def test_without_matplotlib_one_line_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "batchlab.export.charts")
    monkeypatch.delattr("batchlab.export.charts", raising=False)
    done = batchlab(folder, "export", "small.jsonl", "timeline", "-o", "m.svg")
    assert done.returncode == 2 and "pip install 'batchlab[plot]'" in done.stderr and not (folder / "m.svg").exists()


@pytest.mark.skipif(shutil.which("script") is None, reason="needs script of util-linux")
@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_nothing_is_wider_than_the_terminal(term: str, tmp_path: Path) -> None:
    scenario = str(ROOT / "examples" / "priority-preemption.toml")
    shown = shlex.join([sys.executable, "-m", "batchlab", "run", scenario])
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment |= {"TERM": term, "NO_COLOR": "1"}
    command = ["script", "-qec", f"stty cols 60; {shown} 2>/dev/null", "/dev/null"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, timeout=60
    )
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and len(lines) > 10
    assert max(map(len, lines)) <= 60


@pytest.mark.parametrize("most", [8, 24, 48])
def test_long_ids_are_short_and_told_apart(most: int) -> None:
    """Also where they differ in the middle only; an engine's own id, with a UUID in it, is whole."""
    ids = [f"{'x' * 5000}{n}{'y' * 5000}" for n in range(20)] + [f"{'請' * 3000}{n}{'求' * 3000}" for n in range(20)]
    names = [shown_id(id, most) for id in ids]
    assert len(set(names)) == len(ids) and all(cell_len(name) <= most for name in names)
    assert len({shorten_id(id) for id in ids}) == len(ids) and all(len(shorten_id(id)) <= 85 for id in ids)
    uuid = "chatcmpl-3f2b1c9e-7d41-4c55-9a0e-0123456789ab"
    assert shown_id(uuid) == uuid and shorten_id(uuid) == repr(uuid)
