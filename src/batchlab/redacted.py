"""What of a command line is nobody else's business, hidden before the line goes into files that are passed on."""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from batchlab.shell_line import Token

STARS = "***"
PART = re.compile(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])")
"""What stands between the parts of a name: HF_TOKEN, hf-token, hfToken."""
SECRET = re.compile(
    r".*(?:token|secret|key|pass|password|passwd|passphrase|pwd|credential|auth|authentication|authorization)s?|pw"
)
"""A part, in small letters, that makes a name a secret's: by itself or at its end, as in PGPASSWORD."""
COUNT = re.compile(r"(?:^|_)(?:num|max|min|batched|threshold|limit|budget|count|size)(?:_|$)|tokens$|token_ids?$")
"""Names, in small letters, of what is counted or numbered: --max-num-batched-tokens, num_key_value_heads."""
NUMBER = re.compile(r"-?[0-9][0-9._]*[kKmM]?")
PLAIN = ("", "true", "false", "none", "null")
"""Values that are no secrets, whatever their names."""
LONGEST = 64
"""Characters of a value that are looked at: no number is longer."""
FOLDERS = ("PWD", "OLDPWD")
SWITCH = re.compile(r"--?(?:allow|enable|disable|no|return|skip|use)[-_.].*|.*[-_]only")
"""Flags whose next word is not their value."""
FLAG = re.compile("--?[A-Za-z]")
NAMED = re.compile(r"(?<![\w.$-])(?<!\$\{)(?P<name>[\w.-]+)(?P<is>[\"']?\s*(?:\+?=|:(?!//))\s*)")
"""A name and what stands between it and its value: NAME=, Name: , 'name':"""
USER = re.compile(r"(?<=://)[^\s/?#@]+(?:@[^\s/?#@]+)*(?=@)")
"""Who calls, and the password, in a URL."""
ELSEWHERE = re.compile(
    r"(?:[^=]*=)*\"?(?:[\w-]+:\s*)?(?:(?:Bearer|Basic)\s+)?(?:\$\{?\w+\}?|\$\(.*\)|`[^`]*`)\"?", re.DOTALL
)
"""What a shell puts in from elsewhere, and nothing beside it, as it was typed."""
HIDDEN = shlex.quote(STARS)
"""In quotes: a shell would take it for the names of files."""


def is_secret(name: str, value: str) -> bool:
    """Whether a flag, a variable, a header or a key of JSON has a value that is to be hidden, by its name.

    It is if token, key, secret, password or the like is one of the name's parts or ends one of them; but no number of
    what is counted.
    """
    parts = [part.lower() for part in PART.split(name)]
    if value.strip().lower() in PLAIN or name in FOLDERS or not any(map(SECRET.fullmatch, parts)):
        return False
    return not (NUMBER.fullmatch(value) and COUNT.search("_".join(parts)))


def without_secrets(line: Sequence[Token]) -> list[Token]:
    """A line's tokens with secrets as stars: the values of flags, variables, headers and keys of JSON with such names,
    and who calls in a URL."""
    found = []
    flag, behind = "", 0  # behind: so many words of a flag with such a name
    for token in line:
        text = token.text or ""
        shown = _word(text)
        if token.ends or (text.startswith("--") if flag and not behind else FLAG.match(text)):
            names = not token.ends and "=" not in text and not SWITCH.fullmatch(text) and is_secret(text, STARS)
            flag, behind = text if names else "", 0
        elif flag and text:
            behind += 1
            shown = STARS if is_secret(flag, text) else shown
        if shown != text and not ELSEWHERE.fullmatch(token.raw):
            kept = "$" not in shown and "`" not in shown
            token = replace(token, raw=_quoted(shown) if kept or token.raw.startswith("'") else HIDDEN, text=shown)
        found.append(token)
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
    text = USER.sub(STARS, text)
    for given in NAMED.finditer(text):
        is_header = given["is"].strip() == ":"
        if is_header and text[max(given.start() - 1, 0) : given.start()] in (
            "/",
            "@",
        ):  # a file, or a host and its port
            continue
        if is_secret(given["name"], text[given.end() : given.end() + LONGEST]):
            return text[: given.end()] + STARS
    return text


def _starts_of_json(text: str) -> Iterator[int]:
    """Where a document may begin: with the word, or behind the flag."""
    for start in (0, text.find("=") + 1):
        if text[start : start + 1] in ("{", "["):
            yield start


def _document(value: Any, name: str = "") -> Any:
    """A document of JSON with its secrets as stars. name: the key that has it."""
    if isinstance(value, dict):
        return {key: STARS if _is_told(key, one) else _document(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_document(one) for one in value]
    return _word(value) if isinstance(value, str) else value


def _is_told(key: str, value: Any) -> bool:
    return is_secret(key, value if isinstance(value, str) else json.dumps(value))
