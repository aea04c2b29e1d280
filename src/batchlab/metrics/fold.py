"""Per-request results and run totals: the same numbers live, from the events of a run and from a saved trace."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from batchlab.clients.columns import Columns
from batchlab.clients.request import Request
from batchlab.clients.sessions import first_of
from batchlab.core.tally import RESULTS, Tally
from batchlab.events import End, Event, Header, Iteration
from batchlab.metrics.gaps import Gaps
from batchlab.metrics.latency import from_send, latencies, load_figures, throughput
from batchlab.metrics.result import RequestResult


class Summary:
    """An observer that keeps one result per request and the run's totals. Memory is O(requests).

    It folds the events into a tally. Where nobody wants the events of a run, the loop keeps the tally itself and hands
    it over at the end (`take`). each_gap: whether to keep whose each gap between two tokens was, so that a window or a
    group has its percentiles of ITL. keep_times: whether to keep the time of every token, for which the loop has to
    tell every event.
    """

    def __init__(self, each_gap: bool = False, keep_times: bool = False) -> None:
        self.each_gap = each_gap
        self.keep_times = keep_times
        self.header: Header | None = None
        self.end: End | None = None
        self.tally = Tally(0)
        self._requests: Sequence[Request] = []
        self._told: list[Request] = []  # from the events
        self._position: dict[str, int] = {}
        self._times: list[list[int]] | None = None  # of every token, where they are kept
        self._in_flight: dict[int, list[tuple[str, str, int]]] = {}

    def __call__(self, event: Event) -> None:
        """Take in the next event."""
        if isinstance(event, Iteration):
            self._iteration(event)
        elif isinstance(event, Request):
            self._add(event)
        elif isinstance(event, Header):
            self.header = event
            self.tally = Tally(0, event.batching == "request")
            self.tally.each_gap = Gaps() if self.each_gap else None
            self._requests, self._told, self._position = [], [], {}
            self._times = [] if self.keep_times or event.requests is not None else None
            for request in event.requests or ():
                self._add(request)
            self._requests = self._told
        else:
            self.end = event

    def take(self, tally: Tally, requests: Sequence[Request]) -> None:
        """The results of a run that was not told in events."""
        self.tally = tally
        self._requests = requests

    @property
    def results(self) -> list[RequestResult]:
        """One result per request; in input order if the header lists them, else in order of arrival."""
        return [self.result_at(position) for position in self._positions().tolist()]

    def result_at(self, position: int) -> RequestResult:
        """The result of one request, by its place in the tally."""
        times = None if self._times is None else self._times[position]
        return RequestResult(self._requests[position], self.tally, position, times)

    @property
    def by_id(self) -> dict[str, RequestResult]:
        """The results by the requests' ids."""
        return {result.request.id: result for result in self.results}

    def table(self) -> Any:
        """A pyarrow Table with one row for each request, in the order of `results`; docs/results.md has the columns."""
        import pyarrow as pa  # it takes time to import

        from batchlab.metrics import table

        schema = self._schema()
        rows = table.batches(schema, self._requests, self.tally, self._positions())
        return pa.Table.from_batches(list(rows), schema)

    def write_table(self, file: IO[bytes], path: str | Path) -> None:
        """Write the rows of `table()` in the format of the path's ending, without having all of them in memory."""
        from batchlab.metrics import table

        schema = self._schema()
        table.write(
            file, table.ending_of(path), schema, table.batches(schema, self._requests, self.tally, self._positions())
        )

    def _schema(self) -> Any:
        from batchlab.metrics.table import schema_of

        assert self.header is not None, "the run has not begun"
        return schema_of(self._requests, engine=self.header.engine, unit=self.header.clock["unit"])

    def _positions(self) -> Any:
        """Positions of the requests, in the order of `results`."""
        if self._requests is not self._told:
            return np.argsort(self.column("arrival"), kind="stable")
        return np.arange(len(self._requests))

    @property
    def max_queue_length(self) -> int:
        """Most requests that waited at the end of an iteration."""
        return self.tally.max_queue_length

    def totals(self) -> dict[str, Any]:
        """The run's totals, as docs/trace-format.md defines them."""
        tally, header = self.tally, self.header
        assert header is not None, "the run has not begun"
        in_flight = (
            header.steps_in_flight > 1
        )  # who waits for a token in flight is not stalled, and cannot be told apart
        return {
            "max_queue_length": tally.max_queue_length,
            "preemptions": tally.preemptions,
            "rejections": dict(sorted(tally.rejections.items())),
            "unused_budget": None if header.limits["max_num_batched_tokens"] is None else tally.unused_budget,
            "prefill_tokens": tally.prefill_tokens,
            "decode_tokens": tally.decode_tokens,
            "recomputed_tokens": tally.recomputed_tokens,
            "cached_tokens": tally.cached_tokens,
            "moved_blocks": tally.moved_blocks,
            "retries": tally.retries,
            "decode_stalls": None if in_flight else tally.decode_stalls,
            "preempted_decode_stalls": None if in_flight else tally.preempted_decode_stalls,
        }

    def slots(self) -> dict[str, Any]:
        """Slots opened, useful (a token came out) and wasted, and the share of the wasted ones."""
        opened, useful = self.tally.slots_opened, self.tally.emitted
        wasted = opened - useful
        return {"opened": opened, "useful": useful, "wasted": wasted, "waste": wasted / opened if opened else None}

    def result_counts(self) -> dict[str, int]:
        """Number of requests by result, without zeros."""
        counts = np.bincount(np.asarray(self.tally.result)[: self.tally.count], minlength=len(RESULTS))
        return {
            RESULTS[code]: int(counts[code])
            for code in sorted(range(len(RESULTS)), key=RESULTS.__getitem__)
            if counts[code]
        }

    def document(self, with_requests: bool = True) -> dict[str, Any]:
        """The summary, ready for JSON; with or without its entry for each request."""
        assert self.header is not None and self.end is not None, "the run has not ended"
        unit = self.header.clock["unit"]
        arrival = self.column("arrival")
        document = {
            "schema": 1,
            "engine": self.header.engine,
            "rules": self.header.rules,
            "unit": unit,
            "termination": self.end.termination,
            "iterations": self.end.iterations,
            "time": self.end.time,
            "results": self.result_counts(),
            "totals": self.totals(),
            "slots": self.slots(),
            "latency": latencies(self.tally, arrival),
            "throughput": throughput(self.tally, arrival, unit),
        }
        sent = self.sent()
        if sent is not None:
            document["latency"] |= from_send(self.tally, sent)
            document["load"] = load_figures(arrival, sent, unit)
        if with_requests:
            listed = self.header.requests is not None
            document["requests"] = [result.as_dict(with_times=listed) for result in self.results]
        return document

    def column(self, name: str) -> Any:
        """One numeric field of all requests, in the order of the tally."""
        if isinstance(self._requests, Columns):
            return getattr(self._requests, name)
        return np.array([getattr(request, name) for request in self._requests], np.int64)

    def sent(self) -> Any:
        """When each request was sent, in the order of the tally; None where no client held any back."""
        if isinstance(self._requests, Columns) or all(request.held_until is None for request in self._requests):
            return None
        return np.array([request.comes for request in self._requests], np.int64)

    def first_turns(self) -> Any:
        """The place of the first turn of each request's session, in the order of the tally; its own where it waits for
        no answer before it."""
        before = np.arange(len(self._requests))
        if isinstance(self._requests, Columns) and not self._requests.waits:
            return before
        place = {request.id: position for position, request in enumerate(self._requests)}
        for position, request in enumerate(self._requests):
            if request.after is not None:
                before[position] = place.get(request.after, position)
        return first_of(before)

    def groups(self) -> tuple[list[str], Any]:
        """The names of the groups, sorted, and which of them each request has, in the order of the tally; -1: none."""
        if isinstance(self._requests, Columns) and self._requests.groups is None:
            return [], np.full(len(self._requests), -1)
        of_each = [request.group for request in self._requests]
        names = sorted({group for group in of_each if group is not None})
        place = {name: position for position, name in enumerate(names)}
        return names, np.array([-1 if group is None else place[group] for group in of_each], np.int64)

    def _add(self, request: Request) -> None:
        self._position[request.id] = self.tally.add()
        self._told.append(request)
        if self.header is None or self.header.requests is None:
            self._requests = self._told
        if self._times is not None:
            self._times.append([])

    def _iteration(self, event: Iteration) -> None:
        """The same that the loop's own tally does with a step, in the same order."""
        tally, position = self.tally, self._position
        for id in event.arrived:
            tally.arrived(position[id])
        self._seats(event)
        for rejection in event.rejected:  # after the seats: it may have been preempted in this iteration
            tally.rejected(position[rejection.id], rejection.reason, rejection.retry_at is not None)
        unseated = 0
        for dropped in event.dropped:
            unseated += tally.dropped(position[dropped.id], RESULTS.index(dropped.result), dropped.reason)
        for id, tokens in event.cached:
            tally.cached(position[id], tokens)
        if event.kv is not None:
            tally.moved_blocks += event.kv["moved"]
        tokens_of: Counter[str] = Counter()
        for id, phase, tokens in event.scheduled:
            tokens_of[phase] += tokens
            if phase == "prefill":
                tally.scheduled(position[id], event.start)
        tally.computes(tokens_of["prefill"], tokens_of["decode"])
        tally.seats(len(event.admitted), len(event.preempted), unseated, bool(event.scheduled), event.padding)
        self._emissions(event)
        tally.queued(event.queue_length)
        if event.unused is not None:
            tally.unused(1, event.unused)

    def _seats(self, event: Iteration) -> None:
        """Who sits after the plan. A request preempted while it had no seat was admitted earlier in this iteration."""
        tally, position = self.tally, self._position
        admitted = list(event.admitted) if event.preempted else event.admitted
        for preemption in event.preempted:
            place = position[preemption.id]
            if RESULTS[tally.result[place]] != "active":
                admitted.remove(preemption.id)
                tally.sits(place)
            tally.stands(place, preemption.mode == "recompute", preemption.computed)
        for id in admitted:
            tally.sits(position[id])

    def _emissions(self, event: Iteration) -> None:
        """Tokens that come out, and who leaves with its last one."""
        tally, position, end = self.tally, self._position, event.end
        emitting = [id for id, phase, _ in self._delivered(event) if phase == "decode" and id not in event.discarded]
        for id in emitting:
            tally.token(position[id], end)
        for id in event.prefill_done:
            tally.prefilled(position[id], event.iteration, end)
        if self._times is not None:
            for id in [*emitting, *event.prefill_done]:
                self._times[position[id]].append(end)
        unseated = 0
        for id in event.completed:
            self._learn_output(position[id])
            unseated += tally.completed(position[id], event.iteration)
        tally.unseated(unseated)

    def _learn_output(self, position: int) -> None:
        """In a recording a request's output is known only when it has ended."""
        request = self._told[position]
        if not request.output:
            self._told[position] = replace(request, output=self.tally.tokens[position])

    def _delivered(self, event: Iteration) -> list[tuple[str, str, int]]:
        """The batch whose tokens come out in this iteration: its own, unless several are in flight."""
        if event.delivers == event.iteration:
            return event.scheduled
        self._in_flight[event.iteration] = event.scheduled
        return [] if event.delivers is None else self._in_flight.pop(event.delivers)
