"""What tuning recommends, as somebody would type it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchlab.compare import said
from batchlab.plan.trial import run_of, settings_of
from batchlab.vllm_command import COST, UTILIZATION, batch_defaults, parse
from batchlab.vllm_flags import NOT_SPELLED, command_for, cost_flags, flags, rewritten, said_in

if TYPE_CHECKING:
    from batchlab.plan.tune import Tuned, Tuning


@dataclass(frozen=True)
class Spelled:
    """Settings to copy. command: of `vllm serve`, all of it; None for another policy. flags: what of it is their own.
    options: of ours, for what has no flag."""

    command: str | None
    flags: list[str]
    options: list[str]

    def __str__(self) -> str:
        options = " ".join(self.options)
        return options if self.command is None else self.command + (f", with {options}" if options else "")

    @property
    def changes(self) -> str:
        """The flags and the options, without the rest of the command."""
        return " ".join([*self.flags, *self.options])


def spelled(asked: Tuning, found: Tuned) -> Spelled | None:
    """The recommended settings as a command of `vllm serve`: the pasted one with what is to be changed in it."""
    row = found.recommended
    if row is None:
        return None
    run = run_of(asked.trial({} if row is found.rows[0] else {key: row[key] for key in found.space}))
    own = {key.removeprefix("engine.") for key in found.space if key.startswith("engine.")}
    words: list[str] = []
    command = None
    written: set[str] = set()
    if run.engine == "vllm":
        settings = settings_of(run)
        if "gpu_memory_utilization" in settings:
            del settings["num_gpu_blocks"]
        elif "num_gpu_blocks" not in settings:
            settings.pop("enable_prefix_caching", None)
        about = run.cost.describe()
        command = asked.pasted or command_for(about)
        said_there = said_in(command)
        words = [*flags(settings, own).values()]
        needed = flags(settings, {*own, *said_there})
        plain = _as_it_would_be(about, settings, {*said_there, *_changed(found)}) if asked.pasted else set()
        changed = {k: word for k, word in needed.items() if said_there.get(k) != settings[k] and k not in plain}
        written = {f"engine.{key}" for key in needed}
        if hasattr(run.cost, "kv_blocks"):
            changed = cost_flags(about, parse(command).costs()) | changed
            written |= {f"cost.{key}" for key in COST.values() if key != "llm" and about[key] not in NOT_SPELLED}
        command = rewritten(command, changed)
    left = [key for key in found.space if key not in written and row[key] is not None]
    return Spelled(command, words, [f"--set {key}={said(key, row[key])}" for key in left])


def _changed(found: Tuned) -> set[str]:
    """The settings of [engine] that the recommendation has otherwise than the scenario as it is."""
    row, own = found.recommended or {}, found.rows[0]
    return {key.removeprefix("engine.") for key in found.space if key.startswith("engine.") and row[key] != own[key]}


def _as_it_would_be(about: Mapping[str, Any], settings: Mapping[str, Any], named: Set[str]) -> set[str]:
    """The settings that vLLM has just so where a command does not say them.

    about: the cost model. named: what is said or was changed, and is to be said in any case: the file may have it
    otherwise.
    """
    rest = settings.keys() - named
    found = rest - flags(settings, named).keys()
    if "memory_gib" in about:
        if settings.get("gpu_memory_utilization") == UTILIZATION:
            found |= rest & {"gpu_memory_utilization"}
        limits = rest & {"max_num_seqs", "max_num_batched_tokens"}
        whole = {key: value for key, value in settings.items() if isinstance(value, int) and key not in limits}
        usual = batch_defaults(about["gpu"], about["memory_gib"], whole)
        if all(settings[key] == usual[key] for key in limits):  # each depends on the other
            found |= limits
    return found


def most_of(column: str, row: Mapping[str, Any]) -> str:
    """What the singled out row has most of where none meets the objectives. column: what is maximised."""
    return "capacity" if column == "capacity" and row.get("capacity") else "requests within all targets"
