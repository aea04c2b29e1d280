"""Tables in narrow terminals: every figure and every word is there, whole."""

from collections import Counter
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import Console

from batchlab import Summary, load, simulate
from batchlab.cli.columns import SHORT, SPARE, print_fitted, print_folded
from batchlab.cli.commands import cli
from batchlab.cli.notes import note
from batchlab.cli.tables import console, print_schedule
from batchlab.cli.timeline import Timeline

pytestmark = pytest.mark.once

EXAMPLES = Path(__file__).parents[1] / "examples"
published = import_module("batchlab.cli.published")

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
prefill_token = 100_123
[workload.generate]
num_prompts = 60
seed = 3
arrivals = "poisson"
request_rate = 40
[[workload.generate.classes]]
name = "a_class_of_requests_with_a_long_name"
prompt = { distribution = "lognormal", median = 300, sigma = 1.2, max = 3000, outside = "clip" }
output = { distribution = "uniform", min = 1, max = 40 }
"""


@pytest.fixture
def words(tmp_path, monkeypatch):
    """The words that a command prints at a width."""
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(SCENARIO)
    simulated = published.simulated
    once = cache(lambda name: simulated(published.find(name), lambda _: None))  # the same at each width
    monkeypatch.setattr(published, "simulated", lambda record, _: once(record.name))

    def at(width, *command):
        monkeypatch.setattr("batchlab.cli.tables.PIPE_WIDTH", width)
        result = CliRunner().invoke(cli, list(command))
        assert result.exit_code == 0, result.output
        return Counter(result.stdout.split())

    return at


@pytest.mark.parametrize(
    "command",
    [
        ("experiment", "s.toml", "--slo", "ttft:p99<=3s", "--jobs", "1"),
        ("workload", "describe", "s.toml"),
        ("published", "orca-101b-ft", "--reproduce"),
        ("run", "s.toml", "--chunk-tokens", "3", "--slo", "ttft:p99<=3000s"),
    ],
    ids=lambda command: command[0],
)
def test_no_figure_is_cut(words, command):
    """Those of the wide table are all in the narrow one, each at least as often."""
    wide = Counter({word: times for word, times in words(300, *command).items() if any(map(str.isdigit, word))})
    for width in (40, 60, 65, 80):
        assert not wide - words(width, *command), width


def test_no_word_of_prose_is_broken(words):
    for command in (("published",), ("engines",)):
        wide = words(600, *command)
        headings = Counter(
            name for name in ("name", "published", "model", "simulated", "policy", "rules", "what", "it", "does")
        )
        for width in (40, 60, 80):
            assert not wide - words(width, *command) - headings, (command, width)


def test_a_long_name_is_broken_between_its_parts(capsys, monkeypatch):
    monkeypatch.setattr("batchlab.cli.tables.PIPE_WIDTH", 40)
    figures = {f"figure {n}": [f"{n}2,345.67"] for n in range(4)}
    print_folded(console(), {"setting": ["max_num_batched_tokens, all of it"], **figures}, tuple(figures))
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[1:5] if line.strip()][:2] == [
        "max_num_batched_",
        "tokens,",
    ]
    assert all(cells[0] in printed for cells in figures.values())


LONG = {
    "request_rate": ["2"],
    "max_num_batched_tokens": ["2,048"],
    "output tokens/s": ["1,234.5"],
    "met": ["not all"],
}


@pytest.mark.parametrize(
    ("width", "lines", "told"),
    [
        (70, 2, None),  # with two spaces between columns
        (61, 2, None),  # 12 + 22 + 15 + 7, and one space behind each
        (59, 3, None),  # a heading is broken between words
        (36, 2, "(rate: request_rate, budget: max_num_batched_tokens)"),  # 4 + 6 + 15 + 7, and one space behind each
    ],
)
def test_names_are_shortened_only_where_they_have_no_room_and_told(capsys, monkeypatch, width, lines, told):
    monkeypatch.setattr("batchlab.cli.tables.PIPE_WIDTH", width)
    print_folded(console(), LONG, tuple(LONG)[:-1])
    printed = capsys.readouterr().out.rstrip("\n").split("\n")
    table, note = printed[:lines], " ".join(printed[lines:])
    assert note == (told or "") or note.split() == (told or "").split()
    assert ("budget" in " ".join(table)) == (told is not None)
    words = {word for name in LONG for word in name.split()} if told is None else {"rate", "budget", "output", "met"}
    assert words <= set(" ".join(table).split()) and "not all" in table[-1]
    assert max(map(len, table)) <= width


def tables(printed):
    """Each table as its lines: one follows another behind an empty line."""
    return [part.splitlines() for part in printed.split("\n\n") if part.strip()]


@pytest.mark.parametrize("name", ["vllm", "priority-preemption", "partial-prefill-thrash"])
def test_no_column_of_the_iterations_is_cut(name, monkeypatch, capsys):
    """At every width the last figure of an iteration is its last column's, and each of its words is there."""
    monkeypatch.setattr("batchlab.cli.tables.PIPE_WIDTH", 300)
    run = load(EXAMPLES / f"{name}.toml").runs[0]
    timeline = Timeline()
    simulate(run, [Summary(), timeline])

    def shown(width):
        monkeypatch.setattr("batchlab.cli.tables.PIPE_WIDTH", width)
        print_schedule(console(), timeline, [], run.cost.unit)
        return capsys.readouterr().out

    heading, *rows = shown(300).splitlines()
    lasts = [row.split()[-1] for row in rows]
    told = [slice(heading.index("scheduled")), slice(heading.index("first token"), heading.index("preempted"))]
    spared = Counter(word for row in rows for part in told for word in row[part].split())
    words = Counter(word for row in rows for word in row.split())
    for width in range(30, 130):
        printed = shown(width)
        assert max(map(len, printed.splitlines())) <= width
        *_, last = tables(printed)
        begun = [line for line in last if line.split()[0].isdigit()]
        assert [line.split()[-1] for line in begun] == lasts, width
        assert not words - Counter(printed.split()) - spared, width


CELLS = st.one_of(st.just(""), st.text("abc _-", max_size=40), st.integers(0, 10**9).map("{:,}".format))


@given(st.data(), st.integers(40, 130))
def test_fitted_columns_keep_every_cell(data, width):
    """Whatever is in them: each numeric cell whole, each other one in its characters, no line too long."""
    heads = data.draw(st.lists(st.sampled_from([*SHORT, "queue", "a longer heading"]), min_size=1, unique=True))
    heads = [
        name for name in heads if name not in SPARE and SHORT.get(name, name) not in ("first", "preempt", "tokens")
    ]
    assume(heads)
    count = data.draw(st.integers(1, 4))
    numeric = data.draw(st.lists(st.sampled_from(heads), unique=True))
    numbers = st.integers(0, 10**9).map("{:,}".format)
    columns = {
        name: data.draw(st.lists(numbers if name in numeric else CELLS, min_size=count, max_size=count))
        for name in heads
    }
    out = Console(file=StringIO(), width=width)
    print_fitted(out, columns, numeric)
    printed = out.file.getvalue()
    assert all(len(line.rstrip()) <= width for line in printed.splitlines())
    wanted = Counter(cell for name in numeric for cell in columns[name])
    assert not wanted - Counter(printed.split())
    signs = Counter("".join("".join(cells) for cells in columns.values())) - Counter(" ")
    signs.pop(" ", None)
    assert not signs - Counter(printed)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_terminal_gets_remarks_wrapped_between_words(monkeypatch, terminal):
    err = StringIO()
    err.isatty = lambda: terminal
    monkeypatch.setattr("sys.stderr", err)
    monkeypatch.setenv("COLUMNS", "30")
    note("num_gpu_blocks = 7,423 from 42.95 GiB of gpu-memory-utilization")
    lines = err.getvalue().splitlines()
    assert len(lines) == (3 if terminal else 1) and " ".join(lines) == (
        "batchlab: num_gpu_blocks = 7,423 from 42.95 GiB of gpu-memory-utilization"
    )
    assert max(map(len, lines)) <= (30 if terminal else 100)


def figures_in(found):
    return Counter({word: n for word, n in found.items() if any(map(str.isdigit, word))})


def test_no_figure_of_a_request_is_cut(words):
    words(300, "run", str(EXAMPLES / "vllm.toml"), "--trace", "t.jsonl")
    wide = figures_in(words(300, "explain", "t.jsonl", "C"))
    assert wide["146.550"] == 1
    for width in range(20, 80):
        assert not wide - words(width, "explain", "t.jsonl", "C"), width


def test_no_figure_of_a_large_run_is_cut(words):
    """The charts go where there is no room for them, what stands beside them stays."""
    command = ("run", str(EXAMPLES / "capacity-conversation.toml"), "--set", "workload.generate.num_prompts=60")
    wide = figures_in(words(300, *command))
    for width in range(24, 90, 3):
        assert not wide - words(width, *command), width


def test_no_number_in_a_name_is_broken(words):
    command = ("cost", "--gpu", "h100-sxm", "--llm", "llama-3.1-8b")
    for width in range(24, 90):
        assert words(width, *command)["1,024"] % 4 == 0 < words(width, *command)["1,024"], width


def test_columns_that_have_no_room_are_named(words):
    wide, narrow = (words(width, "run", str(EXAMPLES / "vllm.toml")) for width in (160, 62))
    assert "room" not in wide and wide["arrived"] == 1
    assert narrow["room"] == 1 and narrow["arrived,"] == 1
