"""The script `./batchlab`: when it sets itself up, with a Python that only notes what it was asked to do."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parent.parent
PYTHON = """#!/bin/sh
case "$*" in
*" install "*) echo "$*" >>"${0%/*}/installs"; rm -rf "${0%/*}/../lib/python3.12/site-packages/batchlab" ;;
esac
"""


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A checkout with a .venv that works."""
    checkout = tmp_path / "the source"
    (checkout / "src/batchlab/core").mkdir(parents=True)
    (checkout / "src/batchlab/core/queue.py").write_text("")
    for name in ("batchlab", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, checkout)
    programs = checkout / ".venv/bin"
    programs.mkdir(parents=True)
    for name, text in (("python", PYTHON), ("batchlab", "#!/bin/sh\necho ran\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return checkout


def run(top: Path) -> tuple[str, str]:
    done = subprocess.run([top / "batchlab"], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout, done.stderr


def test_a_copy_of_the_package_is_replaced_by_the_checkout(top: Path) -> None:
    out, said = run(top)
    assert out == "ran\n" and "1 to 3 minutes" in said and str(top / ".venv.log") in said and "holds a copy" not in said
    assert run(top) == ("ran\n", "")  # it is set up
    copy = top / ".venv/lib/python3.12/site-packages/batchlab/__init__.py"
    copy.parent.mkdir(parents=True)
    copy.write_text("")
    out, said = run(top)
    assert out == "ran\n" and "holds a copy of batchlab (pip install without -e)" in said and not copy.exists()
    installs = (top / ".venv/bin/installs").read_text().splitlines()
    assert len(installs) == 2 and all(f"-e {top}" in line for line in installs)
    assert run(top) == ("ran\n", "")
