"""The pool of KV blocks: how many are free, what a prefix cache may say, and what a swap moves."""

from __future__ import annotations

from typing import Any

from batchlab.trace.ledger import Ledger
from batchlab.trace.state import Known


class Pool:
    """Derives the blocks in use. Where requests may share cached blocks, only bounds of their number follow."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._terms = ledger.terms
        self._held = 0
        self._free = ledger.terms.num_blocks or 0
        """As recorded last."""
        self._taken = self._hits = self._released = self._moved_least = self._moved_most = 0
        self._found: dict[str, list[int]] = {}
        """`cached` of this iteration, as far as it is not used up; `_open`: who may have had it in an earlier seat."""
        self._open: set[str] = set()

    def begin(self, obj: dict[str, Any]) -> None:
        """An iteration begins."""
        self._taken = self._hits = self._released = self._moved_least = self._moved_most = 0
        self._found, self._open = {}, set()
        for name, tokens in obj.get("cached", ()):
            self._found.setdefault(name, []).append(tokens)
        stated = [field for field in ("kv", "cached") if field in obj]
        if self._terms.num_blocks is None and stated:
            self._ledger.bad("kv", f"{' and '.join(stated)} stated, but the header models no KV blocks")
        elif self._terms.num_blocks is not None and len(stated) < 2:
            self._ledger.bad("kv", "kv and cached expected, because the header models KV blocks")

    def release(self, request: Known) -> None:
        """It holds nothing any more."""
        self._held -= request.held
        self._released += request.held
        request.held = 0

    def drop(self, request: Known) -> None:
        """It ends. It may have got tokens in this iteration, which are refunded."""
        for tokens in self._found.pop(request.id, ()):
            self._cached(request, tokens)
        self.release(request)

    def stand(self, request: Known, mode: str, computed: int, more_seats: bool) -> None:
        """It is about to be preempted, in whatever mode.

        One that took its seat in this iteration may have got tokens before, which are refunded: the line shows that
        only by what it found in the cache.
        """
        found = self._found.get(request.id)
        ran = request.held > 0
        if request.fresh and request.computed == 0 and found:
            if not more_seats or len(found) > 1 or computed == found[0] > 0:
                self._cached(request, found.pop(0))
                ran = True
            else:
                self._open.add(request.id)
        unclear = not ran and request.computed > 0
        blocks = self._terms.blocks_for(request.computed)
        if unclear:
            self._moved_most += request.swapped_most
        if mode == "swap":
            least, most = (blocks if ran else 0), (blocks if ran or unclear else 0)
            self._moved_least += least
            self._moved_most += most
            request.swapped_least = min(request.swapped_least, blocks) if unclear else least
            request.swapped_most = max(request.swapped_most, blocks) if unclear else most
        elif mode == "recompute" or ran:
            request.swapped_least = request.swapped_most = 0
        elif unclear:
            request.swapped_least = 0
        self.release(request)

    def find(self, request: Known) -> int:
        """It is about to get its first tokens in its seat, and may find some computed. Returns their number."""
        if self._terms.num_blocks is None or request.computed:
            return 0
        found = self._found.get(request.id)
        if not found:
            self._ledger.bad("cached", "gets its first tokens, but cached says nothing of it", request.id)
            return 0
        return self._cached(request, found.pop(0))

    def grow(self, request: Known, cached: int) -> None:
        """It has got tokens, and holds the blocks for all that it has computed."""
        needed = self._terms.blocks_for(
            self._terms.held_tokens(request.computed, request.prefill_target, request.prompt + request.max_tokens)
        )
        hits = cached // self._terms.block_size
        self._taken += needed - request.held - hits
        self._hits += hits
        self._held += needed - request.held
        request.held = needed
        self._moved_least += request.swapped_least
        self._moved_most += request.swapped_most
        request.swapped_least = request.swapped_most = 0

    def check_plan(self, obj: dict[str, Any]) -> None:
        """After the plan: `cached` names nobody else, `free` and `moved` are right."""
        for name, found in self._found.items():
            if found and self._terms.num_blocks is not None and (any(found) or name not in self._open):
                self._ledger.bad("cached", f"cached {found[0]}, but it gets no first tokens in a seat", name)
        kv = obj.get("kv")
        if kv is None or self._terms.num_blocks is None:
            return
        self._check(
            "free", kv["free"], self._free - self._taken - self._hits, self._free - self._taken + self._released
        )
        moved, least, most = kv["moved"], self._moved_least, self._moved_most
        self._ledger.moved_blocks += moved
        if not least <= moved <= most:
            self._ledger.bad("swap", f"moved {moved}, but {_range(least, most)} follows")
        self._free, self._released = kv["free"], 0

    def check_end(self, obj: dict[str, Any]) -> None:
        """After deliveries and completions: `free_after` is right."""
        kv = obj.get("kv")
        if kv is not None and self._terms.num_blocks is not None:
            self._check("free_after", kv["free_after"], self._free, self._free + self._released)
            self._free = kv["free_after"]

    def _check(self, field: str, given: int, least: int, most: int) -> None:
        """`least` and `most` follow from what was free before; what all hold together is a bound too."""
        total = self._terms.num_blocks or 0
        if self._terms.caching:
            requests = self._ledger.requests
            least = max(least, total - self._held, 0)
            most = min(most, total - max((requests[name].held for name in self._ledger.active), default=0))
        else:
            least = most = total - self._held
        if not least <= given <= most or given < 0:
            held = f"of {total} blocks, {self._held} held"
            self._ledger.bad("kv", f"{field} {given}, but {_range(least, most)} follows: {held}")

    def _cached(self, request: Known, tokens: int) -> int:
        terms, longest = self._terms, request.known - 1
        if tokens and not terms.caching:
            self._ledger.bad("cached", f"cached {tokens}, but enable_prefix_caching is false", request.id)
        elif tokens > longest:
            self._ledger.bad("cached", f"cached {tokens}, but at most {longest} of {longest + 1} known", request.id)
        elif tokens % terms.block_size:
            self._ledger.bad("cached", f"cached {tokens}, but whole blocks of {terms.block_size} expected", request.id)
        self._ledger.cached_tokens += tokens
        self._ledger.recomputed_tokens -= request.find_cached(tokens)
        return tokens


def _range(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"
