"""Records what vLLM's scheduler decides, step by step, as a trace."""

from __future__ import annotations

import os
import time
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from batchlab.events import LIST_LIMIT
from batchlab.vllm import lines
from batchlab.vllm.file import TRACE, TraceFile


class Clock:
    """ns since the engine's scheduler was made, and when that was: in ns since 1970 and on the machine's clock."""

    def __init__(self) -> None:
        self.zero = time.monotonic_ns()
        self.epoch = time.time_ns()

    def now(self) -> int:
        """The time."""
        return time.monotonic_ns() - self.zero


class Step:
    """A planned step until its line is written: the line as far as it is known, and who gets a token from it."""

    __slots__ = ("brings", "line", "told")

    def __init__(self, line: dict[str, Any], brings: list[tuple[Any, bool]]) -> None:
        self.line = line
        self.brings = brings
        """(request, whether its prefill ends here)."""
        self.told = bool(line["scheduled"])
        """Whether there is anything to tell: vLLM runs an empty step whenever it goes idle."""


class Recorder:
    """Stands before a vLLM scheduler's class and takes notes of each call; all decisions are the scheduler's.

    A step's lines are written when its tokens are out. An engine whose steps have no place in a trace is refused.
    Memory holds what belongs to the requests that are there.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        obstacle = lines.obstacle(self)
        if obstacle is not None:
            raise ValueError(f"batchlab does not go with {obstacle}")
        self.clock = Clock()
        self._notes: Notes | None = None
        self._arrival: int | None = None
        """When the request that is being added came, where a class in front of this one has asked the clock."""

    def record(self, path: str, engine: str, rules: str, settings: dict[str, Any], order: str) -> None:
        """Begin to record to `path` as a run of the policy `engine`, which goes by these rules."""
        recorded = {"epoch": self.clock.epoch, "monotonic": self.clock.zero}
        self._notes = Notes(self, TraceFile(path), lines.header(self, engine, rules, settings, order, recorded))

    def add_request(self, request: Any) -> None:
        """Note who comes."""
        if self._notes is not None and request.request_id not in self.requests:  # type: ignore[attr-defined]
            self._notes.comes(request, self.clock.now() if self._arrival is None else self._arrival)
        super().add_request(request)  # type: ignore[misc]

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        """Note who is ended from outside."""
        ended = super().finish_requests(*args, **kwargs)  # type: ignore[misc]
        if self._notes is not None:
            self._notes.ended(ended)
        return ended

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        if self._notes is not None:
            self._notes.preempted(request)
        super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Note the plan."""
        if self._notes is None:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        start = self.clock.now()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        self._notes.planned(start, output)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Note whose tokens come out, and who ends."""
        if self._notes is None:
            return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        landing = self._notes.lands()
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        self._notes.landed(landing, outputs)
        return outputs

    def shutdown(self) -> None:
        """The engine stops."""
        if self._notes is not None:
            self._notes.file.close()
        super().shutdown()  # type: ignore[misc]


class Notes:
    """What is to be written of the step under way."""

    def __init__(self, scheduler: Any, file: TraceFile, header: dict[str, Any]) -> None:
        self.file = file
        self._scheduler = scheduler
        self._now = scheduler.clock.now
        self._budget = scheduler.max_num_scheduled_tokens
        self._caching = bool(scheduler.cache_config.enable_prefix_caching)
        self._place = "key" if scheduler.scheduler_config.policy == "priority" else "front"
        self._pool = scheduler.kv_cache_manager.block_pool
        self._new: list[dict[str, Any]] = []  # lines of requests that no iteration has named
        self._arrived: list[str] = []
        self._rejected: list[dict[str, str]] = []
        self._dropped: list[dict[str, Any]] = []
        self._preempted: list[dict[str, Any]] = []
        self._decoding: set[str] = set()
        self._hashed: dict[str, int] = {}  # of each request, how many of its blocks have a name in the file
        self._step: Step | None = None
        self._count = 0
        file.write([header])

    def comes(self, request: Any, arrival: int) -> None:
        """A request comes to the scheduler."""
        self._new.append(lines.request_line(request, arrival, self._scheduler.clock.epoch, self._caching))
        self._arrived.append(request.request_id)
        self._hashed[request.request_id] = len(request.block_hashes)

    def rejected(self, request: Any, reason: str) -> None:
        """A policy's door refuses it; vLLM has just ended it."""
        name = request.request_id
        self._dropped = [entry for entry in self._dropped if entry["id"] != name]
        self._rejected.append({"id": name, "reason": reason})

    def ended(self, requests: list[Any]) -> None:
        """These were ended from outside: by their clients, or for an error."""
        at = self._now()
        for request in requests:
            aborted = request.status == RequestStatus.FINISHED_ABORTED
            self._dropped.append(
                {
                    "id": request.request_id,
                    "result": "cancelled" if aborted else "failed",
                    "reason": "by its client" if aborted else request.status.name.lower(),
                    "at": at,
                }
            )
            self._forget(request.request_id)

    def preempted(self, request: Any) -> None:
        """A request is about to lose its seat."""
        name = request.request_id
        entry = {"id": name, "mode": "recompute", "place": self._place, "computed": request.num_computed_tokens}
        self._preempted.append(entry)
        self._decoding.discard(name)

    def planned(self, start: int, output: Any) -> None:
        """vLLM has planned a step."""
        scheduler = self._scheduler
        scheduled, brings = self._entries(output)
        cached = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        again = output.scheduled_cached_reqs
        if again.resumed_req_ids:
            cached.update(
                (name, tokens)
                for name, tokens in zip(again.req_ids, again.num_computed_tokens, strict=True)
                if name in again.resumed_req_ids
            )
        admitted = [name for name in output.num_scheduled_tokens if name in cached] if cached else []
        there = scheduler.running or scheduler.waiting
        line = {
            "type": "iteration",
            "iteration": self._count,
            "start": start,
            "end": start,
            "arrived": self._arrived,
            "rejected": self._rejected,
            "preempted": self._preempted,
            "admitted": admitted,
            "scheduled": scheduled,
            "unused": self._budget - output.total_num_scheduled_tokens,
            "idle": None if scheduled else "vLLM scheduled nothing" if there else "no work",
            "cached": [[name, cached[name]] for name in admitted],
            "kv": {"free": self._pool.get_num_free_blocks(), "free_after": 0, "moved": 0},
        }
        if self._dropped:
            line["dropped"] = self._dropped
        self._step = Step(line, brings)
        if self._arrived or self._preempted or self._dropped:
            self._step.told = True
            self._arrived, self._rejected, self._preempted, self._dropped = [], [], [], []

    def _entries(self, output: Any) -> tuple[list[tuple[str, str, int]], list[tuple[Any, bool]]]:
        """The batch in order, and who gets a token from it."""
        requests, decoding = self._scheduler.requests, self._decoding
        scheduled: list[tuple[str, str, int]] = []
        brings: list[tuple[Any, bool]] = []
        for name, tokens in output.num_scheduled_tokens.items():
            request = requests[name]
            if name in decoding:
                scheduled.append((name, "decode", tokens))
                brings.append((request, False))
                continue
            scheduled.append((name, "prefill", tokens))
            if not request.is_prefill_chunk:
                decoding.add(name)
                brings.append((request, True))
        return scheduled, brings

    def lands(self) -> tuple[Step, list[Any]]:
        """The tokens of the step are about to come out: who gets one. Returns what `landed` needs."""
        step, self._step = self._step, None
        assert step is not None, "vLLM plans a step before it delivers one"
        line = step.line
        done: list[str] = []
        first: list[str] = []
        discarded: list[str] = []
        for request, prefill in step.brings:
            if request.is_finished():
                discarded.append(request.request_id)
                continue
            if prefill:
                done.append(request.request_id)
            if not request.num_output_tokens:
                first.append(request.request_id)
        line["prefill_done"], line["first_token"] = done, first
        if discarded:
            line["discarded"] = discarded
        return step, list(self._scheduler.running)

    def landed(self, landing: tuple[Step, list[Any]], outputs: Any) -> None:
        """The tokens are out."""
        step, running = landing
        line = step.line
        finished = {
            output.request_id: None
            for client in outputs.values()
            for output in client.outputs
            if output.finish_reason is not None
        }
        for entry in (*line["rejected"], *line.get("dropped", ()), *self._dropped):
            finished.pop(entry["id"], None)
        completed: list[str] = []
        if finished:
            completed = [request.request_id for request in running if request.request_id in finished]
            completed += [name for name in finished if name not in completed]
        line["completed"] = completed
        if self._caching:
            self._name_blocks(step, line)
        for name in completed:
            self._forget(name)
        self._close(step, self._now())

    def _name_blocks(self, step: Step, line: dict[str, Any]) -> None:
        filled = []
        for request, _ in step.brings:
            hashes, name = request.block_hashes, request.request_id
            known = self._hashed.get(name)
            if known is not None and len(hashes) > known:
                filled += [[name, block] for block in lines.names(hashes[known:])]
                self._hashed[name] = len(hashes)
        if filled:
            line["filled"] = filled

    def _close(self, step: Step, end: int) -> None:
        """Write a step's line, after those of the requests that it names for the first time."""
        scheduler, line = self._scheduler, step.line
        if self._dropped:  # while the step was under way
            line["dropped"] = [*line.get("dropped", ()), *self._dropped]
            self._dropped, step.told = [], True
        if not step.told:
            return
        line["end"] = end
        line["queue"] = _listed(scheduler.waiting)
        line["active"] = _listed(scheduler.running)
        line["kv"]["free_after"] = self._pool.get_num_free_blocks()
        self.file.write([*self._new, line])
        self._new = []
        self._count += 1

    def _forget(self, name: str) -> None:
        self._decoding.discard(name)
        self._hashed.pop(name, None)


def _listed(requests: Any) -> list[str] | int:
    count = len(requests)
    return [request.request_id for request in requests] if count <= LIST_LIMIT else count


class RecordingScheduler(Recorder, Scheduler):
    """For `--scheduler-cls batchlab.vllm.RecordingScheduler`: vLLM's own, recorded to the file of BATCHLAB_TRACE."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        path = os.environ.get(TRACE)
        if not path:
            raise ValueError(f"batchlab records to the file that {TRACE} names, and it names none")
        settings = lines.settings_of(self)
        order = "policy" if settings["scheduling_policy"] == "priority" else "arrival"
        self.record(path, "vllm", lines.RULES, settings, order)
