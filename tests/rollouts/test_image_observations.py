"""Environments whose observations are images, played by workers in processes of their own."""

import asyncio
from pathlib import Path

import pytest

from tinker_actors.actors import Mesh
from tinker_actors.data import ImageChunk, rl_datums
from tinker_actors.environments import EnvironmentSpec
from tinker_actors.models import load_base
from tinker_actors.policies import PolicySpec
from tinker_actors.rollouts import PolicySeat, RolloutWorker, collect, plan_groups
from tinker_actors.sampling import Sampler, SamplingParams
from tinker_actors.training import LossConfig, Trainer

NAME = "tiny-qwen2-vl"
GALLERY = str(Path(__file__).with_name("gallery_environment.py"))


@pytest.mark.parametrize("evaluating", [False, True])
async def test_images_reach_sampler_and_trainer_token_exact(tmp_path, evaluating):  # T10
    async with Mesh(nodes=2) as mesh:
        trainer = await mesh.spawn(Trainer, base_model=NAME, store=str(tmp_path), threads=1, node=0)
        sampler = await mesh.spawn(Sampler, base_model=NAME, store=str(tmp_path), node=0)
        worker = await mesh.spawn(
            RolloutWorker, environment=EnvironmentSpec(source=GALLERY), tokenizer=NAME, name="worker", node=1
        )
        policy = await trainer.create(PolicySpec(base_model=NAME, name="p", rank=4))
        snapshot = await trainer.publish(policy)
        await sampler.refresh([snapshot.handle])
        params = SamplingParams(max_tokens=3, temperature=1.3)
        plan = plan_groups(
            environment="gallery",
            run_seed=0,
            phase="train",
            step=0,
            groups=3,
            group_size=4,
            seats={"agent": PolicySeat(sampler=sampler, policy=policy, snapshot=snapshot.handle, params=params)},
            evaluating=evaluating,
        )
        collected = await asyncio.wait_for(collect([worker], plan), 40)
        assert not collected.failures, collected.failures[0].error
        assert {(entry.metrics["heavy"], entry.metrics["evaluating"]) for entry in collected.episodes} == {
            (0.0, float(evaluating))
        }
        placeholder = load_base(NAME).vision.rule.placeholder
        datums = []
        for episode in collected.episodes:
            (trajectory,) = episode.trajectories
            assert [[len(chunk) for chunk in turn.observation.images] for turn in trajectory.turns] == [[4], [6]]
            (datum,) = rl_datums(trajectory, (1.0, -1.0))
            text = sum(len(chunk) for chunk in datum.model_input.chunks if not isinstance(chunk, ImageChunk))
            assert len(datum) == text + 10
            assert not any(bit for bit, target in zip(datum.mask, datum.targets, strict=True) if target == placeholder)
            datums.append(datum)
        result = await trainer.forward_backward(policy, datums, LossConfig(name="ppo"))
        assert result.metrics["tokens"] == sum(datum.sampled_tokens for datum in datums)
        assert result.metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-6)
        assert result.metrics["ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert result.metrics["ratio_min"] == pytest.approx(1.0, abs=1e-5)
