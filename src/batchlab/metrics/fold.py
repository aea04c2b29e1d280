"""Per-request results and run totals, folded from the event stream: the same number live and from a saved trace."""

from collections import Counter
from typing import Any

from batchlab.clients.request import Request
from batchlab.events import Dropped, End, Event, Header, Iteration, Preemption, Rejection
from batchlab.metrics.latency import latencies, throughput
from batchlab.metrics.result import RequestResult
from batchlab.metrics.slots import Slots


class Summary:
    """An observer that keeps one result per request and the run's totals. Memory is O(requests)."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.end: End | None = None
        self.by_id: dict[str, RequestResult] = {}
        self.max_queue_length = 0
        self.preemptions = 0
        self.rejections: Counter[str] = Counter()
        self.unused_budget: int | None = 0
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.recomputed_tokens = 0
        self.decode_stalls: int | None = 0
        self.preempted_decode_stalls: int | None = 0
        self.cached_tokens = 0
        self.moved_blocks = 0
        self.padding_tokens = 0
        self.retries = 0
        self.gaps: Counter[int] = Counter()
        """How often each time between two consecutive tokens of a request occurred."""
        self._slots = Slots()
        self._in_flight: dict[int, list[tuple[str, str, int]]] = {}
        self._decoding_active = 0
        self._decoding_parked = 0

    def __call__(self, event: Event) -> None:
        """Take in the next event."""
        if isinstance(event, Iteration):
            self._iteration(event)
        elif isinstance(event, Request):
            self.by_id[event.id] = RequestResult(event, keep_times=False)
        elif isinstance(event, Header):
            self.header = event
            self._slots.tied = event.batching == "request"
            if event.limits["max_num_batched_tokens"] is None:
                self.unused_budget = None
            if event.steps_in_flight > 1:  # who waits for a token in flight is not stalled, and cannot be told apart
                self.decode_stalls = self.preempted_decode_stalls = None
            for request in event.requests or ():
                self.by_id[request.id] = RequestResult(request, keep_times=True)
        else:
            self.end = event

    @property
    def results(self) -> list[RequestResult]:
        """One result per request; in input order if the header lists them, else in order of arrival."""
        return list(self.by_id.values())

    def totals(self) -> dict[str, Any]:
        """The run's totals, as docs/trace-format.md defines them."""
        return {
            "max_queue_length": self.max_queue_length,
            "preemptions": self.preemptions,
            "rejections": dict(sorted(self.rejections.items())),
            "unused_budget": self.unused_budget,
            "prefill_tokens": self.prefill_tokens,
            "decode_tokens": self.decode_tokens,
            "recomputed_tokens": self.recomputed_tokens,
            "cached_tokens": self.cached_tokens,
            "moved_blocks": self.moved_blocks,
            "retries": self.retries,
            "decode_stalls": self.decode_stalls,
            "preempted_decode_stalls": self.preempted_decode_stalls,
        }

    def slots(self) -> dict[str, Any]:
        """Slots opened, useful (a token came out) and wasted, and the share of the wasted ones."""
        return self._slots.figures(sum(result.emitted for result in self.by_id.values()))

    def result_counts(self) -> dict[str, int]:
        """Number of requests by result, without zeros."""
        return dict(sorted(Counter(result.result for result in self.by_id.values()).items()))

    def document(self, with_requests: bool = True) -> dict[str, Any]:
        """The summary, ready for JSON; with or without its entry for each request."""
        assert self.header is not None and self.end is not None, "the run has not ended"
        document = {
            "schema": 1,
            "engine": self.header.engine,
            "rules": self.header.rules,
            "unit": self.header.clock["unit"],
            "termination": self.end.termination,
            "iterations": self.end.iterations,
            "time": self.end.time,
            "results": self.result_counts(),
            "totals": self.totals(),
            "slots": self.slots(),
            "latency": latencies(self.results, self.gaps),
            "throughput": throughput(self.results, self.header.clock["unit"]),
        }
        if with_requests:
            document["requests"] = [result.as_dict() for result in self.results]
        return document

    def _iteration(self, event: Iteration) -> None:
        by_id = self.by_id
        for id in event.arrived:
            by_id[id].result = "waiting"
        self._seats(event)
        for rejection in event.rejected:  # after the seats: it may have been preempted in this iteration
            self._rejected(rejection)
        unseated = 0
        for dropped in event.dropped:
            unseated += self._dropped(dropped)
        for id, tokens in event.cached:
            self._cached(by_id[id], tokens)
        self.padding_tokens += event.padding
        if event.kv is not None:
            self.moved_blocks += event.kv["moved"]
        self._stalls_and_tokens(event)
        self._slots.iteration(event, unseated, self._emissions(event))
        if event.queue_length > self.max_queue_length:
            self.max_queue_length = event.queue_length
        if event.unused is None:
            self.unused_budget = None
        elif self.unused_budget is not None:
            self.unused_budget += event.unused

    def _rejected(self, rejection: Rejection) -> None:
        result = self.by_id[rejection.id]
        self._leave_decode(result)
        if rejection.retry_at is not None:
            result.result = "retrying"
            result.retries += 1
            self.retries += 1
            return
        result.result, result.reason = "rejected", rejection.reason
        self.rejections[rejection.reason] += 1

    def _dropped(self, dropped: Dropped) -> bool:
        """Whether it held a seat."""
        result = self.by_id[dropped.id]
        seated = result.result == "active"
        self._leave_decode(result)
        result.result, result.reason = dropped.result, dropped.reason
        return seated

    def _leave_decode(self, result: RequestResult) -> None:
        """A request that ends on the way out of its decode phase."""
        if result.in_decode:
            result.in_decode = False
            if result.result == "active":
                self._decoding_active -= 1
            else:
                self._decoding_parked -= 1

    def _cached(self, result: RequestResult, tokens: int) -> None:
        """Tokens found in the prefix cache; of those that a preemption dropped, these need not be computed again."""
        self.cached_tokens += tokens
        found_again = min(tokens, result.dropped_tokens)
        result.recomputed_tokens -= found_again
        self.recomputed_tokens -= found_again
        result.dropped_tokens = 0

    def _seats(self, event: Iteration) -> None:
        """Who sits after the plan. A request preempted while it had no seat was admitted earlier in this iteration."""
        admitted = event.admitted
        if event.preempted:
            admitted = list(admitted)
            for preemption in event.preempted:
                result = self.by_id[preemption.id]
                if result.result != "active":
                    admitted.remove(preemption.id)
                    self._sit(result)
                self._stand(result, preemption)
        for id in admitted:
            self._sit(self.by_id[id])

    def _sit(self, result: RequestResult) -> None:
        result.result = "active"
        if result.in_decode:
            self._decoding_parked -= 1
            self._decoding_active += 1

    def _stand(self, result: RequestResult, preemption: Preemption) -> None:
        result.result = "waiting"
        result.preemptions += 1
        self.preemptions += 1
        recompute = preemption.mode == "recompute"
        if result.in_decode:
            self._decoding_active -= 1
            self._decoding_parked += not recompute
        if recompute:
            result.in_decode = False
            result.dropped_tokens = preemption.computed
            result.recomputed_tokens += preemption.computed
            self.recomputed_tokens += preemption.computed

    def _stalls_and_tokens(self, event: Iteration) -> None:
        prefill = decodes = 0
        for id, phase, tokens in event.scheduled:
            if phase == "decode":
                decodes += 1
            else:
                prefill += tokens
                result = self.by_id[id]
                if result.first_scheduled is None:
                    result.first_scheduled = event.start
        self.prefill_tokens += prefill
        self.decode_tokens += decodes
        if prefill and self.decode_stalls is not None and self.preempted_decode_stalls is not None:
            self.decode_stalls += self._decoding_active - decodes
            self.preempted_decode_stalls += self._decoding_parked

    def _emissions(self, event: Iteration) -> int:
        """Tokens that come out, and who leaves with its last one; returns how many of those held a seat."""
        by_id, end = self.by_id, event.end
        seated = 0
        for id, phase, _ in self._delivered(event):
            if phase == "decode" and id not in event.discarded:
                self._token(by_id[id], end)
        for id in event.prefill_done:
            result = by_id[id]
            result.in_decode = True
            self._decoding_active += 1
            self._token(result, end)
        for id in event.first_token:
            by_id[id].first_iteration = event.iteration
        for id in event.completed:
            result = by_id[id]
            result.completed_iteration = event.iteration
            result.completed_time = end
            self._leave_decode(result)
            seated += result.result == "active"
            result.result = "completed"
        return seated

    def _delivered(self, event: Iteration) -> list[tuple[str, str, int]]:
        """The batch whose tokens come out in this iteration: its own, unless several are in flight."""
        if event.delivers == event.iteration:
            return event.scheduled
        self._in_flight[event.iteration] = event.scheduled
        return [] if event.delivers is None else self._in_flight.pop(event.delivers)

    def _token(self, result: RequestResult, end: int) -> None:
        if result.first_time is None:
            result.first_time = end
            result.max_itl = 0
        else:
            gap = end - result.last_time
            self.gaps[gap] += 1
            if gap > result.max_itl:  # type: ignore[operator]  # set with the first token
                result.max_itl = gap
        result.last_time = end
        result.emitted += 1
        if result.output_times is not None:
            result.output_times.append(end)
