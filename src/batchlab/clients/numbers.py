"""Numbers in files, read strictly: digits, perhaps a decimal point, nothing else, and nothing is ever rounded.

Every function raises ValueError with what was expected, to be put behind the place and the value.
"""

import datetime
import re
from fractions import Fraction
from typing import Any

from batchlab.settings import LATEST, MOST_TOKENS

NS_DIGITS = {"s": 9, "ms": 6, "us": 3, "ns": 0}
"""How many decimal digits of a time unit a nanosecond resolves."""
MOST_PRIORITY = 2**31
BILLION = 10**9

_DIGITS = re.compile(r"[0-9]+")
_DECIMAL = re.compile(r"([0-9]+)(?:\.([0-9]+))?")
_SIGNED = re.compile(r"-[0-9]+(\.[0-9]+)?")
_EXPONENT = re.compile(r"-?[0-9.]+[eE][-+]?[0-9]+")
_STAMP = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]+))?(?:\+00:00|Z)?")
_EPOCH = datetime.datetime(1970, 1, 1)
_SECOND = datetime.timedelta(seconds=1)


class Literal(str):
    """A JSON number with a point or an exponent, as it is written: no float stands between it and its value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def whole(value: Any, least: int, most: int, most_name: str) -> int:
    """A whole number: the text of a cell, or a JSON value."""
    number: int = value if type(value) is int else _from_text(_text(value))
    if number < least:
        raise ValueError(f"must be at least {least}" if least else "must not be negative")
    if number > most:
        raise ValueError(f"must be at most {most_name}")
    return number


def tokens(value: Any, least: int = 1) -> int:
    """A length in tokens."""
    return whole(value, least, MOST_TOKENS, "2^40")


def priority(value: Any) -> int:
    """A priority; negative ones are allowed."""
    if isinstance(value, str) and not isinstance(value, Literal) and _SIGNED.fullmatch(value) and "." not in value:
        if len(value) <= 20:
            value = int(value)
    return whole(value, -MOST_PRIORITY, MOST_PRIORITY, "2^31")


def time(value: Any, unit: str, round_times: bool = False) -> int:
    """A point in time: in ns if the unit is one of time, a whole number if the unit is "unit".

    round_times: one that is finer than a ns is rounded, half to even, instead of refused.
    """
    if unit == "unit":
        return whole(value, 0, LATEST, "2^62")
    digits = NS_DIGITS[unit]
    if type(value) is int:
        found: int = whole(value, 0, LATEST, "2^62 ns") * 10**digits
    else:
        text = _text(value)
        match = _DECIMAL.fullmatch(text)
        if match is None:
            raise ValueError(_why_not(text, "a time as a decimal number"))
        fraction = (match[2] or "").rstrip("0")
        if len(fraction) > digits:
            if not round_times:
                allowed = f"at most {digits} digits after the point" if digits else "no fraction"
                raise ValueError(
                    f"is finer than a nanosecond and would have to be rounded (round_times = true does): "
                    f"{allowed} in {unit}"
                )
            return _rounded(match[1], fraction, digits)
        parts = int(match[1].lstrip("0")[:25] or 0), int(fraction.ljust(digits, "0") or 0)
        found = parts[0] * 10**digits + parts[1]
    if found > LATEST:
        raise ValueError("must be at most 2^62 ns")
    return found


def _rounded(whole: str, fraction: str, digits: int) -> int:
    whole, fraction = whole.lstrip("0")[:25], fraction[:60]
    found = round(Fraction(int(whole + fraction), 10 ** (len(fraction) - digits)))
    if found > LATEST:
        raise ValueError("must be at most 2^62 ns")
    return found


def stamp(text: str) -> int:
    """An absolute time as Azure's traces write it, `2023-11-16 18:15:46.6805900`, in ns since 1970."""
    form = "must be a time such as 2023-11-16 18:15:46.6805900"
    match = _STAMP.fullmatch(text)
    if match is None:
        raise ValueError("is empty; " + form if not text else form)
    try:
        moment = datetime.datetime.strptime(f"{match[1]} {match[2]}", "%Y-%m-%d %H:%M:%S")
    except ValueError:
        raise ValueError(f"no such date or time; {form}") from None
    fraction = (match[3] or "").rstrip("0")
    if len(fraction) > 9:
        raise ValueError("is finer than a nanosecond and would have to be rounded: at most 9 digits after the point")
    return (moment - _EPOCH) // _SECOND * BILLION + int(fraction.ljust(9, "0"))


def _text(value: Any) -> str:
    """The text of a cell, or of a JSON number that is no int."""
    if value is None:
        raise ValueError("must be a number, not null")
    if isinstance(value, str):
        return value
    raise ValueError("must be a number")


def _from_text(text: str) -> int:
    if not _DIGITS.fullmatch(text):
        raise ValueError(_why_not(text, "a whole number"))
    digits = text.lstrip("0")
    return int(digits[:25] or 0)  # of longer ones too much is left to be let pass


def _why_not(text: str, wanted: str) -> str:
    if not text:
        return f"is empty; must be {wanted}"
    if _SIGNED.fullmatch(text):
        return "must not be negative"
    if _DECIMAL.fullmatch(text):
        return f"must be {wanted}, without a fraction"
    if _EXPONENT.fullmatch(text):
        return f"must be {wanted}, written out without an exponent"
    if text != text.strip():
        return f"must be {wanted}, without spaces around it"
    return f"must be {wanted}"
