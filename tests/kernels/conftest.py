from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from emulator import SCHEDULES, Emulator


@pytest.fixture(scope="session")
def built_kernels() -> Emulator:
    return Emulator()


@pytest.fixture
def device(built_kernels: Emulator) -> Iterator[Emulator]:
    """The emulated device in its first state. Memory that torch allocates and nobody writes is NaN meanwhile."""
    built_kernels.schedule, built_kernels.has_clusters = SCHEDULES["by warp"], True
    built_kernels.launches.clear()
    torch.use_deterministic_algorithms(True)
    yield built_kernels
    torch.use_deterministic_algorithms(False)
