"""Policies by name: each file here is one engine's decisions. A new one needs no entry anywhere."""

import importlib
import importlib.util
import inspect
import os
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchlab.core.batch import Batch
from batchlab.core.limits import Limits
from batchlab.core.scheduler import PolicyError, View
from batchlab.core.sequence import Sequence
from batchlab.errors import InputError, nearest, raised
from batchlab.order import ordered
from batchlab.policies.base import Policy
from batchlab.policies.stated import check_stated
from batchlab.settings import LimitSettings, MemorySettings, construct, parameters


def names() -> list[str]:
    """The built-in policies' names, sorted: the files of this folder that define one, with dashes."""
    return sorted(
        module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__) if _class_in(module.name) is not None
    )


def find(name: str) -> type[Any]:
    """The class of a built-in policy (`decode-first`) or of one's own (`my_policy.py:MyPolicy`)."""
    if ":" in name or name.endswith(".py"):
        return _from_file(name)
    known = names()
    if name not in known:
        raise InputError(
            None, "engine.policy", name, f"one of {', '.join(known)}, or FILE.py:CLASS{nearest(name, known)}"
        )
    found = _class_in(name.replace("-", "_"))
    assert found is not None
    return found


def find_recorded(name: str) -> type[Any]:
    """The class that a trace names; a path in it is as its run was given it."""
    path = name.rpartition(":")[0] or name
    if path.endswith(".py") and not os.path.isfile(path):
        where = "" if os.path.isabs(path) else ", from the folder in which its run was started"
        expected = f"no such file here; the trace names its policy by this path{where}"
        raise InputError(None, "line 1, engine", path, expected)
    return find(name)


def make(name: str, settings: Mapping[str, Any], section: str) -> Any:
    """The policy of this name, made with settings of its own. Raises InputError, also for what is no policy."""
    policy_class = find(name)
    policy = construct(policy_class, settings, section, name)
    attribute = "plan"
    try:
        plan = policy.plan
        for attribute in (*(key for key in vars(Policy) if key[0] != "_"), "queue_key", *parameters(policy_class)):
            getattr(policy, attribute, None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise InputError(name, attribute, None, f"cannot be read: {raised(error)}") from error
    if not callable(plan):
        raise InputError(name, "plan", plan, "must be a method: plan(view, batch)")
    return policy


def queue_key(policy: Any) -> Any:
    """A policy's order of the queue, None without one; of one that is not built in, each key is looked at."""
    key = getattr(policy, "queue_key", None)
    return key if key is None or str(getattr(key, "__module__", "")).startswith("batchlab.") else ordered(key)


def limits_of(policy_class: type[Any]) -> dict[str, str]:
    """The core's settings that a policy's class takes: its own name of each -> the core's.

    A class of one's own that says nothing takes all, under the core's names.
    """
    taken = getattr(policy_class, "takes", tuple(LimitSettings.model_fields))
    found = dict(taken) if isinstance(taken, dict) else {name: name for name in taken}
    for name in found.values():
        if name not in LimitSettings.model_fields:
            expected = f"one of the core's settings{nearest(name, LimitSettings.model_fields)}"
            raise InputError(policy_class.__name__, "takes", name, expected)
    return found


def limits_given(policy_class: type[Any], limits: Mapping[str, Any]) -> dict[str, Any]:
    """The core's limits as a scenario gives them to a policy: by its own names, KV blocks with those that it keeps."""
    blocks = limits.get("num_gpu_blocks")
    if blocks is not None:
        limits = {**limits, "num_gpu_blocks": blocks + getattr(policy_class, "reserved_blocks", 0)}
    return {own: limits.get(core) for own, core in limits_of(policy_class).items()}


def settings_of(policy_class: type[Any]) -> list[str]:
    """All names that [engine] may have for a policy: the core's settings that it takes, then its own.

    Where it takes a number of KV blocks, the cost model may tell it from gpu_memory_utilization.
    """
    taken = limits_of(policy_class)
    memory = list(MemorySettings.model_fields) if "num_gpu_blocks" in taken.values() else []
    return list(dict.fromkeys([*taken, *memory, *parameters(policy_class)]))


ATTRIBUTES: dict[str, tuple[Any, ...]] = {
    "holds": ("computed", "prompt", "max"),
    "batching": ("iteration", "request"),
    "steps_in_flight": tuple(range(1, 65)),
    "pipeline_stages": tuple(range(1, 65)),
    "own_queue": (False, True),
    "coasts": (False, True),
}


def check_attributes(policy: Any, name: str) -> None:
    """Refuse a class of one's own whose attributes have no meaning, or do not count. Raises InputError."""
    check_stated(policy, name)
    key = getattr(policy, "queue_key", None)
    if key is not None and not callable(key):
        raise InputError(name, "queue_key", key, "must be a function of a sequence")
    for attribute, allowed in ATTRIBUTES.items():
        value = getattr(policy, attribute, allowed[0])
        if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
            shown = "1 to 64" if len(allowed) > 3 else f"one of {', '.join(map(repr, allowed))}"
            raise InputError(name, attribute, value, f"must be {shown}")


def on_arrival(policy: Any) -> Any:
    """A policy's door; a class of one's own without one has the default door."""
    own = getattr(policy, "on_arrival", None)
    return own if own is not None else Policy().on_arrival


def ask_door(door: Any, seq: Sequence, view: View, batch: Batch) -> None:
    """Ask a policy's door as that of a real engine, where a newcomer can only stand in line or be rejected.

    Raises PolicyError for whatever else the door does.
    """
    others, rejected = _others(batch), len(batch.rejected)
    door(seq, view, batch)
    if _others(batch) > others or len(batch.rejected) > rejected + seq.ended:
        raise PolicyError("at the door of a real engine a policy can only enqueue or reject the newcomer")
    if seq.at_the_door:
        raise PolicyError("on_arrival left the newcomer at the door: enqueue or reject it")


def _others(batch: Batch) -> int:
    return len(batch.preempted) + len(batch.admitted) + len(batch.dropped)


def open_door(policy: Any, limits: Limits, batch: Batch) -> tuple[int, int] | None:
    """Bounds within which a policy's door only lets newcomers stand in line; None if it looks at everyone."""
    if getattr(policy, "on_arrival", None) is None:
        return Policy().open_door(limits, batch)
    if not _speaks_of(policy, "open_door", "on_arrival"):
        return None
    found: tuple[int, int] | None = policy.open_door(limits, batch)
    return found


def coasts(policy: Any) -> bool:
    """Whether a policy's plan stays the same while nothing happens."""
    return _speaks_of(policy, "coasts", "plan") and bool(policy.coasts)


def _speaks_of(policy: Any, promise: str, method: str) -> bool:
    """Whether a promise is about the very method that the policy has, not about one that a subclass has replaced."""
    for owner in (policy, *type(policy).__mro__):
        names = getattr(owner, "__dict__", {})
        if promise in names:
            return True
        if method in names:
            return False
    return False


def _class_in(module_name: str) -> type[Policy] | None:
    module = importlib.import_module(f"{__name__}.{module_name}")
    for value in vars(module).values():
        if (
            inspect.isclass(value)
            and issubclass(value, Policy)
            and value is not Policy
            and value.__module__ == module.__name__
        ):
            return value
    return None


def _from_file(name: str) -> type[Any]:
    path, _, class_name = name.rpartition(":") if ":" in name else (name, "", "")
    if not os.path.isfile(path):
        raise InputError(path, None, None, "no such file; a policy of your own is given as FILE.py:CLASS")
    spec = importlib.util.spec_from_file_location(f"batchlab_user_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(path, None, None, "not a Python file; a policy of your own is given as FILE.py:CLASS")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise InputError(path, None, None, f"cannot be imported: {raised(error)}") from error
    classes = [
        key
        for key, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == spec.name and callable(getattr(value, "plan", None))
    ]
    if class_name not in classes:
        if not class_name and len(classes) == 1:
            class_name = classes[0]
        else:
            shown = ", ".join(classes) or "none found"
            raise InputError(
                path,
                "class",
                class_name or None,
                f"name a class with a plan method: {shown}{nearest(class_name, classes)}",
            )
    found: type[Any] = getattr(module, class_name)
    return found
