"""A gateway behind a real socket, asked by the real `openai` client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai

from tinker_actors.gateway.gateway import Gateway, create_app
from tinker_actors.gateway.listening import listening, serving
from tinker_actors.gateway.runtime import Runtime, ServedModel

MODEL = "tiny/llama"
TINY = ServedModel(name=MODEL, base_model="tiny-llama:context=2048", sampler={"kv_memory": 2**24})
HELLO = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def served_at(root: Path, *models: ServedModel) -> AsyncIterator[tuple[Gateway, openai.AsyncOpenAI]]:
    """A gateway that listens on a port of 127.0.0.1, and a client of it."""
    async with Runtime(root, models or (TINY,), in_process=True) as runtime, Gateway(runtime=runtime) as gateway:
        with listening("127.0.0.1", 0) as listener:
            async with (
                serving(create_app(gateway), listener) as url,
                openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="tml-test", max_retries=0) as api,
            ):
                yield gateway, api
