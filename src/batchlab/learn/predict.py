"""What a reader predicts, and what is right about it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from batchlab.errors import nearest, shorten
from batchlab.learn.pages import Page

TOKENS = re.compile(r"(.+)\+(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A prediction beside what happened, in the words of the answer. Order does not count."""

    right: list[str]
    wrong: list[str]
    missing: list[str]

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong and nothing is missing."""
        return not self.wrong and not self.missing


def read_prediction(text: str, ids: Collection[str]) -> list[str]:
    """`A+3 B`, with spaces or commas between, as a list of marks. Raises ValueError, which says what is right."""
    found = [word for word in re.split(r"[\s,]+", text) if word]
    for word in found:
        part = TOKENS.fullmatch(word)
        id = part[1] if part else word
        if id not in ids:
            known = f"no request has the id {shorten(id)}{nearest(id, ids)}"
            raise ValueError(f"{shorten(word)}: {known}; write A+3 for 3 prompt tokens of A, A for a decode")
    if len(set(found)) != len(found):
        raise ValueError(f"{shorten(text)}: one is named twice")
    return found


def mark(predicted: list[str], page: Page) -> Verdict:
    """Compare a prediction with a page's schedule."""
    actual = page.schedule
    return Verdict(
        [entry for entry in predicted if entry in actual],
        [entry for entry in predicted if entry not in actual],
        [entry for entry in actual if entry not in predicted],
    )
