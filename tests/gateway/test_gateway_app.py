"""The gateway's application, over real actors in this process."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tinker_actors.errors import ConfigError, ModelError
from tinker_actors.gateway.gateway import Gateway, create_app
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.runtime import Runtime, ServedModel


async def test_the_gateway_serves_its_models_and_says_that_it_is_well(tmp_path: Path):
    async with Runtime(tmp_path, [ServedModel(name="a/b", base_model="tiny-llama")], in_process=True) as runtime:
        assert runtime.engines_of("a/b").served.catalogue_name == "tiny-llama"
        with pytest.raises(RefusalError, match="'tiny-llama', which is not served"):
            runtime.engines_of("tiny-llama")
        transport = httpx.ASGITransport(create_app(Gateway(runtime=runtime)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.get("/healthz")).json() == {"status": "ok"}


def test_models_that_mean_nothing_or_stand_twice_are_refused_before_anything_starts(tmp_path: Path):
    with pytest.raises(ModelError):
        Runtime(tmp_path, [ServedModel(name="no-such-model")])
    with pytest.raises(ConfigError, match="more than once"):
        Runtime(tmp_path, [ServedModel(name="tiny-llama"), ServedModel(name="tiny-llama")])


async def test_who_is_not_admitted_gets_no_further_than_the_gate(tmp_path: Path):
    def nobody(_: object):
        raise RefusalError(401, "no key was given", code="no_api_key")

    async with Runtime(tmp_path, [], in_process=True) as runtime:
        transport = httpx.ASGITransport(create_app(Gateway(runtime=runtime, admit=nobody)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.get("/healthz")).status_code == 200
            refused = await client.get("/openapi.json")
            assert (refused.status_code, refused.json()["code"]) == (401, "no_api_key")
