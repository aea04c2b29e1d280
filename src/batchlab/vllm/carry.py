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
from batchlab.settings import construct, parameters, parse_setting

PLACE = "BATCHLAB_POLICY"
PLANS = [name for name, value in vars(Walk).items() if callable(value) and not name.startswith("__")]
"""The methods that build a batch: inside vLLM, vLLM does that."""
SHAPES = ("holds", "batching", "pipeline_stages", "fixes", "reserved_blocks")
"""What a policy may state of its engine; here the engine is vLLM."""


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
    words = shlex.split(text or "")
    if not words:
        raise InputError(PLACE, None, text, "must name a policy: FILE.py:CLASS, or vllm, and then KEY=VALUE, ...")
    name, *pairs = words
    own = dict(parse_setting(pair, PLACE) for pair in pairs)
    policy_class = policies.find(name)
    _refuse_plan(name, policy_class)
    for key in own:
        if key in engine:
            raise InputError(PLACE, key, own[key], f"is vLLM's own: give --{key.replace('_', '-')} to vllm serve")
    known = parameters(policy_class)
    policy = construct(policy_class, own | {key: engine[key] for key in engine if key in known}, PLACE)
    for key, value in engine.items():
        if getattr(policy, key) != value:
            raise InputError(PLACE, key, getattr(policy, key), f"the policy sets what vLLM has as {value!r}")
    if policy.preemption_mode != "recompute":
        raise InputError(PLACE, "preemption_mode", policy.preemption_mode, "vLLM can only recompute")
    policies.check_attributes(policy, name)
    policy.check(Limits(**limits), ())
    return Carried(name, policy, {key: getattr(policy, key) for key in known})


def _refuse_plan(name: str, policy_class: type[Any]) -> None:
    only = "only the queue_key, the victim and on_arrival of a class that derives from batchlab's Vllm can be"
    if not issubclass(policy_class, Vllm):
        raise InputError(PLACE, None, name, f"plans its own batch, which cannot be carried over to vLLM: {only}")
    for method in PLANS:
        if getattr(policy_class, method) is not getattr(Vllm, method):
            raise InputError(PLACE, name, method, f"plans its own batch, which cannot be carried over to vLLM: {only}")
    for attribute in SHAPES:
        value = getattr(policy_class, attribute)
        if value != getattr(Vllm, attribute):
            raise InputError(PLACE, f"{name}.{attribute}", value, f"cannot be carried over to vLLM: {only}")
