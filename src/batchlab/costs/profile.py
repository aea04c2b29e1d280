"""A profile: a folder of CSV files with the times of single operators. docs/profiles.md describes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from batchlab.costs.grid import Grid, Point
from batchlab.costs.lines import Line
from batchlab.costs.measured import read, refuse_outliers, series
from batchlab.costs.waves import fit_saturation
from batchlab.errors import InputError, nearest

ONCE = ("embedding", "final_layernorm")
"""Operators of dense.csv that a step has once; all others it has in each layer."""
TWICE = ("layernorm",)
"""Operators that a layer has two of: the file holds the time of one call."""
LEAST_PREFILL = 16
"""Tokens of a prefill chunk that stand for none: the fixed cost of a lookup, taken off where several are added."""
ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
PCIE: tuple[list[float], list[float]] = (
    [10e3, 160e3, 0.4e6, 1.3e6, 4e6, 21e6],
    [5.0, 27.0, 55.0, 111.0, 292.0, 1303.0],
)
"""All-reduce over two GPUs on PCIe: bytes, us. Inferred from a served Qwen3-32B run with TP2 on two RTX PRO 6000."""


class Profile:
    """One model on one GPU: dense.csv, attention.csv, per_sequence.csv; perhaps skew.csv and moe.csv."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        dense = _by_name(folder / "dense.csv", "layer", "tokens")
        sequences = _by_name(folder / "per_sequence.csv", "layer", "sequences")
        self._once = [line for name, line in dense.items() if name in ONCE]
        self._layer = [(line, 2 if name in TWICE else 1) for name, line in dense.items() if name not in ONCE]
        self._last = list(sequences.values())
        self.most_tokens = min(line.sizes[-1] for line in dense.values())
        self.most_sequences = min(line.sizes[-1] for line in sequences.values())
        self.attention = _grid(folder / "attention.csv", ATTENTION)
        self.least_attention = self.attention(LEAST_PREFILL, 0, 0, 0)
        moe = folder / "moe.csv"
        self.moe = _grid(moe, ("tokens", "", "experts", "")) if moe.exists() else None
        self._saturations: dict[tuple[int, int], float | None] = {}

    def layer(self, tokens: float, next_size: bool) -> float:
        """All dense operators of a layer, us."""
        return sum(count * line(tokens, next_size) for line, count in self._layer)

    def once(self, tokens: float, next_size: bool) -> float:
        """Embedding and final norm, us."""
        return sum(line(tokens, next_size) for line in self._once)

    def last(self, sequences: float, next_size: bool) -> float:
        """lm_head and sampler, us: they see one token of each sequence."""
        return sum(line(sequences, next_size) for line in self._last)

    def saturation(self, sms: int, kv_heads: int) -> float | None:
        """The parameter of waves.py, fitted to the profile's batches of unequal contexts; None if none of them fills
        the GPU. Raises InputError for a bad file."""
        key = (sms, kv_heads)
        if key not in self._saturations:
            measured = skewed(self.folder / "skew.csv")
            try:
                self._saturations[key] = fit_saturation(measured, sms, kv_heads)[0]
            except ValueError:
                self._saturations[key] = None
        return self._saturations[key]


def skewed(path: Path) -> list[tuple[list[float], float]]:
    """The pure decode batches of skew.csv: contexts, and the time over that of equal contexts. Raises InputError.

    nb of the n decodes have the long context kv_big, the others kvs.
    """
    found = []
    for row in read(path, ("n", "nb", "pc", "kvs", "kv_big", "t_mean_us", "t_skew_us")):
        many, few = int(row["n"]), int(row["nb"])
        if not 0 <= few <= many or many < 1:
            raise InputError(path, f"line {row.line}, nb", few, f"must be at most n = {many}")
        if row["t_mean_us"] <= 0:
            raise InputError(path, f"line {row.line}, t_mean_us", row["t_mean_us"], "must be above 0")
        if row["pc"] == 0:
            contexts = [row["kv_big"]] * few + [row["kvs"]] * (many - few)
            found.append((contexts, row["t_skew_us"] / row["t_mean_us"]))
    return found


def load(folder: Path) -> Profile:
    """The profile of a folder, read once as long as its files stay the same. Raises InputError."""
    if not os.path.isdir(folder):
        raise InputError(
            folder,
            None,
            None,
            "no such folder; a profile is a folder with dense.csv, attention.csv and per_sequence.csv",
        )
    stamps = tuple((path.name, path.stat().st_mtime_ns) for path in sorted(folder.glob("*.csv")))
    return _load(folder, stamps)


@lru_cache(maxsize=8)
def _load(folder: Path, stamps: tuple[tuple[str, int], ...]) -> Profile:
    return Profile(folder)


def load_collectives(name: str) -> Line:
    """All-reduce times in us by bytes: `pcie`, or a CSV file with the columns bytes and time_us. Raises InputError."""
    if name == "pcie":
        return Line(*PCIE)
    if not name.endswith(".csv"):
        expected = f"must be 'pcie', or a .csv file of all-reduce times{nearest(name, ['pcie'])}"
        raise InputError(None, "cost.collectives", name, expected)
    path = Path(name)
    sizes, times = series(path, read(path, ("bytes", "time_us")), "bytes", "time_us")
    return Line([float(size) for size in sizes], times)


def points_of(path: Path, columns: Sequence[str]) -> dict[Point, float]:
    """The points of a grid file; a column without a name is 0 everywhere. Raises InputError."""
    found: dict[Point, float] = {}
    lines: dict[Point, int] = {}
    for row in read(path, (*(name for name in columns if name), "time_us")):
        values = [row[name] if name else 0.0 for name in columns]
        point = (values[0], values[1], values[2], values[3])
        if point in found:
            shown = ", ".join(f"{name} {value:g}" for name, value in zip(columns, values, strict=True) if name)
            raise InputError(
                path, f"line {row.line}", None, f"measured twice ({shown}): line {lines[point]} has it too"
            )
        if row["time_us"] <= 0:
            raise InputError(path, f"line {row.line}, time_us", row["time_us"], "must be above 0")
        found[point], lines[point] = row["time_us"], row.line
    refuse_outliers(path, columns, found, lines)
    return found


def _grid(path: Path, columns: Sequence[str]) -> Grid:
    points = points_of(path, columns)
    try:
        return Grid(points)
    except ValueError as error:
        raise InputError(path, None, None, f"{error}: measure every combination of a few sizes") from None


def _by_name(path: Path, name: str, size: str) -> dict[str, Line]:
    by_name: dict[str, list[object]] = {}
    for row in read(path, (size, "time_us"), text=name):
        by_name.setdefault(row.text, []).append(row)
    return {key: Line(*series(path, rows, size, "time_us")) for key, rows in by_name.items()}  # type: ignore[arg-type]
