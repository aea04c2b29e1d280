"""Which form of the core runs: the compiled one or its Python source.

The modules of :mod:`batchlab.core` are Python source that the installation compiles where it
can; see ``setup.py``. Both forms give the same results. This module chooses between them and
says which one was chosen. It imports nothing else of batchlab, as it has to run first.
"""

import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from pathlib import Path
from types import ModuleType
from typing import Literal

__all__ = ["BuildKind", "MixedBuildError", "build_kind", "prefer_source", "require_one_form"]

BuildKind = Literal["compiled", "interpreted"]

_CORE = "batchlab.core"
_SWITCH = "BATCHLAB_INTERPRETED"
_ADVICE = f"reinstall batchlab, or set {_SWITCH}=1 to run from source"


class MixedBuildError(ImportError):
    """Some modules of the core are compiled and others are not, so they may not fit together."""


class _SourceFinder(MetaPathFinder):
    """Finds the modules of batchlab as Python source only, never as extensions.

    A finder on ``sys.meta_path`` is asked before the usual one, which takes an extension first
    where both lie in one folder.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the ``.py`` of a module of batchlab, and None for every other one."""
        if path is None or not fullname.startswith("batchlab."):
            return None
        for folder in path:
            spec = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(fullname)
            if spec is not None and spec.loader is not None:
                return spec
        return None


def prefer_source() -> None:
    """Make the core load from its Python source if ``BATCHLAB_INTERPRETED`` is ``1``.

    Has to be called before any module of the core is imported; calling it again changes nothing.
    Processes started later inherit the environment and so choose the same form.

    Raises:
        MixedBuildError: a compiled module of the core has been imported already.
    """
    if os.environ.get(_SWITCH) != "1":
        return
    loaded = [name for name, module in _core_modules().items() if _is_compiled(module)]
    if loaded:
        raise MixedBuildError(f"{_SWITCH}=1 comes too late, already compiled: {', '.join(loaded)}")
    if not any(isinstance(finder, _SourceFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _SourceFinder())


def require_one_form() -> None:
    """Refuse an installation in which some of the compiled modules are missing: the others would not fit the source.

    Raises:
        MixedBuildError: names the modules without an extension.
    """
    if os.environ.get(_SWITCH) == "1":
        return
    package = Path(__file__).parent
    sources = {*(package / "core").glob("[!_]*.py"), *(types.with_suffix(".py") for types in package.rglob("*.pxd"))}
    missing = [path for path in sources if not any(path.with_suffix(s).is_file() for s in EXTENSION_SUFFIXES)]
    if missing and len(missing) < len(sources):
        names = ", ".join(sorted(".".join(path.relative_to(package.parent).with_suffix("").parts) for path in missing))
        raise MixedBuildError(f"not compiled, while other modules are: {names}; {_ADVICE}")


def build_kind() -> BuildKind:
    """Say which form of the core this process runs, judged from the modules it has imported.

    If none has been imported yet, all of them are imported first.

    Returns:
        ``"compiled"`` or ``"interpreted"``.

    Raises:
        MixedBuildError: the imported modules are of both forms; the message names the fewer.
    """
    if not _core_modules():
        core = importlib.import_module(_CORE)
        for found in pkgutil.iter_modules(core.__path__, _CORE + "."):
            importlib.import_module(found.name)
    modules = _core_modules()
    compiled = sorted(name for name, module in modules.items() if _is_compiled(module))
    interpreted = sorted(modules.keys() - set(compiled))
    if not compiled:
        return "interpreted"
    if not interpreted:
        return "compiled"
    fewer, word = min((compiled, "compiled"), (interpreted, "interpreted"), key=lambda group: len(group[0]))
    raise MixedBuildError(f"only a part of {_CORE} is {word}: {', '.join(fewer)}; {_ADVICE}")


def _core_modules() -> dict[str, ModuleType]:
    """The imported modules by name that are compiled where the core is: its own, and others that have C types."""
    loaded = [(name, module) for name, module in sys.modules.copy().items() if name.startswith("batchlab.")]
    return {name: module for name, module in loaded if name.startswith(_CORE + ".") or _has_types(module)}


def _has_types(module: ModuleType) -> bool:
    """Whether a ``.pxd`` lies beside the module."""
    file = Path(getattr(module, "__file__", None) or "")
    return file.with_name(file.name.partition(".")[0] + ".pxd").is_file()


def _is_compiled(module: ModuleType) -> bool:
    """Whether a module was loaded from an extension."""
    return (getattr(module, "__file__", None) or "").endswith(tuple(EXTENSION_SUFFIXES))
