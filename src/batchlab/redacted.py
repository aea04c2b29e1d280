"""What of a command line is nobody else's business, hidden before anything of the line is shown or saved.

By names and by looks, so without guarantee: a secret that has neither stays.
"""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from batchlab.shell_line import Token, commands, tokens

STARS = "***"
PART = re.compile(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])")
"""What stands between the parts of a name: HF_TOKEN, hf-token, hfToken."""
SECRET = re.compile(
    r".*(?:token|secret|key|pass|password|passwd|passphrase|passcode|pwd|credential|auth|authentication|authorization"
    r"|cookie)s?|pw|pat|jwt|otp|sig|signature|bearer"
)
"""A part, in small letters, that makes a name a secret's: by itself or at its end, as in PGPASSWORD."""
SESSION = re.compile(r"session(?:_?id)?")
"""A whole name that does, other than a flag's."""
COUNT = re.compile(r"(?:^|_)(?:num|max|min|batched|threshold|limit|budget|count|size)(?:_|$)|tokens$")
"""Names, in small letters, of what is counted: --max-num-batched-tokens, num_key_value_heads."""
NEVER = re.compile(
    r"(?:.*_)?(?:tokens?_(?:ids?|tree|only|details)|allow_credentials|pass_config(?:_.*)?"
    r"|(?:eos|bos|pad|unk|sep|cls|mask|stop|special|image|video|audio)_tokens?)"
)
"""Names, in small letters, of what a model has, and vLLM's own switches, whose next word is not their value."""
NUMBER = re.compile(r"-?[0-9][0-9._]*[kKmM]?")
PLAIN = ("", "true", "false", "none", "null")
"""Values that are no secrets, whatever their names."""
FOLDERS = ("PWD", "OLDPWD")
SEVERAL = re.compile("--api[-_]key|.*s")
"""Flags that take more than one word."""
FLAG = re.compile("--?[A-Za-z]")
NAMED = re.compile(r"(?<![\w.$-])(?<!\$\{)(?P<name>[\w.-]+)(?P<is>[\"']?\s*(?:\+?=|:(?!//))\s*|(?<=\w)\s+)")
"""A name and what stands between it and its value: NAME=, Name: , 'name': and, of a command in quotes, --name """
LISTED = re.compile(r".*?(?=,\s*[\w.-]+=|\Z)", re.DOTALL)
"""A value up to the next name in a=1,b=2."""
QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'|\S*")
"""A value behind a flag, where both are in one word."""
QUERIED = re.compile(r"[^&#]*")
"""A value in a URL's query."""
USER = re.compile(
    r"(?:(?<=://)(?:[^\s/?#@:]*:(?!\d+[/?#])\S{1,2000}|[^\s/?#@]+)"
    r"|(?:^|(?<=[=,\s\"']))[\w.+-]+:(?!/)[^\s@]{1,2000})(?=@(?!sha256:))"
)
"""Who calls, and the password, before a host; bounded, so that a word of any length is read in linear time."""
KNOWN = re.compile(
    r"(?<=\bBearer )[^\s\"']+|(?<=\bBasic )[^\s\"']+|(?<![\w-])(?:hf_[a-z0-9]{8,}(?![a-z0-9=/-])"
    r"|(?:sk-|gh[a-z]_|github_pat_|AKIA)[\w-]{8,})",
    re.IGNORECASE,
)
"""What looks like a secret, wherever it stands."""
ELSEWHERE = re.compile(
    r"\"?(?:--?[\w-]+=)?(?:\w+\+?=)?\"?(?:[\w-]+:\s*)?(?:(?:Bearer|Basic)\s+)?"
    r"(?:\$\w+|\$\{\w+\}|\$\((?:cat\s+|<\s*)?[\w./~$-]+\)|`(?:cat\s+)?[\w./~$-]+`)\"?"
)
"""A variable, or what a file or a program has, and nothing beside it, as it was typed."""
SUBSTITUTED = re.compile(r"[$`]|[<>]\(")
HIDDEN = shlex.quote(STARS)
"""In quotes: a shell would take it for the names of files."""
BEFORE = re.compile(r"\w+\+?=.*|while|until|if|then|elif|else|do|done|fi|time|sudo|exec|nohup|[!{}]", re.DOTALL)
"""What may stand before a program."""
PREPARES = ("cd", "export", "source", ".", "mkdir", "ulimit", "sleep", "tee", "set", "for", "conda", "module")
"""Programs whose words are shown, as those of the server are: they make the line run where it did."""


def read(line: str, option: str) -> list[Token]:
    """A pasted line's tokens (see `shell_line.tokens`), with secrets as stars. Raises InputError, which shows none."""
    return without_secrets(tokens(line, option))


def is_secret(name: str, value: str) -> bool:
    """Whether a flag, a variable, a header or a key of JSON has a value that is to be hidden, by its name.

    It is if token, key, secret, password or the like is one of the name's parts or ends one of them; but nothing that
    is counted, and no token of a text.
    """
    parts = [part.lower() for part in PART.split(name)]
    whole = "_".join(parts)
    if value.strip().lower() in PLAIN or name in FOLDERS or NEVER.fullmatch(whole):
        return False
    if not SESSION.fullmatch(whole) and not any(map(SECRET.fullmatch, parts)):
        return False
    return not (NUMBER.fullmatch(value) and COUNT.search(whole))


def without_secrets(line: Sequence[Token]) -> list[Token]:
    """A line's tokens with secrets as stars: the values of flags, variables, headers and keys of JSON with such names,
    who calls in a URL, what looks like a secret, and what a program is given to read."""
    found = []
    flag, behind = "", 0  # behind: so many words of a flag with such a name
    for token in line:
        text = token.text or ""
        shown = _word(text)
        if token.ends or (text.startswith("--") if flag and not behind else FLAG.match(text)):
            names = not token.ends and "=" not in text and is_secret(text, STARS)
            flag, behind = text if names else "", 0
        elif flag and text and (not behind or SEVERAL.fullmatch(flag)):
            behind += 1
            shown = STARS if is_secret(flag, text) else shown
        if "<<<" in token.raw and token.text is None:
            token = replace(token, raw=f"<<< {HIDDEN}")
        elif shown != text and not ELSEWHERE.fullmatch(token.raw):
            kept = token.raw.startswith("'") or not SUBSTITUTED.search(shown)
            token = replace(token, raw=_quoted(shown) if kept else HIDDEN, text=shown if kept else STARS)
        found.append(token)
    return found


def outlined(line: Sequence[Token], own: int | None = None) -> list[Token]:
    """A line's tokens; of commands other than the one at a place, and than what prepares it, the program alone."""
    found = list(line)
    for each in reversed(commands(line)):
        words = [place for place in each if line[place].text is not None]
        program = next((place for place in words if not BEFORE.fullmatch(line[place].text or "")), None)
        if own in each or program is None or program == words[-1] or line[program].text in PREPARES:
            continue
        found[program + 1 : words[-1] + 1] = [Token("...", "...")]
    return found


def _quoted(text: str) -> str:
    """As a shell reads it back, with names before = as they are."""
    names = re.match(r"(?:[\w.-]+\+?=)*", text)
    assert names is not None
    return names[0] + shlex.quote(text[names.end() :])


def _word(text: str) -> str:
    """A word, or a string in JSON, with its secrets as stars."""
    for start in _starts_of_json(text):
        try:
            document = json.loads(text[start:])
            hidden = _document(document)
        except (ValueError, RecursionError):
            continue
        return text if hidden == document else text[:start] + json.dumps(hidden, ensure_ascii=False)
    text = USER.sub(STARS, text) if "@" in text else text
    return _values(KNOWN.sub(STARS, text))


def _values(text: str) -> str:
    """A text with the values of names in it as stars where they are secrets."""
    parts, place = [], 0
    while (given := NAMED.search(text, place)) is not None:
        value = _value(text, given) if is_secret(given["name"], STARS) else ""
        hidden = is_secret(given["name"], value)
        parts += [text[place : given.end()], STARS if hidden else ""]
        place = given.end() + (len(value) if hidden else 0)
    return "".join(parts) + text[place:]


def _value(text: str, given: re.Match[str]) -> str:
    """What stands behind a name; nothing where that is a file, or a host and its port."""
    before = text[max(given.start() - 1, 0) : given.start()]
    if given["is"].strip().endswith(":"):
        return "" if before in ("/", "@") else text[given.end() :]
    pattern = QUERIED if before in ("?", "&") else LISTED
    if given["is"].isspace():
        if not given["name"].startswith("--"):
            return ""
        pattern = QUOTED
    match = pattern.match(text, given.end())
    assert match is not None
    return match[0]


def _starts_of_json(text: str) -> Iterator[int]:
    """Where a document may begin: with the word, or behind the flag."""
    for start in (0, text.find("=") + 1):
        if text[start : start + 1] in ("{", "["):
            yield start


def _document(value: Any, name: str = "") -> Any:
    """A document of JSON with its secrets as stars. name: the key that has it."""
    if name == "valueFrom":  # Kubernetes knows it, not the line
        return value
    if is_secret(name, value if isinstance(value, str) else json.dumps(value)):
        return STARS
    if isinstance(value, dict):
        names = {"value": str(value.get("name") or "")}
        return {key: _document(one, names.get(key) or key) for key, one in value.items()}
    if isinstance(value, list):
        return [_document(one) for one in value]
    return _word(value) if isinstance(value, str) else value
