"""The official client samples, and looks after its checkpoints, against a real server."""

from __future__ import annotations

import asyncio
import pickle
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyrage
import pytest
import tinker
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from tests.gateway.gateways import TINY, in_a_thread
from tinker import types

from tinker_actors.actors import Mesh
from tinker_actors.gateway.gateway import Gateway
from tinker_actors.policies import SnapshotStore
from tinker_actors.sampling import Sampler, SamplingParams, SamplingReply, SamplingRequest

pytestmark = pytest.mark.sdk

PROMPT = (5, 6, 7, 8)
INPUT = types.ModelInput.from_ints(list(PROMPT))
ONE = types.SamplingParams(max_tokens=1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, str]]:
    with in_a_thread(tmp_path_factory.mktemp("gateway"), TINY) as made:
        yield made


@pytest.fixture
def service(served: tuple[Gateway, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[tinker.ServiceClient]:
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    with tinker.ServiceClient(base_url=served[1]) as client:
        yield client


@pytest.fixture
def trained(service: tinker.ServiceClient) -> tinker.TrainingClient:
    """A client whose model differs from the base."""
    client = service.create_lora_training_client(base_model=TINY.name, rank=4, seed=7).result()
    train(client)
    return client


def train(client: tinker.TrainingClient) -> None:
    datum = types.Datum(
        model_input=types.ModelInput.from_ints([1, 5, 9, 7]),
        loss_fn_inputs={"target_tokens": [5, 9, 7, 3], "weights": [0.0, 1.0, 1.0, 1.0]},
    )
    client.forward_backward([datum], "cross_entropy").result()
    client.optim_step(types.AdamParams(learning_rate=0.05)).result()


def directly(gateway: Gateway, **fields: Any) -> SamplingReply:
    """What a sampler in this process says of the snapshot that the gateway used last."""

    async def sample() -> SamplingReply:
        store, snapshot = str(gateway.runtime.store), gateway.serving.held(TINY.name)[-1]
        async with Mesh() as mesh:
            sampler = await mesh.spawn(Sampler, base_model=TINY.catalogue_name, store=store)
            await sampler.refresh([snapshot])
            return await sampler.sample(SamplingRequest(prompt=PROMPT, snapshot=snapshot, **fields))

    return asyncio.run(sample())


def download(rest: tinker.RestClient, path: str) -> dict[str, bytes]:
    """The files of a checkpoint to take elsewhere."""
    found: dict[str, bytes] = {}
    for name, url in rest.get_external_weights_urls(path).result().urls.items():
        with urllib.request.urlopen(url) as answer:
            found[name] = answer.read()
    return found


def same(response: types.SampleResponse, reply: SamplingReply) -> None:
    assert [sequence.tokens for sequence in response.sequences] == [list(sample.tokens) for sample in reply.samples]
    for sequence, sample in zip(response.sequences, reply.samples, strict=True):
        assert sequence.logprobs == [float(np.float32(logprob)) for logprob in sample.logprobs]


def test_samples_are_those_of_a_sampler_in_process(served, service: tinker.ServiceClient):
    client = service.create_sampling_client(base_model=TINY.name).result()
    params = types.SamplingParams(max_tokens=6, seed=3, temperature=0.8, top_k=20, top_p=0.9, stop=[])
    response = client.sample(INPUT, num_samples=3, sampling_params=params).result()
    ours = SamplingParams(max_tokens=6, seed=3, temperature=0.8, top_k=20, top_p=0.9, default_stops=False)
    same(response, directly(served[0], num_samples=3, params=ours))
    assert len({sequence.sequence_id for sequence in response.sequences}) == 3
    greedy = types.SamplingParams(max_tokens=6, temperature=0, stop=[])
    response = client.sample(INPUT, num_samples=1, sampling_params=greedy).result()
    same(response, directly(served[0], params=SamplingParams(max_tokens=6, temperature=0, default_stops=False)))
    third = response.sequences[0].tokens[2]
    stopped = client.sample(
        INPUT, num_samples=1, sampling_params=types.SamplingParams(max_tokens=6, temperature=0, stop=[third])
    ).result()
    assert stopped.sequences[0].stop_reason == "stop"
    assert stopped.sequences[0].tokens[-1] == third


def test_everything_that_can_be_asked_of_a_prompt_is_answered(served, service: tinker.ServiceClient):
    client = service.create_sampling_client(base_model=TINY.name).result()
    logprobs = client.compute_logprobs(INPUT).result()
    expected = directly(served[0], prompt_logprobs=True, params=SamplingParams(max_tokens=1)).prompt_logprobs
    assert logprobs[0] is None
    assert logprobs[1:] == pytest.approx(expected, abs=1e-6)
    assert client.compute_logprobs(INPUT, prompt_logprobs_last_n=1).result() == [None, None, None, logprobs[3]]
    ids = torch.full((3, 1), -1, dtype=torch.int64)
    ids[1, 0] = PROMPT[2]
    for target in (types.TensorData.from_torch(ids), types.TensorData.from_torch_sparse(ids, pad_value=-1)):
        response = client.sample(
            INPUT,
            num_samples=1,
            sampling_params=types.SamplingParams(max_tokens=2, stop=[]),
            include_prompt_logprobs=True,
            topk_prompt_logprobs=2,
            topk_sample_logprobs=3,
            target_prompt_logprobs=target,
            prompt_alt_tokens_k=5,
        ).result()
        assert response.target_prompt_logprobs.to_torch()[:, 0].tolist() == pytest.approx([0, logprobs[2], 0], abs=1e-5)
        assert response.topk_prompt_logprobs[0] is None
        assert [len(entry) for entry in response.topk_prompt_logprobs[1:]] == [2, 2, 2]
        assert [len(entry) for entry in response.sequences[0].topk_logprobs] == [3, 3]
        assert tuple(response.prompt_alt_tokens.tokens.to_torch().shape) == (3, 5)


def test_many_requests_and_copies_of_a_client_are_served_at_once(service: tinker.ServiceClient):
    client = service.create_sampling_client(base_model=TINY.name).result()
    copies = [pickle.loads(pickle.dumps(client)) for _ in range(2)]
    params = types.SamplingParams(max_tokens=3, seed=1, stop=[])
    asked = [each.sample(INPUT, num_samples=2, sampling_params=params) for each in (client, *copies) for _ in range(40)]
    answers = [[sequence.tokens for sequence in future.result().sequences] for future in asked]
    assert answers == [answers[0]] * 120
    assert {copy._cloned_sampler_id for copy in copies} == {1, 2}


def test_what_a_client_asks_wrongly_it_is_told(service: tinker.ServiceClient):
    client = service.create_sampling_client(base_model=TINY.name).result()
    with pytest.raises(tinker.BadRequestError, match=r"top_p is 3.0"):
        client.sample(INPUT, num_samples=1, sampling_params=types.SamplingParams(max_tokens=1, top_p=3)).result()
    with pytest.raises(tinker.RequestFailedError, match="prompt\\[0\\] is 1000000"):
        client.sample(types.ModelInput.from_ints([10**6]), num_samples=1, sampling_params=ONE).result()
    with pytest.raises(tinker.NotFoundError, match="tinker://x/sampler_weights/y"):
        service.create_sampling_client(model_path="tinker://x/sampler_weights/y").result()


def test_snapshots_stay_as_they_were_and_inflight_clients_follow_their_model(
    served, service: tinker.ServiceClient, trained: tinker.TrainingClient
):
    params = types.SamplingParams(max_tokens=1, seed=1)
    fixed = trained.save_weights_and_get_sampling_client().result()
    moving = trained.save_weights_and_get_sampling_client(kind="inflight").result()
    before = [client.compute_logprobs(INPUT).result() for client in (fixed, moving)]
    assert before[0] == before[1]
    train(trained)
    trained.save_weights_and_get_sampling_client(kind="inflight").result()
    after = [client.compute_logprobs(INPUT).result() for client in (fixed, moving)]
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert moving.sample(INPUT, num_samples=1, sampling_params=params).result().sequences


def test_checkpoints_are_listed_shared_given_a_time_and_deleted(
    served, service: tinker.ServiceClient, trained: tinker.TrainingClient
):
    rest = tinker.RestClient(base_url=served[1])
    path = trained.save_weights_for_sampler("named").result().path
    client = service.create_sampling_client(model_path=path).result()
    assert client.get_base_model() == TINY.name
    assert client.compute_logprobs(INPUT).result()[0] is None
    assert path in [entry.tinker_path for entry in rest.list_user_checkpoints().result().checkpoints]
    run = rest.get_training_run_by_tinker_path(path).result()
    assert (run.base_model, run.lora_rank, run.last_sampler_checkpoint.tinker_path) == (TINY.name, 4, path)
    assert run.training_run_id in [each.training_run_id for each in rest.list_training_runs().result().training_runs]
    rest.publish_checkpoint_from_tinker_path(path).result()
    rest.set_checkpoint_ttl_from_tinker_path(path, 7200).result()
    (entry,) = rest.list_checkpoints(run.training_run_id).result().checkpoints
    assert (entry.public, entry.size_bytes > 0) == (True, True)
    assert timedelta(hours=1) < entry.expires_at - datetime.now(UTC) <= timedelta(hours=2)
    rest.unpublish_checkpoint_from_tinker_path(path).result()
    copy = rest.copy_weights(path, "archive").result()
    info = rest.get_weights_info_by_tinker_path(copy).result()
    assert (info.base_model, info.is_lora, info.lora_rank, info.train_attn) == (TINY.name, True, 4, True)
    rest.delete_checkpoint_from_tinker_path(path).result()
    with pytest.raises(tinker.NotFoundError):
        client.compute_logprobs(INPUT).result()
    assert service.create_sampling_client(model_path=copy).result().compute_logprobs(INPUT).result()[0] is None


def test_weights_are_taken_elsewhere_by_their_signed_addresses(
    served, service: tinker.ServiceClient, trained: tinker.TrainingClient
):
    files = download(tinker.RestClient(base_url=served[1]), trained.save_weights_external("out").result().path)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files.keys()
    assert b'"r": 4' in files["adapter_config.json"]


def test_weights_are_encrypted_to_their_recipients_and_kept_in_no_other_form(
    served, service: tinker.ServiceClient, trained: tinker.TrainingClient
):
    rest = tinker.RestClient(base_url=served[1])
    plain, ours = (
        download(rest, trained.save_weights_external("plain").result().path),
        pyrage.x25519.Identity.generate(),
    )
    ssh = Ed25519PrivateKey.generate()
    theirs = ssh.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    path = trained.save_weights_external("sealed", None, [str(ours.to_public()), theirs]).result().path
    sealed = download(rest, path)
    assert sealed.keys() == {f"{name}.age" for name in plain}
    secret = ssh.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    for identity in (ours, pyrage.ssh.Identity.from_buffer(secret)):
        assert {name[:-4]: pyrage.decrypt(content, [identity]) for name, content in sealed.items()} == plain
    with pytest.raises(pyrage.DecryptError):
        pyrage.decrypt(sealed["adapter_config.json.age"], [pyrage.x25519.Identity.generate()])
    store = SnapshotStore(served[0].runtime.store)
    kept = {file for snapshot in store.list(trained.model_id)[1:] for file in store.manifest(snapshot.handle).files}
    assert kept == sealed.keys()
    assert rest.get_weights_info_by_tinker_path(path).result().lora_rank == 4
    for use in (service.create_training_client_from_state, service.create_sampling_client):
        with pytest.raises(tinker.BadRequestError, match="sealed is encrypted; only those whom it is encrypted to"):
            use(path).result()


@pytest.mark.parametrize(
    ("recipients", "message"),
    [
        ([], "has 0 keys; 1 to 10 are needed"),
        (["age1"] * 11, "has 11 keys; 1 to 10 are needed"),
        (["age1nonsense"], r"recipients\[0\] begins with 'age1nonsense'; a public key of age"),
        (
            [str(pyrage.x25519.Identity.generate().to_public()), "ssh-dss AAAA"],
            r"recipients\[1\] begins with 'ssh-dss AAAA'",
        ),
        (["AGE-SECRET-KEY-1QQQQQQ"], r"recipients\[0\] begins with 'AGE-SECRET-K'; a"),
    ],
)
def test_what_is_no_recipient_is_refused_by_its_place(trained: tinker.TrainingClient, recipients, message: str):
    with pytest.raises(tinker.RequestFailedError, match=message):
        trained.save_weights_external("unsealed", age_encryption_recipients=recipients).result()


def test_sessions_and_what_they_used_are_told(served, service: tinker.ServiceClient, trained: tinker.TrainingClient):
    rest, admin = tinker.RestClient(base_url=served[1]), tinker.AdminClient(base_url=served[1])
    session = trained.model_id.partition(":")[0]
    assert session in rest.list_sessions().result().sessions
    sampler = trained.save_weights_and_get_sampling_client().result()
    sampler.sample(INPUT, num_samples=1, sampling_params=types.SamplingParams(max_tokens=4, stop=[])).result()
    found = rest.get_session(session).result()
    assert (found.training_run_ids, len(found.sampler_ids)) == ([trained.model_id], 1)
    rest.assign_session_project(session, "blue").result()
    with pytest.warns(match="experimental"):
        (summary,) = rest.search_sessions(types.SessionSearchRequest(project_ids=["blue"])).result().sessions
    assert (summary.session_id, summary.status.type) == (session, "active")
    with urllib.request.urlopen(rest.export_session_trace(session).result()) as answer:
        assert session.encode() in answer.read()
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    usage = admin.get_billing_usage(now - timedelta(hours=1), now + timedelta(hours=1)).result()
    used = {event.event_info.type: event.event_info.token_count for event in usage.data if event.session_id == session}
    assert (used["training"], used["sampling_sample"]) == (4, 4)
    assert admin.get_current_checkpoint_storage_usage().result().data is not None
    assert admin.get_audit_log().result().entries is not None


def test_weights_for_a_sampler_alone_go_with_their_session(served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    with tinker.ServiceClient(base_url=served[1]) as service:
        client = service.create_lora_training_client(base_model=TINY.name, rank=4).result()
        sampler = client.save_weights_and_get_sampling_client().result()
        sampler.sample(INPUT, num_samples=1, sampling_params=ONE).result()
        (record,) = served[0].serving.held(TINY.name)[-1:]
    assert record not in [snapshot.handle for snapshot in SnapshotStore(served[0].runtime.store).list(client.model_id)]
