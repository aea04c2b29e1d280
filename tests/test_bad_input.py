"""Wrong input of every kind: one clear line on stderr, exit code 2, nothing on stdout, no file left.

Each line has to name the file (or the option), the place in it and the value that stands there.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from batchlab.cli import main

DECODE_FIRST = """\
title = "A small load"
[engine]
policy = "decode-first"
max_num_seqs = 2
max_queue = 2
max_num_batched_tokens = 6
prefill_chunk = 3
priority_preemption = true
[cost]
model = "unit"
[run]
max_iterations = 200
[workload]
requests = [
  { id = "A", arrival = 0, prompt = 6, output = 3 },
  { id = "B", arrival = 7, prompt = 4, output = 2, max_tokens = 9, priority = "high" },
]
"""
THREE_MODES = """\
[engine]
policy = ["static", "continuous", "chunked"]
max_num_seqs = 4
max_num_batched_tokens = 16
prefill_chunk = 4
[cost]
model = "linear"
unit = "cost unit"
prefill_token = 1
decode_token = 2
[workload]
requests = [
  { id = "A", arrival = 0, prompt = 4, output = 4 },
  { id = "the long one", arrival = 2, prompt = 12, output = 2 },
]
"""
OWN = """\
[engine]
policy = "static"
max_num_seqs = 2
max_num_batched_tokens = 6
[cost]
model = "linear"
unit = "ns"
prefill_token = 10
[workload]
requests = [
  { id = "A", arrival = 0, prompt = 6, output = 3 },
  { id = "B", arrival = 7, prompt = 4, output = 2 },
]
"""
BIG, HUGE = 2**63, 2**70

Try = Callable[..., tuple[int, str, str]]


@pytest.fixture
def attempt(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Try:
    """Write a scenario as s.toml, run it with --trace and --summary: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(text: str | bytes | None, *options: str) -> tuple[int, str, str]:
        if text is not None:
            Path("s.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        files = ["--trace", "out.jsonl", "--summary", "out.json"]
        monkeypatch.setattr(sys, "argv", ["batchlab", "run", "s.toml", *files, *options])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        out, err = capsys.readouterr()
        return code, out, err

    return run


def nothing_written() -> bool:
    return not [path for path in Path().rglob("*") if "out" in path.name]


def check_refused(result: tuple[int, str, str], *told: str, code: int = 2) -> None:
    """One line that holds all of these texts, and nothing else happened."""
    got, out, err = result
    assert "Traceback" not in err, err
    assert err.count("\n") == 1 and err.endswith("\n"), err
    for text in told:
        assert text in err, f"{text!r} is not told: {err}"
    assert err.startswith("batchlab: ") and err[:-1].isprintable()
    assert len(err) < 600
    assert (got, out) == (code, ""), err
    assert nothing_written()


def edited(old: str, new: str, text: str = DECODE_FIRST) -> str:
    assert text.count(old) == 1, f"{old!r} has to stand there once"
    return text.replace(old, new)


# The file itself


def test_missing_file(attempt: Try) -> None:
    check_refused(attempt(None), "s.toml", "No such file")


def test_directory(attempt: Try) -> None:
    Path("s.toml").mkdir()
    check_refused(attempt(None), "s.toml", "directory")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param(b"", "engine: is missing", id="empty"),
        pytest.param(b"\n# nothing\n\n", "engine: is missing", id="comment"),
        pytest.param(b"\x00\x01\x02\x03", "not valid TOML", id="control characters"),
        pytest.param(bytes(range(32, 256)), "byte 96: not UTF-8", id="binary"),
        pytest.param(b"\xff\xfea\x00", "byte 0: not UTF-8", id="UTF-16"),
        pytest.param(b"\x1f\x8b\x08\x00", "not UTF-8", id="gzip"),
        pytest.param(b"[engine\n", "not valid TOML: ", id="bracket"),
        pytest.param(b"[engine]\npolicy = decode-first\n", "line 2", id="bare word"),
        pytest.param(b"[engine]\n[engine]\n", "not valid TOML: ", id="section twice"),
        pytest.param(b"a = 1\na = 2\n", "not valid TOML: ", id="key twice"),
        pytest.param(b'id = "\\ud800"\n', "not valid TOML: ", id="lone surrogate"),
        pytest.param(b"x = " + b"9" * 5000, "not valid TOML: ", id="long number"),
        pytest.param(b"x = " + b"[" * 100_000, "not valid TOML: ", id="deep nesting"),
        pytest.param(b'{"engine": {}}', "not valid TOML: ", id="JSON"),
    ],
)
def test_not_a_scenario(attempt: Try, content: bytes, told: str) -> None:
    check_refused(attempt(content), "s.toml: ", told)


# Keys


@pytest.mark.parametrize(
    ("old", "new", "place", "meant"),
    [
        ("[run]", "[runs]", "runs", "run"),
        ("[cost]", "[costs]\nx = 1\n[cost]", "costs", "cost"),
        ("title", "titel", "titel", "title"),
        ("max_num_seqs", "max_num_seq", "engine.max_num_seq", "max_num_seqs"),
        ("prefill_chunk", "prefil_chunk", "engine.prefil_chunk", "prefill_chunk"),
        ("priority_preemption", "priority_premption", "engine.priority_premption", "priority_preemption"),
        ("max_iterations", "max_iteration", "run.max_iteration", "max_iterations"),
        ("max_tokens = 9", "max_token = 9", "workload.requests[1].max_token", "max_tokens"),
        ("priority = ", "prio = ", "workload.requests[1].prio", "priority"),
        ("prompt = 6", "promt = 6", "workload.requests[0].promt", "prompt"),
    ],
)
def test_unknown_key_suggests_the_nearest(attempt: Try, old: str, new: str, place: str, meant: str) -> None:
    check_refused(attempt(edited(old, new)), f"s.toml: {place}: unknown key (did you mean {meant!r}?)")


def test_unknown_key_like_no_other(attempt: Try) -> None:
    result = attempt(edited("[run]", "[run]\nzzz = 1"))
    check_refused(result, "s.toml: run.zzz: unknown key")
    assert "did you mean" not in result[2]


@pytest.mark.parametrize(
    ("old", "place"),
    [
        ('id = "A", ', "workload.requests[0].id"),
        ("arrival = 7, ", "workload.requests[1].arrival"),
        (", prompt = 6", "workload.requests[0].prompt"),
        (", output = 3", "workload.requests[0].output"),
        ('policy = "decode-first"\n', "engine.policy"),
        ("prefill_chunk = 3\n", "engine.prefill_chunk"),
        ('model = "unit"\n', "cost.model"),
        ("max_num_seqs = 2\n", "engine.max_num_seqs"),
        ("max_num_batched_tokens = 6\n", "engine.max_num_batched_tokens"),
        ('[cost]\nmodel = "unit"\n', "cost"),
    ],
)
def test_missing_field(attempt: Try, old: str, place: str) -> None:
    check_refused(attempt(edited(old, "")), f"s.toml: {place}: ")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (DECODE_FIRST.partition("[workload]")[0], "workload: is missing"),
        (DECODE_FIRST.partition("requests = ")[0], "workload"),
        (DECODE_FIRST.partition("requests = ")[0] + "requests = 5", "workload.requests: 5: must be a list"),
        (DECODE_FIRST.partition("requests = ")[0] + "requests = [5]", "workload.requests[0]: 5: "),
        ("engine = 3\ncost = {}\nworkload = {}\n", "engine: 3: "),
        (edited('title = "A small load"', "title = 3"), "title: 3: must be a text"),
        (THREE_MODES.partition("requests = ")[0] + "requests = []", "workload.requests: []: "),
    ],
)
def test_wrong_shape(attempt: Try, text: str, place: str) -> None:
    check_refused(attempt(text), f"s.toml: {place}")


# Values


NUMBERS = {
    "max_num_seqs = 2": "engine.max_num_seqs",
    "max_queue = 2": "engine.max_queue",
    "max_num_batched_tokens = 6": "engine.max_num_batched_tokens",
    "prefill_chunk = 3": "engine.prefill_chunk",
    "max_iterations = 200": "run.max_iterations",
    "arrival = 7": "workload.requests[1].arrival",
    "prompt = 6": "workload.requests[0].prompt",
    "output = 3": "workload.requests[0].output",
    "max_tokens = 9": "workload.requests[1].max_tokens",
}


@pytest.mark.parametrize("value", ["true", "1.0", "1.5", '"1"', "nan", "inf", "-inf", "[]", "{}", "2024-01-01"])
@pytest.mark.parametrize("line", NUMBERS)
def test_an_integer_is_no_other_type(attempt: Try, line: str, value: str) -> None:
    result = attempt(edited(line, f"{line.split(' = ')[0]} = {value}"))
    check_refused(result, f"s.toml: {NUMBERS[line]}: ", "must be an integer")
    shown = result[2].split(NUMBERS[line])[1].replace("'", '"').lower()
    assert value in shown or "datetime.date(2024, 1, 1)" in shown


@pytest.mark.parametrize("value", [-1, 0, BIG, HUGE, -HUGE])
@pytest.mark.parametrize("line", NUMBERS)
def test_an_integer_has_its_bounds(attempt: Try, line: str, value: int) -> None:
    result = attempt(edited(line, f"{line.split(' = ')[0]} = {value}"))
    if value == 0 and ("max_queue" in line or "arrival" in line):
        assert result[0] == 0
        return
    bound = "must be at least " if value <= 0 else "must be at most "
    check_refused(result, f"s.toml: {NUMBERS[line]}: {value}: {bound}")


@pytest.mark.parametrize("value", ["1", "0", '"true"', "1.0", "[true]"])
def test_a_switch_is_true_or_false(attempt: Try, value: str) -> None:
    result = attempt(edited("priority_preemption = true", f"priority_preemption = {value}"))
    check_refused(result, "s.toml: engine.priority_preemption: ", "must be true or false")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ('"urgent"', ["'urgent': ", "high", "normal"]),
        ("true", ["True: "]),
        ("1.5", ["1.5: must be an integer"]),
        ("nan", ["nan: must be an integer"]),
        ("99999999999", ["99999999999: must lie between"]),
        (str(BIG), [f"{BIG}: must lie between"]),
        (str(-HUGE), [f"{-HUGE}: must lie between"]),
    ],
)
def test_priority(attempt: Try, value: str, told: list[str]) -> None:
    result = attempt(edited('priority = "high"', f"priority = {value}"))
    check_refused(result, "s.toml: workload.requests[1].priority: ", *told)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('id = "B"', 'id = "A"', "workload.requests[1].id: 'A': must be unique; requests[0] has it too"),
        ('id = "A"', 'id = ""', "workload.requests[0].id: '': must not be empty"),
        ('id = "A"', "id = 1", "workload.requests[0].id: 1: must be a text"),
        ("max_tokens = 9", "max_tokens = 1", "max_tokens = 1 must be at least output = 2"),
        ("max_num_seqs = 2", "max_num_seqs = 7", "engine.max_num_seqs: 7: must not exceed max_num_batched_tokens = 6"),
        ('"decode-first"', '"decode-frist"', "engine.policy: 'decode-frist': "),
        ('"decode-first"', '["static", 3]', "engine.policy: ['static', 3]: "),
        ('"decode-first"', "[]", "engine.policy: []: "),
        ('"decode-first"', "true", "engine.policy: True: "),
        (
            'model = "unit"',
            'model = "unt"',
            "cost.model: 'unt': must be one of distserve, linear, operators, roofline, table, unit "
            "(did you mean 'unit'?)",
        ),
        ('model = "unit"', "model = 3", "cost.model: 3: must be one of"),
        ('model = "unit"', 'model = "unit"\ndecode_token = 2', "cost.decode_token: unknown key"),
    ],
)
def test_wrong_value(attempt: Try, old: str, new: str, told: str) -> None:
    check_refused(attempt(edited(old, new)), "s.toml: ", told)


def test_unknown_policy_suggests_the_nearest(attempt: Try) -> None:
    told = "(did you mean 'decode-first'?)"
    check_refused(attempt(edited("decode-first", "decode-frist")), told)
    check_refused(attempt(DECODE_FIRST, "--policy", "decodefirst"), told)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("prefill_token = 1", "prefill_token = -1", "cost.prefill_token: -1"),
        ("prefill_token = 1", "prefill_token = nan", "cost.prefill_token: nan: must be a number from 0"),
        ("prefill_token = 1", "prefill_token = inf", "cost.prefill_token: inf: must be a number from 0"),
        ("prefill_token = 1", "prefill_token = true", "cost.prefill_token: True: must be a number"),
        ("prefill_token = 1", 'prefill_token = "1"', "cost.prefill_token: '1': must be a number"),
        ("prefill_token = 1", f"prefill_token = {HUGE}", "cost.prefill_token: "),
        ("prefill_token = 1\ndecode_token = 2", "", "at least one coefficient must be above 0"),
        ('unit = "cost unit"', 'unit = "seconds"', "cost.unit: 'seconds': must be 'cost unit' or 'ns'"),
        ('unit = "cost unit"\n', "", "cost.unit: is missing"),
        ("prefill_token", "prefil_token", "cost.prefil_token: unknown key (did you mean 'prefill_token'?)"),
        ("max_num_batched_tokens = 16\n", "", "engine.max_num_batched_tokens: "),
    ],
)
def test_wrong_cost_or_limit(attempt: Try, old: str, new: str, told: str) -> None:
    check_refused(attempt(edited(old, new, THREE_MODES)), "s.toml: ", told)


@pytest.mark.parametrize("modes", [[], ["--mode", "static"], ["--mode", "continuous"], ["--mode", "chunked,static"]])
def test_a_prompt_over_the_budget_is_named(attempt: Try, modes: list[str]) -> None:
    """Also where another policy, which could run it, stands first: everything is checked before anything runs."""
    result = attempt(edited("prompt = 12", "prompt = 17", THREE_MODES), *modes)
    check_refused(result, "s.toml: request 'the long one': prompt: 17: ", "max_num_batched_tokens = 16")


# Options


@pytest.mark.parametrize(
    "setting",
    [
        *("", "x", "=3", "engine.prefill_chunk", "engine.prefill_chunk=", "engine.prefill_chunk= "),
        *("prefill_chunk=2", "engine=2", "title.x=3", "engine.prefill_chunk=2\nx=3"),
        *(".=3", "engine.=3", "zzz.x=1", "engine.policy.x=1"),
    ],
)
def test_a_setting_has_its_form(attempt: Try, setting: str) -> None:
    check_refused(attempt(DECODE_FIRST, "--set", setting), "--set")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("engine.prefill_chunk=two", "--set engine.prefill_chunk: 'two': must be an integer"),
        ("engine.prefill_chunk=1.0", "--set engine.prefill_chunk: 1.0: must be an integer"),
        ("engine.prefill_chunk=" + "9" * 5000, "--set"),
        ("engine.prefill_chunk=" + "[" * 100_000, "--set"),
        ("engine.prefil_chunk=2", "--set engine.prefil_chunk: unknown key (did you mean 'prefill_chunk'?)"),
        ("workload.requests=[{}]", "--set workload.requests[0].id: is missing"),
        ("run.max_iterations=0", "--set run.max_iterations: 0: must be at least 1"),
        ("engine.max_num_seqs=7", "--set engine.max_num_seqs: 7: must not exceed"),
        ("engine.policy=decode-frist", "--set engine.policy: 'decode-frist': "),
    ],
)
def test_a_setting_is_checked_as_the_file_is(attempt: Try, setting: str, told: str) -> None:
    check_refused(attempt(DECODE_FIRST, "--set", setting), told)


@pytest.mark.parametrize(
    "options", [["--token-budget", "0"], ["--token-budget", "-1"], ["--chunk-size", "0"], ["--chunk-size", str(HUGE)]]
)
def test_a_short_option_is_checked_too(attempt: Try, options: list[str]) -> None:
    check_refused(attempt(DECODE_FIRST, *options), f": {options[1]}: must be at ")


@pytest.mark.parametrize("option", ["--trace", "--summary"])
@pytest.mark.parametrize(
    ("target", "reason"), [("no/such/out.x", "No such file"), ("folder", "directory"), ("s.toml/out.x", "s.toml")]
)
def test_a_file_that_cannot_be_written(attempt: Try, option: str, target: str, reason: str) -> None:
    Path("folder").mkdir()
    check_refused(attempt(DECODE_FIRST, option, target), target, "cannot be written: ", reason)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("option", ["--trace", "--summary"])
def test_a_full_disk(attempt: Try, option: str) -> None:
    check_refused(attempt(DECODE_FIRST, option, "/dev/full"), "/dev/full: ", "No space left on device")


# Policies of one's own


PLAN = "def plan(self, view, batch):"


@pytest.mark.parametrize(
    ("content", "chosen", "told"),
    [
        pytest.param(None, "own.py:P", ["own.py: ", "no such file"], id="missing"),
        pytest.param("class P:\n    def plan(self\n", "own.py:P", ["own.py: ", "SyntaxError"], id="syntax error"),
        pytest.param("import no_such_thing\n", "own.py:P", ["own.py: ", "no_such_thing"], id="import error"),
        pytest.param("class P:\n    pass\n", "own.py:P", ["own.py: ", "'P'", "plan"], id="no plan"),
        pytest.param("class P:\n    plan = 3\n", "own.py", ["own.py: ", "plan"], id="plan is a number"),
        pytest.param("", "own.py", ["own.py: ", "none found"], id="nothing in it"),
        pytest.param(
            f"class A:\n    {PLAN} ...\nclass B:\n    {PLAN} ...\n", "own.py", ["own.py: ", "A, B"], id="ambiguous"
        ),
        pytest.param(
            f"class Mine:\n    {PLAN} ...\n", "own.py:Mien", ["'Mien'", "(did you mean 'Mine'?)"], id="misspelt"
        ),
        pytest.param("x", "own.txt:P", ["own.txt: ", "no such file"], id="other suffix"),
        pytest.param(
            f"class P:\n    def __init__(self, depth: int):\n        pass\n    {PLAN} ...\n",
            "own.py",
            ["engine.depth: is missing"],
            id="setting missing",
        ),
        pytest.param(
            f"class P:\n    def __init__(self):\n        raise ValueError('no\\nway')\n    {PLAN} ...\n",
            "own.py",
            ["ValueError", "no\\nway"],
            id="init raises",
        ),
        pytest.param(
            f"class P:\n    def __init__(self, prefill_chunk: 'Unheard' = 1): ...\n    {PLAN} ...\n",
            "own.py",
            ["own.py", "Unheard"],
            id="unknown annotation",
        ),
    ],
)
def test_a_policy_file_that_cannot_be_used(attempt: Try, content: str | None, chosen: str, told: list[str]) -> None:
    if content is not None:
        Path("own.py").write_text(content, encoding="utf-8")
    check_refused(attempt(OWN, "--policy", chosen), *told)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param(
            f"    {PLAN}\n        raise KeyError('x\\ny')\n",
            ["iteration 0: KeyError", "own.py line 3"],
            id="plan raises",
        ),
        pytest.param(
            f"    def on_arrival(self, seq, view, batch):\n        1 / 0\n    {PLAN} ...\n",
            ["iteration 0: ZeroDivisionError", "own.py line 3"],
            id="on_arrival raises",
        ),
        pytest.param(
            f"    def on_arrival(self, seq, view, batch): ...\n    {PLAN} ...\n",
            ["on_arrival left request 'A' at the door"],
            id="left at the door",
        ),
        pytest.param(
            f"    {PLAN}\n        return 'too\\nlazy'\n",
            ["stalled in iteration 1, at time 7 (ns): too\\nlazy", "2 waiting and 0 active"],
            id="never schedules",
        ),
        pytest.param(
            f"    {PLAN}\n        batch.admit_waiting()\n",
            ["stalled in iteration 1, at time 7 (ns)", "scheduled nothing"],
            id="only admits",
        ),
        pytest.param(
            f"    {PLAN}\n        batch.preempt(view.waiting.head, 'nap')\n",
            ["ValueError: preempt: "],
            id="no such mode",
        ),
        pytest.param(f"    {PLAN}\n        batch.schedule(7)\n", ["iteration 0: "], id="schedules nobody"),
        pytest.param("    def plan(self): ...\n", ["iteration 0: TypeError"], id="wrong signature"),
        pytest.param(f"    {PLAN}\n        return self.plan(view, batch)\n", ["RecursionError"], id="recursion"),
        pytest.param(
            f"    {PLAN}\n        raise ValueError('a\\n\\x1b[31mb')\n",
            ["iteration 0: ValueError: a\\n\\x1b[31mb"],
            id="hostile message",
        ),
    ],
)
def test_a_policy_that_fails(attempt: Try, body: str, told: list[str]) -> None:
    Path("own.py").write_text(f"class P:\n{body}", encoding="utf-8")
    check_refused(attempt(OWN, "--policy", "own.py:P"), "own.py" if "stalled" not in told[0] else "", *told, code=1)


def test_a_policy_whose_check_fails(attempt: Try) -> None:
    body = f"class P:\n    def check(self, limits, requests):\n        raise ValueError('no')\n    {PLAN} ...\n"
    Path("own.py").write_text(body, encoding="utf-8")
    result = attempt(OWN, "--policy", "own.py:P")
    assert result[0] in (1, 2)
    check_refused(result, "own.py", "ValueError: no", code=result[0])


def test_scheduling_twice_is_refused_and_harmless(attempt: Try) -> None:
    body = (
        "class P:\n    def plan(self, view, batch):\n        batch.admit_waiting()\n"
        "        for seq in view.running:\n            assert batch.schedule(seq, 1) is None\n"
        "            assert batch.schedule(seq, 1).name == 'NOTHING'\n"
    )
    Path("own.py").write_text(body, encoding="utf-8")
    code, _, err = attempt(OWN, "--policy", "own.py:P")
    assert (code, err) == (0, "")
    for line in Path("out.jsonl").read_text(encoding="utf-8").splitlines()[1:-1]:
        ids = [entry[0] for entry in json.loads(line)["scheduled"]]
        assert len(set(ids)) == len(ids)


def test_a_policy_that_fails_later_leaves_older_files_alone(attempt: Try) -> None:
    body = "class P:\n    def plan(self, view, batch):\n        batch.schedule(view.waiting.head, 1)\n        1 / 0\n"
    Path("own.py").write_text(body, encoding="utf-8")
    for name in ("out.jsonl", "out.json"):
        Path(name).write_text("older", encoding="utf-8")
    code, out, err = attempt(OWN, "--policy", "own.py:P")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert {path.name: path.read_text(encoding="utf-8") for path in Path().glob("*out*")} == {
        "out.jsonl": "older",
        "out.json": "older",
    }


# Hostile names


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a\nb\r\tc", id="newline"),
        pytest.param("\x1b[31mred\x1b[0m\x1b]0;title\x07", id="escapes"),
        pytest.param("\u202eevil\u200b\u2028", id="invisible"),
        pytest.param("[bold]x[/bold] [/] [link=a]", id="markup"),
        pytest.param("😀👩\u200d👧 ÄÖ 漢字", id="emoji"),
        pytest.param("x" * 10_000, id="long"),
        pytest.param("\\", id="backslash"),
        pytest.param("'\"", id="quotes"),
        pytest.param(" ", id="blank"),
        pytest.param("\x00\x7f\x85", id="control"),
    ],
)
def test_a_hostile_id_does_no_harm(attempt: Try, name: str) -> None:
    quoted = json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")
    scenario = edited('id = "A"', f"id = {quoted}", OWN)
    code, out, err = attempt(scenario)
    assert (code, err) == (0, "")
    assert all(line.isprintable() for line in out.split("\n"))
    code, out, err = attempt(scenario, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["runs"][0]["requests"][0]["id"] == name
    header = json.loads(Path("out.jsonl").read_bytes().splitlines()[0])
    assert header["requests"][0]["id"] == name
    assert json.loads(Path("out.json").read_bytes())["requests"][0]["id"] == name


def test_a_hostile_id_in_an_error_stays_on_one_line(attempt: Try) -> None:
    name = "\\n\\u001b[31m" + "y" * 10_000
    text = edited('id = "the long one"', f'id = "{name}"', edited("prompt = 12", "prompt = 17", THREE_MODES))
    check_refused(attempt(text), "request '\\n\\x1b[31myyy")


def test_a_hostile_title_or_reason_does_no_harm(attempt: Try) -> None:
    body = (
        "class P:\n    def on_arrival(self, seq, view, batch):\n"
        "        batch.reject(seq, 'no\\n\\x1b[31m [bold]')\n"
        "    def plan(self, view, batch): ...\n"
    )
    Path("own.py").write_text(body, encoding="utf-8")
    code, out, err = attempt('title = "a\\n\\u001b[31m[red]b"\n' + OWN, "--policy", "own.py:P")
    assert (code, err) == (0, "")
    assert all(line.isprintable() for line in out.split("\n"))
    assert "rejected: no\\n\\x1b[31m [bold]" in " ".join(out.split()) and "[red]b" in out


# Other commands


@pytest.mark.parametrize("command", ["verify", "conform"])
@pytest.mark.parametrize(("target", "told"), [("none.json", "No such file"), ("s.toml", "s.toml"), (".", "")])
def test_other_commands_refuse_what_they_cannot_read(
    attempt: Try,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    target: str,
    told: str,
) -> None:
    Path("s.toml").write_text(OWN, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["batchlab", command, target])
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    if command == "verify" and target == "s.toml":  # readable, and no trace: that is an answer
        assert stop.value.code == 1 and not err and "[format]: line 1" in out
    else:
        assert stop.value.code == 2 and not out
        assert err.count("\n") == 1 and told in err


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        ("workload describe folder", "a workload file, or a scenario (.toml)"),
        ("run folder", "a scenario is a TOML text file"),
        ("capacity folder --slo ttft:p99<=1s", "a scenario is a TOML text file"),
        ("verify folder", "a file as run --trace writes it"),
        ("explain folder", "a file as run --trace writes it"),
    ],
)
def test_a_directory_is_named_with_what_is_needed(
    attempt: Try, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, needed: str
) -> None:
    Path("folder").mkdir()
    monkeypatch.setattr(sys, "argv", ["batchlab", *command.split()])
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and not out
    assert err.startswith(f"batchlab: folder: is a directory; {needed}") and err.count("\n") == 1


LONG = "x" * 250


@pytest.mark.parametrize(
    "command",
    [
        f"run s.toml --policy {LONG}{LONG}.py:Own",
        f"conform {LONG}{LONG}.json",
        f"calibrate {LONG}{LONG}.csv -o fitted.toml",
        f"validate {LONG}{LONG} --cost s.toml",
        f"workload describe {LONG}{LONG} --format azure",
        f"bench 127.0.0.1:9 --scenario s.toml --save-run {LONG}{LONG}",
    ],
)
def test_a_name_too_long_for_the_disk_is_one_line(
    attempt: Try, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    Path("s.toml").write_text(OWN, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["batchlab", *command.split()])
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and not out
    assert err.startswith("batchlab: xxx") and err.count("\n") == 1
    assert [path.name for path in Path().iterdir()] == ["s.toml"]


def test_a_name_as_long_as_the_disk_takes_is_written(attempt: Try) -> None:
    """What stands beside it until it is whole has no longer one."""
    name = "\N{CJK UNIFIED IDEOGRAPH-6A94}" * 84 + ".js"  # 255 bytes, the most of ext4
    code, _, err = attempt(DECODE_FIRST, "--trace", name)
    assert (code, err) == (0, "") and Path(name).stat().st_size > 0


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("[]", "not a recorded case"),
        ("{", "not a JSON file"),
        ("{}", "not a recorded case"),
        ('{"limits": {}, "requests": [], "expected": {}}', "not a recorded case"),
        ('{"limits": {}, "requests": [], "cost": 7, "expected": {"static": {"trace": []}}}', "cost"),
        ('{"limits": {}, "requests": [], "expected": {"static": 7}}', "expected"),
        ("[" * 100_000, "not a JSON file"),
    ],
)
def test_conform_refuses_what_is_no_case(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str, told: str
) -> None:
    path = tmp_path / "case.json"
    path.write_text(case, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["batchlab", "conform", str(path)])
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert err.count("\n") == 1 and "case.json: " in err and told in err


# Killed runs


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_a_killed_run_leaves_no_file_of_that_name(tmp_path: Path) -> None:
    scenario, trace = tmp_path / "long.toml", tmp_path / "out.jsonl"
    text = edited("output = 3", "output = 100000000").replace("max_iterations = 200\n", "")
    scenario.write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", "from batchlab.cli import main; main()", "run", str(scenario)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([*command, "--trace", str(trace)], env=env, stdout=subprocess.DEVNULL)
    try:
        partial = wait_for_partial(tmp_path)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    assert not trace.exists()
    command[3:] = ["verify", str(partial)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "[complete]: no end line: the run was killed, or the file was cut" in done.stdout


def wait_for_partial(folder: Path) -> Path:
    """The unfinished file, once something has been written to it."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for path in folder.iterdir():
            if "out.jsonl" in path.name and path.stat().st_size > 20_000:
                return path
        time.sleep(0.01)
    raise AssertionError("no trace was begun")
