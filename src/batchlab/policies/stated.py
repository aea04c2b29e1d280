"""What a class of one's own states has to be what counts: the built-in class below it replaces nothing in silence."""

import inspect
from types import FunctionType
from typing import Any

from batchlab.errors import InputError
from batchlab.policies.victims import NAMED, RULES
from batchlab.settings import parameters

PLAIN = (bool, int, float, str)
SET_LATER = "set it in __init__, after super().__init__(): self.{} = ..."
UNHEARD = "was set while it ran, where it does not count: super().__init__({}=...)"
TOO_LATE = "is set after super().__init__(), where it no longer counts: super().__init__({}=...)"


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
    public = [
        key for key, value in vars(base).items() if key[0] != "_" and (callable(value) or isinstance(value, property))
    ]
    if missing and any(_is_of(base, policy, method) for method in public):  # it may read them
        raise InputError(name, None, None, "its __init__ has to call super().__init__() first")
    key = _stated(policy, base, "queue_key")
    if getattr(policy, "queue_key", None) is None and key is not None and not inspect.isdatadescriptor(key):
        raise _replaced(name, base, "queue_key", SET_LATER.format("queue_key"))
    if "victim" in settings:
        _check_victim(policy, name, base)
    if _is_of(base, policy, "__init__"):
        for key in (*settings, "steps_in_flight"):
            stated = _stated(policy, base, key)
            if isinstance(stated, PLAIN) and stated != getattr(policy, key, stated):
                handed, own = f"hand it on in __init__: super().__init__({key}=...)", SET_LATER.format(key)
                raise _replaced(name, base, key, handed if key in settings else own)
    for key, value in _late(policy):
        raise InputError(name, key, value, TOO_LATE.format(key))


def unheard(policy: Any, name: str) -> list[str]:
    """After a run: of each setting that was given another value while it ran, that the steps did not know of it."""
    return [str(InputError(name, key, value, UNHEARD.format(key))) for key, value in _late(policy)]


def own_modules(policy: Any) -> set[str]:
    """The modules of a policy's classes that are not built in."""
    modules = {owner.__module__ for owner in type(policy).__mro__}
    return {name for name in modules if name != "builtins" and not name.startswith("batchlab.")}


def _late(policy: Any) -> list[tuple[str, Any]]:
    """The settings that are no longer those which the built-in constructor handed on to its steps."""
    found = [(key, getattr(policy, key, known), known) for key, known in getattr(policy, "handed_on", {}).items()]
    return [(key, value) for key, value, known in found if value is not known and value != known]


def _check_victim(policy: Any, name: str, base: type[Any]) -> None:
    """That what says who is preempted is not one of the built-in rules in spite of what the class states."""
    chosen, rule = getattr(policy, "victim", None), getattr(policy, "_victim", None)
    if not any(rule is built_in for built_in in RULES.values()):
        return
    stated = _stated(policy, base, "victim")
    own = stated is not None and not isinstance(stated, str) and not inspect.isdatadescriptor(stated)
    if own or not (chosen is None or isinstance(chosen, str)):
        raise InputError(name, "victim", None, NAMED)
    if isinstance(_stated(policy, base, "victim_rule"), FunctionType):
        raise _replaced(name, base, "victim_rule", "hand it on in __init__: super().__init__(victim=...)")
    if isinstance(chosen, str) and rule is not RULES.get(chosen):
        raise InputError(name, "victim", chosen, TOO_LATE.format("victim"))


def _stated(policy: Any, base: type[Any], attribute: str) -> Any:
    """What the classes above the built-in one have under this name; None if nothing."""
    classes = type(policy).__mro__
    return next((vars(owner)[attribute] for owner in classes[: classes.index(base)] if attribute in vars(owner)), None)


def _is_of(base: type[Any], policy: Any, method: str) -> bool:
    return getattr(type(policy), method, None) is getattr(base, method, None)


def _replaced(name: str, base: type[Any], attribute: str, right: str) -> InputError:
    expected = f"the constructor of {base.__name__} replaces what the class states: {right}"
    return InputError(name, attribute, None, expected)
