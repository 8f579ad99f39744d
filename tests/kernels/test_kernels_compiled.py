"""The CUDA sources under NVRTC, which needs no GPU: they compile for every architecture, and to good machine code.

Compiling everything takes a minute and a half of processor time, so what was found is kept among the project's
cached files, for all checkouts, and compiled again only when a source, an option or the compiler changes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from cupy.cuda import nvrtc

from tinker_actors.kernels.backend import OPTIONS
from tinker_actors.kernels.source import FILES, KERNELS, PAIRS, Types, cuda_source
from tinker_actors.models.cache import cache_dir

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="NVRTC's package is for Linux"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

ARCHITECTURES = (80, 90, 100)
SCALARS = {"sum_narrow", "sum_gradients"}
KEPT_SECONDS = 30 * 24 * 3600
"""How long what was found of a group stays that no test asks for."""


@dataclass(frozen=True)
class Compiled:
    """A group of kernels for one architecture: the assembler's log, and how often each kernel has each opcode."""

    log: str
    opcodes: dict[str, dict[str, int]]


@pytest.fixture(scope="module", autouse=True)
def nvrtc_at_work() -> None:
    """NVRTC opens its own libraries when it first compiles, and several threads at once fail at that."""
    program = nvrtc.createProgram('extern "C" __global__ void nothing() {}', "nothing.cu", (), ())
    nvrtc.compileProgram(program, ("-arch=sm_80",))


@pytest.fixture(scope="module")
def cubins() -> Path:
    """Where what was found of compiled groups is kept."""
    folder = cache_dir() / "cubins"
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.stat().st_mtime < time.time() - KEPT_SECONDS:
            path.unlink(missing_ok=True)
    return folder


def compile_group(types: Types, group: str, architecture: int, cubins: Path) -> Compiled:
    source = cuda_source(types, group)
    options = (*OPTIONS, f"-arch=sm_{architecture}", "--ptxas-options=-v")
    told = [source, options, nvrtc.getVersion(), inspect.getsource(opcodes_of)]
    kept = cubins / f"{hashlib.sha256(json.dumps(told).encode()).hexdigest()}.json"
    if kept.exists():
        kept.touch()
        return Compiled(**json.loads(kept.read_text()))
    program = nvrtc.createProgram(source, "kernels.cu", (), ())
    try:
        nvrtc.compileProgram(program, options)
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    compiled = Compiled(nvrtc.getProgramLog(program), opcodes_of(nvrtc.getCUBIN(program)))
    own = kept.with_suffix(f".{os.getpid()}")  # other test runs may read and write the file meanwhile
    own.write_text(json.dumps(dataclasses.asdict(compiled)))
    own.replace(kept)
    return compiled


def opcodes_of(cubin: bytes) -> dict[str, dict[str, int]]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin + b"\0")  # CuPy leaves out the last byte, a zero that nvdisasm misses
        file.flush()
        text = subprocess.run([_nvdisasm(), "-c", file.name], capture_output=True, text=True, check=True).stdout
    # a function's code begins at its label and ends where the next section does
    parts = re.split(r"^\.text\.(\w+):$", text, flags=re.MULTILINE)
    instruction = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)
    return {
        name: dict(Counter(instruction.findall(code.split(".section", 1)[0])))
        for name, code in zip(parts[1::2], parts[2::2], strict=True)
    }


def _nvdisasm() -> Path:
    files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    return next(Path(str(file.locate())) for file in files if file.name == "nvdisasm")


def count(opcode: str, opcodes: dict[str, int]) -> int:
    return sum(number for name, number in opcodes.items() if re.search(rf"\b{opcode}\b", name))


def expected(group: str, architecture: int) -> set[str]:
    found = {kernel.name for kernel in KERNELS.values() if kernel.group == group}
    return found - {"decode_fused"} if architecture < 90 else found


@pytest.mark.parametrize("group", FILES)
@pytest.mark.parametrize("types", PAIRS, ids=lambda types: f"{types.rows}-{types.weights}")
def test_every_kernel_compiles_without_spills_to_wide_accesses_and_tensor_cores(
    types: Types, group: str, cubins: Path
) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = threads.map(lambda architecture: compile_group(types, group, architecture, cubins), ARCHITECTURES)
    for architecture, compiled in zip(ARCHITECTURES, found, strict=True):
        assert set(compiled.opcodes) == expected(group, architecture)

        # the assembler's own word: nothing is kept in local memory
        spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", compiled.log)
        assert spills == [("0", "0", "0")] * len(compiled.opcodes)

        for name, code in compiled.opcodes.items():
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
