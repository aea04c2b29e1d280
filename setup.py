"""Compiles the core with Cython where that is possible; all else is in pyproject.toml.

Every module of ``batchlab.core`` is plain Python, with an optional ``.pxd`` beside it that
gives it C types. Its ``.py`` is always installed. Where Cython and a C compiler work, an
extension is installed beside it, and the import system prefers that one. Where they do not,
for whatever reason, the build goes on without: batchlab is then slower and otherwise the same.

The core is compiled as a whole or not at all, and no extension of an earlier build is ever
left in place, so that one run never mixes two versions of the core.

``BATCHLAB_NO_COMPILE=1`` leaves the core interpreted on purpose.
"""

import os
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CORE = Path("src/batchlab/core")

# One abi3 build serves every CPython from 3.11 on. Free-threaded CPython has no such ABI.
ABI3 = not sysconfig.get_config_var("Py_GIL_DISABLED")
ABI3_MACROS = [("CYTHON_LIMITED_API", "1"), ("Py_LIMITED_API", "0x030b0000")]


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

        translated = cythonize(
            [Extension(ext.name, ext.sources) for ext in self.extensions],
            build_dir=str(Path(self.build_temp, "cython")),
            # Annotations are for the type checker; only a .pxd gives C types. Otherwise Cython
            # would reject at run time what the source accepts (a bool for an int). A verb that is
            # given None must fail as the source does.
            compiler_directives={"language_level": 3, "annotation_typing": False, "nonecheck": True},
            force=True,  # times of files say too little: after a checkout an old one may be newer
            quiet=True,
        )
        sources = {ext.name: ext.sources for ext in translated}
        for ext in self.extensions:
            ext.sources = sources[ext.name]

    def remove_extensions(self, inplace):
        """Remove what an earlier build, or this one before it failed, left behind."""
        folders = [Path(self.build_lib, "batchlab", "core")]
        if inplace:
            folders.append(CORE)
        for folder in folders:
            for pattern in ("*.so", "*.pyd"):
                for path in folder.glob(pattern):
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
            f"batchlab.core.{path.stem}",
            [path.as_posix()],
            define_macros=ABI3_MACROS if ABI3 else [],
            py_limited_api=ABI3,
        )
        for path in sorted(CORE.glob("*.py"))
        if path.stem != "__init__"
    ],
    cmdclass={"build_ext": BuildCore},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if ABI3 else {},
)
