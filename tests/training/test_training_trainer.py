import asyncio
import subprocess
import sys
import time

import psutil
import pytest
import torch

from tinker_actors.actors import Mesh
from tinker_actors.errors import ConfigError, PolicyError, UnknownPolicyError
from tinker_actors.policies import PolicyRegistry, SnapshotStore
from tinker_actors.training import LossConfig, Trainer


async def spawn(mesh, tmp_path, **changes):
    return await mesh.spawn(Trainer, base_model="tiny-llama", store=str(tmp_path / "store"), threads=1, **changes)


async def test_create_train_publish_announce(make, tmp_path):
    async with Mesh(nodes=1) as mesh:
        trainer, registry = await spawn(mesh, tmp_path), await mesh.spawn(PolicyRegistry)
        policy = await trainer.create(make.spec("p"))
        await registry.announce(await trainer.publish(policy))
        before = await trainer.forward_backward(policy, make.batch(kind="sft"), make.sft_loss)
        assert (await trainer.optim_step(policy, make.adam)).step == 1
        after = await trainer.forward(policy, make.batch(kind="sft"), make.sft_loss)
        assert after.loss < before.loss
        await registry.announce(await trainer.publish(policy))
        latest = await registry.latest(policy)
        assert (latest.number, latest.step) == (2, 1)
        SnapshotStore(tmp_path / "store").verify(latest)
        handle = await trainer.save(policy, "final")
        assert await trainer.load(handle, policy="q", optimizer=False) == "q"
        assert [info.step for info in await trainer.policies()] == [1, 0]
        await trainer.export_base(policy, str(tmp_path / "warm"))
        assert (tmp_path / "warm" / "tokenizer.json").is_file()
        await trainer.delete("q")
        assert [info.policy_id for info in await trainer.policies()] == ["p"]


async def test_a_trainer_in_another_process_computes_the_same(make, tmp_path):
    async with Mesh(nodes=2) as mesh:
        here = await spawn(mesh, tmp_path, node=0)
        there = await spawn(mesh, tmp_path, node=1)
        results = []
        for trainer in (here, there):
            policy = await trainer.create(make.spec("p"))
            results.append(await trainer.forward_backward(policy, make.batch(), make.ppo))
            results.append(await trainer.optim_step(policy, make.adam))
        assert results[:2] == results[2:]
        with pytest.raises(UnknownPolicyError, match="nobody"):
            await there.publish("nobody")
        with pytest.raises(PolicyError, match="forward_backward comes before optim_step"):
            await there.optim_step("p", make.adam)


async def test_the_event_loop_stays_free_while_it_computes(make, tmp_path):
    async with Mesh(nodes=1) as mesh:
        trainer = await spawn(mesh, tmp_path)
        policy = await trainer.create(make.spec())
        small = LossConfig(name="ppo", micro_batch_tokens=1)
        work = asyncio.create_task(trainer.forward_backward(policy, make.batch(40), small))
        turns = 0
        while not work.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 50


async def test_an_asker_that_gives_up_leaves_no_gradient_and_a_trainer_that_goes_on(make, tmp_path):
    async with Mesh(nodes=1) as mesh:
        trainer = await spawn(mesh, tmp_path)
        policy = await trainer.create(make.spec())
        await trainer.forward_backward(policy, make.batch(), make.ppo)
        slow = LossConfig(name="ppo", micro_batch_tokens=1, share_prompts=False)
        with pytest.raises(TimeoutError):
            await trainer.options(timeout=0.05).forward_backward(policy, make.batch(400), slow)
        (info,) = await trainer.policies()
        assert info.pending == 1
        assert (await trainer.optim_step(policy, make.adam)).step == 1


async def test_messages_sent_at_once_are_served_in_order(make, tmp_path):
    async with Mesh(nodes=1) as mesh:
        trainer = await spawn(mesh, tmp_path)
        policy = await trainer.create(make.spec())
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(trainer.forward_backward(policy, make.batch(), make.ppo))
                steps = group.create_task(trainer.optim_step(policy, make.adam))
        assert steps.result().step == 3


class TellingTrainer(Trainer):
    """Says with how many threads its thread computes."""

    async def threads(self) -> int:
        return await self._run(torch.get_num_threads)


async def test_each_trainer_computes_with_the_threads_asked_for(tmp_path):
    async with Mesh(nodes=1) as mesh:
        facts = {"base_model": "tiny-llama", "store": str(tmp_path)}
        trainers = [await mesh.spawn(TellingTrainer, **facts, threads=count) for count in (1, 2, None)]
        assert [await trainer.threads() for trainer in trainers] == [1, 2, 1]
        with pytest.raises(ConfigError, match="threads is 0"):
            await mesh.spawn(Trainer, **facts, threads=0)


BROKEN = """
import asyncio
from tinker_actors.actors import Actor, Mesh
from tinker_actors.training import Trainer

class Broken(Trainer):
    async def forward_backward(self, policy_id, datums, loss):
        raise ZeroDivisionError("in the trainer")

class Waits(Actor):
    async def wait(self):
        await asyncio.sleep(3600)

async def main():
    async with Mesh(nodes=2) as mesh:
        trainer = await mesh.spawn(Broken, base_model="tiny-llama", store="store", node=1)
        waits = await mesh.spawn(Waits, node=1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(waits.wait())
            print("asked", flush=True)
            tasks.create_task(trainer.forward_backward("p", [], None))

asyncio.run(main())
"""


def test_a_script_whose_trainer_raises_ends_at_once_with_the_trainers_traceback(tmp_path):
    (tmp_path / "script.py").write_text(BROKEN)
    program = [sys.executable, "script.py"]
    with subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        started = time.monotonic()
        assert process.stdout.readline() == "asked\n"
        family = psutil.Process(process.pid).children(recursive=True)
        began = time.monotonic()
        _, said = process.communicate(timeout=60)
    assert time.monotonic() - began < max(5.0, began - started)  # where a start takes longer, so may an end
    assert process.returncode == 1
    assert "ZeroDivisionError: in the trainer" in said
    assert 'script.py", line 8, in forward_backward' in said
    assert family
    assert not psutil.wait_procs(family, timeout=60)[1]


def test_importing_training_loads_no_torch():
    code = (
        "import sys, tinker_actors.training as t; t.LossConfig(name='ppo'); "
        "assert not {'torch', 'transformers', 'zmq'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
