"""Which policies of the simulator can decide inside vLLM, and which cannot, with the reason."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchlab import policies
from batchlab.core.limits import Limits
from batchlab.errors import InputError
from batchlab.policies.vllm import Vllm, Walk
from batchlab.settings import parameters, parse_setting

POLICY = "BATCHLAB_POLICY"
"""The environment variable that names the policy: as `run --policy` does, then settings as KEY=VALUE."""
PLANS = [name for name, value in vars(Walk).items() if callable(value) and not name.startswith("__")]
"""The methods that build a batch: inside vLLM, vLLM does that."""
SHAPES = ("steps_in_flight", "holds", "batching", "pipeline_stages", "fixes", "reserved_blocks")
"""What a policy may state of its engine; here the engine is vLLM."""
ONLY = "only the queue_key, the victim and on_arrival of a class that derives from batchlab's Vllm can be"
PLANS_ITSELF = f"plans its own batch, which cannot be carried over to vLLM: {ONLY}"


@dataclass(frozen=True)
class Carried:
    """A policy that can decide inside vLLM; its name as it was spelled, and its settings as a trace holds them."""

    name: str
    policy: Any
    settings: dict[str, Any]


def carry(text: str | None, engine: Mapping[str, Any], limits: Mapping[str, Any]) -> Carried:
    """The policy that `text` names, with the engine's own settings. Raises InputError for what cannot be carried over.

    A queue_key, a victim rule and a door can; they have to stand in a class that derives from the policy `vllm` and
    leaves its plan alone, since vLLM itself makes the plan.
    """
    name, own = _read(text)
    try:
        return _carry(name, own, engine, limits)
    except InputError as error:
        if error.file == POLICY:
            raise
        if error.place == "engine.policy":  # where a scenario names it
            error.place = None
        raise InputError(POLICY, None, None, str(error)) from error


def _read(text: str | None) -> tuple[str, dict[str, Any]]:
    """The policy's name and its settings."""
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        raise InputError(POLICY, None, text, f"cannot be read as a shell reads it: {error}") from error
    if not words:
        raise InputError(POLICY, None, text, "must name a policy: FILE.py:CLASS, or vllm, and then KEY=VALUE, ...")
    name, *pairs = words
    return name, dict(parse_setting(pair, POLICY, "KEY=VALUE, such as victim=least-computed") for pair in pairs)


def _carry(name: str, own: dict[str, Any], engine: Mapping[str, Any], limits: Mapping[str, Any]) -> Carried:
    policy_class = policies.find(name)
    if not issubclass(policy_class, Vllm):
        raise InputError(POLICY, None, name, PLANS_ITSELF)
    for key in own:
        if key in engine:
            raise InputError(POLICY, key, own[key], f"is vLLM's own: give --{key.replace('_', '-')} to vllm serve")
    known = parameters(policy_class)
    policy = policies.make(name, own | {key: engine[key] for key in engine if key in known}, "")
    policies.check_attributes(policy, name)
    _refuse_plan(name, policy)
    for key, value in engine.items():
        _check_setting(policy, key, value, handed=key in known)
    if policy.preemption_mode != "recompute":
        raise InputError(POLICY, "preemption_mode", policy.preemption_mode, "vLLM can only recompute")
    policy.check(Limits(**limits), ())
    return Carried(name, policy, {key: getattr(policy, key) for key in known})


def _refuse_plan(name: str, policy: Any) -> None:
    """Refuse what vLLM would not look at, whether the class has it or only this object."""
    for method in PLANS:
        if method in vars(policy) or getattr(type(policy), method) is not getattr(Vllm, method):
            raise InputError(POLICY, name, method, PLANS_ITSELF)
    for attribute in SHAPES:
        value = getattr(policy, attribute)
        if value != getattr(Vllm, attribute):
            raise InputError(POLICY, f"{name}.{attribute}", value, f"cannot be carried over to vLLM: {ONLY}")


def _check_setting(policy: Any, key: str, value: Any, handed: bool) -> None:
    """One of the engine's own has to be what the policy has been told, since vLLM goes by its own."""
    has = getattr(policy, key)
    if has == value:
        return
    if not handed and has == parameters(Vllm)[key].default:
        expected = f"{type(policy).__name__} cannot take what vLLM has here: give its __init__ a parameter {key}"
        raise InputError(POLICY, key, value, f"{expected}, and hand it to super().__init__({key}={key})")
    raise InputError(POLICY, key, has, f"the policy sets what vLLM has as {value!r}")
