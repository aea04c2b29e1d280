"""A pasted command line taken apart as a shell would, without running anything of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from batchlab.errors import InputError

NESTED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
LINE_END = r"\\[^\S\n]*(?:\n|\Z)"
"""A line that goes on; blanks behind the backslash, or nothing more, come from copying."""
ATOM = rf"""\\\r?\n|(?!{LINE_END})\\.|[$<>]{NESTED}|`[^`]*`|'[^']*'|"(?:\\.|[^"\\])*"|[^\s"'\\|&;<>()`]"""
WORD = rf"(?:{ATOM})+"
"""What a shell makes one word of, what it would put in for $(...) left as it stands."""
TOKEN = re.compile(
    rf"""(?P<blank>[^\S\n]+|{LINE_END}|\#[^\n]*)
    |(?P<redirection>(?:\d*(?:<<<|<<|<>|<&|<(?!\()|>>|>\||>&|>(?!\())|&>>?)[ \t]*(?:{WORD})?)
    |(?P<end>\n\s*|[|&;()]+)
    |(?P<word>{WORD})""",
    re.DOTALL | re.VERBOSE,
)
ATOMS = re.compile(ATOM, re.DOTALL)
ESCAPED = re.compile(r"\\(\r?\n|.)", re.DOTALL)
CONTINUATION = re.compile(LINE_END)


@dataclass(frozen=True)
class Token:
    """A piece of a command line. raw: as it was typed, on one line. text: what the command gets of it, None where that
    is nothing, as of a redirection. ends: whether the command ends with it."""

    raw: str
    text: str | None = None
    ends: bool = False


def tokens(line: str, option: str) -> list[Token]:
    """A command line's pieces, without comments. option: what it was given by, for the InputError if it is none."""
    line = line.strip()
    found: list[Token] = []
    place = 0
    while place < len(line):
        match = TOKEN.match(line, place)
        if match is None:
            expected = f"cannot be read as a command line: no end of {line[place]}"
            raise InputError(option, None, line, expected)
        place = match.end()
        if match["word"]:
            found.append(_word(match["word"]))
        elif match["redirection"]:
            found.append(Token(match["redirection"]))
        elif match["end"] and not match["end"].isspace():
            found.append(Token(match["end"], ends=True))
        elif match["end"] and found and not _goes_on(found[-1]) and line[place] != "-":
            # No command begins with a -: there the backslash of a continuation was lost.
            found.append(Token(";", ends=True))
    return found


def _goes_on(token: Token) -> bool:
    """Whether a new line behind it ends nothing."""
    return token.ends and not token.raw.endswith(")")


def _word(raw: str) -> Token:
    """A word, its quotes and escapes taken off for the command."""
    typed, text = "", ""
    for atom in ATOMS.findall(raw):
        if atom[0] == "'":
            typed += atom
            text += atom[1:-1]
        elif atom[0] == '"':
            typed += ESCAPED.sub(lambda found: "" if found[1].isspace() and "\n" in found[1] else found[0], atom)
            text += ESCAPED.sub(lambda found: _in_quotes(found[1]), atom[1:-1])
        elif atom[0] == "\\":
            typed += "" if atom.endswith("\n") else atom
            text += "" if atom.endswith("\n") else atom[1:]
        else:
            typed += atom
            text += atom
    return Token(typed, text)


def _in_quotes(escaped: str) -> str:
    """What double quotes make of a backslash and this."""
    if escaped.endswith("\n"):
        return ""
    return escaped if escaped in '$`"\\' else f"\\{escaped}"


def commands(found: Sequence[Token]) -> list[range]:
    """Where each command stands among the pieces."""
    ends = [place for place, token in enumerate(found) if token.ends]
    starts = [0, *(end + 1 for end in ends)]
    return [range(start, end) for start, end in zip(starts, [*ends, len(found)], strict=True) if start < end]
