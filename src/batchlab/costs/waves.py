"""Decodes of unequal contexts: what the slowest thread blocks of an attention kernel add to its time.

A decode's attention is one thread block per KV head (FlashAttention without splits), two on a multiprocessor at a time.
Blocks are taken in order, head by head; each runs as fast as its own loop or as its share of the memory bandwidth
allows. Where one context is much longer than the others its block ends last, while most of the GPU idles.
"""

from collections.abc import Sequence
from heapq import heapreplace

BLOCKS_PER_SM = 2
"""Thread blocks of a decode's attention on a multiprocessor: what makes measured times of unequal contexts fit best."""
SPLIT_BELOW = 0.8
"""With fewer blocks than this share of the slots the kernel splits long contexts over several blocks
(num_splits_heuristic of FlashAttention), so that unequal contexts cost little."""
CACHED = 4096
AGE = 32
"""Tokens that all contexts of a batch may grow before the penalty is computed anew: it hardly depends on them."""


class Waves:
    """How much longer decodes take together than as many of their mean context.

    saturation: the share of the slots that is enough to use the whole memory bandwidth.
    """

    def __init__(self, sms: int, kv_heads: int, saturation: float) -> None:
        self.slots = BLOCKS_PER_SM * sms
        self.kv_heads = kv_heads
        self.saturation = saturation
        self._known: dict[tuple[int, tuple[int, ...]], float] = {}

    def penalty(self, contexts: Sequence[int]) -> float:
        """A factor, 1 where nothing is lost."""
        if len(contexts) * self.kv_heads < SPLIT_BELOW * self.slots:
            return 1.0
        first = contexts[0]
        key = (first // AGE, tuple([context - first for context in contexts]))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= CACHED:
                self._known.clear()
            known = self._known[key] = self._compute(contexts)
        return known

    def _compute(self, contexts: Sequence[float]) -> float:
        mean = sum(contexts) / len(contexts)
        return self.makespan(contexts) / self.makespan([mean] * len(contexts))

    def makespan(self, contexts: Sequence[float]) -> float:
        """When the last block ends, in tokens of one block that runs alone."""
        blocks = list(contexts) * self.kv_heads
        ends = sorted(blocks[: self.slots])
        enough = self.saturation * self.slots
        time = 0.0
        if len(blocks) > self.slots:
            for block in blocks[self.slots :]:
                heapreplace(ends, ends[0] + block)
            ends.sort()
            time = ends[0] * max(1.0, self.slots / enough)
        done = ends[0] if time else 0.0
        active = len(ends)
        for end in ends:
            if end > done:
                time += (end - done) * max(1.0, active / enough)
                done = end
            active -= 1
        return time


def fit_saturation(measured: Sequence[tuple[Sequence[float], float]], sms: int, kv_heads: int) -> tuple[float, float]:
    """The saturation that explains measured penalties best, by least squares, and the error left (root mean square).

    measured: contexts of a batch, and its time over that of equal contexts.
    """

    def squares(saturation: float) -> float:
        waves = Waves(sms, kv_heads, saturation)
        return sum((waves._compute(contexts) - penalty) ** 2 for contexts, penalty in kept)

    kept = [entry for entry in measured if len(entry[0]) * kv_heads >= SPLIT_BELOW * BLOCKS_PER_SM * sms]
    if not kept:
        raise ValueError("none of its batches has enough decodes to fill the GPU")
    grid = [step / 20 for step in range(1, 21)]
    best = min(grid, key=squares)
    fine = [best + step / 100 for step in range(-4, 5) if 0 < best + step / 100 <= 1]
    best = min(fine, key=squares)
    return best, (squares(best) / len(kept)) ** 0.5
