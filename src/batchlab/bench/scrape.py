"""The server's own view while the load runs: vLLM's metrics, a few times a second, on the same clock."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from batchlab.bench.target import text_of
from batchlab.units import NS_IN_S

NAMES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_cache_usage",
    "vllm:gpu_cache_usage_perc": "kv_cache_usage",
    "vllm:num_preemptions_total": "preemptions",
}
"""vLLM's names, the older one of KV use too -> ours."""
ROW = re.compile(r'\s*(?P<name>[\w:]+)\s*(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?\s*(?P<value>\S+)')
"""One sample of Prometheus' text format: a name, labels, whose values may hold any character, a value; maybe a time."""
GAUGES = ("running", "waiting", "kv_cache_usage")
PATIENCE = 5.0
"""Seconds that one look may take."""


@dataclass(frozen=True)
class Sample:
    """What the server said at `t`, ns from the start of the load; None for what it did not say.

    The first one is from before the load and the last one from after it: they have only what is counted.

    Over several engines running, waiting and preemptions are sums, and kv_cache_usage, a share of 1, is the mean.
    """

    t: int
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    preemptions: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def parse(text: str, t: int) -> Sample | None:
    """A sample from the text of /metrics; None if nothing of vLLM's is in it."""
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        row = ROW.match(line)
        name = None if row is None else NAMES.get(row["name"])
        if row is not None and name is not None:
            with contextlib.suppress(ValueError):
                value = float(row["value"])
                if math.isfinite(value):  # NaN is how Prometheus says that there is none
                    found.setdefault(name, []).append(value)
    if not found:
        return None
    summed = {name: sum(v) / len(v) if name == "kv_cache_usage" else sum(v) for name, v in found.items()}
    return Sample(t, **summed)


class Scraper:
    """Looks at a server before, during and after a load. What fails is left out. patience: seconds a look may take.

    One that at first has no such metrics is not asked again.
    """

    def __init__(self, http: aiohttp.ClientSession, base: str, patience: float, now: Callable[[], int]) -> None:
        self._http = http
        self._url = f"{base}/metrics"
        self._timeout = aiohttp.ClientTimeout(total=patience)
        self._now = now
        self._start = 0
        self.samples: list[Sample] = []

    async def before(self) -> None:
        """The first look, for what was counted by then. The load begins when it is over, and so do the times."""
        sample = await self._look()
        self._start = self._now()
        if sample is not None:
            self.samples.append(Sample(0, preemptions=sample.preemptions))

    async def during(self, interval: float) -> None:
        """Look every interval (s), until cancelled."""
        while self.samples:
            await asyncio.sleep(interval)
            sample = await self._look()
            if sample is not None:
                self.samples.append(sample)

    async def after(self) -> None:
        """The last look, for what was counted since the one before; what runs or waits now is not of the load."""
        sample = await self._look() if self.samples else None
        if sample is not None and sample.preemptions is not None:
            self.samples.append(Sample(sample.t, preemptions=sample.preemptions))

    async def _look(self) -> Sample | None:
        try:
            async with self._http.get(self._url, timeout=self._timeout) as response:
                text = await text_of(response)
                return parse(text, self._now() - self._start) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None


def series_figures(samples: Sequence[Sample]) -> dict[str, Any] | None:
    """Mean and largest of what was seen while the load ran, and how many preemptions there were; None if nothing was.

    samples: the looks while it ran.
    """
    if not samples:
        return None
    looks = sum(any(getattr(sample, name) is not None for name in GAUGES) for sample in samples)
    found: dict[str, Any] = {"samples": looks, "span": (samples[-1].t - samples[0].t) / NS_IN_S}
    for name in GAUGES:
        values = [v for v in (getattr(sample, name) for sample in samples) if v is not None]
        found[name] = {"mean": sum(values) / len(values), "max": max(values)} if values else None
    counts = [sample.preemptions for sample in samples if sample.preemptions is not None]
    found["preemptions"] = counts[-1] - counts[0] if counts else None
    return found
