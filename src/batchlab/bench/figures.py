"""What came back, in the figures that a simulation has too, and what only a client over HTTP can say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from batchlab.bench.client import Outcome
from batchlab.bench.load import Measured, Plan
from batchlab.bench.scrape import Sample, series_figures
from batchlab.bench.target import Target
from batchlab.clients.request import Request
from batchlab.core.tally import RESULTS, Tally
from batchlab.events import Header
from batchlab.metrics.answers import Question, answers
from batchlab.metrics.fold import Summary
from batchlab.metrics.latency import figures, latencies, rate_of, throughput
from batchlab.metrics.looks import missed
from batchlab.units import NS_IN_MS, NS_IN_S

LATE = 10 * NS_IN_MS
"""A request that goes out so much after it could have was held back by this client."""
LATE_SHARE = 0.01
BUSY = 0.9
"""From this share of a core on, the client itself may be what is slow, if that lasts a second or more."""
READ_AT_ONCE = 0.05
"""From this share of gaps of 0 on, a percentile of ITL may say more of the reading than of the server."""
SHORTFALL = 0.95
"""Below this share of the requested rate, the load was not what was asked for."""


@dataclass
class Result:
    """A measured run: the requests that went out, with the times at which they were to, and what became of them."""

    target: Target
    plan: Plan
    requests: Sequence[Request]
    measured: Measured
    series: Sequence[Sample]
    summary: Summary

    @property
    def outcomes(self) -> list[Outcome]:
        """Of each of the requests."""
        return self.measured.outcomes

    @property
    def until(self) -> int:
        """When the last request ended that was not completed, or the load was interrupted: rates go at least so far.

        Up to the last completion a server that dies under a load would look as fast as it was before.
        """
        ends = [o.end for o in self.outcomes if o.result != "completed"]
        return max(ends if self.measured.cut is None else [*ends, self.measured.elapsed], default=0)


def result_of(
    target: Target, plan: Plan, requests: Sequence[Request], measured: Measured, series: Sequence[Sample]
) -> Result:
    """Everything that is known, folded into a summary as that of a simulation."""
    sent = [replace(requests[o.position], arrival=o.intended) for o in measured.outcomes]
    tally = Tally(len(sent))
    for position, outcome in enumerate(measured.outcomes):
        _fold(tally, position, outcome)
    summary = Summary()
    summary(_header(target, len(sent)))
    summary.take(tally, sent)
    return Result(target, plan, sent, measured, series, summary)


def _fold(tally: Tally, position: int, outcome: Outcome) -> None:
    """One request. Tokens of one chunk are spread evenly over the time since the one before.

    Of those that come with the first token nobody knows when they were ready: they have no gaps. Where only the number
    of all tokens is known there are no gaps at all, and the largest one is that between chunks.
    """
    tally.arrived(position)
    if outcome.chunks:
        before, more = outcome.chunks[0]
        tally.token(position, before)
        if outcome.counted == "total":
            times = [at for at, _ in outcome.chunks]
            tally.last_time[position] = times[-1]
            tally.max_itl[position] = max((b - a for a, b in pairwise(times)), default=0)
            _add_tokens(tally, position, outcome.tokens - 1)
        else:
            _add_tokens(tally, position, more - 1)
            for at, tokens in outcome.chunks[1:]:
                for k in range(1, tokens + 1):
                    tally.token(position, before + (at - before) * k // tokens)
                before = at
    for _ in range(outcome.retries):
        tally.rejected(position, outcome.reason, True)
    if outcome.result == "completed":
        tally.completed(position, -1)
    elif outcome.result == "rejected":
        tally.rejected(position, outcome.reason, False)
    else:
        tally.dropped(position, RESULTS.index(outcome.result), outcome.reason)


def _add_tokens(tally: Tally, position: int, tokens: int) -> None:
    tally.tokens[position] += tokens
    tally.emitted += tokens


def _header(target: Target, count: int) -> Header:
    """What a summary has to know of where the events are from."""
    return Header(
        engine=target.model,
        rules="measured",
        settings={},
        limits={},
        clock={"unit": "ns", "cost": None, "idle": "jump"},
        max_iterations=None,
        max_tokens_rule="given",
        source={"name": None, "sha256": None, "requests": count},
        requests=None,
        queue={},
        deadlines="keep",
        retry=None,
        steps_in_flight=1,
    )


def document(result: Result, asked: Question) -> dict[str, Any]:
    """All figures, ready for JSON. Raises InputError where an objective asks for one that is not counted."""
    summary, plan = result.summary, result.plan
    arrival = summary.column("arrival")
    found: dict[str, Any] = {
        "schema": 1,
        "url": result.target.url,
        "model": result.target.model,
        "loop": "open" if plan.clients is None else "closed",
        "unit": "ns",
        "requests": len(result.requests),
        "partial": result.measured.cut is not None,
        "results": summary.result_counts(),
        "reasons": dict(Counter(o.reason for o in result.outcomes if o.reason).most_common()),
        "retries": sum(o.retries for o in result.outcomes),
        "retried": sum(o.retries > 0 for o in result.outcomes),
        "retry_wait": figures(np.array([wait for o in result.outcomes for wait in o.waits])),
        "latency": latencies(summary.tally, arrival) | from_send(result.outcomes),
        "throughput": throughput(summary.tally, arrival, "ns", result.until),
        "load": load_figures(result),
        "tokens": token_figures(result),
        "server": series_figures(result.series),
        "series": [sample.as_dict() for sample in result.series],
    }
    if asked:
        found["answers"] = answers(summary, asked, result.until)
    found["notes"] = [
        *_not_answered(result.outcomes),
        *notes(found),
        *_read_at_once(result.outcomes),
        *_gauges_missed(result),
    ]
    if result.measured.cut is not None:
        found["notes"].insert(0, _cut_short(result.measured))
    return found


def _cut_short(measured: Measured) -> str:
    ended = f"interrupted after {measured.elapsed / NS_IN_S:,.1f} s, when {len(measured.outcomes):,} requests had ended"
    return f"PARTIAL: {ended}; {measured.cut:,} under way are left out, the slow ones among them"


def _not_answered(outcomes: Sequence[Outcome]) -> list[str]:
    """Of how many requests the latencies are not, and from when on nothing was answered any more."""
    done = [o for o in outcomes if o.result == "completed"]
    lost = [o for o in outcomes if o.result in ("failed", "rejected")]
    if not done or not lost:
        return []
    kinds = Counter(o.result for o in lost)
    said = " and ".join(f"{count:,} {'were ' * (kind == 'rejected')}{kind}" for kind, count in sorted(kinds.items()))
    lines = [f"of {len(outcomes):,} requests {said}: E2E and TPOT are of the others, TTFT of whoever got a token"]
    last = max(o.end for o in done)
    later = [o for o in lost if o.end > last]
    if len(later) > 1:
        by_kind = {kind: Counter(o.reason for o in later if o.result == kind) for kind in ("failed", "rejected")}
        reasons = {kind: count.most_common(1)[0][0] for kind, count in by_kind.items() if count}
        became = " or ".join("were rejected" if kind == "rejected" else kind for kind in reasons)
        all_lost = all(reason.startswith("connection: ") for reason in reasons.values())
        gone = "the server was gone" if all_lost else "nothing was completed"
        why = "; ".join(reasons.values())
        lines.append(f"{gone} from {last / NS_IN_S:,.1f} s on: all {len(later):,} that ended later {became}: {why}")
    return lines


def _read_at_once(outcomes: Sequence[Outcome]) -> list[str]:
    """How many gaps between tokens are 0, where these are many: each makes the percentiles of ITL smaller."""
    timed = [o.chunks for o in outcomes if o.counted != "total"]
    gaps = [(b - a, tokens) for chunks in timed for (a, _), (b, tokens) in pairwise(chunks)]
    count = sum(tokens for _, tokens in gaps)
    at_once = sum(tokens for gap, tokens in gaps if gap == 0)
    if at_once <= READ_AT_ONCE * count:
        return []
    return [
        f"{100 * at_once / count:.0f} % of ITL's gaps are 0: this client read chunks that came together at one moment"
    ]


def _gauges_missed(result: Result) -> list[str]:
    """Whether the server's gauges contradict what its clients saw of it."""
    looks = [(s.running, s.waiting) for s in result.series]
    spans = [(o.sent, o.chunks[-1][0]) for o in result.outcomes if o.chunks]
    return missed(looks, spans, result.measured.elapsed)


def from_send(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What a client sees that counts from the sending, and from chunk to chunk: the figures of vLLM's benchmark."""
    answered = [o for o in outcomes if o.chunks]
    done = [o for o in answered if o.result == "completed"]
    times = [np.array([at for at, _ in o.chunks], np.int64) for o in answered]
    gaps = np.concatenate([np.diff(t) for t in times]) if times else np.array([], np.int64)
    return {
        "ttft_from_send": figures(np.array([o.chunks[0][0] - o.sent for o in answered], np.int64)),
        "e2el_from_send": figures(np.array([o.chunks[-1][0] - o.sent for o in done], np.int64)),
        "icl": figures(gaps),
    }


def load_figures(result: Result) -> dict[str, Any]:
    """What was asked of the server: intended and actual sendings.

    requested_rate, achieved_rate: requests a second between first and last, None where all go out at once, and in a
    closed loop, whose clients all send at its beginning and later only as they are answered. held_back: requests that
    waited for a place under the cap. send_lag: how long a request went out after it could have.
    saturated: whether this client was too slow to send, or to read, in time.
    """
    outcomes, measured = result.outcomes, result.measured
    open_loop = result.plan.clients is None
    held = np.array([o.ready - o.intended for o in outcomes], np.int64)
    first_sent = np.array([o.first_sent for o in outcomes], np.int64)
    lag = first_sent - np.array([o.ready for o in outcomes], np.int64)
    late = int((lag > LATE).sum())
    return {
        "requested_rate": rate_of(np.array([o.intended for o in outcomes], np.int64)) if open_loop else None,
        "achieved_rate": rate_of(first_sent) if open_loop else None,
        "max_in_flight": measured.most,
        "held_back": int((held > 0).sum()),
        "longest_held_back": int(held.max()),
        "send_lag": figures(lag),
        "late": late,
        "client_cpu": measured.busy,
        "saturated": late > max(1, LATE_SHARE * len(outcomes))
        or (measured.busy > BUSY and measured.elapsed >= NS_IN_S),
    }


def token_figures(result: Result) -> dict[str, Any]:
    """Tokens asked for and counted, over completed requests, and how many of these say how they were counted."""
    done = [(r, o) for r, o in zip(result.requests, result.outcomes, strict=True) if o.result == "completed"]
    known = [(r, o) for r, o in done if o.prompt is not None]
    return {
        "counted_by": dict(Counter(o.counted for _, o in done)),
        "prompt_asked": sum(r.prompt for r, _ in known),
        "prompt": sum(o.prompt or 0 for _, o in known),
        "output_asked": sum(r.output for r, _ in done),
        "output": sum(o.tokens for _, o in done),
    }


def held_back(load: Mapping[str, Any], unit: str) -> str:
    """What a cap did to a load."""
    longest = load["longest_held_back"]
    shown = f"{longest / NS_IN_S:.3f} s" if unit == "ns" else f"{longest:,} {unit}s"
    return f"the cap on requests in flight held {load['held_back']:,} back, for up to {shown}"


def notes(found: Mapping[str, Any]) -> list[str]:
    """What a reader of the figures must know."""
    load, tokens = found["load"], found["tokens"]
    said = []
    requested, achieved = load["requested_rate"], load["achieved_rate"]
    if requested is not None and achieved is not None and achieved < SHORTFALL * requested:
        why = held_back(load, "ns") if load["held_back"] else "the client was too slow"
        said.append(f"the requested rate was not reached: {achieved:,.3f} of {requested:,.3f} requests/s; {why}")
    if load["saturated"]:
        most = load["send_lag"]["max"] or 0
        said.append(
            f"CLIENT SATURATED: {load['late']:,} of {found['requests']:,} requests went out over 10 ms late, by up to "
            f"{most / NS_IN_MS:,.0f} ms, with {100 * load['client_cpu']:.0f} % of a core: the figures hold its delays"
        )
    if tokens["counted_by"].get("chunks"):
        said.append("the server counts no tokens: every chunk is taken for one token")
    if tokens["counted_by"].get("total"):
        count = tokens["counted_by"]["total"]
        said.append(f"{count:,} answers came in chunks of an unknown number of tokens: they have no ITL")
    for name in ("prompt", "output"):
        asked, counted = tokens[f"{name}_asked"], tokens[name]
        if asked and abs(counted - asked) > 0.01 * asked:
            said.append(f"{name} tokens: {asked:,} asked for, {counted:,} counted by the server")
    return said
