"""The package builds and runs with a C compiler and without one.

Every test works on a copy of the source, builds without build isolation and without network, and
looks at what was installed in a fresh process.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("setuptools", minversion="77")
pytest.importorskip("Cython")

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parent.parent
COMPILER = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C compiler here")

# What builds see: nothing of the switches of this run, and for the second no compiler either.
USUAL = {name: value for name, value in os.environ.items() if not name.startswith(("BATCHLAB_", "PYTHON"))}
if sys.platform != "win32":
    USUAL["CFLAGS"] = "-O0"  # what is asked here is whether it is compiled: optimised it takes three times as long
NO_COMPILER = {**USUAL, "CC": "/nonexistent/cc", "CXX": "/nonexistent/c++", "PATH": "/nonexistent"}

LOOK = "import batchlab._build as b; print(b.build_kind()); print(b.__file__)"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A clean copy of what a build needs, in a folder with a space in its name."""
    copy = tmp_path / "the source"
    shutil.copytree(
        ROOT / "src",
        copy / "src",
        ignore=shutil.ignore_patterns("*.so", "*.pyd", "*.c", "*.egg-info", "__pycache__"),
    )
    for name in ("pyproject.toml", "setup.py", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy)
    return copy


def run(*command: str | Path, env: dict[str, str], cwd: Path) -> str:
    """Run a command and return what it printed; its errors are shown if it fails."""
    done = subprocess.run(
        list(map(str, command)), env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def pip(*arguments: str | Path, env: dict[str, str], cwd: Path) -> str:
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, env=env, cwd=cwd)


def build_wheel(source: Path, env: dict[str, str]) -> tuple[Path, str]:
    """Build the wheel and return it with what the build printed."""
    out = source.parent / "wheels"
    shutil.rmtree(out, ignore_errors=True)
    log = pip("wheel", "-v", "--no-build-isolation", "--no-deps", "-w", out, source, env=env, cwd=source.parent)
    (wheel,) = out.iterdir()
    return wheel, log


def look_at_wheel(wheel: Path, **extra: str) -> str:
    """Install a wheel beside itself and return the kind of core it runs."""
    target = wheel.parent / "installed"
    if not target.exists():
        pip("install", "--no-deps", "--no-index", "--target", target, wheel, env=USUAL, cwd=wheel.parent)
    env = {**USUAL, **extra, "PYTHONPATH": str(target)}
    kind, where = run(sys.executable, "-c", LOOK, env=env, cwd=wheel.parent).splitlines()
    assert Path(where).is_relative_to(target), "another installation was looked at"
    return kind


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def data_files(source: Path) -> set[str]:
    """What every wheel has to hold: all source and data files, as the source has them."""
    src = source / "src"
    wanted = ("*.py", "py.typed", "*.pxd", "trace/schema.json", "report/page/*")
    return {path.relative_to(src).as_posix() for glob in wanted for path in (src / "batchlab").rglob(glob)}


@needs_compiler
def test_wheel_with_a_compiler_is_compiled(source: Path) -> None:
    wheel, _ = build_wheel(source, USUAL)
    assert wheel.name.startswith("batchlab-")
    names = names_in(wheel)
    assert data_files(source) <= names
    assert not [name for name in names if name.endswith(".c")]
    assert look_at_wheel(wheel) == "compiled"
    assert look_at_wheel(wheel, BATCHLAB_INTERPRETED="1") == "interpreted"
    assert not list((source / "src").rglob("*.c")), "generated files lie among the sources"

    # A core of both forms is an error, and told as one, except where only the source is wanted.
    target = wheel.parent / "installed"
    next((target / "batchlab" / "core").glob("*.so")).unlink()
    assert look_at_wheel(wheel, BATCHLAB_INTERPRETED="1") == "interpreted"
    with pytest.raises(AssertionError, match="MixedBuildError"):
        look_at_wheel(wheel)

    # What this build has compiled does not survive in one without.
    wheel, log = build_wheel(source, {**USUAL, "BATCHLAB_NO_COMPILE": "1"})
    assert "BATCHLAB_NO_COMPILE is set" in log
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in names_in(wheel) if name.endswith((".so", ".pyd"))]


def test_wheel_without_a_compiler_is_pure_and_runs_interpreted(source: Path) -> None:
    wheel, log = build_wheel(source, NO_COMPILER)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert log.count("batchlab: core not compiled") == 1
    assert data_files(source) <= names_in(wheel)
    assert look_at_wheel(wheel) == "interpreted"


def test_one_module_that_does_not_compile_leaves_the_whole_core_interpreted(source: Path) -> None:
    broken = source / "src" / "batchlab" / "core" / "zz_broken.py"
    broken.write_text("value = 1\n")
    broken.with_suffix(".pxd").write_text("cdef no_such_type value\n")
    wheel, _ = build_wheel(source, USUAL)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert look_at_wheel(wheel) == "interpreted"


def test_editable_installation_without_a_compiler(source: Path, tmp_path: Path) -> None:
    core = source / "src" / "batchlab" / "core"
    stale = core / "stale.so"
    stale.touch()
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv, env=USUAL, cwd=tmp_path)
    scripts = venv / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    # It sees all that this Python has, but not batchlab: a folder on a .pth has no .pth read.
    ours = sysconfig.get_path("purelib")
    theirs = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", env=USUAL, cwd=tmp_path)
    Path(theirs.strip(), "ours.pth").write_text(ours + "\n")

    install = ("-m", "pip", "install", "--no-deps", "--no-index", "--no-build-isolation", "-e", source)
    run(python, *install, env=NO_COMPILER, cwd=tmp_path)
    assert not stale.exists()
    kind, where = run(python, "-c", LOOK, env=USUAL, cwd=tmp_path).splitlines()
    assert kind == "interpreted"
    assert Path(where).is_relative_to(source)
    assert (scripts / "batchlab").exists() or (scripts / "batchlab.exe").exists()


CHECKED_RUNS = """
import sys
from pathlib import Path
import batchlab
from batchlab._build import build_kind
from batchlab.core.tally import Tally
from loads_in_step import any_run
from test_in_step import look, outcome

assert build_kind() == "compiled" and Path(batchlab.__file__).is_relative_to(sys.argv[1])
try:
    Tally(1).token(5, 1)
except IndexError:
    pass
else:
    raise SystemExit("bounds are not checked")
for seed in range(600_000, 600_400):
    for in_flight in (False, True):
        assert outcome(any_run(seed, in_flight)) == outcome(any_run(seed, in_flight), look), (seed, in_flight)
"""


@needs_compiler
def test_with_every_bound_checked_random_runs_are_the_same(source: Path, tmp_path: Path) -> None:
    checked = {**USUAL, "BATCHLAB_BOUNDS_CHECK": "1"}
    log = run(sys.executable, "setup.py", "build_ext", "--inplace", env=checked, cwd=source)
    assert "core not compiled" not in log
    paths = os.pathsep.join([str(source / "src"), str(Path(__file__).parent)])
    run(sys.executable, "-c", CHECKED_RUNS, source, env={**USUAL, "PYTHONPATH": paths}, cwd=tmp_path)
