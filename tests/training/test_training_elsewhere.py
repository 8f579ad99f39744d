"""Training on a device that isn't the CPU (`stand_in_device`): the same numbers, and no operation of two devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.sampling.stand_in_device import THERE, Device, _FromNumbers, move

from tinker_actors.actors import Mesh
from tinker_actors.data import Datum, ModelInput
from tinker_actors.models import base as bases
from tinker_actors.models import load_base, release_base
from tinker_actors.policies import PolicySpec
from tinker_actors.training import AdamParams, LossConfig, Trainer
from tinker_actors.training.engine import TrainingEngine

MODEL = "tiny-llama:seed=77"


@contextmanager
def elsewhere() -> Iterator[None]:
    """Within, the model is on the device."""
    release_base(MODEL)
    try:
        with Device(), _FromNumbers():
            base = load_base(MODEL)
            assert bases._bases  # pyright: ignore[reportPrivateUsage]
            move(base.model)
            base.device = THERE
            yield
    finally:
        release_base(MODEL)


def datum(*tokens: int) -> Datum:
    return Datum(model_input=ModelInput.of(tokens[:-1]), targets=tokens[1:], weights=(1,) * (len(tokens) - 1))


def trained(store: Path, spec: PolicySpec) -> list[float]:
    """The loss of each step, the last one after the policy was saved and loaded again."""
    engine = TrainingEngine(MODEL, store)
    engine.create(spec)
    found: list[float] = []
    for step in range(3):
        result = engine.forward_backward("p", [datum(5, 6, 7, 8, 9), datum(5, 6, 7)], LossConfig(name="cross_entropy"))
        found.append(result.metrics["loss_sum"])
        if step == 1:  # with moments, and gradients that are pending
            saved = engine.save("p", "half")
            engine.delete("p")
            engine.load(saved, policy="p")
        engine.optim_step("p", AdamParams(learning_rate=1e-2))
        engine.publish("p")
    return found


@pytest.mark.parametrize(
    "spec",
    [
        PolicySpec(base_model=MODEL, rank=2, name="p"),
        PolicySpec(base_model=MODEL, rank=2, targets=("unembed", "attention"), value_head=True, name="p"),
        PolicySpec(base_model=MODEL, kind="full", name="p"),
    ],
    ids=["lora", "lora of the head", "full"],
)
def test_a_policy_learns_there_what_it_learns_here(tmp_path: Path, spec: PolicySpec):
    here = trained(tmp_path / "here", spec)
    with elsewhere():
        there = trained(tmp_path / "there", spec)
    assert here[0] > here[-1]
    assert there == pytest.approx(here, rel=1e-4)


async def test_a_trainer_whose_device_is_not_there_names_it(tmp_path: Path):
    async with Mesh() as mesh:
        with pytest.raises(Exception, match="device is 'cuda:99'; torch finds"):
            await mesh.spawn(Trainer, base_model=MODEL, store=str(tmp_path), device="cuda:99", node=0)
