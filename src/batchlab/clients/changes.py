"""What [workload.transform] does to requests in columns. Each change gives new columns, whose origin tells of it."""

from dataclasses import replace
from typing import Any

import numpy as np

from batchlab.clients.columns import Columns, Integers
from batchlab.clients.draws import Stream
from batchlab.clients.rows import HASH_TOKENS
from batchlab.errors import InputError
from batchlab.settings import LATEST


def between(columns: Columns, first: int, end: int | None) -> Columns:
    """Those that arrive from `first` on and before `end`; times then count from `first`."""
    chosen = columns.arrival >= first
    if columns.sessions is not None:  # of a session that began before, nothing stays
        chosen = chosen[columns.sessions.first_turns]
    if end is not None:
        chosen &= columns.arrival < end
    window = f"arrivals from {first:,} on" if end is None else f"arrivals from {first:,} to before {end:,}"
    found = _only(columns, chosen, window)
    found.arrival = found.arrival - first
    return found


def sampled(columns: Columns, share: float, seed: int) -> Columns:
    """Each stays with this probability, or each session. A larger share keeps all that a smaller one keeps."""
    chosen = Stream(seed, "sample").uniform(len(columns)) < share
    if columns.sessions is not None:
        chosen = chosen[columns.sessions.first_turns]
    return _only(columns, chosen, f"sample {share:g} under seed {seed}")


def faster(columns: Columns, factor: float) -> Columns:
    """Arrivals divided by the factor, and rounded."""
    found = _copy(columns, f"times divided by rate_scale {factor:g}")
    scaled = columns.arrival / factor
    if scaled.max() > LATEST:
        raise InputError(None, "workload.transform.rate_scale", factor, "puts arrivals beyond 2^62")
    found.arrival = np.rint(scaled).astype(np.int64)
    return found


def dropped(columns: Columns, longest: int) -> Columns:
    """Without those whose prompt and output together are longer. Of a session that ends it: later turns are longer."""
    return _only(columns, columns.prompt + columns.output <= longest, f"at most {longest:,} tokens (max_model_len)")


def clipped(columns: Columns, longest: int) -> Columns:
    """Prompts cut to one token less than this, outputs to what is left: where an engine would stop.

    A request keeps the beginning of its prompt.
    """
    if columns.sessions is not None:
        raise InputError(None, "workload.transform.too_long", "clip", "would tear shared prompts apart: use 'drop'")
    count = int((columns.prompt + columns.output > longest).sum())
    found = _copy(columns, f"{count:,} requests clipped to {longest:,} tokens (max_model_len)")
    found.prompt = np.minimum(columns.prompt, longest - 1)
    found.output = np.minimum(columns.output, longest - found.prompt)
    found.max_tokens = np.minimum(columns.max_tokens, longest - found.prompt)
    if columns.hashes is not None:
        found.hashes = _fewer_hashes(*columns.hashes, -(-found.prompt // HASH_TOKENS))
    return found


def limited(columns: Columns, limit: int) -> Columns:
    """max_tokens for all; an output above it is cut, as an engine would cut it."""
    count = int((columns.output > limit).sum())
    if count and columns.sessions is not None:
        raise InputError(None, "workload.transform.max_tokens", limit, "would cut outputs that later prompts repeat")
    found = _copy(columns, f"{count:,} outputs cut to max_tokens {limit:,}")
    found.output = np.minimum(columns.output, limit)
    found.max_tokens = np.full(len(columns), limit, np.int64)
    if found.origin is not None:
        found.origin = replace(found.origin, rule=f"max_tokens = {limit:,} for every request")
    return found


def _only(columns: Columns, chosen: Any, step: str) -> Columns:
    kept = np.flatnonzero(chosen)
    if not len(kept):
        raise InputError(None, "workload.transform", None, f"leaves no request: {step}")
    return _said(columns.take(kept), f"{step}: {len(kept):,} of {len(columns):,} requests")


def _copy(columns: Columns, step: str) -> Columns:
    return _said(columns.take(np.arange(len(columns))), step)


def _said(columns: Columns, step: str) -> Columns:
    if columns.origin is not None:
        columns.origin = replace(columns.origin, steps=(*columns.origin.steps, step))
    return columns


def _fewer_hashes(offsets: Integers, values: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """The first so many of each request's hashes."""
    place = np.arange(len(values)) - np.repeat(offsets[:-1], np.diff(offsets))
    kept = place < np.repeat(counts, np.diff(offsets))
    return np.concatenate(([0], np.cumsum(counts))), values[kept]
