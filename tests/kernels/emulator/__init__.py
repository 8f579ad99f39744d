"""Runs the CUDA sources on the CPU: one fiber per CUDA thread, under schedules of one's choice.

The sources are the very files that a GPU gets. `build` compiles them with what `cuda.h` gives in place of CUDA's
built-ins and PTX; `device` launches kernels of the result; `memory` places tensors so that a byte too far is a fault.
"""

from emulator.device import SCHEDULES, Emulator, FaultError, Schedule
from emulator.memory import guarded, huge

__all__ = ["SCHEDULES", "Emulator", "FaultError", "Schedule", "guarded", "huge"]
