"""Numbers as a page carries them: the smallest type that fits, deflated, in base64."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np

UNSIGNED = (("u1", np.uint8), ("u2", np.uint16), ("u4", np.uint32))
Packed = dict[str, str]


def pack(values: Any) -> Packed:
    """Numbers; whole ones from 0 on as unsigned integers, all others as doubles, which is what a browser has."""
    numbers = np.asarray(values)
    if not len(numbers):
        return {"type": "u1", "data": ""}
    kind, packed = "f8", numbers.astype(np.float64)
    if numbers.dtype.kind in "iub" and numbers.min() >= 0:
        for name, dtype in UNSIGNED:
            if numbers.max() <= np.iinfo(dtype).max:
                kind, packed = name, numbers.astype(dtype)
                break
    return {"type": kind, "data": _deflated(packed.astype(packed.dtype.newbyteorder("<")).tobytes())}


def pack_texts(texts: list[str]) -> Packed:
    """Texts, as one JSON array."""
    return {
        "type": "json",
        "data": _deflated(json.dumps(texts, ensure_ascii=False).encode("utf-8", "backslashreplace")),
    }


def _deflated(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")
