"""A recording of a real engine: its arrivals through our policy, and every decision of every iteration compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from batchlab import policies
from batchlab.clients.identity import NamedBlocks
from batchlab.clients.request import Request
from batchlab.conform.compare import Difference, compare
from batchlab.core.batch import Batch
from batchlab.core.blocks import Tokens
from batchlab.core.limits import Limits
from batchlab.core.scheduler import Core, PolicyError, View
from batchlab.core.sequence import Sequence
from batchlab.core.step import Delivery, Step
from batchlab.errors import BatchlabError, InputError, raised
from batchlab.events import LIST_LIMIT, Dropped, Event, Header, Iteration
from batchlab.explain.source import read_events, tell
from batchlab.metrics.fold import Summary
from batchlab.order import check_key
from batchlab.policies.victims import RULES, VictimRule
from batchlab.policies.vllm import Vllm
from batchlab.settings import parameters
from batchlab.units import counted

Door = Callable[[Sequence, View, Batch], object]


def run_recording(path: str | os.PathLike[str]) -> tuple[str, Difference | None]:
    """A one-line detail, and the first difference. Raises InputError for what is no recording, or cannot be replayed.

    Times are the recording's: what came, ended or was delivered is told to our policy when it was told to the engine.
    What it then decides has to be the same. Memory grows with the number of requests, not with the file's length.
    """
    known = _Known(path)
    replay: _Replay | None = None
    for _, event in _events(path):
        if isinstance(event, Header):
            replay = _Replay(event, known)
        elif isinstance(event, Request) and replay is not None:
            replay.add(event)
        elif isinstance(event, Iteration) and replay is not None:
            found = _step(replay, event)
            if found is not None:
                return "", found
    return known.detail, None


def _step(replay: _Replay, event: Iteration) -> Difference | None:
    """One iteration; whatever a policy of one's own raises becomes one line."""
    try:
        return replay.iteration(event)
    except (BatchlabError, KeyboardInterrupt):
        raise
    except BaseException as error:
        what = "and the recording has no refusal for that" if replay.at_the_door else "so no more can be compared"
        said = f"the policy raised {raised(error)}, {what}"
        raise BatchlabError(f"policy {replay.engine}: iteration {event.iteration}: {said}") from error


def _events(path: str | os.PathLike[str]) -> Iterator[tuple[int, Event]]:
    for number, event in read_events(path):
        if isinstance(event, Header) and event.recorded is None:
            raise InputError(
                path, "line 1", None, "a recording of an engine expected, but its header has no `recorded`"
            )
        yield number, event


class _Known:
    """What only the whole recording tells: how long each output became, and the names of all its full KV blocks."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        summary = Summary()
        iterations = 0
        self.blocks = NamedBlocks()
        for number, event in _events(path):
            tell(path, number, event, [summary, self.blocks])
            iterations += isinstance(event, Iteration)
        counts, tally = summary.result_counts(), summary.tally
        others = [f"{count} {result}" for result, count in counts.items() if result != "completed"]
        numbers = [counted(tally.count, "request"), counted(tally.preemptions, "preemption")]
        self.detail = ", ".join([counted(iterations, "step"), *numbers, *others])
        if not iterations:
            self.detail = "nothing was recorded, so nothing differs"
        self.outputs = {r.request.id: r.emitted for r in summary.results if r.result == "completed"}


class _Replay:
    """Our core and policy, driven by the lines of the recording."""

    def __init__(self, header: Header, known: _Known) -> None:
        self.engine = header.engine
        policy_class = policies.find_recorded(header.engine)
        own = {name: header.settings[name] for name in parameters(policy_class) if name in header.settings}
        self._requests: dict[str, tuple[int, Request]] = {}  # those that have not come
        self._positions = count()
        self._policy = policies.make(header.engine, own, "settings")
        policies.check_attributes(self._policy, header.engine)
        if isinstance(self._policy, Vllm):
            self._policy._victim = _as_inside_vllm(self._policy)
        self._key = getattr(self._policy, "queue_key", None)
        limits: dict[str, Any] = dict(header.limits)
        self._limits = Limits(**limits)
        self._known = known
        self._core = Core(self._limits, self._key, header.steps_in_flight)
        self._door = policies.on_arrival(self._policy)
        self._caching = self._limits.enable_prefix_caching
        self._seqs: dict[str, Sequence] = {}
        self._steps: dict[int, Step] = {}
        self.at_the_door = False
        """Whether the policy is asked about a newcomer whom the recording does not refuse for an error of it."""

    def add(self, request: Request) -> None:
        """A request becomes known."""
        self._requests[request.id] = (next(self._positions), request)

    def iteration(self, line: Iteration) -> Difference | None:
        """Do what the engine did, and say what came out otherwise."""
        core = self._core
        core.begin(line.start)
        self._tell(line)
        step = core.plan(self._policy.plan)
        if step.entries:
            self._steps[line.iteration] = step
        for drop in line.dropped:
            if drop.late(line.start):
                self._drop(drop)
        delivered = None if line.delivers is None else self._steps.pop(line.delivers, None)
        delivery = Delivery() if delivered is None else core.commit(delivered, self._finished(delivered))
        for id in [*(drop.id for drop in line.dropped), *(seq.id for seq in delivery.completed)]:
            self._seqs.pop(id, None)
        return compare(_recorded(line), self._decided(step, delivery), f"iteration {line.iteration}")

    def _tell(self, line: Iteration) -> None:
        """Arrivals and ends in the order in which the engine learned of them."""
        news: list[tuple[int, int, str | Dropped]] = []
        troubled = {rejection.id for rejection in line.rejected if rejection.reason.startswith(f"{self.engine}: ")}
        for id in line.arrived:
            if id not in self._requests:
                raise InputError(None, f"iteration {line.iteration}", id, "arrives, but no request before has this id")
            news.append((self._requests[id][1].arrival, 0, id))
        news += [(drop.at or 0, 1, drop) for drop in line.dropped if not drop.late(line.start)]
        for _, _, what in sorted(news, key=lambda entry: entry[:2]):
            if isinstance(what, Dropped):
                self._drop(what)
            else:
                self.at_the_door = what not in troubled
                self._arrive(*self._requests.pop(what), self._door if self.at_the_door else self._watched)
        self.at_the_door = False

    def _watched(self, seq: Sequence, view: View, batch: Batch) -> None:
        """The door for one that the recording refuses for an error of the policy: refused if it is one here too."""
        try:
            if self._key is not None:
                check_key(self._key(seq), [self._key(other) for other in self._seqs.values() if not other.ended])
            policies.ask_door(self._door, seq, view, batch)
        except Exception as error:
            if seq.running or (isinstance(error, PolicyError) and not seq.at_the_door):  # our core has done it
                raise
            if not seq.ended:
                batch.reject(seq, f"{self.engine}: {raised(error)}")

    def _arrive(self, position: int, r: Request, door: Door) -> None:
        self._seqs[r.id] = self._core.arrive(
            door,
            position,
            r.id,
            r.arrival,
            r.prompt,
            r.max_tokens,
            r.priority,
            r.sent,
            self._tokens(position, r) if self._caching else None,
            r.deadline,
        )

    def _tokens(self, position: int, r: Request) -> Tokens:
        found = self._known.blocks.identity(r, position, self._limits.block_size)
        if found is None:
            expected = "prefix caching can only be replayed with the names of KV blocks"
            raise InputError(None, f"request {r.id!r}: blocks", None, expected)
        return Tokens(found.prompt, found.output_segment)

    def _drop(self, drop: Dropped) -> None:
        seq = self._seqs.get(drop.id)
        if seq is not None:
            self._core.cancel(seq, drop.result, drop.reason)

    def _finished(self, step: Step) -> list[Sequence]:
        """Whose last token comes out."""
        outputs = self._known.outputs
        return [seq for seq in step.sampled if not seq.ended and seq.generated + 1 == outputs.get(seq.id)]

    def _decided(self, step: Step, delivery: Delivery) -> dict[str, Any]:
        core = self._core
        return {
            "rejected": [seq.id for seq, _ in step.rejected],
            "dropped": sorted(seq.id for seq, _, _ in step.dropped),
            "preempted": [(seq.id, mode, place, computed) for seq, mode, place, computed in step.preempted],
            "admitted": [seq.id for seq in step.admitted],
            "cached": [(seq.id, tokens) for seq, tokens in step.cached],
            "scheduled": [(seq.id, phase, tokens) for seq, phase, tokens in step.entries],
            "unused": step.unused,
            "free": None if core.kv is None else step.free_blocks,
            "prefill_done": [seq.id for seq in delivery.prefill_done],
            "first_token": [seq.id for seq in delivery.first],
            "completed": sorted(seq.id for seq in delivery.completed),
            "discarded": [seq.id for seq in delivery.discarded],
            "queue": _listed(core.waiting),
            "active": _listed(core.running),
            "free_after": None if core.kv is None else core.kv.free,
        }


def _as_inside_vllm(policy: Vllm) -> VictimRule:
    """The victim rule of a policy; where it fails, inside vLLM vLLM's own is asked."""
    rule, vllms_own = policy._victim, RULES["priority" if policy.scheduling_policy == "priority" else "last-admitted"]

    def choose(running: list[Sequence]) -> Sequence:
        try:
            return running[running.index(rule(running))]
        except Exception:
            return vllms_own(running)

    return choose


def _recorded(line: Iteration) -> dict[str, Any]:
    return {
        "rejected": [rejection.id for rejection in line.rejected],
        "dropped": sorted(drop.id for drop in line.dropped),
        "preempted": [(p.id, p.mode, p.place, p.computed) for p in line.preempted],
        **{name: getattr(line, name) for name in ("admitted", "cached", "scheduled", "unused")},
        "free": None if line.kv is None else line.kv["free"],
        "prefill_done": line.prefill_done,
        "first_token": line.first_token,
        "completed": sorted(line.completed),
        **{name: getattr(line, name) for name in ("discarded", "queue", "active")},
        "free_after": None if line.kv is None else line.kv["free_after"],
    }


def _listed(sequences: Any) -> list[str] | int:
    count = len(sequences)
    return [seq.id for seq in sequences] if count <= LIST_LIMIT else count
