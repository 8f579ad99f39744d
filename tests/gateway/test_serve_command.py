"""`tinker-actors serve` as its users know it: what it refuses, where it serves, how it ends."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import httpx
import pytest
from tests.gateway.serving_process import serve_process, start

from tinker_actors.errors import ConfigError
from tinker_actors.gateway.config import load_serve_config
from tinker_actors.gateway.opening import open_gateway
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.scheduler.resources import Resources


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    return path


def test_options_win_over_the_file_and_models_come_from_both(tmp_path: Path):
    path = written(
        tmp_path, 'port = 1\nroot = "kept"\n[models."a/b"]\nbase = "tiny-llama"\n[models.c.trainer]\nthreads = 2'
    )
    config = load_serve_config(path, models=["c=tiny-vision", "tiny-llama"], settings={"port": 2})
    assert (config.port, config.root) == (2, "kept")
    assert [(m.name, m.catalogue_name, dict(m.trainer)) for m in config.served()] == [
        ("a/b", "tiny-llama", {}),
        ("c", "tiny-vision", {"threads": 2}),
        ("tiny-llama", "tiny-llama", {}),
    ]


def test_quotas_bound_what_they_name_and_nothing_else(tmp_path: Path):
    path = written(tmp_path, "[rules.default]\njobs = 2\n[rules.quotas.a]\nadapter_slots = 3\nweight = 2.0")
    config = load_serve_config(path)
    capacity = config.capacity.resources()
    rules = config.rules.rules(capacity)
    assert rules.of("anybody").jobs == 2
    assert rules.of("anybody").most is None
    assert rules.of("a").weight == 2.0
    most = rules.of("a").most
    assert most == Resources(memory=capacity.memory, adapter_slots=3, cpu_workers=capacity.cpu_workers)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("hots = 'a'", "unknown key hots; did you mean host?"),
        ("[models.a]\nbse = 'x'", "unknown key models.a.bse; did you mean models.a.base?"),
        ("[rules.quotas.a]\njobs = 0", "rules.quotas.a.jobs is 0"),
        ("port = 70000", "port is 70000"),
        ("[jobs]\nallowed_paths = 3", "jobs.allowed_paths is 3; a list is needed"),
        ("models = 3", "models is 3; a section is needed"),
        ("[models.a]\ndevice = 'gpu'", "models.a.device is 'gpu'; 'cpu', 'cuda' or a GPU by its number, 'cuda:1', is"),
        ("[models.a]\ndevice = 'cuda:'", "models.a.device is 'cuda:'"),
        ("[jobs]\nkeep_days = 0", "jobs.keep_days is 0"),
        ("[sampling]\nsnapshots = 0", "sampling.snapshots is 0"),
        ("[sampling]\nsample = 1", "unknown key sampling.sample; did you mean sampling.samples?"),
        ("[sampling]\nsamples = 8", "sampling.samples_of_tenant is 8192; at most samples, 8, is needed"),
        ("[sampling.pace]\nslowest = 9e9", "sampling.pace.slowest is 9e+09; at most fastest, 5000, is needed"),
        ("[models.a]\nchat_template = '{{ x'", "models.a.chat_template is '{{ x'; the chat template can't be compiled"),
        ("[models.a]\ntool_format = 'xml'", "one of hermes, json is needed"),
    ],
)
def test_a_wrong_key_or_value_is_named(tmp_path: Path, text: str, named: str):
    with pytest.raises(ConfigError) as caught:
        load_serve_config(written(tmp_path, text))
    assert named in str(caught.value)


async def test_what_it_can_not_start_with_is_named(tmp_path: Path):
    for model, named in (
        (
            {"base": "tiny-llama", "device": "cuda:99"},
            r'models\."m"\.device: device is \'cuda:99\'; torch finds .*there is cpu',
        ),
        ({"base": "job:job-0"}, r'models\."m"\.base is \'job:job-0\', which has made no base model'),
        ({"base": "job:../../x"}, "which has made no base model"),
    ):
        with pytest.raises(ConfigError, match=named):
            async with open_gateway(load_serve_config(settings={"root": str(tmp_path), "models": {"m": model}})):
                pass


async def test_how_much_sampling_is_let_in_is_set_in_the_file(tmp_path: Path):
    text = (
        f'root = "{tmp_path}/root"\n[sampling]\nsamples = 3\nsamples_of_tenant = 2\nprompt_tokens = 10\nsnapshots = 5\n'
    )
    path = written(tmp_path, text + "[sampling.pace]\nfastest = 7\nslowest = 7\nburst = 2\nbearable = 0.5")
    async with open_gateway(load_serve_config(path)) as gateway:
        pace, crowding = gateway.pace, gateway.crowding
        assert [pace.lets_in() for _ in range(3)] == [True, True, False]
        pace.saw(0.4)
        assert pace.rate == 7
        crowding.enter("m", "a", samples=2, tokens=4)
        for tenant, samples, tokens, named in (
            ("a", 1, 1, "the tenant has 2 samples under way, of 2 at most"),
            ("b", 2, 1, "as many samples under way as its sampler takes"),
            ("b", 1, 7, "as many prompt tokens"),
        ):
            with pytest.raises(RefusalError, match=named):
                crowding.enter("m", tenant, samples=samples, tokens=tokens)
        assert gateway.serving.most == 5


async def test_other_hosts_are_not_let_in_without_keys(tmp_path: Path):
    with pytest.raises(
        ConfigError, match="there is no API key; make one with `tinker-actors keys add TENANT` and the same --root"
    ):
        async with open_gateway(load_serve_config(settings={"host": "0.0.0.0", "root": str(tmp_path)})):
            pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_says_where_it_serves_and_frees_its_port_when_told_to_end(tmp_path: Path, number: int):
    async with serve_process(tmp_path) as served:
        async with httpx.AsyncClient(base_url=served.url) as client:
            assert (await client.get("/healthz")).json() == {"status": "ok"}
            assert await served.end(number) == 0  # though a connection is open
        port = httpx.URL(served.url).port
        assert port is not None
        with socket.create_server(("127.0.0.1", port)):
            pass


async def test_a_root_in_which_nothing_can_be_kept_is_one_line_and_exit_status_2(tmp_path: Path):
    (tmp_path / "taken").write_text("")
    process = await start(tmp_path, "--root", str(tmp_path / "taken"), "--port", "0")
    printed = (await process.communicate())[0].decode()
    assert process.returncode == 2
    assert printed == f"tinker-actors: root is '{tmp_path}/taken', where nothing can be kept: File exists\n"


async def test_a_root_that_another_gateway_has_is_named_as_the_option_is(tmp_path: Path):
    async with serve_process(tmp_path):
        process = await start(tmp_path, "--port", "0")
        printed = (await process.communicate())[0].decode()
    assert process.returncode == 2
    root = f"tinker-actors: root is '{tmp_path}/serve'"
    assert printed.splitlines()[1:] == [
        f"{root}, in which another gateway serves; end that one, or give another --root"
    ]


async def test_what_cannot_work_is_one_line_and_exit_status_2(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = await start(tmp_path, "--port", str(port))
        printed = (await process.communicate())[0].decode()
    assert process.returncode == 2
    assert (
        printed == f"tinker-actors: port {port} of 127.0.0.1 can't be had: Address already in use; another --port may\n"
    )
