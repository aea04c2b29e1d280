"""What became of each request, and the totals of a run, counted as it goes: by position, in columns."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

from batchlab.core.arrays import longer
from batchlab.core.histogram import Histogram
from batchlab.core.sequence import Sequence
from batchlab.core.steady import Steady
from batchlab.core.step import Delivery, Step

RESULTS = ("pending", "waiting", "active", "retrying", "completed", "rejected", "cancelled", "expired", "failed")
"""What became of a request, or where it is: names of the codes in `Tally.result`. From `completed` on it has ended."""

# The codes by name, for this file alone: where it is compiled they are C constants, which nobody else can import.
WAITING = 1
ACTIVE = 2
RETRYING = 3
COMPLETED = 4
REJECTED = 5
UNKNOWN = -1
MANY = 1 << 30
MOST = 1 << 61

NEVER = -1
"""In a column of times: it has not happened."""


class Tally:
    """Results by position in the input, and totals. Times in the clock's unit. docs/trace-format.md defines each.

    The verbs tell it who sits and who stands, and the loop shows it every step (`turn`). For sequences that decode in
    step it is told of joining and leaving instead, and of each common step once (`decoded`). A reader of a trace calls
    the same methods with what the trace says.
    """

    def __init__(self, count: int, tied: bool = False, steady: Steady | None = None) -> None:
        self.tied = (
            tied  # whether the engine batches by request: then a seat stays open until the whole batch has ended
        )
        self.gaps = Histogram()
        self.each_gap: Any = None  # hears whose each gap was, where somebody wants to know: a metrics.gaps.Gaps
        self.reasons: dict[int, str] = {}  # why it was rejected or ended without its last token
        self.rejections: Counter[str] = Counter()
        self.emitted = self.prefill_tokens = self.decode_tokens = self.recomputed_tokens = self.cached_tokens = 0
        self.preemptions = self.retries = self.max_queue_length = 0
        self._unused_total = 0  # a Python integer: the budget that nobody got, but for what is in `_unused`
        self._unused = 0
        self.moved_blocks = self.padding_tokens = self.decode_stalls = self.preempted_decode_stalls = 0
        self.slots_opened = 0
        self._seated = 0
        self._batch = 0  # all that were admitted since nobody was seated
        self._decoding = 0  # seated and in the decode phase
        self._parked = 0  # preempted in their decode phase, with progress kept
        self._steady = Steady(0) if steady is None else steady
        self._last = 0  # when those in step had their last token
        self._late: list[Sequence] = []  # who fell in since then, with a last token of its own
        self._peak_gaps = array("q", bytes(512))  # gaps of common steps, each larger than all after it
        self._peak_steps = array("q", bytes(512))
        self._peaks = 0
        self.first_scheduled = self.first_iteration = self.first_time = self.last_time = array("q")
        self.completed_iteration = self.max_itl = self.tokens = self.recomputed = array("q")
        self._lost: dict[int, int] = {}  # computed tokens that the last preemption dropped, until it sits again
        self.times_preempted = self.times_retried = array("i")
        self.result = self.in_decode = array("b")
        self._columns(max(count, 1))
        self.count = count

    def add(self) -> int:
        """One request more, where their number is not known before. Its position."""
        position = self.count
        if position == len(self.result):
            self._columns(position)
        self.count += 1
        return position

    def _columns(self, size: int) -> None:
        """Room for so many more requests."""
        self.first_scheduled = longer(self.first_scheduled, size, NEVER)
        self.first_iteration = longer(self.first_iteration, size, NEVER)
        self.first_time = longer(self.first_time, size, NEVER)
        self.last_time = longer(self.last_time, size, NEVER)
        self.completed_iteration = longer(self.completed_iteration, size, NEVER)
        self.max_itl = longer(self.max_itl, size, NEVER)
        self.tokens = longer(self.tokens, size)
        self.recomputed = longer(self.recomputed, size)
        self.times_preempted = longer(self.times_preempted, size)
        self.times_retried = longer(self.times_retried, size)
        self.result = longer(self.result, size)
        self.in_decode = longer(self.in_decode, size)

    # What happens to one request

    def arrived(self, position: int) -> None:
        """A request is at the door."""
        self.result[position] = WAITING

    def sits(self, position: int) -> None:
        """It takes a seat."""
        self.result[position] = ACTIVE
        if self.in_decode[position]:
            self._parked -= 1
            self._decoding += 1

    def stands(self, position: int, recompute: bool, computed: int) -> None:
        """It is preempted with so many tokens computed."""
        self.result[position] = WAITING
        self.times_preempted[position] += 1
        self.preemptions += 1
        if self.in_decode[position]:
            self._decoding -= 1
            if not recompute:
                self._parked += 1
        if recompute:
            self.in_decode[position] = 0
            self._lost[position] = computed
            self.recomputed[position] += computed
            self.recomputed_tokens += computed

    def rejected(self, position: int, reason: str, again: bool) -> None:
        """It is refused; `again`: its client will try again."""
        self._leave_decode(position)
        if again:
            self.result[position] = RETRYING
            self.times_retried[position] += 1
            self.retries += 1
            return
        self.result[position] = REJECTED
        self.reasons[position] = reason
        self.rejections[reason] += 1

    def dropped(self, position: int, result: int, reason: str) -> bool:
        """It ends without its last token. Whether it held a seat."""
        seated = self.result[position] == ACTIVE
        self._leave_decode(position)
        self.result[position] = result
        self.reasons[position] = reason
        return seated

    def cached(self, position: int, tokens: int) -> None:
        """Tokens found in the prefix cache; of those that a preemption dropped, these need not be computed again."""
        self.cached_tokens += tokens
        if self._lost:
            found_again = min(tokens, self._lost.pop(position, 0))
            self.recomputed[position] -= found_again
            self.recomputed_tokens -= found_again

    def scheduled(self, position: int, start: int) -> None:
        """It has tokens in the iteration that starts then."""
        if self.first_scheduled[position] == UNKNOWN:
            self.first_scheduled[position] = start

    def token(self, position: int, end: int) -> None:
        """It emits a token."""
        self.emitted += 1
        self.tokens[position] += 1
        if self.first_time[position] == UNKNOWN:
            self.first_time[position] = end
            self.max_itl[position] = 0
        else:
            self._gap(position, end)
        self.last_time[position] = end

    def _gap(self, position: int, end: int) -> None:
        """Its own gap, up to a token at `end`."""
        gap = end - self.last_time[position]
        self.gaps.add(gap, 1)
        if self.each_gap is not None:
            self.each_gap.single(position, gap)
        if gap > self.max_itl[position]:
            self.max_itl[position] = gap

    def prefilled(self, position: int, iteration: int, end: int) -> None:
        """Its prefill ends, which brings a token."""
        if self.first_time[position] == UNKNOWN:
            self.first_iteration[position] = iteration
        self.in_decode[position] = 1
        self._decoding += 1
        self.token(position, end)

    def completed(self, position: int, iteration: int) -> bool:
        """It has emitted its last token. Whether it held a seat."""
        seated = self.result[position] == ACTIVE
        self.completed_iteration[position] = iteration
        self._leave_decode(position)
        self.result[position] = COMPLETED
        return seated

    def _leave_decode(self, position: int) -> None:
        if self.in_decode[position]:
            self.in_decode[position] = 0
            if self.result[position] == ACTIVE:
                self._decoding -= 1
            else:
                self._parked -= 1

    # What happens in an iteration

    def computes(self, prefill: int, decodes: int) -> None:
        """An iteration computes so many prefill tokens and decodes; who is decoding without one of these stalls."""
        self.prefill_tokens += prefill
        self.decode_tokens += decodes
        if prefill:
            self.decode_stalls += self._decoding - decodes
            self.preempted_decode_stalls += self._parked

    def seats(self, admitted: int, preempted: int, dropped: int, works: bool, padding: int) -> None:
        """Open the slots of an iteration; dropped: how many of those that ended before it held a seat.

        In one with tokens that is one for each request it has to carry: all seated ones, and where a batch is tied
        together everybody admitted since nobody was seated. In one with padding only, one for each padding token.
        """
        if not self._seated:
            self._batch = 0
        self._batch += admitted - preempted
        self._seated += admitted - preempted - dropped
        if works:
            self.slots_opened += self._batch if self.tied else self._seated
        else:
            self.slots_opened += padding
        self.padding_tokens += padding

    def unseated(self, completed: int) -> None:
        """So many of those that completed held a seat."""
        self._seated -= completed

    def unused(self, iterations: int, tokens: int) -> None:
        """In each of so many iterations nobody got so much of the budget."""
        if tokens > MANY or iterations > MANY or self._unused > MOST:
            self._carry(iterations, tokens)
        else:
            self._unused += iterations * tokens

    @property
    def unused_budget(self) -> int:
        """Token budget that nobody got, over all iterations."""
        return self._unused_total + self._unused

    def _carry(self, iterations: Any, tokens: Any) -> None:
        """What 64 bits may not hold goes into a Python integer."""
        self._unused_total += self._unused + iterations * tokens
        self._unused = 0

    def queued(self, length: int) -> None:
        """So many wait at the end of an iteration."""
        if length > self.max_queue_length:
            self.max_queue_length = length

    # The loop's view of an iteration

    def planned(self, step: Step) -> None:
        """Take in a step as planned, but for whom it has scheduled. The verbs have said who sits and who stands."""
        unseated = 0
        if step.dropped:
            for who, result, reason in step.dropped:
                unseated += self.dropped(who.position, RESULTS.index(result), reason)
        if step.cached:
            for who, tokens in step.cached:
                self.cached(who.position, tokens)
        self.moved_blocks += step.moved_blocks
        self.computes(step.prefill_tokens, step.decode_tokens)
        works = step.prefill_tokens + step.decode_tokens > 0
        self.seats(step.admitted.count, len(step.preempted), unseated, works, step.padding_tokens)

    def turn(self, step: Step, delivered: Step | None, delivery: Delivery, end: int) -> None:
        """Take in a whole step, and what is delivered at its end."""
        self.planned(step)
        for seq in step.scheduled:
            self.scheduled(seq.position, step.start)
        if delivered is not None:
            for seq in delivered.decoding:
                if not delivery.discarded or seq not in delivery.discarded:
                    self.token(seq.position, end)
        for seq in delivery.prefill_done:
            self.prefilled(seq.position, step.serial, end)
        unseated = 0
        for seq in delivery.completed:
            unseated += self.completed(seq.position, step.serial)
        self.unseated(unseated)

    # Those that decode in step

    def decoded(self, end: int) -> None:
        """All in step have a token at `end`: one gap for everybody who had the one before at the same time."""
        steady = self._steady
        delivered = steady.steps - steady.lag
        together = steady.size - len(self._late)
        self.emitted += steady.size
        for seq in self._late:
            self._gap(seq.position, end)
            seq._joined = delivered
        if self._late:
            self._late = []
        if together > 0:
            gap = end - self._last
            self.gaps.add(gap, together)
            if self.each_gap is not None:
                self.each_gap.common(delivered, gap)
            self._push(gap, delivered)
        self._last = end

    def coasted(self, iterations: int, decodes: int) -> None:
        """So many iterations held a token for each of those in step and nothing else."""
        self.decode_tokens += iterations * decodes
        self.slots_opened += iterations * (self._batch if self.tied else self._seated)

    def joined(self, seq: Sequence) -> None:
        """It decodes in step from now on."""
        last = self.last_time[seq.position]
        if self._steady.size - 1 == len(self._late):
            self._last = last
        elif last != self._last:
            self._late.append(seq)

    def left(self, seq: Sequence) -> None:
        """It is about to fall out of step."""
        position = seq.position
        delivered = self._steady.steps - self._steady.lag
        if self._late and seq in self._late:
            self._late.remove(seq)
        else:
            self.last_time[position] = self._last
            if self.each_gap is not None:
                self.each_gap.was_in_step(position, seq._joined, delivered)
            gap = self._largest_since(seq._joined)
            if gap > self.max_itl[position]:
                self.max_itl[position] = gap
        self.tokens[position] = seq._computed + delivered + 1 - seq.prompt_tokens

    def _push(self, gap: int, step: int) -> None:
        """Keep the gaps that are the largest since some step: those that no later one reaches."""
        top = self._peaks
        while top > 0 and self._peak_gaps[top - 1] <= gap:
            top -= 1
        if top == len(self._peak_gaps):
            self._peak_gaps = longer(self._peak_gaps, top)
            self._peak_steps = longer(self._peak_steps, top)
        self._peak_gaps[top] = gap
        self._peak_steps[top] = step
        self._peaks = top + 1

    def _largest_since(self, step: int) -> int:
        """The largest gap of the common steps after this one, 0 if there were none."""
        low = 0
        high = self._peaks
        while low < high:
            middle = (low + high) // 2
            if self._peak_steps[middle] > step:
                high = middle
            else:
                low = middle + 1
        return self._peak_gaps[low] if low < self._peaks else 0
