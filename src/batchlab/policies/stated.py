"""What a class of one's own states has to be what counts: the built-in class below it replaces nothing in silence."""

import inspect
from types import FunctionType
from typing import Any

from batchlab.errors import InputError
from batchlab.policies.victims import RULES
from batchlab.settings import parameters

PLAIN = (bool, int, float, str)


def check_stated(policy: Any, name: str) -> None:
    """Refuse a class of one's own of which a built-in constructor has replaced something, or was never called.

    Only what certainly never counts is refused: who has an __init__ of their own may hand on what they like. Raises
    InputError.
    """
    base = next((c for c in type(policy).__mro__ if c.__module__.startswith("batchlab.")), None)
    if base is None or base is type(policy):
        return
    settings = parameters(base)
    missing = [key for key in settings if not hasattr(policy, key)]
    if missing and any(_is_of(base, policy, method) for method in ("check", "plan")):
        raise InputError(name, None, None, "its __init__ has to call super().__init__() first")
    if getattr(policy, "queue_key", None) is None and _states(policy, base, "queue_key"):
        raise _replaced(name, base, "queue_key", "set it in __init__, after super().__init__(): self.queue_key = ...")
    if "victim" in settings:
        _check_victim(policy, name, base)
    if _is_of(base, policy, "__init__"):
        for key in settings:
            stated = inspect.getattr_static(type(policy), key, None)
            if isinstance(stated, PLAIN) and stated != getattr(policy, key, stated):
                raise _replaced(name, base, key, f"hand it on in __init__: super().__init__({key}=...)")


def _check_victim(policy: Any, name: str, base: type[Any]) -> None:
    """That what says who is preempted is not one of the built-in rules in spite of what the class states."""
    chosen, rule = getattr(policy, "victim", None), getattr(policy, "_victim", None)
    if not any(rule is built_in for built_in in RULES.values()):
        return
    if _states(policy, base, "victim_rule"):
        raise _replaced(name, base, "victim_rule", "hand it on in __init__: super().__init__(victim=...)")
    if isinstance(chosen, str) and rule is not RULES.get(chosen):
        expected = "is set after super().__init__(), where it no longer counts: super().__init__(victim=...)"
        raise InputError(name, "victim", chosen, expected)


def _states(policy: Any, base: type[Any], attribute: str) -> bool:
    """Whether a class above the built-in one has it, as a function or anything else that an object may replace."""
    for owner in type(policy).__mro__:
        if owner is base:
            return False
        stated = vars(owner).get(attribute)
        if stated is not None:
            return isinstance(stated, FunctionType) or not inspect.isdatadescriptor(stated)
    return False


def _is_of(base: type[Any], policy: Any, method: str) -> bool:
    return getattr(type(policy), method, None) is getattr(base, method, None)


def _replaced(name: str, base: type[Any], attribute: str, right: str) -> InputError:
    expected = f"the constructor of {base.__name__} replaces what the class states: {right}"
    return InputError(name, attribute, None, expected)
