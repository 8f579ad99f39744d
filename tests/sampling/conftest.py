import pytest
import torch
from sampling_harness import Harness, Publisher


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def publisher(tmp_path):
    return Publisher(tmp_path)


@pytest.fixture
def harness(publisher):
    made = []

    def make(**options):
        made.append(Harness(publisher, **options))
        return made[-1]

    yield make
    for entry in made:
        if entry.engine._thread.is_alive():
            entry.engine.stop()
