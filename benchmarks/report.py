"""Measures every case and writes docs/performance.md: python benchmarks/report.py

With --check it writes nothing and compares the ratios with floors.json instead; --floors writes those anew. --week runs
45 million requests and keeps the figures in week.json beside this file, from which the page takes them.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from cases import CASES, HERE
from page import page

FLOORS = HERE / "floors.json"
WEEK = HERE / "week.json"
PAGE = HERE.parent / "docs" / "performance.md"
SLACK = 0.8
"""A ratio may drop to this share of its floor's before it is an answer of no."""

Figures = dict[str, Any]


def child(script: str, *arguments: object, interpreted: bool = False) -> Figures:
    """What a measuring process of its own prints."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    environment = {**os.environ, "BATCHLAB_INTERPRETED": "1" if interpreted else "0"}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True, text=True)
    found: Figures = json.loads(done.stdout)
    return found


def measured(name: str, times: int, share: float = 1.0) -> Figures:
    """One case: quick, and plain in both builds, with what follows. share: of its requests."""
    case = CASES[name]
    count, few = max(int(case.count * share), 10), max(int(case.few * share), 10)
    quick = child("measure.py", name, "quick", count, times)
    plain = child("measure.py", name, "plain", few, times)
    slow = child("measure.py", name, "plain", few, 1, interpreted=True)
    rates = [one["requests"] / one["seconds"] for one in (quick, plain, slow)]
    return {
        **quick,
        "title": case.title,
        "what": case.what,
        "rates": rates,
        "ratio": rates[0] / rates[2],
        "ratio_compiled": rates[0] / rates[1],
    }


def too_slow(ratios: dict[str, float], floors: dict[str, float]) -> list[str]:
    """One line for each case whose ratio is more than a fifth below its floor, has none, or was not measured."""
    found = []
    for name in sorted(ratios.keys() | floors.keys()):
        if name not in ratios:
            found.append(f"{name}: has a floor, but was not measured")
        elif name not in floors:
            found.append(f"{name}: has no floor; --floors writes one")
        elif not ratios[name] >= SLACK * floors[name]:
            found.append(f"{name}: {ratios[name]:.1f} times the reference, the floor is {floors[name]:.1f}")
    return found


def machine() -> dict[str, Any]:
    """What this ran on."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "date": datetime.date.today().isoformat(),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with floors.json; exit with 1 if one is missed")
    parser.add_argument("--floors", action="store_true", help="write floors.json from this run")
    parser.add_argument("--week", action="store_true", help="run 45 million requests, too; takes minutes and 10 GB")
    parser.add_argument("--only", help="cases, with commas; then no page is written")
    parser.add_argument("--times", type=int, default=3, help="repetitions of each measurement")
    given = parser.parse_args(arguments)
    names = given.only.split(",") if given.only else list(CASES)
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"--only: {', '.join(unknown)}: must be of {', '.join(CASES)}")
    if given.week:
        WEEK.write_text(json.dumps({**child("week.py"), **machine()}, indent=1) + "\n", encoding="utf-8")
    found = {}
    for name in names:
        one = found[name] = measured(name, given.times)
        print(f"{name:18} {one['rates'][0]:12,.0f} /s {one['ratio']:9.1f} x {one['ratio_compiled']:8.1f} x", flush=True)
    ratios = {name: one["ratio"] for name, one in found.items()}
    if given.floors:
        rounded = {name: float(f"{ratio:.3g}") for name, ratio in ratios.items()}
        FLOORS.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")
    if given.check:
        floors = json.loads(FLOORS.read_text(encoding="utf-8"))
        missed = too_slow(ratios, {name: floor for name, floor in floors.items() if name in names or not given.only})
        print("\n".join(missed) or "every case keeps its floor")
        return 1 if missed else 0
    if not given.only:
        week = json.loads(WEEK.read_text(encoding="utf-8")) if WEEK.exists() else None
        PAGE.write_text(page(found, machine(), week), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
