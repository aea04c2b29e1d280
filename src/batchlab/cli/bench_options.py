"""What options of `bench` may be."""

import json
import math
from typing import Any

import click

from batchlab.errors import InputError


class Number(click.FloatRange):
    """A number of a range; NaN, which compares with nothing, lies in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails for one outside."""
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


def path_of(text: str | None) -> str | None:
    """--endpoint. Raises InputError."""
    if text is not None and not text.startswith("/"):
        raise InputError("--endpoint", None, text, "must begin with /, such as /v1/completions")
    return text


def headers_of(given: tuple[str, ...]) -> dict[str, str]:
    """--header, each by its name. Raises InputError."""
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.isascii() or not key.replace("-", "").isalnum() or not value.isprintable():
            raise InputError("--header", None, text, "must be KEY=VALUE")
        found[key] = value
    return found


def extra_of(text: str | None) -> dict[str, Any]:
    """--extra-body. Raises InputError."""
    try:
        found = {} if text is None else json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InputError("--extra-body", None, text, "must be a JSON object, such as '{\"temperature\": 0}'")
    return found


def _no_number(text: str) -> None:
    raise ValueError(text)  # NaN and Infinity are no JSON


def _finite(text: str) -> float:
    found = float(text)
    if math.isinf(found):
        raise ValueError(text)
    return found


def interval_of(seconds: float) -> float:
    """--scrape-interval. Raises InputError."""
    if 0 < seconds < 0.2:
        raise InputError(
            "--scrape-interval", None, seconds, "must be 0, or at least 0.2: looking costs the server time"
        )
    return seconds
