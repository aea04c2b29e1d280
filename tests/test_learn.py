"""`batchlab learn`: its pages say what the trace says, its reader is told what is right and what is not."""

import json
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from laws_runs import POLICIES, SEEDS, outcome

from batchlab.errors import InputError
from batchlab.explain.source import DEFAULTS
from batchlab.learn import LESSONS, mark, pages_of, read_prediction
from batchlab.learn.tour import tour
from batchlab.trace.encode import decode

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT.parent / "shared" / "worked-examples"


def learn(*arguments: str, answers: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "batchlab", "learn", *arguments]
    return subprocess.run(command, input=answers, capture_output=True, encoding="utf-8", timeout=60)


@pytest.mark.parametrize("policy", POLICIES)
def test_pages_say_what_the_trace_says(policy: str) -> None:
    seen = 0
    for seed in SEEDS[1:150:6]:
        one = outcome(policy, seed)
        if one.lines[0].get("steps_in_flight", 1) != 1:
            continue
        pages = pages_of([decode(DEFAULTS | line if line["type"] == "header" else line) for line in one.lines])
        assert len(pages) == len(one.iterations)
        computed: Counter[str] = Counter()
        for page, line in zip(pages, one.iterations, strict=True):
            known = dict(page.queue) | dict(page.seats)
            for id, words in known.items():
                if words.endswith("prompt tokens"):
                    assert int(words.split()[0]) == computed[id], (policy, seed, page.number, id)
            for preemption in line["preempted"]:
                if preemption["mode"] == "recompute":
                    computed[preemption["id"]] = 0
            computed |= {id: tokens for id, tokens in line.get("cached", ()) if tokens}
            marks = [id if phase == "decode" else f"{id}+{tokens}" for id, phase, tokens in line["scheduled"]]
            assert page.schedule == marks
            assert mark(marks[::-1], page).is_right
            ends = {e.id for e in page.entries if e.scheduled and not e.decodes and "its" in e.reason}
            assert ends == set(line["prefill_done"]), (policy, seed, page.number)
            for id, _, tokens in line["scheduled"]:
                computed[id] += tokens
            seen += 1
    assert seen > 8


@pytest.mark.skipif(not EXAMPLES.exists(), reason="the recorded examples are not here")
def test_the_lessons_are_the_worked_examples() -> None:
    first, second = (tour(lesson.path) for lesson in LESSONS)
    expected = json.loads((EXAMPLES / "decode-first-baseline.json").read_text())["expected"]["trace"]
    for (_, page), line in zip(first.stops(), expected, strict=True):
        assert sorted(page.schedule) == sorted([*line["decode"], *(f"{id}+{n}" for id, n in line["prefill"])])
        assert page.unused == line["unused_budget"]
    modes = json.loads((EXAMPLES / "three-modes.json").read_text())["expected"]
    for part in second.parts:
        for page, line in zip(part.pages, modes[part.run.engine]["trace"], strict=True):
            actions = [action.split(":") for action in line["actions"]]
            assert page.schedule == [id if phase == "decode" else f"{id}+{n}" for id, phase, n in actions]
            assert (page.start, page.end) == (line["start"], line["end"])


@pytest.mark.parametrize(("lesson", "example"), [*zip(LESSONS, ("priority-preemption", "three-modes"), strict=True)])
def test_the_lessons_are_the_examples_of_the_same_content(lesson: Any, example: str) -> None:
    shipped = tomllib.loads(lesson.path.read_text(encoding="utf-8"))
    assert shipped == tomllib.loads((ROOT / "examples" / f"{example}.toml").read_text(encoding="utf-8"))


def test_a_reader_is_told_what_is_right() -> None:
    done = learn("1", answers="B+3, A+3\nB+1 C+3\nD+3 B\n")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and not done.stderr
    assert lines[lines.index("> B+3, A+3") + 1] == "right"
    assert lines[lines.index("> B+1 C+3") + 1] == "not so: C+3; missing: C+2"
    assert lines[lines.index("> D+3 B") + 1] == "right"
    assert "You predicted 2 of 3 iterations right." in lines
    assert any("leaves its seat: preempted: keep, nothing lost; for 'C'" in line for line in lines)
    assert any("F  " in line and "rejected: queue full" in line for line in lines)


def test_only_the_first_try_counts() -> None:
    done = learn("1", answers="A+6\nback\nA+3 B+3\n")
    assert done.stdout.count("decode-first: iteration 0 (of 6)") == 2
    assert "You predicted 0 of 1 iterations right." in done.stdout


def test_what_if_leads_to_the_first_difference_and_back() -> None:
    done = learn("1", answers="\n\n\nwhat-if engine.prefill_chunk=6\nA+6\nwhat-if\nquit\n")
    lines = done.stdout.splitlines()
    first = lines.index("> what-if engine.prefill_chunk=6")
    assert lines[first + 1] == "The first difference is in decode-first, iteration 0: A+6 where it was A+3 B+3."
    assert "  A: done in iteration 2, it was done in iteration 5" in lines[first:]
    assert lines[lines.index("> A+6") + 1] == "right"
    assert "The first difference is in decode-first, iteration 0: A+3 B+3 where it was A+6." in lines
    assert lines[-1] == "> quit"
    same = learn("1", answers="what-if engine.max_num_batched_tokens=60\nq\n")
    assert "where it was" not in same.stdout and "No iteration runs differently." in same.stdout


def test_every_suggestion_can_be_tried() -> None:
    for number, lesson in enumerate(LESSONS, 1):
        for setting, _ in lesson.what_if:
            done = learn(str(number), answers=f"what-if {setting}\nquit\n")
            assert "The first difference is in" in done.stdout or "No iteration runs differently." in done.stdout


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("a+3", "'a+3': no request has the id 'a'; write A+3"),
        ("A+3 A+3", "named twice"),
        ("A+-1", "no request has the id"),
        ("what-if engine.prefil_chunk=2", "did you mean 'prefill_chunk'"),
        ("what-if engine.max_num_seqs=7", "must not exceed max_num_batched_tokens"),
        ("what-if nonsense", "must be SECTION.KEY=VALUE"),
        ("\x1b[31mA", "no request has the id '\\x1b[31mA'"),
    ],
)
def test_what_cannot_be_read_is_told_and_asked_again(answer: str, told: str) -> None:
    done = learn("1", answers=f"{answer}\nA+3 B+3\nquit\n")
    assert done.returncode == 0
    assert told in done.stdout
    assert "right" in done.stdout.splitlines()
    assert "\x1b" not in done.stdout


def test_without_anybody_to_ask_all_pages_are_printed() -> None:
    done = learn()
    assert done.stdout.count("Who runs, with how many tokens?") == 6 + 6 + 4 + 5
    assert "Lesson 2 of 2" in done.stdout


def test_json_holds_every_page() -> None:
    document = json.loads(learn("--json").stdout)
    runs = [run for lesson in document["lessons"] for run in lesson["runs"]]
    assert [(run["engine"], len(run["pages"])) for run in runs] == [
        ("decode-first", 6),
        ("static", 6),
        ("continuous", 4),
        ("chunked", 5),
    ]
    assert runs[0]["pages"][1]["schedule"] == ["B+1", "C+2"]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("3", "must be 1 to 2, or a scenario file"),
        ("nowhere.toml", "nowhere.toml"),
        (str(ROOT / "examples" / "slot-waste.toml"), "written out"),
    ],
)
def test_what_cannot_be_walked_is_refused(what: str, told: str) -> None:
    done = learn(what)
    assert done.returncode == 2 and not done.stdout
    assert told in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_long_scenario_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.toml"
    requests = '[workload]\nrequests = [{ id = "A", arrival = 0, prompt = 1, output = 500 }]\n'
    path.write_text(f'[engine]\npolicy = "static"\nmax_num_batched_tokens = 9\n[cost]\nmodel = "unit"\n{requests}')
    with pytest.raises(InputError, match="more than 200 iterations"):
        tour(path)


@pytest.mark.parametrize(("text", "read"), [("A+3 B", ["A+3", "B"]), ("A+3,B", ["A+3", "B"]), ("x+1+2", ["x+1+2"])])
def test_predictions_are_read(text: str, read: list[str]) -> None:
    assert read_prediction(text, ["A", "B", "x+1"]) == read


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("engine.max_num_seq=3", "engine.max_num_seq: unknown key (did you mean 'max_num_seqs'?)"),
        ("engine.max_num_seqs=0", "engine.max_num_seqs: 0: must be at least 1"),
    ],
)
def test_a_setting_that_cannot_be_run_is_called_a_what_if(setting: str, message: str) -> None:
    done = learn("1", answers=f"what-if {setting}\nquit\n")
    assert f"what-if {message}" in done.stdout and "--set" not in done.stdout


def test_a_question_has_what_its_answer_depends_on() -> None:
    """examples/vllm.toml: 12 blocks of 16. A's 90 tokens take 6, B shares 4 of them and takes 2 more of its own."""
    done = learn(str(ROOT / "examples" / "vllm.toml"), answers="A+90 B+28\n\nq\n")
    assert "\nright\n" in done.stdout
    limits = [" ".join(line.split()) for line in done.stdout.splitlines() if line.split()[:1] == ["limits"]]
    free = [12, 12 - 6 - 2, 12 - 6 - 2 - 2]  # C's 94 tokens: 4 shared blocks, 2 of its own
    assert limits == [f"limits 4 seats, 128 tokens, {count} free KV blocks of 16 tokens" for count in free]
    cached = [" ".join(line.split()) for line in done.stdout.splitlines() if line.split()[:1] == ["cached"]]
    assert cached == ["cached B, once seated: 64 tokens", "cached C, once seated: 64 tokens"]
    assert "KV blocks" not in learn("1").stdout
