"""Profiles made up for tests: folders of CSV files whose every time follows from a formula."""

from itertools import product
from pathlib import Path

DENSE = {"embedding": 0.01, "layernorm": 0.02, "qkv_proj": 0.3, "act_fn": 0.05, "final_layernorm": 0.03}
"""us a token, beside 1 us each."""
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
SEQUENCES = (1, 8, 64, 256)
CHUNKS, HISTORY = (0, 16, 64, 256, 1024), (0, 64, 512, 4096)
DECODES, CONTEXT = (0, 1, 16, 64, 256), (0, 16, 256, 2048, 8192)


def attention(tokens: float, history: float, decodes: float, context: float) -> float:
    """Linear in each size alone, so that a linear interpolation of it is exact."""
    return tokens * (0.02 + 2e-5 * history) + decodes * (0.3 + 1e-3 * context) * (1 + tokens / 5000)


def points() -> dict[tuple[float, float, float, float], float]:
    found = {}
    for q, k, n, c in product(CHUNKS, HISTORY, DECODES, CONTEXT):
        if (q or n) and (q or not k) and ((n > 0) == (c > 0)):
            found[q, k, n, c] = attention(q, k, n, c)
    return found


def write(path: Path, header: str, rows: list[tuple[object, ...]]) -> None:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n", encoding="utf-8")


def make(folder: Path) -> Path:
    """A whole profile in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write(
        folder / "dense.csv",
        "layer,tokens,time_us",
        [(name, t, 1 + a * t) for name, a in DENSE.items() for t in TOKENS],
    )
    last = {"lm_head": 2.0, "sampler": 0.5}
    write(
        folder / "per_sequence.csv",
        "layer,sequences,time_us",
        [(name, s, 10 + a * s) for name, a in last.items() for s in SEQUENCES],
    )
    rows = [(*point, time) for point, time in points().items()]
    write(folder / "attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", rows)
    return folder


def dense_us(tokens: int) -> tuple[float, float]:
    """Of a layer, and once a step."""
    of = {name: 1 + a * tokens for name, a in DENSE.items()}
    return 2 * of["layernorm"] + of["qkv_proj"] + of["act_fn"], of["embedding"] + of["final_layernorm"]
