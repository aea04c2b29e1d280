"""Prompts of a given number of tokens: equal where the workload says so, random elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from batchlab.clients.identity import prompt_runs
from batchlab.clients.request import Request

FIRST_ID = 10
"""Token ids below it are often special ones."""
LETTERS = (
    "theandforarebutnotyouallanycanherwasoneouroutdaygethashimhishowmannewnowoldseetwowaywhoboydiditsletputsayshetoouse"
    "farfewgotbigendeatcutruntophotsuntenredseayeswartaxlawcardog"
)
WORDS = [LETTERS[start : start + 3] for start in range(0, len(LETTERS), 3)]
"""Common words of three letters: with the space before it, each is one token of most tokenizers, and four bytes."""


class Prompts:
    """Makes prompts. The same seed and workload give the same ones; another seed shares nothing with them.

    vocab: token ids are drawn from FIRST_ID up to below it.
    """

    def __init__(self, requests: Sequence[Request], seed: int, vocab: int) -> None:
        self._requests = requests
        self._seed = seed
        self._vocab = vocab

    def ids(self, position: int) -> list[int]:
        """As token ids: exactly as many as the request's prompt has."""
        return self._drawn(position, FIRST_ID, self._vocab)

    def text(self, position: int) -> str:
        """As words, one for each token: how many tokens that is, the server's tokenizer decides."""
        return " ".join(WORDS[k] for k in self._drawn(position, 0, len(WORDS)))

    def _drawn(self, position: int, low: int, high: int) -> list[int]:
        """Equal runs of tokens, where the workload knows of them, are equal numbers."""
        found: list[int] = []
        for segment, start, length in prompt_runs(self._requests, position, self._requests[position]):
            key = [self._seed, abs(segment), int(segment < 0)]
            drawn = np.random.default_rng(key).integers(low, high, start + length)
            found += drawn[start:].tolist()
        return found
