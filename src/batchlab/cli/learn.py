"""batchlab learn."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from batchlab.cli.documents import print_json
from batchlab.cli.learn_pages import print_answer, print_change, print_question, print_results, print_verdict
from batchlab.cli.tables import console, say
from batchlab.errors import BatchlabError, InputError, one_line
from batchlab.learn import LESSONS, Lesson, Page, mark, read_prediction
from batchlab.learn.tour import Part, tour
from batchlab.plan.trial import named
from batchlab.settings import parse_setting

COMMANDS = ("next", "back", "what-if", "quit", "help")
HELP = (
    "Write who runs in this iteration: A+3 for 3 prompt tokens of A, A for a decode; the order does not count. "
    "An empty line or `next` shows the answer without a guess, `back` goes a page back, `what-if KEY=VALUE` "
    "changes a setting and shows what it changes (`what-if` alone undoes it), `quit` ends. The first letter of "
    "each will do."
)


@click.command()
@click.argument("what", metavar="[1|2|SCENARIO]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print all pages as one JSON document, without questions.")
def learn(what: str | None, as_json: bool) -> None:
    """Walk through the two worked examples iteration by iteration, predicting first what the scheduler does.

    1 or 2 is one of the examples, SCENARIO a file of your own with its requests written out. Predictions and
    commands are read from standard input, one a line; where it ends, or is no terminal's, all pages are printed.
    """
    lessons = _chosen(what)
    if as_json:
        print_json({"lessons": [_document(lesson) for lesson in lessons]})
        return
    ask = _Answers()
    for number, lesson in enumerate(lessons, 1):
        if not _Walk(lesson, f"Lesson {number} of {len(lessons)}: " if len(lessons) > 1 else "", ask).go():
            break


def _chosen(what: str | None) -> list[Lesson]:
    if what is None:
        return list(LESSONS)
    if what.isdecimal() and 1 <= int(what) <= len(LESSONS):
        return [LESSONS[int(what) - 1]]
    if what.isdecimal():
        raise InputError("LESSON", None, what, f"must be 1 to {len(LESSONS)}, or a scenario file")
    return [Lesson(Path(what), "", ())]


def _document(lesson: Lesson) -> dict[str, Any]:
    made = tour(lesson.path)
    parts = [
        {"engine": part.run.engine, "pages": [asdict(page) | {"schedule": page.schedule} for page in part.pages]}
        for part in made.parts
    ]
    return {"title": made.title, "introduction": lesson.introduction, "runs": parts}


class _Answers:
    """What the reader writes, until nobody does any more."""

    def __init__(self) -> None:
        self._echo = not sys.stdin.isatty()
        self._open = self._echo or sys.stdout.isatty()

    def read(self, out: Console) -> str | None:
        """The next line, stripped; None once there is nobody to ask."""
        if not self._open:
            return None
        out.print("[bold]>[/bold] ", end="")
        line = sys.stdin.readline()
        if not line:
            self._open = False
            out.print()
            return None
        if self._echo:
            out.print(Text(one_line(line.strip())))
        return line.strip()


class _Walk:
    """One lesson: where the reader is, and how often they were right at the first try."""

    def __init__(self, lesson: Lesson, prefix: str, answers: _Answers) -> None:
        self.out = console()
        self.lesson = lesson
        self.prefix = prefix
        self.answers = answers
        self.setting = ""
        self.tour = tour(lesson.path)
        self.place = 0
        self.predicted: dict[tuple[str, str, int], bool] = {}

    def go(self) -> bool:
        """Walk to the end. Returns whether the reader wants to go on."""
        self.out.print(Text(f"{self.prefix}{one_line(self.tour.title)}", style="bold"))
        for text in (self.lesson.introduction, HELP):
            say(self.out, text)
        while self.place <= len(self.tour.stops()):
            self._show()
            if not self._answer():
                return False
        return True

    @property
    def stop(self) -> tuple[Part, Page] | None:
        """Where the reader is; None behind the last page."""
        stops = self.tour.stops()
        return stops[self.place] if self.place < len(stops) else None

    def _show(self) -> None:
        if self.stop is not None:
            print_question(self.out, *self.stop)
            return
        for part in self.tour.parts:
            print_results(self.out, part)
        if self.predicted:
            say(self.out, f"You predicted {sum(self.predicted.values())} of {len(self.predicted)} iterations right.")
        self._suggest()

    def _suggest(self) -> None:
        for setting, question in self.lesson.what_if:
            say(self.out, f"  what-if {setting}: {question}")

    def _answer(self) -> bool:
        """Take lines until the reader moves. Returns whether they did not quit."""
        while True:
            line = self.answers.read(self.out) or ""
            word, _, rest = line.partition(" ")
            command = self._command(word)
            if command == "quit":
                return False
            if command == "help":
                say(self.out, HELP)
                self._suggest()
            elif command == "what-if":
                if self._change(rest.strip()):
                    return True
            elif command == "back":
                self.place = max(self.place - 1, 0)
                return True
            elif self._predict("" if command == "next" else line):
                self.place += 1
                return True

    def _command(self, word: str) -> str | None:
        """The command that a word is; a letter that is a request's id is none."""
        ids = {request.id for request in self.tour.parts[0].run.requests}
        return next((name for name in COMMANDS if word == name or (word == name[0] and word not in ids)), None)

    def _predict(self, line: str) -> bool:
        """Compare what the reader wrote with what happens, and show that. Returns whether it could be read."""
        if self.stop is None:
            return True
        part, page = self.stop
        if line:
            try:
                verdict = mark(read_prediction(line, [request.id for request in part.run.requests]), page)
            except ValueError as error:
                say(self.out, str(error))
                return False
            self.predicted.setdefault((self.setting, part.run.engine, page.number), verdict.is_right)
            print_verdict(self.out, verdict)
        print_answer(self.out, page)
        return True

    def _change(self, setting: str) -> bool:
        """Run under another setting and go to where it makes a difference; False if it cannot be run."""
        overrides: dict[str, Any] = {}
        try:
            overrides |= dict([parse_setting(setting, "what-if")]) if setting else {}
            changed = tour(self.lesson.path, overrides)
        except BatchlabError as error:
            if isinstance(error, InputError):
                error = named(error, dict.fromkeys(overrides, "what-if"))
            say(self.out, str(error))
            return False
        place = changed.first_difference(self.tour)
        print_change(self.out, self.tour, changed, place)
        self.setting, self.tour = setting, changed
        self.place = self.place if place is None else place
        return True
