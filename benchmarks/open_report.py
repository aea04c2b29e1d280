"""How long the report of 100,000 requests takes to write and to open: python benchmarks/open_report.py.

Needs Chromium with chromedriver and selenium. Each trial starts a browser of its own; the time is until all charts are
drawn.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from browser import Page, chromium  # noqa: E402

TRIALS = 3
SETTINGS = ("workload.generate.num_prompts=100000", "workload.generate.request_rate=18")


def main() -> None:
    """Write the page once, open it a few times."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        options = [word for setting in SETTINGS for word in ("--set", setting)]
        scenario = ROOT / "examples" / "capacity-conversation.toml"
        began = time.monotonic()
        command = (sys.executable, "-m", "batchlab", "report", str(scenario), *options, "-o", str(page))
        subprocess.run(command, check=True)
        print(f"written in {time.monotonic() - began:.1f} s, {page.stat().st_size / 1e6:.2f} MB")
        for _ in range(TRIALS):
            with chromium() as driver:
                driver.get("about:blank")
                time.sleep(1)
                opened = Page(driver, page)
                again = Page(driver, page)
                print(f"opened in {opened.ready_ms():,} ms, and again in {again.ready_ms():,} ms")


if __name__ == "__main__":
    main()
