"""The official client trains, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from tests.gateway.gateways import TINY, in_a_thread
from tinker import types

from tinker_actors.data import Datum, ModelInput
from tinker_actors.gateway.tinker.options import TinkerOptions
from tinker_actors.policies import PolicySpec
from tinker_actors.training import AdamParams, LossConfig, TrainingEngine

pytestmark = pytest.mark.sdk

LINES = [[1, 5, 9, 7, 3, 4, 8], [1, 6, 2, 7, 3]]
STEP = types.AdamParams(learning_rate=1e-2, weight_decay=0.01, grad_clip_norm=5.0)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with in_a_thread(tmp_path_factory.mktemp("gateway"), TINY) as (_, url):
        yield url


@pytest.fixture
def service(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tinker.ServiceClient]:
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    with tinker.ServiceClient(base_url=url) as client:
        yield client


@pytest.fixture
def engine(tmp_path: Path) -> TrainingEngine:
    return TrainingEngine("tiny-llama", tmp_path)


def made(service: tinker.ServiceClient, **more: Any) -> tinker.TrainingClient:
    return service.create_lora_training_client(base_model=TINY.name, rank=4, seed=7, **more).result()


def twin(engine: TrainingEngine) -> str:
    """The same policy in process."""
    targets = ("attention", "mlp", "unembed")
    return engine.create(PolicySpec(base_model="tiny-llama", rank=4, alpha=32.0, targets=targets, seed=7, name="twin"))


def supervised() -> list[types.Datum]:
    return [
        types.Datum(
            model_input=types.ModelInput.from_ints(line[:-1]),
            loss_fn_inputs={"target_tokens": line[1:], "weights": [0.0, *[1.0] * (len(line) - 2)]},
        )
        for line in LINES
    ]


def sampled() -> tuple[list[types.Datum], list[Datum]]:
    """RL datums for the client, and the same in process."""
    theirs: list[types.Datum] = []
    ours: list[Datum] = []
    for index, line in enumerate(LINES):
        length = len(line) - 1
        logprobs = [0.0, *(-0.5 - 0.25 * place for place in range(length - 1))]
        advantages = [0.0, *([1.5, -0.5][index],) * (length - 1)]
        inputs: Any = {"target_tokens": line[1:], "logprobs": logprobs, "advantages": advantages}
        theirs.append(types.Datum(model_input=types.ModelInput.from_ints(line[:-1]), loss_fn_inputs=inputs))
        ours.append(
            Datum(
                model_input=ModelInput.of(line[:-1]),
                targets=tuple(line[1:]),
                mask=(1,) * length,
                logprobs=tuple(logprobs),
                advantages=tuple(advantages),
                sampled_tokens=length,
            )
        )
    return theirs, ours


def trained(client: tinker.TrainingClient, steps: int = 2) -> list[float]:
    losses: list[float] = []
    for _ in range(steps):
        passed, stepped = client.forward_backward(supervised(), "cross_entropy"), client.optim_step(STEP)
        losses.append(passed.result().metrics["loss:sum"])
        stepped.result()
    return losses


def test_training_lowers_the_loss_and_the_model_tells_what_it_is(service: tinker.ServiceClient):
    client = made(service)
    info = client.get_info()
    assert (info.model_id, info.is_lora, info.lora_rank, info.model_name) == (client.model_id, True, 4, TINY.name)
    assert client.get_tokenizer().encode("a")
    losses = trained(client, 6)
    assert losses[-1] < losses[0] / 5
    result = client.forward_backward(supervised(), "cross_entropy").result()
    assert [output["logprobs"].shape for output in result.loss_fn_outputs] == [[6], [4]]
    # targets of weight 0 have log-probs too
    assert all(value < 0 for output in result.loss_fn_outputs for value in output["logprobs"].tolist())


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("importance_sampling", {}),
        ("ppo", {"clip_low_threshold": 0.5, "clip_high_threshold": 1.25}),
        ("cispo", {"clip_high_threshold": 2.0}),
        ("dro", {"beta": 0.25}),
        ("gspo", {}),
    ],
)
def test_rl_losses_are_those_of_the_trainer_bit_for_bit(
    service: tinker.ServiceClient, engine: TrainingEngine, name: Any, config: dict[str, float]
):
    theirs, ours = sampled()
    client, policy = made(service), twin(engine)
    loss = LossConfig.from_settings(name, config)
    for _ in range(2):
        passed, stepped = client.forward_backward(theirs, name, config), client.optim_step(STEP)
        mine = engine.forward_backward(policy, ours, loss, every_target=True)
        norm = engine.optim_step(
            policy, AdamParams(learning_rate=1e-2, weight_decay=0.01, eps=1e-12, grad_clip_norm=5.0)
        ).grad_norm
        found = passed.result()
        assert found.metrics["loss:sum"] == mine.loss
        expected = [torch.tensor(row).tolist() for row in mine.logprobs]
        assert [output["logprobs"].tolist() for output in found.loss_fn_outputs] == expected
        metrics = stepped.result().metrics
        assert metrics is not None
        assert metrics["grad_norm:mean"] == norm


def test_a_loss_of_the_clients_own_trains(service: tinker.ServiceClient):
    client, plain = made(service), made(service)

    def nll(data: list[types.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        weights = [datum.loss_fn_inputs["weights"].to_torch() for datum in data]
        return -sum(((row * weight).sum() for row, weight in zip(logprobs, weights, strict=True)), torch.zeros(())), {}

    for _ in range(2):
        custom, stepped = client.forward_backward_custom(supervised(), nll), client.optim_step(STEP)
        expected, other = plain.forward_backward(supervised(), "cross_entropy"), plain.optim_step(STEP)
        assert custom.result().metrics["loss:sum"] == pytest.approx(expected.result().metrics["loss:sum"], rel=1e-6)
        assert stepped.result().metrics == other.result().metrics


def test_chunks_that_arrive_in_another_order_train_as_one_batch(
    service: tinker.ServiceClient, monkeypatch: pytest.MonkeyPatch
):
    whole, cut = made(service), made(service)
    batch = supervised() * 2
    expected = whole.forward_backward(batch, "cross_entropy").result()
    small = cut.holder._client_config.model_copy(update={"fwdbwd_max_chunk_len": 1})
    monkeypatch.setattr(cut.holder, "_client_config", small)  # four chunks, of which it sends the first one last
    found = cut.forward_backward(batch, "cross_entropy").result()
    assert [output["logprobs"].shape for output in found.loss_fn_outputs] == [[6], [4]] * 2
    assert found.metrics["loss:sum"] == pytest.approx(expected.metrics["loss:sum"], rel=1e-6)
    norms = [client.optim_step(STEP).result().metrics["grad_norm:mean"] for client in (whole, cut)]  # pyright: ignore
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_a_model_goes_on_from_a_checkpoint_as_it_would_have(service: tinker.ServiceClient):
    client = made(service)
    trained(client)
    path = client.save_state("half-way").result().path
    assert path == f"tinker://{client.model_id}/weights/half-way"
    expected = trained(client)
    resumed = service.create_training_client_from_state_with_optimizer(path).result()
    assert resumed.model_id != client.model_id
    assert resumed.get_info().lora_rank == 4
    assert trained(resumed) == expected
    cold = service.create_training_client_from_state(path).result()
    first, second = trained(cold)
    assert first == expected[0]
    assert second != expected[1]  # moments weren't taken over


def test_a_name_is_taken_until_it_is_overwritten(service: tinker.ServiceClient):
    client = made(service)
    before = client.save_state("same").result().path
    losses = trained(client)
    with pytest.raises(tinker.RequestFailedError, match="same exists; choose another name, or overwrite it"):
        client.save_state("same").result()
    assert client.save_state("same", overwrite=True).result().path == before
    resumed = service.create_training_client_from_state_with_optimizer(before).result()
    assert trained(resumed, 1)[0] < losses[-1]


def test_errors_say_whose_fault_they_were_and_later_commands_run(service: tinker.ServiceClient):
    client = made(service)
    wrong = types.Datum(model_input=types.ModelInput.from_ints([1, 2]), loss_fn_inputs={"target_tokens": [2, 500_000]})
    passed = client.forward_backward([wrong], "cross_entropy")
    good = client.forward_backward(supervised(), "cross_entropy")
    stepped = client.optim_step(STEP)
    with pytest.raises(tinker.RequestFailedError, match=r"datum 0 .*has token 500000") as failed:
        passed.result()
    assert failed.value.category is tinker.types.RequestErrorCategory.User
    assert good.result().metrics["datums:sum"] == 2
    assert stepped.result().metrics
    with pytest.raises(tinker.RequestFailedError, match="no gradients; forward_backward comes before"):
        client.optim_step(STEP).result()
    with pytest.raises(tinker.RequestFailedError, match="objective isn't public"):
        client.forward_backward(sampled()[0], "stable_reinforce").result()
    with pytest.raises(tinker.RequestFailedError, match="'adamw' here"):
        client.optim_step(types.DimuonParams(learning_rate=1e-3)).result()
    with pytest.raises(tinker.RequestFailedError, match="age_encryption_recipients"):
        client.save_weights_external("x", age_encryption_recipients=["age1x"]).result()
    assert client.save_weights_external("x").result().path.endswith("/external_weights/x")


def test_a_service_may_have_batches_compressed_and_a_closed_loss_replaced_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    options = TinkerOptions(compress=True, stable_reinforce="cispo")
    with in_a_thread(tmp_path, TINY, tinker=options) as (_, url), tinker.ServiceClient(base_url=url) as service:
        client = made(service)
        closed = client.forward(sampled()[0], "stable_reinforce", {"alpha": 2.0}).result()
        named = client.forward(sampled()[0], "cispo").result()
        assert closed.metrics.pop("surrogate_cispo:max") == 1
        assert closed.metrics == named.metrics


def test_what_is_not_served_is_refused_by_name(service: tinker.ServiceClient):
    with pytest.raises(tinker.BadRequestError, match="'no/such', which is not served"):
        service.create_lora_training_client(base_model="no/such").result()
    with pytest.raises(tinker.RequestFailedError, match="type is 'dimuon'; LoRA models are trained with 'adamw' here"):
        made(service, optimizer=types.DimuonOptimizerConfig())
    with pytest.raises(tinker.NotFoundError, match="checkpoint 'tinker://x/weights/y' is not known"):
        service.create_training_client_from_state("tinker://x/weights/y").result()


def test_a_large_answer_arrives_whole(service: tinker.ServiceClient):
    client = made(service)
    result = client.forward_backward(supervised() * 500, "cross_entropy").result()  # 5,000 targets
    assert [output["logprobs"].shape for output in result.loss_fn_outputs] == [[6], [4]] * 500
    assert result.loss_fn_outputs[0]["logprobs"].tolist() == pytest.approx(
        result.loss_fn_outputs[-2]["logprobs"].tolist(), abs=1e-4
    )
