"""Rules broken in the policy: one class for each part left out or turned round, with the check that must see it."""

from collections.abc import Callable
from contextlib import suppress
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
        cap = self._chunk_cap(view, batch)
        self._walk_waiting(view, batch, cap)
        self._walk_running(view, batch, cap)


class Nothing(Exception):
    pass


@breaks("rule_02_running_chunk")
class StopsAtNothing(Vllm):
    def _running_chunk(self, *arguments: Any) -> int:
        tokens = super()._running_chunk(*arguments)
        if tokens == 0:
            raise Nothing
        return tokens

    def _walk_running(self, *arguments: Any) -> None:
        with suppress(Nothing):
            super()._walk_running(*arguments)


@breaks("rule_02_running_chunk")
class ForgetsModelLength(Vllm):
    def _running_chunk(self, seq: Any, view: Any, batch: Any, cap: Any) -> int:
        return min(seq.left, batch.tokens_left)


@breaks("rule_03_long_prefill_threshold")
class CapsOneAlone(Vllm):
    def _chunk_cap(self, *arguments: Any) -> int | None:
        return super()._chunk_cap(*arguments) or self.long_prefill_token_threshold or None


@breaks("rule_03_long_prefill_threshold")
class CapsOnlyWaiting(Vllm):
    def _walk_running(self, view: Any, batch: Any, cap: Any) -> None:
        super()._walk_running(view, batch, None)


@breaks("rule_03_long_prefill_threshold")
class CapsOnlyRunning(Vllm):
    def _walk_waiting(self, view: Any, batch: Any, cap: Any) -> Any:
        return super()._walk_waiting(view, batch, None)


setting("rule_03_long_prefill_threshold", "NeverAdapts", long_prefill_token_threshold_adaptive=False)
setting("rule_05_the_last_is_the_victim", "FirstIsTheVictim", _victim=lambda running: running[0])
setting(
    "rule_05_first_of_equals",
    "LastOfEquals",
    _victim=lambda running: max(reversed(running), key=lambda seq: (seq.priority, seq.sent)),
)


@breaks("rule_05_the_victim_may_be_the_requester")
class GoesOnAfterItself(Vllm):
    def _walk_running(self, *arguments: Any) -> None:
        super()._walk_running(*arguments)
        super()._walk_running(*arguments)


@breaks("rule_05_a_victim_before_the_cursor")
class CursorStays(Vllm):
    """The walk without its last line: after a victim before the cursor, the next request is passed over."""

    def _walk_running(self, view: Any, batch: Any, cap: Any) -> None:
        running, cursor = view.running, 0
        while cursor < len(running):
            seq = running[cursor]
            tokens = self._running_chunk(seq, view, batch, cap)
            while tokens and batch.schedule(seq, tokens) is Refusal.BLOCKS:
                victim = self._victim(running)
                batch.preempt(victim, "recompute", self._place)
                running.remove(victim)
                if victim is seq:
                    return
            cursor += 1


setting("rule_06_recompute_and_to_the_front", "ToTheBack", _place="back")
setting("rule_06_recompute_and_to_the_front", "KeepsAll", preemption_mode="keep")
setting("rule_06_by_key_under_priority", "ToTheFront", _place="front")


@breaks("rule_07_no_admission_after_a_preemption")
class AdmitsAllTheSame(Vllm):
    def plan(self, view: Any, batch: Any) -> None:
        cap = self._chunk_cap(view, batch)
        self._walk_running(view, batch, cap)
        self._walk_waiting(view, batch, cap)


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
setting("rule_10_waiting_chunk", "AlwaysChunks", enable_chunked_prefill=True)


@breaks("rule_10_waiting_chunk")
class CutsToTheBudgetFirst(Vllm):
    def _walk_waiting(self, view: Any, batch: Any, cap: Any) -> Any:
        return super()._walk_waiting(view, batch, cap if self.enable_chunked_prefill else None)


setting("rule_11_full_input_gate", "GateOff", scheduler_reserve_full_isl=False)
setting("rule_11_full_input_gate", "GateOn", scheduler_reserve_full_isl=True)


class Seen:
    """A batch that shows other numbers."""

    def __init__(self, batch: Any, **values: Any) -> None:
        self._batch = batch
        self._values = values

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__["_values"]
        return values[name]() if name in values else getattr(self.__dict__["_batch"], name)


@breaks("rule_11_full_input_gate")
class Reserves(Vllm):
    def _walk_waiting(self, view: Any, batch: Any, cap: Any) -> Any:
        def free() -> int:
            return batch.free_blocks - sum(max(0, batch.blocks_for(seq.known) - seq.held) for seq in view.running)

        return super()._walk_waiting(view, Seen(batch, free_blocks=free), cap)


@breaks("rule_12_watermark")
class NoWatermark(Vllm):
    def _watermark_blocks(self, batch: Any) -> int:
        return 0


@breaks("rule_12_watermark")
class WatermarkOfUsable(Vllm):
    def _watermark_blocks(self, batch: Any) -> int:
        return int(self.watermark * batch.total_blocks)


@breaks("rule_12_watermark")
class WatermarkOfTheEmpty(Vllm):
    def _walk_waiting(self, view: Any, batch: Any, cap: Any) -> Any:
        free = {"free_blocks": lambda: batch.free_blocks - self._watermark_blocks(batch) * (not view.num_running)}
        return super()._walk_waiting(view, Seen(batch, **free), cap)


@breaks("rule_12_watermark")
class WatermarkOnlyInTheGate(Vllm):
    def _watermark_blocks(self, batch: Any) -> int:
        return super()._watermark_blocks(batch) if self.scheduler_reserve_full_isl else 0


@breaks("rule_12_watermark")
class WatermarkOfTheRunning(Vllm):
    def _walk_running(self, view: Any, batch: Any, cap: Any) -> None:
        if not view.running or batch.free_blocks > self._watermark_blocks(batch):
            super()._walk_running(view, batch, cap)


setting("rule_20_two_steps_deep", "OneStepDeep", steps_in_flight=1)


@breaks("rule_20_the_last_token_is_not_scheduled_again")
class SchedulesTheLastAgain(Vllm):
    def _running_chunk(self, seq: Any, view: Any, batch: Any, cap: Any) -> int:
        return min(seq.left, batch.tokens_left)


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
        tokens = sum(other.prompt_tokens for other in [*view.running, *view.waiting]) + seq.prompt_tokens
        limit = self.max_num_queued_tokens
        return "max_num_queued_tokens reached" if limit is not None and tokens > limit else None
