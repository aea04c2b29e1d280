"""What a class of one's own states has to be what counts: the built-in class below it replaces nothing in silence."""

import inspect
from functools import cache
from typing import Any

from batchlab.errors import InputError
from batchlab.policies.victims import RULES
from batchlab.settings import parameters


def check_stated(policy: Any, name: str) -> None:
    """Refuse a class of one's own whose attributes a built-in class has replaced, or never made.

    Raises InputError.
    """
    classes = type(policy).__mro__
    base = next((c for c in classes if c.__module__.startswith("batchlab.")), None)
    if base is None or base is type(policy):
        return
    made = _made_by(base)
    if not all(hasattr(policy, attribute) for attribute in made):
        raise InputError(name, None, None, "its __init__ has to call super().__init__() first")
    for owner in classes:
        if not owner.__module__.startswith("batchlab."):
            for attribute in sorted(made & vars(owner).keys()):
                _check_attribute(policy, name, base, owner, attribute)
    chosen, rule = getattr(policy, "victim", None), getattr(policy, "_victim", None)
    if isinstance(chosen, str) and rule is not RULES.get(chosen) and any(rule is other for other in RULES.values()):
        expected = "is set after super().__init__(), where it no longer counts: super().__init__(victim=...)"
        raise InputError(name, "victim", chosen, expected)


def _check_attribute(policy: Any, name: str, base: type[Any], owner: type[Any], attribute: str) -> None:
    """One that the class states and the constructor of `base` sets: None, and what is the same, says nothing."""
    stated, slot = vars(owner)[attribute], _slot(base, attribute)
    held = vars(policy).get(attribute) if slot is None else slot.__get__(policy)
    bound = stated.__get__(policy, type(policy)) if hasattr(stated, "__get__") else stated
    if bound is None or held == bound:
        return
    setting = "victim" if attribute == "victim_rule" else attribute  # the one is the other in words
    right = f"set it in __init__, after super().__init__(): self.{attribute} = ..."
    if setting in parameters(base):
        right = f"hand it on in __init__: super().__init__({setting}=...)"
    expected = f"the constructor of {base.__name__} replaces what the class states: {right}"
    raise InputError(name, attribute, None, expected)


@cache
def _made_by(base: type[Any]) -> frozenset[str]:
    """The attributes that the constructor of a built-in class sets."""
    try:
        found = [*vars(base())]
    except TypeError:  # it has settings without defaults
        found = [*parameters(base)]
    return frozenset([*found, *(name for name in dir(base) if _slot(base, name) is not None)])


def _slot(base: type[Any], name: str) -> Any:
    """Where a compiled class keeps an attribute; None if it is none, or the class is not compiled."""
    found = inspect.getattr_static(base, name, None)
    return found if inspect.isgetsetdescriptor(found) and not name.startswith("__") else None
