"""A pasted command line taken apart as a shell would, without running anything of it."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from batchlab.errors import InputError

NESTED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
WORD = rf"""(?:[$<>]{NESTED}|`[^`]*`|\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\s"'\\|&;<>()`])+"""
"""What a shell makes one word of, what it would put in for $(...) left as it stands."""
TOKEN = re.compile(
    rf"""(?P<blank>[ \t\r\f\v]+|\#[^\n]*)
    |(?P<redirection>(?:\d*(?:<<<|<<|<>|<&|<(?!\()|>>|>\||>&|>(?!\())|&>>?)[ \t]*(?:{WORD})?)
    |(?P<end>\n\s*|[|&;()]+)
    |(?P<word>{WORD})""",
    re.DOTALL | re.VERBOSE,
)
CONTINUATION = re.compile(r"\\[ \t]*(?:\r?\n|\Z)")
"""A line that goes on; blanks behind the backslash, or nothing more, come from copying."""


@dataclass(frozen=True)
class Token:
    """A piece of a command line. raw: as it was typed. text: what the command gets of it, None where that is nothing,
    as of a redirection. ends: whether the command ends with it."""

    raw: str
    text: str | None = None
    ends: bool = False


def tokens(line: str, option: str) -> list[Token]:
    """A command line's pieces, without comments. option: what it was given by, for the InputError if it is none."""
    line = CONTINUATION.sub(" ", line).strip()
    found: list[Token] = []
    place = 0
    while place < len(line):
        match = TOKEN.match(line, place)
        if match is None:
            expected = f"cannot be read as a command line: no end of {line[place]}"
            raise InputError(option, None, line, expected)
        place = match.end()
        if match["word"]:
            found.append(Token(match["word"], _text(match["word"], line, option)))
        elif match["redirection"]:
            found.append(Token(match["redirection"]))
        elif match["end"] and not match["end"].isspace():
            found.append(Token(match["end"], ends=True))
        elif match["end"] and found and not found[-1].ends and line[place] != "-":
            # No command begins with a -: there the backslash of a continuation was lost.
            found.append(Token(";", ends=True))
    return found


def _text(raw: str, line: str, option: str) -> str:
    try:
        return "".join(shlex.split(raw)) if re.search(r"[\"'\\]", raw) else raw
    except ValueError as error:
        raise InputError(option, None, line, f"cannot be read as a command line: {error}") from error


def commands(found: Sequence[Token]) -> list[range]:
    """Where each command stands among the pieces."""
    ends = [place for place, token in enumerate(found) if token.ends]
    starts = [0, *(end + 1 for end in ends)]
    return [range(start, end) for start, end in zip(starts, [*ends, len(found)], strict=True) if start < end]
