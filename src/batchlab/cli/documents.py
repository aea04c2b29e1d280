"""JSON for stdout, which may be a terminal."""

import json
import re
from typing import Any

UNPRINTABLE = re.compile(r"[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""What JSON may hold as it stands and a terminal may take for a command or for something else: controls that are not
ASCII, marks of direction, what has no width, halves of surrogates."""


def print_json(document: dict[str, Any]) -> None:
    """One document, indented; every control character in it is an escape, so that no id reaches the terminal raw."""
    text = json.dumps(document, indent=1, ensure_ascii=False)
    print(UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
