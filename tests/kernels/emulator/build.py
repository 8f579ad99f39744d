"""Compiles kernel sources and the emulator to a library for this CPU, once for each state of either."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tinker_actors.kernels.source import Kernel

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / "build" / "emulator"

FLAGS = (
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wno-unknown-pragmas",
    "-Wno-sign-compare",  # threadIdx and the like are unsigned, and kernels compare them to sizes
    "-fno-strict-aliasing",  # kernels see the same bytes as several types, as CUDA allows
    "-fwrapv",  # integers that overflow wrap, as on a GPU
    "-ffp-contract=off",
    f"-I{HERE}",
)


@functools.cache
def compiler() -> tuple[str, ...]:
    """The command that compiles C++: $CXX, one on the PATH, or the one that the package `ziglang` brings.

    Raises:
        FileNotFoundError: There is none.
    """
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and shutil.which(name):
            return (name,)
    if importlib.util.find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "c++")
    raise FileNotFoundError("no C++ compiler for the CUDA emulator: install g++ or clang++, or `pip install ziglang`")


def library(source: str, kernels: Iterable[Kernel]) -> Path:
    """A shared library of kernels.

    Args:
        source: The text that `cuda_source` gives.
        kernels: Those that the text defines and that can be launched.

    Raises:
        FileNotFoundError: No compiler.
        RuntimeError: It refused the source; the message holds what it said.
    """
    listed = "".join(
        f'  emulator::describe<&{kernel.name}>("{kernel.name}", {kernel.cluster}, {kernel.threads}),\n'
        for kernel in kernels
    )
    unit = (
        '#define TA_EMULATED\n#include "cuda.h"\n#include "kernels.h"\n#line 1 "kernels"\n'
        f"{source}\n"
        f"const emulator::Kernel emulator::kernels[] = {{\n{listed}}};\n"
        "const int emulator::kernel_count = sizeof emulator::kernels / sizeof *emulator::kernels;\n"
    )
    runtime = _compiled('#include "runtime.cpp"\n#include "operations.cpp"\n', ("-c",), ".o")
    return _compiled(unit, ("-shared", str(runtime)), ".so")


def _compiled(text: str, arguments: tuple[str, ...], suffix: str) -> Path:
    command = [*compiler(), *FLAGS]
    digest = hashlib.sha256("\0".join((*command, *arguments, _emulator_texts(), text)).encode()).hexdigest()[:24]
    target = CACHE / (digest + suffix)
    if target.exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        source, output = Path(folder) / "source.cpp", Path(folder) / target.name
        source.write_text(text, encoding="utf-8")
        # the source before the objects that it needs
        done = subprocess.run(
            [*command, str(source), *arguments, "-o", str(output)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
        os.replace(output, target)
    return target


@functools.cache
def _emulator_texts() -> str:
    return "\0".join(path.read_text(encoding="utf-8") for path in sorted((*HERE.glob("*.h"), *HERE.glob("*.cpp"))))
