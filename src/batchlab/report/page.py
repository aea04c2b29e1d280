"""The page: one HTML file that holds its chart library, its script, its style and its data."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

import batchlab
from batchlab.errors import InputError
from batchlab.report import words

ABSENT = (
    "needs the packages of its extra: pip install 'batchlab[report]', "
    "or in a checkout .venv/bin/pip install -e '.[report]'"
)


def check_installed() -> None:
    """Raises InputError where the extra is not installed."""
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as error:
        raise InputError("report", None, None, ABSENT) from error


def render(
    runs: Sequence[dict[str, Any]], sweeps: Sequence[dict[str, Any]], capacities: Sequence[dict[str, Any]]
) -> str:
    """The whole page as text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("batchlab.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= words.FILTERS
    folder = resources.files("batchlab.report") / "page"
    library = get_plotlyjs()
    script, style = ((folder / name).read_text(encoding="utf-8") for name in ("report.js", "report.css"))
    scripts = [library, script]
    runs = [run | {"label": run["name"] if len(runs) == 1 else f"{n} · {run['name']}"} for n, run in enumerate(runs, 1)]
    data = {"runs": [_drawn(run) for run in runs], "sweeps": sweeps, "capacities": capacities}
    return environment.get_template("report.html").render(
        version=batchlab.__version__,
        runs=runs,
        sweeps=sweeps,
        capacities=capacities,
        rows=words.rows(runs),
        facts=words.facts(runs),
        scripts=scripts,
        hashes=[_hash(text) for text in scripts],
        style=style,
        data=embedded(data),
    )


def _drawn(run: dict[str, Any]) -> dict[str, Any]:
    """What the script needs of a run; all else is in the page's text."""
    return {name: run[name] for name in ("name", "unit", "curves", "findings", "timeline", "engine")}


def embedded(value: Any) -> str:
    """JSON that may stand in a script element: nothing in it can end the element or a line."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
