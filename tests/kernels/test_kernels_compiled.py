"""The CUDA sources under NVRTC, which needs no GPU: they compile for every architecture, and to good machine code.

Compiling everything takes a minute and a half of processor time, so what was compiled is kept in pytest's cache and
compiled again only when a source, an option or the compiler changes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from cupy.cuda import nvrtc

from tinker_actors.kernels.backend import OPTIONS
from tinker_actors.kernels.source import FILES, KERNELS, PAIRS, Types, cuda_source

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="NVRTC's package is for Linux"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

ARCHITECTURES = (80, 90, 100)
SCALARS = {"sum_narrow", "sum_gradients"}


@dataclass(frozen=True)
class Compiled:
    """A group of kernels for one architecture: the assembler's log, and each kernel's machine code as text."""

    log: str
    sass: dict[str, str]


@pytest.fixture(scope="module", autouse=True)
def nvrtc_at_work() -> None:
    """NVRTC opens its own libraries when it first compiles, and several threads at once fail at that."""
    program = nvrtc.createProgram('extern "C" __global__ void nothing() {}', "nothing.cu", (), ())
    nvrtc.compileProgram(program, ("-arch=sm_80",))


def compile_group(types: Types, group: str, architecture: int, cache: Path) -> Compiled:
    source = cuda_source(types, group)
    options = (*OPTIONS, f"-arch=sm_{architecture}", "--ptxas-options=-v")
    key = hashlib.sha256(json.dumps([source, options, nvrtc.getVersion()]).encode()).hexdigest()
    cubin, log = cache / f"{key}.cubin", cache / f"{key}.log"
    if not (cubin.exists() and log.exists()):
        program = nvrtc.createProgram(source, "kernels.cu", (), ())
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError:
            pytest.fail(nvrtc.getProgramLog(program))
        # CuPy leaves out the last byte, a zero that nvdisasm misses
        cubin.write_bytes(nvrtc.getCUBIN(program) + b"\0")
        log.write_text(nvrtc.getProgramLog(program))
    text = subprocess.run([_nvdisasm(), "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    # a function's code begins at its label and ends where the next section does
    parts = re.split(r"^\.text\.(\w+):$", text, flags=re.MULTILINE)
    sass = {name: code.split(".section", 1)[0] for name, code in zip(parts[1::2], parts[2::2], strict=True)}
    return Compiled(log.read_text(), sass)


def _nvdisasm() -> Path:
    files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    return next(Path(str(file.locate())) for file in files if file.name == "nvdisasm")


def count(opcode: str, code: str) -> int:
    return len(re.findall(rf"\b{opcode}\b", code))


def expected(group: str, architecture: int) -> set[str]:
    found = {kernel.name for kernel in KERNELS.values() if kernel.group == group}
    return found - {"decode_fused"} if architecture < 90 else found


@pytest.mark.parametrize("group", FILES)
@pytest.mark.parametrize("types", PAIRS, ids=lambda types: f"{types.rows}-{types.weights}")
def test_every_kernel_compiles_without_spills_to_wide_accesses_and_tensor_cores(
    types: Types, group: str, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    kept = getattr(pytestconfig, "cache", None)
    cache = tmp_path if kept is None else kept.mkdir("cubins")
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = threads.map(lambda architecture: compile_group(types, group, architecture, cache), ARCHITECTURES)
    for architecture, compiled in zip(ARCHITECTURES, found, strict=True):
        assert set(compiled.sass) == expected(group, architecture)

        # the assembler's own word: nothing is kept in local memory
        spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", compiled.log)
        assert spills == [("0", "0", "0")] * len(compiled.sass)

        for name, code in compiled.sass.items():
            where = f"{name} for sm_{architecture}"
            assert count(r"(LDL|STL)", code) == 0, where
            assert count(r"ST\.E[.\w]*", code) == 0, f"{where} stores to a generic address"
            if name != "decode_fused":  # distributed shared memory is read by generic loads
                assert count(r"LD\.E[.\w]*", code) == 0, f"{where} loads from a generic address"
            if name in SCALARS:
                continue
            if group == "decode":
                assert count(r"LDG\.E\.128[.\w]*", code) > 0, f"{where} reads no 16 bytes at a time"
                continue
            assert count(r"HMMA[.\w]*", code) > 0, f"{where} uses no tensor core"
            assert count(r"LDGSTS[.\w]*\.128[.\w]*", code) > 0, f"{where} copies no 16 bytes at a time"
            if types.rows != "float" and "expand" not in name:
                assert count(r"LDSM[.\w]*", code) > 0, f"{where} reads its operands one by one"
            if name.startswith("mma_expand"):
                assert count(r"LDG\.E\.128[.\w]*", code) > 0, f"{where} reads outputs in parts"
                assert count(r"STG\.E\.128[.\w]*", code) > 0, f"{where} writes outputs in parts"


def test_the_sources_need_no_include_path() -> None:
    for types in PAIRS:
        for group in FILES:
            assert "#include" not in cuda_source(types, group)
