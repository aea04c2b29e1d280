"""A step of the core, told as an event."""

from typing import Any

from batchlab.core.scheduler import Core
from batchlab.core.step import Delivery, Step
from batchlab.events import Dropped, Iteration, Preemption, Rejection


def iteration_event(
    step: Step,
    end: int,
    arrived: list[str],
    rejected: list[Rejection],
    delivered: Step | None,
    delivery: Delivery,
    core: Core,
    list_limit: int | None,
) -> Iteration:
    """The event of a step that has just been taken: what the core did in it, and what `delivered` brought at its end.

    list_limit: up to how many ids queue and running are listed, not counted.
    """
    return Iteration(
        iteration=step.serial,
        start=step.start,
        end=end,
        arrived=arrived,
        rejected=rejected,
        dropped=[Dropped(seq.id, result, reason) for seq, result, reason in step.dropped],
        preempted=[Preemption(seq.id, mode, place, computed) for seq, mode, place, computed in step.preempted],
        admitted=[seq.id for seq in step.admitted],
        cached=[(seq.id, tokens) for seq, tokens in step.cached],
        scheduled=[(seq.id, phase, tokens) for seq, phase, tokens in step.entries],
        delivers=None if delivered is None else delivered.serial,
        prefill_done=[seq.id for seq in delivery.prefill_done],
        first_token=[seq.id for seq in delivery.first],
        completed=[seq.id for seq in delivery.completed],
        discarded=[seq.id for seq in delivery.discarded],
        queue=_ids(core.waiting, list_limit),
        active=_ids(core.running, list_limit),
        unused=step.unused,
        padding=step.padding_tokens,
        idle=None if step.entries else step.note,
        note=step.note if step.entries else None,
        kv=None
        if core.kv is None
        else {"free": step.free_blocks, "free_after": core.kv.free, "moved": step.moved_blocks},
    )


def _ids(sequences: Any, most: int | None) -> list[str] | int:
    count = len(sequences)
    return [seq.id for seq in sequences] if most is None or count <= most else count
