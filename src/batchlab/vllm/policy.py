"""A policy written for the simulator decides inside vLLM: the order of its queue, its victims, its door."""

from __future__ import annotations

import logging
import os
from itertools import count
from typing import Any

from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import RequestStatus

from batchlab import policies
from batchlab.core.limits import Limits
from batchlab.core.scheduler import Core
from batchlab.core.sequence import Sequence
from batchlab.order import check_key
from batchlab.policies.victims import RULES
from batchlab.policies.vllm import Vllm, priority_key
from batchlab.vllm import lines
from batchlab.vllm.carry import POLICY, Carried, carry
from batchlab.vllm.file import TRACE
from batchlab.vllm.queue import KeyQueue
from batchlab.vllm.recorder import Recorder

FIRST_IN_LINE = float("inf")
"""A priority that is less urgent than any other: vLLM preempts its largest."""
log = logging.getLogger("vllm.batchlab")


class PolicyScheduler(Recorder, Scheduler):
    """For `--scheduler-cls batchlab.vllm.PolicyScheduler`: vLLM's scheduler with the choices of BATCHLAB_POLICY.

    Records too, if BATCHLAB_TRACE names a file.

    Each request has a Sequence, which is what the policy sees of it. Whatever a policy raises about a newcomer refuses
    that one, and is logged: an engine that serves others goes on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        limits = lines.limits_of(self)
        self._carried: Carried = carry(os.environ.get(POLICY), lines.settings_of(self), limits)
        policy = self._carried.policy
        self._seqs: dict[str, Sequence] = {}
        self._keys: dict[str, tuple[int, Any]] = {}
        self._positions = count()
        self._limits = Limits(**{**limits, "enable_prefix_caching": False})
        self._open_door = policies.open_door(policy, self._limits, Core(self._limits).batch)
        self._refused: list[Any] = []
        self._victim: tuple[Any, int] | None = None
        self._by_priority = by_priority = self.policy == SchedulingPolicy.PRIORITY
        key = getattr(policy, "queue_key", None)
        self._key = None if key is priority_key else key  # which is vLLM's own
        if self._key is not None:
            self.waiting = KeyQueue(self._place, in_front=not by_priority)
        if policy._victim is not RULES["priority" if by_priority else "last-admitted"]:
            self._choose_victims()
        path = os.environ.get(TRACE)
        if path:
            order = "arrival" if key is None else "policy"
            rules = lines.RULES if policy.rules == Vllm.rules else str(policy.rules)
            self.record(path, self._carried.name, rules, self._carried.settings, order)

    def add_request(self, request: Any) -> None:
        """The policy's door, and the place that its order gives."""
        name = request.request_id
        if name in self.requests:  # a session goes on
            super().add_request(request)
            return
        self._arrival = arrival = self.clock.now()
        reason = self._meet(request, arrival)
        super().add_request(request)
        if reason is not None:
            self.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            self._refused.append(request)
            if self._notes is not None:
                self._notes.rejected(request, reason)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """As vLLM does; who comes back after a preemption prefills its output too."""
        output = super().schedule(*args, **kwargs)
        for name in output.scheduled_cached_reqs.resumed_req_ids:
            self._seqs[name].prefill_target = self.requests[name].num_tokens
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """As vLLM does; clients hear of it that they were refused."""
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for request in self._refused:
            client = outputs.setdefault(request.client_index, EngineCoreOutputs())
            client.outputs.append(
                EngineCoreOutput(request_id=request.request_id, new_token_ids=[], finish_reason=FinishReason.ERROR)
            )
        self._refused = []
        there = self.requests
        if len(self._seqs) > 2 * len(there) + 64:
            self._seqs = {name: seq for name, seq in self._seqs.items() if name in there}
            self._keys = {name: key for name, key in self._keys.items() if name in there}
        return outputs

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        if self._victim is not None:
            victim, own_priority = self._victim
            victim.priority, self._victim = own_priority, None
        super()._preempt_request(request, *args, **kwargs)

    # The door

    def _meet(self, request: Any, arrival: int) -> str | None:
        """Make the policy's view of a newcomer. Returns what it is refused for, if it is."""
        seq = Sequence(
            next(self._positions),
            request.request_id,
            arrival,
            request.num_prompt_tokens,
            request.max_tokens,
            lines.priority(request),
            lines.sent(request, self.clock.epoch),
            deadline=lines.deadline(request),
        )
        self._seqs[request.request_id] = seq
        try:
            return self._ask_door(seq)
        except Exception as error:
            reason = f"{self._carried.name}: {type(error).__name__}: {error}"
            log.error("batchlab: request %s is refused: %s", request.request_id, reason)
            return reason

    def _ask_door(self, seq: Sequence) -> str | None:
        if self._key is not None:
            found, there = self._key(seq), self.requests
            check_key(found, (other for name, (_, other) in self._keys.items() if name in there))
            self._keys[seq.id] = (1, found)
        bounds = self._open_door
        if bounds is not None and seq.prompt_tokens <= bounds[0] and seq.max_tokens <= bounds[1]:
            return None
        core = self._mirror(seq.arrival)
        policies.ask_door(policies.on_arrival(self._carried.policy), seq, core.view, core.batch)
        return str(core.batch.rejected[0][1]) if seq.ended else None

    def _place(self, request: Any) -> tuple[int, Any, int]:
        """Where a request stands in the queue; one whose key could not be told leaves at once, and stands last."""
        name = request.request_id
        return *self._keys.get(name, (2, 0)), self._seqs[name].position

    def _mirror(self, now: int) -> Core:
        """Our core in the engine's state, for a policy to look at."""
        core = Core(self._limits)
        for request in self.running:
            seq = self._seen(request)
            seq.running, seq.waiting = True, False
            core.running.append(seq)
        for request in self.waiting:
            seq = self._seen(request)
            seq.running, seq.waiting = False, True
            core.waiting.append(seq)
        assert core.kv is not None
        core.kv.free = self.kv_cache_manager.block_pool.get_num_free_blocks()
        core.begin(now)
        return core

    def _seen(self, request: Any) -> Sequence:
        """The policy's view of a request, brought up to date."""
        seq = self._seqs[request.request_id]
        seq._known, seq._computed = request.num_tokens, request.num_computed_tokens
        seq.placeholders, seq.preemptions = request.num_output_placeholders, request.num_preemptions
        return seq

    # Victims

    def _choose_victims(self) -> None:
        """When a running request finds no block, vLLM preempts the least urgent by priority: make that the rule's."""
        self.policy = SchedulingPolicy.PRIORITY  # chooses victims only: the queue is made already
        manager = self.kv_cache_manager
        allocate = manager.allocate_slots

        def allocate_slots(request: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = allocate(request, *args, **kwargs)
            if blocks is None and request.status == RequestStatus.RUNNING:
                victim = self._ask_victim(self.running)
                self._victim = victim, victim.priority
                victim.priority = FIRST_IN_LINE
            return blocks

        manager.allocate_slots = allocate_slots

    def _ask_victim(self, running: list[Any]) -> Any:
        """Whom the rule preempts; where it fails, whom vLLM would."""
        try:
            seqs = [self._seen(request) for request in running]
            return running[seqs.index(self._carried.policy._victim(seqs))]
        except Exception as error:
            log.error(
                "batchlab: %s: vLLM's own victim is taken: %s: %s", self._carried.name, type(error).__name__, error
            )
            if self._by_priority:
                return max(running, key=lambda request: (request.priority, request.arrival_time))
            return running[-1]
