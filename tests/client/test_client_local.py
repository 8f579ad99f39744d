"""The client in this process: its calls, their order, and what is kept."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tinker_actors import ServiceClient
from tinker_actors.client.local import LocalService
from tinker_actors.data import Datum, ModelInput
from tinker_actors.errors import ConfigError, DataError, PolicyError, SnapshotCorruptError, TinkerActorsError
from tinker_actors.gateway.runtime import ServedModel
from tinker_actors.models import load_tokenizer
from tinker_actors.policies import SnapshotStore
from tinker_actors.sampling import SamplingParams
from tinker_actors.services.futures import LoopThread
from tinker_actors.training import AdamParams, LossConfig

TOKENIZER = load_tokenizer("tiny-llama")
SERVED = ServedModel(name="tiny-llama", sampler={"kv_memory": 2**24})
STEP = AdamParams(learning_rate=1e-2)
PARAMS = SamplingParams(max_tokens=6, seed=3, default_stops=False)


def learns(text: str) -> Datum:
    tokens = TOKENIZER.encode(text)
    return Datum(model_input=ModelInput.of(tokens[:-1]), targets=tuple(tokens[1:]), weights=(1.0,) * (len(tokens) - 1))


def graded(text: str) -> Datum:
    """The same targets as if a policy had sampled them at far lower probabilities."""
    datum, count = learns(text), len(TOKENIZER.encode(text)) - 1
    sampled = {"mask": (1,) * count, "logprobs": (-9.0,) * count, "advantages": (1.0,) * count}
    return replace(datum, weights=None, sampled_tokens=count, **sampled)


DATA = [learns("hello there"), learns("and more")]
PROMPT = TOKENIZER.encode("hel")


def client_threads() -> int:
    return sum(thread.name == "tinker_actors client" for thread in threading.enumerate())


async def test_a_client_that_could_not_start_closes_and_leaves_no_thread(tmp_path: Path):
    occupied = tmp_path / "file"
    occupied.touch()
    client = ServiceClient.local(SERVED, root=occupied / "below")
    with pytest.raises(NotADirectoryError):
        await client.create_lora_training_client("tiny-llama")
    await asyncio.to_thread(client.close)
    with pytest.raises(NotADirectoryError):
        async with ServiceClient.local(SERVED, root=occupied / "below"):
            pass
    with pytest.raises(NotADirectoryError), ServiceClient.local(SERVED, root=occupied / "below"):
        pass
    assert client_threads() == 0


async def test_a_client_that_is_closed_while_it_starts_waits_for_no_more_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    begun, cancelled = threading.Event(), threading.Event()

    async def loading(service: LocalService) -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    monkeypatch.setattr(LocalService, "start", loading)
    client = ServiceClient.local(SERVED, root=tmp_path)
    waiting = client.create_lora_training_client("tiny-llama")
    assert await asyncio.to_thread(begun.wait, 60)
    await asyncio.to_thread(client.close)
    assert cancelled.is_set()
    with pytest.raises(CancelledError):
        waiting.result(0)
    assert client_threads() == 0


def test_a_call_that_is_made_while_the_client_is_closed_ends(monkeypatch: pytest.MonkeyPatch):
    thread = LoopThread("calls")

    async def work() -> int:
        return 3

    assert thread.call(work()).result(10) == 3
    begin, ending = asyncio.run_coroutine_threadsafe, threading.Thread(target=thread.end)

    def beaten(coroutine: Coroutine[Any, Any, int], loop: asyncio.AbstractEventLoop) -> Future[int]:
        ending.start()
        ending.join(0.3)  # it gets ahead if anything lets it
        return begin(coroutine, loop)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", beaten)
    with contextlib.suppress(CancelledError):
        assert thread.call(work()).result(10) == 3
    ending.join()


def test_a_blocking_program_trains_saves_and_goes_on_exactly(tmp_path: Path):
    with ServiceClient.local(SERVED, root=tmp_path) as service:
        assert [model.model_name for model in service.get_server_capabilities().supported_models] == ["tiny-llama"]
        training = service.create_lora_training_client("tiny-llama", rank=4, seed=1).result()
        assert training.get_info().rank == 4
        assert training.get_tokenizer().encode("a") == TOKENIZER.encode("a")
        losses = []
        for _ in range(3):
            passed, stepped = training.forward_backward(DATA, "cross_entropy"), training.optim_step(STEP)
            losses.append(passed.result().loss)
        assert losses == sorted(losses, reverse=True)
        assert stepped.result().step == 3
        state = training.save_state("middle").result().path
        weights = training.save_weights_for_sampler("middle").result().path
        with pytest.raises(PolicyError, match="exists"):
            training.save_state("middle").result()
        on = training.forward_backward(DATA, "cross_entropy").result()
        training.optim_step(STEP).result()
        after = training.save_weights_and_get_sampling_client().result().sample(PROMPT, 2, PARAMS).result()
    with ServiceClient.local(SERVED, root=tmp_path) as service:  # another process could be here
        again = service.create_training_client_from_state_with_optimizer(state).result()
        passed, stepped = again.forward_backward(DATA, "cross_entropy"), again.optim_step(STEP)
        assert passed.result() == on
        assert stepped.result().step == 4
        sampled = again.save_weights_and_get_sampling_client().result().sample(PROMPT, 2, PARAMS).result()
        assert sampled.samples == after.samples
        cold = service.create_training_client_from_state(state).result()
        assert cold.forward(DATA, "cross_entropy").result().loss == on.loss
        before = service.create_sampling_client(model_path=weights).result()
        assert before.model_path == weights
        assert before.sample(PROMPT, 2, PARAMS).result().samples != after.samples


async def test_an_async_program_does_the_same_and_others_meanwhile(tmp_path: Path):
    async with ServiceClient.local(SERVED, root=tmp_path) as service:
        one, other = await asyncio.gather(
            service.create_lora_training_client_async("tiny-llama", rank=2, seed=1),
            service.create_lora_training_client_async("tiny-llama", rank=2, seed=1),
        )
        assert one.model_id != other.model_id
        passes = [await model.forward_backward_async(DATA, LossConfig(name="cross_entropy")) for model in (one, other)]
        steps = [await model.optim_step_async(STEP) for model in (one, other)]
        first, second = [await passed for passed in passes]
        assert first == second
        assert [(await step).step for step in steps] == [1, 1]
        sampling = await one.save_weights_and_get_sampling_client_async()
        logprobs = await sampling.compute_logprobs_async(PROMPT)
        assert logprobs[0] is None
        assert len(logprobs) == len(PROMPT)
        scored = await sampling.sample_async(PROMPT, 1, PARAMS, include_prompt_logprobs=True)
        assert list(scored.prompt_logprobs) == logprobs[1:]


async def test_models_that_train_at_once_share_passes_and_get_the_bits_that_they_get_alone(tmp_path: Path):
    losses = ("cross_entropy", "importance_sampling", "ppo")

    async def trained(service: ServiceClient, seed: int, data: list[Datum]) -> list[object]:
        training = await service.create_lora_training_client("tiny-llama", rank=2, seed=seed)
        seen: list[object] = []
        for _ in range(3):
            passed, stepped = training.forward_backward(data, losses[seed]), training.optim_step(STEP)
            seen += [await passed, await stepped]
        return seen

    batches = [[learns("hello"), learns("a b")], [graded("numbers 1 2 3")], [graded("last")]]
    async with ServiceClient.local(SERVED, root=tmp_path / "together") as service:
        together = await asyncio.gather(*(trained(service, seed, data) for seed, data in enumerate(batches)))
        wrong = LossConfig(name="ppo")  # a batch of weights is not for it
        models = [await service.create_lora_training_client("tiny-llama", rank=2, seed=seed) for seed in range(4)]
        passes = [models[3].forward_backward(DATA, wrong)]
        passes += [
            model.forward_backward(data, loss) for model, data, loss in zip(models[:3], batches, losses, strict=True)
        ]
        outcomes = await asyncio.gather(*passes, return_exceptions=True)
        assert isinstance(outcomes[0], TinkerActorsError)
        assert outcomes[1:] == [seen[0] for seen in together]
    for seed, data in enumerate(batches):
        async with ServiceClient.local(SERVED, root=tmp_path / f"alone {seed}") as service:
            assert await trained(service, seed, data) == together[seed]


async def test_a_loss_of_ones_own_is_computed_here(tmp_path: Path):
    def cross_entropy(datums, logprobs):
        loss = -sum(row.sum() for row in logprobs)
        return loss, {"here": 1.0}

    async with ServiceClient.local(SERVED, root=tmp_path) as service:
        ours = await service.create_lora_training_client("tiny-llama", rank=2, seed=1)
        theirs = await service.create_lora_training_client("tiny-llama", rank=2, seed=1)
        found = await ours.forward_backward_custom(DATA, cross_entropy)
        given = await theirs.forward_backward(DATA, "cross_entropy")
        assert found.metrics["here"] == 1.0
        assert found.loss == pytest.approx(given.loss)
        assert (await ours.optim_step(STEP)).grad_norm == pytest.approx((await theirs.optim_step(STEP)).grad_norm)


async def test_a_checkpoint_is_loaded_into_a_model_before_anything_else(tmp_path: Path):
    async with ServiceClient.local(SERVED, root=tmp_path) as service:
        trained = await service.create_lora_training_client("tiny-llama", rank=4, seed=1)
        await trained.forward_backward(DATA, "cross_entropy")
        await trained.optim_step(STEP)
        path = (await trained.save_state("one")).path
        loss = (await trained.forward(DATA, "cross_entropy")).loss
        fresh = await service.create_lora_training_client("tiny-llama", rank=4, seed=2)
        await fresh.load_state(path)
        assert (await fresh.forward(DATA, "cross_entropy")).loss == loss
        with pytest.raises(PolicyError, match="first call"):
            await fresh.load_state(path)


async def test_a_model_is_what_it_was_where_a_checkpoint_can_not_be_loaded_into_it(tmp_path: Path):
    async with ServiceClient.local(SERVED, root=tmp_path) as service:
        saved = await service.create_lora_training_client("tiny-llama", rank=4, seed=1)
        path = (await saved.save_state("one")).path
        (weights,) = (tmp_path / "policies").glob("*/weights/*/weights.safetensors")
        weights.write_bytes(weights.read_bytes()[:-1])
        fresh = await service.create_lora_training_client("tiny-llama", rank=2, seed=2)
        loading, passed = fresh.load_state(path), fresh.forward(DATA, "cross_entropy")
        with pytest.raises(SnapshotCorruptError, match="torn or altered"):
            await loading
        same = await service.create_lora_training_client("tiny-llama", rank=2, seed=2)
        assert await passed == await same.forward(DATA, "cross_entropy")
        assert fresh.get_info().rank == 2


async def test_a_name_that_the_store_can_not_have_is_refused(tmp_path: Path):
    async with ServiceClient.local(SERVED, root=tmp_path) as service:
        training = await service.create_lora_training_client("tiny-llama", rank=2, seed=1)
        for saving in (training.save_state, training.save_weights_for_sampler):
            with pytest.raises(PolicyError, match="name is 'a/b'"):
                await saving("a/b")


async def test_weights_that_were_sampled_without_a_name_go_with_the_client(tmp_path: Path):
    store = SnapshotStore(tmp_path / "policies")
    async with ServiceClient.local(SERVED, root=tmp_path) as service:
        training = await service.create_lora_training_client("tiny-llama", rank=2, seed=1)
        for _ in range(3):
            sampling = await training.save_weights_and_get_sampling_client()
            await sampling.sample(PROMPT, 1, PARAMS)
        await training.save_weights_for_sampler("kept")
        assert len(store.list(training.model_id)) == 4
    assert len(store.list(training.model_id)) == 1


async def test_wrong_calls_say_what_would_be_right(tmp_path: Path):
    with pytest.raises(ConfigError, match="no model is named"):
        ServiceClient.local(root=tmp_path)
    async with ServiceClient.local(SERVED, root=tmp_path) as service:
        with pytest.raises(TinkerActorsError, match="'none', which is not served"):
            await service.create_lora_training_client("none")
        with pytest.raises(ConfigError, match="all false"):
            await service.create_lora_training_client(
                "tiny-llama", train_mlp=False, train_attn=False, train_unembed=False
            )
        with pytest.raises(ConfigError, match="neither model_path nor base_model"):
            service.create_sampling_client()
        for path in ("tinker://a/sampler_weights/b", "nothing"):
            with pytest.raises(TinkerActorsError, match="not known"):
                await service.create_sampling_client(path)
        training = await service.create_lora_training_client("tiny-llama", rank=2, seed=1)
        with pytest.raises(DataError, match="data is empty"):
            await training.forward_backward([], "cross_entropy")
        with pytest.raises(ConfigError, match="clip_low"):
            training.forward_backward(DATA, "cross_entropy", {"clip_low": 0.5})
        with pytest.raises(TimeoutError):
            training.forward_backward(DATA, "cross_entropy").result(timeout=0)
        assert (await training.forward_backward(DATA, "cross_entropy")).loss > 0
    with pytest.raises(ConfigError, match="was closed"):
        service.create_lora_training_client("tiny-llama")
