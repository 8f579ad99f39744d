"""One program in process and against `serve`: the same numbers, and errors that say the same."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tinker_actors import ServiceClient
from tinker_actors.client import SamplingClient, TrainingClient
from tinker_actors.data import Datum, EpisodeEnd, ModelInput, Trajectory, rl_datums, turns_from_prompts
from tinker_actors.errors import ConfigError, DataError, TinkerActorsError
from tinker_actors.gateway.gateway import Gateway, create_app
from tinker_actors.gateway.listening import listening, serving
from tinker_actors.gateway.runtime import Runtime, ServedModel
from tinker_actors.models import load_tokenizer
from tinker_actors.sampling import InvalidRequestError, SamplingParams, SamplingReply
from tinker_actors.training import AdamParams, LossConfig

pytest.importorskip("tinker")

pytestmark = pytest.mark.sdk


MODEL = "tiny-llama"
SERVED = ServedModel(name=MODEL, sampler={"kv_memory": 2**24})
TOKENIZER = load_tokenizer(MODEL)
PROMPT = TOKENIZER.encode("once")


@asynccontextmanager
async def place(where: str, root: Path, **options) -> AsyncIterator[ServiceClient]:
    """A client in process, or of a gateway on a socket."""
    if where == "local":
        async with ServiceClient.local(SERVED, root=root) as service:
            yield service
        return
    async with (
        Runtime(root, [SERVED], in_process=True) as runtime,
        Gateway(runtime=runtime) as gateway,
    ):
        with listening("127.0.0.1", 0) as listener:
            async with (
                serving(create_app(gateway), listener) as url,
                ServiceClient(url, **options) as service,
            ):
                yield service


def samples_as_datums(reply: SamplingReply) -> list[Datum]:
    found: list[Datum] = []
    for number, sample in enumerate(reply.samples):
        turns = turns_from_prompts([(PROMPT, sample.tokens, sample.logprobs)])
        trajectory = Trajectory(seat="s", policy="p", turns=turns, end=EpisodeEnd.TERMINATED)
        found += rl_datums(trajectory, 0.3 * number - 0.4)
    return found


def plain(sampling: SamplingReply) -> tuple:
    return sampling.samples, sampling.prompt_logprobs, sampling.seed


def likeliness(datums, rows):
    return rows[0].exp().sum(), {"n": 1.0}


async def program(service: ServiceClient) -> list[object]:
    """Everything that a client can do; all that came of it."""
    seen: list[object] = [await service.get_server_capabilities_async()]
    base: SamplingClient = await service.create_sampling_client(base_model=MODEL)
    params = SamplingParams(max_tokens=8, seed=5, temperature=1.0, stop=("e",), logprobs=2)
    reply = await base.sample(PROMPT, 4, params, include_prompt_logprobs=True)
    seen += [plain(reply), await base.compute_logprobs(PROMPT)]
    training: TrainingClient = await service.create_lora_training_client(MODEL, rank=4, seed=1, train_unembed=False)
    seen.append((await training.get_info_async()).rank)
    data = samples_as_datums(reply)
    for loss in (
        LossConfig(name="importance_sampling"),
        LossConfig(name="ppo", clip_high=1.3),
        LossConfig(name="cispo"),
        LossConfig(name="gspo"),
    ):
        passed, stepped = training.forward_backward(data, loss), training.optim_step(AdamParams(learning_rate=5e-3))
        seen += [await passed, await stepped]
    tokens = TOKENIZER.encode("written down")
    written = Datum(model_input=ModelInput.of(tokens[:-1]), targets=tuple(tokens[1:]), weights=(0.5,) * 11)
    seen.append(await training.forward([written], "cross_entropy"))
    seen.append(await training.forward_backward_custom([written], likeliness))
    seen.append(await training.optim_step(AdamParams(learning_rate=5e-3, weight_decay=0.1, grad_clip_norm=1.0)))
    state, weights = await training.save_state("s"), await training.save_weights_for_sampler("w")
    named = await service.create_sampling_client(weights.path)
    present = await training.save_weights_and_get_sampling_client()
    seen += [plain(await client.sample(PROMPT, 2, params)) for client in (named, present)]
    again = await service.create_training_client_from_state_with_optimizer(state.path)
    passed, stepped = (
        again.forward_backward([written], "cross_entropy"),
        again.optim_step(AdamParams(learning_rate=1e-3)),
    )
    seen += [await passed, await stepped]
    return seen


async def test_a_program_gets_the_same_bits_in_process_and_against_serve(tmp_path: Path):
    async with place("local", tmp_path / "a") as service:
        here = await program(service)
    async with place("served", tmp_path / "b") as service:
        there = await program(service)
    assert len(here) == len(there)
    for one, other in zip(here, there, strict=True):
        assert one == other


async def test_a_service_without_masks_learns_the_same_from_advantages_of_zero(tmp_path: Path):
    async with place("served", tmp_path, takes_masks=False) as service:
        base = await service.create_sampling_client(base_model=MODEL)
        data = samples_as_datums(await base.sample(PROMPT, 3, SamplingParams(max_tokens=4, seed=1)))
        training = await service.create_lora_training_client(MODEL, rank=4, seed=1)
        passed = await training.forward_backward(data, "importance_sampling")
        step = await training.optim_step(AdamParams(learning_rate=1e-3))
        scores = zip(passed.logprobs, data, strict=True)
        pairs = [pair for row, datum in scores for pair in zip(row, datum.mask or (), strict=True)]
        inside, outside = [v for v, bit in pairs if bit], [v for v, bit in pairs if not bit]
        assert all(inside)
        assert not any(outside)
    async with place("local", tmp_path / "b") as service:
        masked = await service.create_lora_training_client(MODEL, rank=4, seed=1)
        other = await masked.forward_backward(data, "importance_sampling")
        assert other.loss == pytest.approx(passed.loss, abs=1e-4)
        moved = await masked.optim_step(AdamParams(learning_rate=1e-3))
        assert moved.grad_norm == pytest.approx(step.grad_norm, rel=1e-4)


async def test_what_the_protocol_has_no_field_for_is_refused_by_name(tmp_path: Path):
    async with place("served", tmp_path) as service:
        training = await service.create_lora_training_client(MODEL, rank=2, seed=1)
        tokens = TOKENIZER.encode("ab")
        odd = Datum(model_input=ModelInput.of(tokens[:1]), targets=(tokens[1],), weights=(1.0,), temperature=0.5)
        with pytest.raises(DataError, match=r"temperature is 0\.5; a Tinker service has none"):
            await training.forward_backward([odd], "cross_entropy")
        sampling = await training.save_weights_and_get_sampling_client()
        with pytest.raises(InvalidRequestError, match="min_p"):
            await sampling.sample(PROMPT, 1, SamplingParams(min_p=0.5))
        with pytest.raises(TinkerActorsError, match="not known"):
            await service.create_sampling_client("tinker://a:train:0/sampler_weights/b")
        with pytest.raises(TinkerActorsError, match="not served"):
            await service.create_lora_training_client("none")
        # what was refused has used up no turn of the model's
        good = Datum(model_input=ModelInput.of(tokens[:1]), targets=(tokens[1],), weights=(1.0,))
        assert (await training.forward_backward([good], "cross_entropy")).loss > 0


def test_without_the_official_client_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tinker", None)
    with pytest.raises(ConfigError, match=r"tinker-actors\[tinker\]"):
        ServiceClient("http://127.0.0.1:1")


async def test_the_example_learns_wherever_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples/service_client"))
    import train

    rewards = []
    for where in ("local", "served"):
        async with place(where, tmp_path / where) as service:
            rewards.append(await train.train(service, MODEL, 5))
    assert rewards[0] == rewards[1]
    assert rewards[0][-1] > rewards[0][0] + 0.5
