"""What a client sees whose stream brings several tokens at a time: icl, and the other latencies as it measures them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from batchlab.metrics.latency import PERCENTILES, Percentiles, figures
from batchlab.metrics.result import RequestResult


def chunk_figures(
    results: Sequence[RequestResult], tokens: int, percentiles: Percentiles = PERCENTILES
) -> dict[str, Any]:
    """Figures of `icl`, the gap between consecutive chunks, and of `ttft` and `tpot` as a client of chunks has them.

    A chunk goes out when it has so many tokens, and the last one with the request's last token. icl is pooled over all
    chunks of all requests. tpot is over completed requests of more than one token: last chunk - first chunk over N - 1,
    where the first chunk's tokens but one cost nothing. The results must have the times of all tokens.
    """
    icl: list[int] = []
    ttft: list[int] = []
    tpot: list[float] = []
    for result in results:
        times = result.output_times
        assert times is not None, "token times were not kept"
        chunks = times[tokens - 1 :: tokens]
        if result.result == "completed" and len(times) % tokens:
            chunks = [*chunks, times[-1]]
        if not chunks:
            continue
        ttft.append(chunks[0] - result.request.arrival)
        icl += np.diff(chunks).tolist()
        if result.result == "completed" and len(times) > 1:
            tpot.append((chunks[-1] - chunks[0]) / (len(times) - 1))
    columns = {"icl": np.array(icl, np.int64), "ttft": np.array(ttft, np.int64), "tpot": np.array(tpot)}
    return {"tokens": tokens, **{name: figures(samples, percentiles) for name, samples in columns.items()}}
