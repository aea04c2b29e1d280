"""A pasted command line taken apart as a shell would, without running anything of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from batchlab.errors import InputError

CONTINUATION = re.compile(r"\\[^\S\n]*(?:\n|\Z)")
"""A line that goes on; blanks behind the backslash, or nothing more, come from copying."""
COMMANDS = ("(", "$(", "<(", ">(")
CLOSED_BY = {"'": "'", "$'": "'", '"': '"', '$"': '"', "`": "`", "${": "}", **dict.fromkeys(COMMANDS, ")")}
"""What ends what: quotations, and what a shell puts something in for."""
LOST = r"(?P<lost>\\\r?\n)"
COPIED = rf"(?P<copied>{CONTINUATION.pattern})"
PIECES = {
    "'": r".",
    "$'": r"\\?.",
    "`": rf"{LOST}|\\?.",
    **dict.fromkeys(('"', '$"'), rf"{LOST}|(?P<opens>\$[({{]|`)|\\?."),
    "${": rf"""{LOST}|(?P<opens>\$[({{'"]|['"`])|\\?.""",
    **dict.fromkeys(COMMANDS, rf"""{LOST}|{COPIED}|(?P<opens>[$<>]?\(|\$[{{'"]|['"`])|\\?."""),
    "": rf"""{LOST}|{COPIED}|(?P<opens>[$<>]\(|\$[{{'"]|['"`])|\\?.""",
}
"""What a shell takes as one within each of them, and where nothing is open."""
PIECE = {within: re.compile(pattern, re.DOTALL) for within, pattern in PIECES.items()}
APART = frozenset(" \t\r\n|&;<>()")
"""What a comment may stand behind."""
TOKEN = re.compile(
    r"""(?P<blank>[^\S\n]+)
    |(?P<redirection>(?:\d*(?:<<<|<<-?|<>|<&|<|>>|>\||>&|>)|&>>?)[^\S\n]*[^\s|&;<>()]+)
    |(?P<end>\n\s*|&&|\|\||\|&|;;|&(?!>)|[|;()])
    |(?P<word>[^\s|&;<>()]+)""",
    re.VERBOSE,
)
ANSI = re.compile(
    r"\\(?:(?P<octal>[0-7]{1,3})|x(?P<byte>[0-9a-fA-F]{1,2})|c(?P<control>.)|(?P<named>[abeEfnrtv\\'\"?])"
    r"|u(?P<short>[0-9a-fA-F]{1,4})|U(?P<long>[0-9a-fA-F]{1,8}))",
    re.DOTALL,
)
NAMED = dict(zip("abeEfnrtv", "\a\b\033\033\f\n\r\t\v", strict=True))


@dataclass(frozen=True)
class Token:
    """A piece of a command line. raw: as it was typed, on one line. text: what the command gets of it, None where that
    is nothing, as of a redirection; what a shell would put in for $(...) and the like left as it stands. ends: whether
    the command ends with it."""

    raw: str
    text: str | None = None
    ends: bool = False


def tokens(line: str, option: str) -> list[Token]:
    """A command line's pieces, without comments. option: what it was given by, for the InputError if it is none, which
    quotes nothing of it: what cannot be told apart may be a secret."""
    try:
        pieces, _ = _pieces(line, 0, "")
        return _grouped(pieces)
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:
        reason = str(error)
    raise InputError(option, None, None, f"cannot be read as a command line: {reason}")


def commands(found: Sequence[Token]) -> list[range]:
    """Where each command stands among the pieces."""
    ends = [place for place, token in enumerate(found) if token.ends]
    starts = [0, *(end + 1 for end in ends)]
    return [range(start, end) for start, end in zip(starts, [*ends, len(found)], strict=True) if start < end]


def _pieces(line: str, place: int, within: str) -> tuple[list[str], int]:
    """What stands from a place on to where `within` is closed, and the place behind that.

    Each piece is a character, or more that are as one: with a backslash, or a quotation or an expansion as a whole.
    Continuations and comments are left out.
    """
    found: list[str] = []
    start = place
    close = CLOSED_BY.get(within)
    while place < len(line) and line[place] != close:
        match = PIECE[within].match(line, place)
        assert match is not None
        piece, place = match[0], match.end()
        if match.lastgroup == "opens":
            inner, place = _pieces(line, place, piece)
            found.append("".join((piece, *inner, CLOSED_BY[piece])))
        elif piece == "#" and within in ("", *COMMANDS) and (not found or found[-1] in APART):
            end = line.find("\n", place)
            place = end if end >= 0 else len(line)
        elif match.lastgroup == "copied":
            found.append(" ")
        elif match.lastgroup != "lost":
            found.append(piece)
    if close is not None and place == len(line):
        raise ValueError(f"no end of {within} behind character {start}")
    return found, place + 1


def _grouped(pieces: Sequence[str]) -> list[Token]:
    """Pieces as tokens. Raises ValueError."""
    shape = "".join(piece if len(piece) == 1 else "_" for piece in pieces).rstrip()
    found: list[Token] = []
    place = 0
    while place < len(shape):
        match = TOKEN.match(shape, place)
        if match is None:
            raise ValueError(f"no file behind {shape[place]}")
        own = pieces[place : match.end()]
        place = match.end()
        if match["word"]:
            found.append(Token("".join(own), "".join(map(_text, own))))
        elif match["redirection"]:
            found.append(Token("".join(own)))
        elif match["end"] and not match["end"].isspace():
            found.append(Token(match["end"], ends=True))
        elif match["end"] and found and not _goes_on(found[-1]) and shape[place] != "-":
            # No command begins with a -: there the backslash of a continuation was lost.
            found.append(Token(";", ends=True))
    return found


def _goes_on(token: Token) -> bool:
    """Whether a new line behind it ends nothing."""
    return token.ends and token.raw != ")"


def _text(piece: str) -> str:
    """What a command gets of a piece of a word."""
    if len(piece) == 1 or piece[0] in "<>`" or piece[:2] in ("$(", "${"):
        return piece
    if piece[0] == "\\":
        return piece[1:]
    if piece[0] == "'":
        return piece[1:-1]
    if piece.startswith("$'"):
        typed = ANSI.sub(_ansi, piece[2:-1]).partition("\0")[0]
        return typed.encode(errors="surrogateescape").decode(errors="replace")
    inner, _ = _pieces(piece, piece.index('"') + 1, '"')
    return "".join(each[1] if len(each) == 2 and each[0] == "\\" and each[1] in '$`"\\' else each for each in inner)


def _ansi(escape: re.Match[str]) -> str:
    """What an escape in $'...' stands for; a byte that is no character by itself as a surrogate."""
    kind, value = escape.lastgroup, escape[escape.lastgroup or 0]
    if kind == "named":
        return NAMED.get(value, value)
    if kind == "control":
        return chr(ord(value) & 0x1F)
    code = int(value, 8 if kind == "octal" else 16)
    if kind in ("octal", "byte"):
        code &= 0xFF
        return chr(code if code < 0x80 else 0xDC00 + code)
    return chr(code) if code < 0xD800 or 0xDFFF < code < 0x110000 else "\ufffd"
