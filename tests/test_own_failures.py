"""A policy of one's own that breaks: one line with its name, 2 before it runs, 1 with the iteration while it runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from batchlab.errors import InputError, raised, shorten

ROOT = Path(__file__).parents[1]
SCENARIO = """
[engine]
max_num_seqs = 4
max_num_batched_tokens = 64
[cost]
model = "unit"
[workload]
requests = [
  { id = "A", arrival = 0, prompt = 6, output = 3 },
  { id = "B", arrival = 1, prompt = 4, output = 2 },
]
"""
BEGINNING = """
from batchlab.errors import SettingError
from batchlab.policies.continuous import Continuous
from batchlab.policies.vllm import Vllm
"""
PLAN = "\n    def plan(self, view, batch): {}\n"


def run_own(folder: Path, text: str) -> tuple[int, list[str], str]:
    """Exit code, lines on stderr, stdout."""
    (folder / "own.py").write_text(BEGINNING + text, encoding="utf-8")
    (folder / "s.toml").write_text(SCENARIO, encoding="utf-8")
    command = [sys.executable, "-m", "batchlab", "run", "s.toml", "--policy", "own.py:P"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr.splitlines(), done.stdout


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "class P:\n    def __new__(cls): return object()" + PLAN.format("pass"),
            "own.py:P: plan: cannot be read: AttributeError: 'object' object has no attribute 'plan'",
        ),
        (
            "class P:\n    def __getattribute__(self, name):\n        if name == 'plan': raise ValueError('no')\n"
            "        return object.__getattribute__(self, name)" + PLAN.format("pass"),
            "own.py:P: plan: cannot be read: ValueError: no",
        ),
        (
            "class P:\n    @property\n    def rules(self): raise BaseException('x')" + PLAN.format("pass"),
            "own.py:P: rules: cannot be read: BaseException: x",
        ),
        (
            "class P:\n    def __init__(self): self.plan = 3" + PLAN.format("pass"),
            "own.py:P: plan: 3: must be a method: plan(view, batch)",
        ),
        ("class P:\n    def __init__(self): raise SystemExit(0)" + PLAN.format("pass"), "own.py:P: SystemExit: 0"),
        ("raise SystemExit(0)", "own.py: cannot be imported: SystemExit: 0"),
        (
            "class P(Vllm):\n    @property\n    def watermark(self): return 0.3",
            "own.py:P: AttributeError: property 'watermark' of 'P' object has no setter",
        ),
    ],
)
def test_before_it_runs(tmp_path: Path, text: str, told: str) -> None:
    assert run_own(tmp_path, text) == (2, [f"batchlab: {told}"], "")


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("raise BaseException('x')", "BaseException: x"),
        ("raise SettingError('a', 1, 'in plan')", "SettingError: engine.a: 1: in plan"),
        ("raise SettingError('a', object(), 'in plan')", "SettingError: engine.a: <object object>: in plan"),
        ("raise ValueError(object())", "ValueError: <object object>"),
    ],
)
def test_while_it_runs(tmp_path: Path, statement: str, told: str) -> None:
    code, lines, out = run_own(tmp_path, "class P:" + PLAN.format(statement))
    assert (code, out) == (1, "")
    assert lines == [f"batchlab: policy own.py:P: iteration 0: {told} (own.py line 6)"]


@pytest.mark.parametrize(
    "call", ["batch.schedule(view.waiting[0], 1.5)", "batch.preempt(view.waiting[0], 'foo')", "batch.schedule(None)"]
)
def test_a_verb_that_is_misused_names_the_line_of_the_policy(tmp_path: Path, call: str) -> None:
    code, lines, out = run_own(tmp_path, "class P:" + PLAN.format(call))
    assert (code, out, len(lines)) == (1, "", 1) and lines[0].endswith("(own.py line 6)")


def test_an_interruption_stays_one(tmp_path: Path) -> None:
    code, lines, _ = run_own(tmp_path, "class P:" + PLAN.format("raise KeyboardInterrupt"))
    assert (code, lines) == (130, ["batchlab: interrupted"])


@pytest.mark.parametrize("key", ["float('nan')", "(float('nan'), seq.position)"])
def test_a_key_without_a_place_in_any_order(tmp_path: Path, key: str) -> None:
    code, lines, out = run_own(tmp_path, f"class P(Continuous):\n    def queue_key(self, seq): return {key}")
    assert (code, out, len(lines)) == (1, "", 1)
    assert "policy own.py:P: iteration 0: TypeError: " in lines[0] and "nan" in lines[0]
    assert "is not equal to itself, so it has no place in a queue" in lines[0]


def test_a_setting_that_is_set_while_it_runs(tmp_path: Path) -> None:
    text = "class P(Vllm):\n    def plan(self, view, batch):\n        {}\n        return super().plan(view, batch)\n"
    code, lines, with_it = run_own(tmp_path, text.format("self.watermark = 0.3"))
    told = "watermark: 0.3: was set while it ran, where it does not count: super().__init__(watermark=...)"
    assert (code, lines) == (0, [f"batchlab: own.py:P: {told}"])
    code, lines, without = run_own(tmp_path, text.format("self.watermark = 0.0"))
    assert (code, lines) == (0, []) and with_it == without


class Nameless:
    def __repr__(self) -> str:
        raise ValueError("no repr")


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def test_no_address_is_told() -> None:
    thing = object()
    assert shorten(thing) == "<object object>" and shorten([thing, 1]) == "[<object object>, 1]"
    assert str(InputError("f", "p", thing, "must be a text")) == "f: p: <object object>: must be a text"
    assert shorten("what lies at 0x7ff8") == "'what lies at 0x7ff8'"
    assert shorten(Nameless()) == "<Nameless object>"
    assert raised(ValueError(thing)) == "ValueError: <object object>" and raised(Speechless()) == "Speechless"
