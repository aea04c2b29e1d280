"""Rules broken in the policy: one class for each part left out or turned round, with the check that must see it."""

from collections.abc import Callable
from typing import Any

from batchlab.core.work import Refusal
from batchlab.policies.vllm import Vllm

POLICY_MUTANTS: dict[str, tuple[str, type[Vllm]]] = {}


def breaks(rule: str) -> Callable[[type[Vllm]], type[Vllm]]:
    """The class breaks the rule that this check is for."""

    def note(broken: type[Vllm]) -> type[Vllm]:
        POLICY_MUTANTS[broken.__name__] = (rule, broken)
        return broken

    return note


def setting(rule: str, name: str, **values: Any) -> None:
    """A policy on which these attributes are set once it is made, whatever was asked for."""

    class Broken(Vllm):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            for attribute, value in values.items():
                setattr(self, attribute, value)

    POLICY_MUTANTS[name] = (rule, Broken)


# Policies


@breaks("rule_01_running_before_waiting_under_one_budget")
class WaitingFirst(Vllm):
    def plan(self, view: Any, batch: Any) -> None:
        self._walk_waiting(view, batch, None)
        batch.schedule_running()


@breaks("rule_02_running_chunk")
class StopsAtNothing(Vllm):
    def plan(self, view: Any, batch: Any) -> None:
        for seq in view.running:
            if batch.schedule(seq, self._most(view, batch, seq)) is not None:
                break
        self._walk_waiting(view, batch, None)


@breaks("rule_02_running_chunk")
class ForgetsModelLength(Vllm):
    def _most(self, view: Any, batch: Any, seq: Any) -> int:
        return int(seq.left)


@breaks("rule_03_long_prefill_threshold")
class CapsOneAlone(Vllm):
    def _chunk_cap(self, *arguments: Any) -> int | None:
        return super()._chunk_cap(*arguments) or self._cap


@breaks("rule_03_long_prefill_threshold")
class CapsOnlyWaiting(Vllm):
    def plan(self, view: Any, batch: Any) -> None:
        cap = self._chunk_cap(view, batch)
        batch.schedule_running()
        self._walk_waiting(view, batch, cap)


@breaks("rule_03_long_prefill_threshold")
class CapsOnlyRunning(Vllm):
    def _walk_waiting(self, view: Any, batch: Any, cap: Any) -> Any:
        return super()._walk_waiting(view, batch, None)


setting("rule_03_long_prefill_threshold", "NeverAdapts", _adaptive=False)
setting("rule_05_the_last_is_the_victim", "FirstIsTheVictim", _victim=lambda running: running[0])
setting(
    "rule_05_first_of_equals",
    "LastOfEquals",
    _victim=lambda running: max(reversed(running), key=lambda seq: (seq.priority, seq.sent)),
)


@breaks("rule_05_the_victim_may_be_the_requester")
class GoesOnAfterItself(Vllm):
    def _make_room(self, short: Any, view: Any, batch: Any, cap: Any, most_of: Any) -> None:
        while short is not None:
            super()._make_room(short, view, batch, cap, most_of)
            short = batch.schedule_running(cap, most_of)


@breaks("rule_05_a_victim_before_the_cursor")
class CursorStays(Vllm):
    """A walk by hand: after a victim before the cursor, the next request is passed over."""

    def plan(self, view: Any, batch: Any) -> None:
        running, cursor = view.running, 0
        while cursor < len(running):
            seq = running[cursor]
            while batch.schedule(seq) is Refusal.BLOCKS:
                victim = self._victim(running)
                batch.preempt(victim, self._mode, self._place)
                running.remove(victim)
                if victim is seq:
                    return
            cursor += 1
        if not batch.preempted:
            self._walk_waiting(view, batch, None)


setting("rule_06_recompute_and_to_the_front", "ToTheBack", _place="back")
setting("rule_06_recompute_and_to_the_front", "KeepsAll", _mode="keep")
setting("rule_06_by_key_under_priority", "ToTheFront", _place="front")


@breaks("rule_07_no_admission_after_a_preemption")
class AdmitsAllTheSame(Vllm):
    def plan(self, view: Any, batch: Any) -> None:
        self._make_room(batch.schedule_running(), view, batch, None, None)
        self._walk_waiting(view, batch, None)


@breaks("rule_08_head_of_line")
class LooksPastTheHead(Vllm):
    def _walk_waiting(self, view: Any, batch: Any, cap: Any) -> None:
        super()._walk_waiting(view, batch, cap)
        for seq in list(view.waiting):
            if batch.blocks_to_admit(seq, seq.known) <= batch.free_blocks:
                batch.schedule(seq)


setting("rule_08_heap_key", "ShortIdsFirst", queue_key=lambda seq: (seq.priority, seq.sent, len(seq.id), seq.id))
setting("rule_08_heap_key", "WithoutPriority", queue_key=lambda seq: (seq.sent, seq.id))
setting("rule_08_heap_key", "WithoutTime", queue_key=lambda seq: (seq.priority, seq.id))
setting("rule_10_waiting_chunk", "AlwaysChunks", _chunked=True)


@breaks("rule_10_waiting_chunk")
class CutsToTheBudgetFirst(Vllm):
    def _walk_waiting(self, view: Any, batch: Any, cap: Any) -> Any:
        return super()._walk_waiting(view, batch, cap if self.enable_chunked_prefill else None)


setting("rule_11_full_input_gate", "GateOff", _reserve_all=False)
setting("rule_11_full_input_gate", "GateOn", _reserve_all=True)


@breaks("rule_11_full_input_gate")
class Reserves(Vllm):
    def _walk_waiting(self, view: Any, batch: Any, cap: Any) -> None:
        reserved = sum(max(0, batch.blocks_for(seq.known) - seq.held) for seq in view.running)
        batch.schedule_waiting(cap, not self._chunked, reserved, self._reserve_all)


setting("rule_12_watermark", "NoWatermark", _watermark=0.0)


@breaks("rule_12_watermark")
class WatermarkOfUsable(Vllm):
    def _walk_waiting(self, view: Any, batch: Any, cap: Any) -> None:
        spare = int(self.watermark * batch.total_blocks)
        batch.schedule_waiting(cap, not self._chunked, spare, self._reserve_all)


def spare_blocks(policy: Vllm, batch: Any) -> int:
    """The watermark as it should be."""
    return int(policy.watermark * (batch.total_blocks + 1))


@breaks("rule_12_watermark")
class WatermarkOfTheEmpty(Vllm):
    def _walk_waiting(self, view: Any, batch: Any, cap: Any) -> Any:
        head, free = view.waiting.head, batch.free_blocks - spare_blocks(self, batch)
        if head is not None and not view.num_running and batch.blocks_to_admit(head, head.known) > free:
            return "the watermark counts although nobody is running"
        return super()._walk_waiting(view, batch, cap)


@breaks("rule_12_watermark")
class WatermarkOnlyInTheGate(Vllm):
    def _walk_waiting(self, view: Any, batch: Any, cap: Any) -> Any:
        if not self._reserve_all:
            self._watermark = 0.0
        return super()._walk_waiting(view, batch, cap)


@breaks("rule_12_watermark")
class WatermarkOfTheRunning(Vllm):
    def plan(self, view: Any, batch: Any) -> Any:
        if view.running and batch.free_blocks <= spare_blocks(self, batch):
            return "the watermark counts for running requests"
        return super().plan(view, batch)


setting("rule_20_two_steps_deep", "OneStepDeep", steps_in_flight=1)


@breaks("rule_20_the_last_token_is_not_scheduled_again")
class SchedulesTheLastAgain(Vllm):
    def _most(self, view: Any, batch: Any, seq: Any) -> int:
        return int(seq.left)


@breaks("rule_22_start_and_front_end")
class StartsAnyway(Vllm):
    def check(self, limits: Any, requests: Any) -> None:
        return None


@breaks("rule_22_start_and_front_end")
class TakesAnyMaxTokens(Vllm):
    def _refusal(self, *arguments: Any) -> str | None:
        refusal = super()._refusal(*arguments)
        return None if refusal and "max_tokens" in refusal else refusal


@breaks("rule_23_bounded_queue")
class CountsOnlyWaiting(Vllm):
    def _refusal(self, seq: Any, view: Any, batch: Any) -> str | None:
        if self.max_num_queued_reqs is None:
            return super()._refusal(seq, view, batch)
        return "max_num_queued_reqs reached" if len(view.waiting) >= self.max_num_queued_reqs else None


@breaks("rule_23_bounded_queue")
class CountsAllTokens(Vllm):
    def _refusal(self, seq: Any, view: Any, batch: Any) -> str | None:
        if self.max_num_queued_tokens is None:
            return super()._refusal(seq, view, batch)
        tokens = sum(other.prompt_tokens for other in [*view.running, *view.waiting]) + seq.prompt_tokens
        return "max_num_queued_tokens reached" if tokens > self.max_num_queued_tokens else None
