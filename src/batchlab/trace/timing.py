"""What the header's own cost model says of an iteration's start and end."""

from __future__ import annotations

import math
from typing import Any

from batchlab.trace.ledger import Ledger

COEFFICIENTS = ("per_iteration", "prefill_token", "decode_token", "context_token", "moved_block", "prefill_pair")


def duration(obj: dict[str, Any], ledger: Ledger) -> int | None:
    """How long a step with this work lasts; None where the header's cost does not tell, or several steps overlap."""
    cost = ledger.header["clock"]["cost"]
    if cost["model"] != "linear" or ledger.terms.depth > 1 or not (obj["scheduled"] or obj.get("padding")):
        return None
    c = {name: cost.get(name, 0) for name in COEFFICIENTS}
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in c.values()):
        return None
    prefill = decode = context = pairs = 0
    for name, phase, tokens in obj["scheduled"]:
        request = ledger.requests.get(name)
        after = 0 if request is None else request.computed
        context += after
        if phase == "prefill":
            prefill += tokens
            pairs += tokens * (after - tokens) + tokens * (tokens + 1) // 2
        else:
            decode += tokens
    moved = obj.get("kv", {}).get("moved", 0)
    total = (
        c["per_iteration"]
        + c["prefill_token"] * prefill
        + c["decode_token"] * (decode + obj.get("padding", 0))
        + c["context_token"] * context
        + c["moved_block"] * moved
        + c["prefill_pair"] * pairs
    )
    return max(1, math.floor(total + 0.5)) if isinstance(total, float) else max(1, total)


def first_due(obj: dict[str, Any], ledger: Ledger) -> int | None:
    """When the first of those who arrive in this iteration was to come; to be asked before they are taken in."""
    return min((ledger.requests[name].comes_at for name in obj["arrived"] if name in ledger.requests), default=None)


def late_start(start: int, ledger: Ledger, previous_end: int, was_idle: bool, due: int | None) -> str | None:
    """What is wrong with a start after the previous end, where the header's cost is a simulator's; None if nothing.

    Time jumps only over idleness, to the arrival that ends it: `due`.
    """
    if ledger.header["clock"]["cost"]["model"] not in ("linear", "unit") or start <= previous_end:
        return None
    if not was_idle:
        return f"start {start}, but the previous iteration ended at {previous_end} with requests that go on"
    if start != due:
        return f"start {start}, but the idle engine goes on at the next arrival, {'none' if due is None else due}"
    return None
