"""Compiles the core with Cython where that is possible; all else is in pyproject.toml.

Every module of ``batchlab.core``, and every other one with a ``.pxd`` beside it that gives it C
types, is plain Python. Its ``.py`` is always installed. Where Cython and a C compiler work, an
extension is installed beside it, and the import system prefers that one. Where they do not,
for whatever reason, the build goes on without: batchlab is then slower and otherwise the same.

The core is compiled as a whole or not at all, and no extension of an earlier build is ever
left in place, so that one run never mixes two versions of the core.

``BATCHLAB_NO_COMPILE=1`` leaves the core interpreted on purpose. ``BATCHLAB_BOUNDS_CHECK=1``
makes every access to an array check its bounds, for tests: slower, and otherwise the same.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("src")
PACKAGE = SOURCE / "batchlab"
CORE = PACKAGE / "core"
COMPILED = sorted({*CORE.glob("*.py"), *(path.with_suffix(".py") for path in PACKAGE.rglob("*.pxd"))})
# What a policy of one's own calls: given None, it must fail as the source does.
FACING = ("building", "verbs", "batch", "queue")
CHECKED = os.environ.get("BATCHLAB_BOUNDS_CHECK") == "1"


class BuildCore(build_ext):
    """Builds the extensions of the core, or falls back to its source if anything goes wrong."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self):
        inplace = self.inplace
        self.remove_extensions(inplace)
        try:
            self.translate()
            super().run()
        except Exception as error:  # whatever it was, the source works
            self.inplace = inplace  # super().run() changes it meanwhile
            self.remove_extensions(inplace)
            self.fall_back(error)

    def translate(self):
        """Translate the modules to C, below the build directory."""
        if os.environ.get("BATCHLAB_NO_COMPILE") == "1":
            raise RuntimeError("BATCHLAB_NO_COMPILE is set")
        if sys.implementation.name != "cpython":
            raise RuntimeError("compiled on CPython only")
        from Cython.Build import cythonize

        for ext in self.extensions:
            (translated,) = cythonize(
                [Extension(ext.name, ext.sources)],
                build_dir=str(Path(self.build_temp, "cython")),
                # Annotations are for the type checker; only a .pxd gives C types. Otherwise Cython
                # would reject at run time what the source accepts (a bool for an int).
                compiler_directives={
                    "language_level": 3,
                    "annotation_typing": False,
                    "nonecheck": CHECKED or ext.name.rpartition(".")[2] in FACING,
                    "boundscheck": CHECKED,
                    "initializedcheck": CHECKED,
                },
                force=True,  # times of files say too little: after a checkout an old one may be newer
                quiet=True,
            )
            ext.sources = translated.sources

    def remove_extensions(self, inplace):
        """Remove what an earlier build, or this one before it failed, left behind."""
        roots = [Path(self.build_lib, "batchlab")]
        if inplace:
            roots.append(PACKAGE)
        for root in roots:
            for pattern in ("*.so", "*.pyd"):
                for path in root.rglob(pattern):
                    path.unlink()

    def fall_back(self, error):
        """Go on as a package without extensions: its wheel is pure."""
        reason = (str(error).splitlines() or [""])[0]
        print(f"batchlab: core not compiled, installing its source: {type(error).__name__}: {reason}")
        self.extensions = []
        self.distribution.ext_modules = []
        wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
        if wheel is not None:
            wheel.root_is_pure = True


setup(
    ext_modules=[
        Extension(
            ".".join(path.relative_to(SOURCE).with_suffix("").parts),
            [path.as_posix()],
            # Fused multiply-add would round differently from the source.
            extra_compile_args=[] if sys.platform == "win32" else ["-ffp-contract=off"],
        )
        for path in COMPILED
        if path.stem != "__init__"
    ],
    cmdclass={"build_ext": BuildCore},
)
