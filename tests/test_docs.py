"""The documentation says what is true: its commands print what it shows, its code runs, its links lead somewhere.

In README.md and docs/*.md:

- A ```console block holds commands (`$ ./batchlab ...`), each with its output below it: stdout, then stderr. A line
  `...` stands for any lines left out. The command exits with 0, or with N where the fence says `console exit=N`.
- A ```python block runs, all of a document in one namespace; a ```text block right below it is what it prints.
- A ```python block whose first line is `# NAME.py` is that file instead: the one in the repository if there is one,
  which must have this text below that line, else it is written for the commands that follow.

Everything runs in document order in a folder of its own that holds a copy of examples/. A translation,
NAME.zh-TW.md, is not run again: it shows what its original shows.
"""

import contextlib
import io
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import pytest

import batchlab

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").glob("*.md"))]
TRANSLATED = {path.with_name(path.name.replace(".zh-TW", "")): path for path in DOCUMENTS if ".zh-TW." in path.name}
WRITTEN = [path for path in DOCUMENTS if path not in TRANSLATED.values()]
FENCE = re.compile(r"^```(\w*) *(.*)$")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
CODE = re.compile(r"`[^`\n]+`")
TARGET = re.compile(r"\]\([^)]*\)")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@dataclass
class Block:
    """One fenced block: its language, the rest of the fence's line, its text, and the line it starts on."""

    language: str
    info: str
    text: str
    line: int
    follows: bool = False
    """Whether only blank lines stand between this block and the one before."""


def blocks_of(document: Path) -> list[Block]:
    found: list[Block] = []
    inside: list[str] | None = None
    alone = False
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if inside is None and fence:
            found.append(Block(fence[1], fence[2], "", number, alone))
            inside = []
        elif inside is not None and line == "```":
            found[-1].text = "".join(f"{text}\n" for text in inside)
            inside, alone = None, True
        elif inside is not None:
            inside.append(line)
        elif line.strip():
            alone = False
    assert inside is None, f"{document}: the block of line {found[-1].line} has no end"
    return found


def commands_of(block: Block) -> list[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines shown below it."""
    commands: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            assert commands, "a console block begins with a command"
            commands[-1][1].append(line)
    return commands


def stripped(lines: list[str]) -> list[str]:
    """The lines without trailing spaces, and without empty lines at the end."""
    lines = [line.rstrip() for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def agrees(shown: list[str], real: list[str]) -> bool:
    """Whether the shown lines are the real ones, where a line `...` stands for any lines."""
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in stripped(shown))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in stripped(real))) is not None


def run_command(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program, *arguments = shlex.split(command)
    assert program == "./batchlab", f"only ./batchlab is run here: {command}"
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    env["PYTHONPATH"] = str(Path(batchlab.__file__).resolve().parents[1])  # the one under test, from any folder
    return subprocess.run(
        [sys.executable, "-m", "batchlab", *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )


def check_console(block: Block, folder: Path, where: str) -> None:
    expected = re.fullmatch(r"exit=(\d+)", block.info) if block.info else None
    assert expected or not block.info, f"{where}: unknown words after the fence: {block.info}"
    for command, shown in commands_of(block):
        done = run_command(command, folder)
        printed = done.stdout + done.stderr
        assert done.returncode == int(expected[1] if expected else 0), f"{where}: {command}\n{printed}"
        same = agrees(shown, printed.splitlines())
        assert same, "\n".join((f"{where}: {command}", "shown:", *shown, "but printed:", printed))


def run_python(block: Block, folder: Path, namespace: dict[str, object], where: str) -> str:
    """Run a block, or put it where its first line says; returns what it printed."""
    name = re.match(r"# (\S+\.py)\n", block.text)
    if name:
        if (ROOT / name[1]).exists():
            text = (ROOT / name[1]).read_text(encoding="utf-8")
            assert block.text == name[0] + text, f"{where}: not the text of {name[1]}"
        else:
            (folder / name[1]).write_text(block.text, encoding="utf-8")
        return ""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text, where, "exec"), namespace)
    return printed.getvalue()


@pytest.mark.parametrize("document", WRITTEN, ids=lambda path: path.name)
def test_what_a_document_shows_is_what_happens(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed: str | None = None
    for block in blocks_of(document):
        where = f"{document.name}, line {block.line}"
        if block.language == "text" and printed is not None and block.follows:
            assert stripped(block.text.splitlines()) == stripped(printed.splitlines()), where
        printed = None
        if block.language == "console":
            check_console(block, tmp_path, where)
        elif block.language == "python":
            printed = run_python(block, tmp_path, namespace, where)


@pytest.mark.parametrize("document", list(TRANSLATED), ids=lambda path: path.name)
def test_a_translation_shows_the_same(document: Path) -> None:
    """The same blocks, and between them the same numbers, code and links; what it shows is run where it was written."""
    written, translated = document.read_text(encoding="utf-8"), TRANSLATED[document].read_text(encoding="utf-8")
    blocks = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
    assert blocks.findall(written) == blocks.findall(translated)
    prose = list(zip(blocks.split(written), blocks.split(translated), strict=True))
    assert len(prose) > 3
    for mine, theirs in prose:
        where = mine.strip()[:60]
        assert Counter(NUMBER.findall(TARGET.sub("", mine))) == Counter(NUMBER.findall(TARGET.sub("", theirs))), where
        assert Counter(CODE.findall(mine)) == Counter(CODE.findall(theirs)), where
        assert Counter(map(_goal, LINK.findall(mine))) == Counter(map(_goal, LINK.findall(theirs))), where
        assert len(re.findall(r"^#+ ", mine, re.MULTILINE)) == len(re.findall(r"^#+ ", theirs, re.MULTILINE)), where


def _goal(link: str) -> str:
    """Where a link leads, in whichever language; a heading of a translated document has another name there."""
    path, hash, heading = link.replace(".zh-TW", "").partition("#")
    return path if path in ("", "guide.md", "docs/guide.md") else path + hash + heading


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in LINK.findall(text):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        goal = (document.parent / path).resolve() if path else document
        assert goal.exists() and goal.is_relative_to(ROOT), f"{document.name}: {target}"
        if anchor:
            assert anchor in anchors_of(goal), f"{document.name}: {target}"


def anchors_of(document: Path) -> set[str]:
    """The headings of a document as links name them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize(
    ("shown", "real", "right"),
    [
        ("a b", "a b", True),
        ("a", "a b", False),
        ("b", "a b", False),
        ("a b c", "a b", False),
        ("a ...", "a b", True),
        ("... b", "a b", True),
        ("... a", "a b", False),
        ("b ...", "a b", False),
        ("... b ...", "a b c", True),
        ("a ... c", "a b c", True),
        ("a ... b ... d", "a b c d", True),
        ("a ... c ... b", "a b c", False),
        ("... a b a ...", "a b a b a c", True),
        ("a ... a", "a", False),
        ("...", "", True),
        ("", "a", False),
        ("", "", True),
    ],
)
def test_agrees(shown: str, real: str, right: bool) -> None:
    assert agrees(shown.split(), real.split()) == right


@pytest.mark.parametrize("name", ["README.md", "README.zh-TW.md", "docs/vllm-in-five-minutes.md"])
def test_the_mean_lengths_told_are_those_after_clipping(name: str) -> None:
    """The mean of min(X, c) with lognormal X, of mean m and sigma s, is m P(z - s) + c (1 - P(z)): P is the normal
    distribution, z the bound's place in it."""
    generate = tomllib.loads((ROOT / "examples" / "capacity-conversation.toml").read_text())["workload"]["generate"]
    normal = NormalDist().cdf
    told = set()
    for lengths in (generate["prompt"], generate["output"]):
        mean, sigma, bound = lengths["mean"], lengths["sigma"], lengths["max"]
        place = (math.log(bound / mean) + sigma**2 / 2) / sigma
        told.add(f"{mean * normal(place - sigma) + bound * (1 - normal(place)):,.0f}")
    text = (ROOT / name).read_text(encoding="utf-8")
    (sentence,) = [line for line in text.splitlines() if re.search("in the mean.* answers|回答平均", line)]
    assert told <= set(NUMBER.findall(sentence))


def test_the_readme_names_the_time_of_the_set_up_as_the_launcher_does() -> None:
    said = "1 to 3 minutes (6 on a busy machine)"
    assert said in (ROOT / "batchlab").read_text()
    for name in ("README.md", "README.zh-TW.md"):
        assert said in (ROOT / name).read_text(encoding="utf-8")
