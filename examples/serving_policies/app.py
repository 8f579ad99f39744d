"""A web service of one's own that speaks for two policies, word by word, and takes new snapshots while it does.

Run it with `python examples/serving_policies/app.py`. It needs the extra `serve`.
"""

# ruff: noqa: T201 - it shows what it does

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from tinker_actors import Datum, Mesh, Sampler, SamplingParams, Trainer
from tinker_actors.actors import Restarted, RestartPolicy
from tinker_actors.data import ModelInput
from tinker_actors.errors import UnknownPolicyError
from tinker_actors.models import load_tokenizer
from tinker_actors.policies import PolicySpec
from tinker_actors.sampling import InvalidRequestError, SamplerStats, SamplingReply, SamplingRequest
from tinker_actors.training import AdamParams, LossConfig

BASE = "tiny-llama"
TOKENIZER = load_tokenizer(BASE)


class Voices:
    """Which snapshot speaks for each policy.

    Args:
        sampler: Serves them.
        handles: The snapshots, by policy.
    """

    def __init__(self, sampler: Sampler, handles: Mapping[str, str]) -> None:
        self.sampler = sampler
        self.handles = dict(handles)
        self._former: dict[str, str] = {}

    async def load(self) -> None:
        """Have the sampler serve them, and those before: a request that is on its way to one of these finds it."""
        await self.sampler.refresh([*self.handles.values(), *self._former.values()])

    async def swap(self, handles: Mapping[str, str]) -> None:
        """Let other snapshots speak from the next request on; answers under way end as they began.

        Raises:
            UnknownPolicyError: The store has no such snapshot; then nothing has changed.
        """
        await self.sampler.refresh([*self.handles.values(), *handles.values()])
        self._former, self.handles = self.handles, {**self.handles, **handles}

    async def keep_loaded(self, mesh: Mesh) -> None:
        """A sampler that was started again serves nothing: tell it anew."""
        async for event in mesh.watch(self.sampler):
            if isinstance(event, Restarted):
                await self.load()


async def speech(sampler: Sampler, request: SamplingRequest) -> AsyncIterator[str]:
    """The answer in lines of JSON: its text in pieces, at last how it ended. Leaving it ends the sampling."""
    tokens: list[int] = []
    told = 0
    async with aclosing(sampler.stream.sample_tokens(request)) as drawn:
        async for item in drawn:
            if isinstance(item, SamplingReply):
                yield json.dumps({"snapshot": item.snapshot, "end": item.samples[0].end.value}) + "\n"
                continue
            tokens.append(item.token)
            text = TOKENIZER.decode(tokens, skip_special=True)
            if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # the rest of a character is still to come
                yield json.dumps({"text": text[told:]}) + "\n"
                told = len(text)


async def say(request: Request) -> StreamingResponse | JSONResponse:
    """POST /say {"policy": "abc", "prompt": "ab", "max_tokens": 6}"""
    voices: Voices = request.app.state.voices
    asked = await request.json()
    if (handle := voices.handles.get(asked["policy"])) is None:
        return JSONResponse({"error": f"the policies are {', '.join(voices.handles)}"}, status_code=404)
    try:
        wanted = SamplingRequest(
            prompt=tuple(TOKENIZER.encode(asked["prompt"])),
            snapshot=handle,
            params=SamplingParams(max_tokens=asked["max_tokens"], temperature=0),
        )
    except InvalidRequestError as error:
        return JSONResponse({"error": str(error)}, status_code=422)
    return StreamingResponse(speech(voices.sampler, wanted), media_type="application/x-ndjson")


async def swap(request: Request) -> JSONResponse:
    """POST /swap {"abc": "tinker://abc/sampler_weights/000002"}"""
    voices: Voices = request.app.state.voices
    try:
        await voices.swap(await request.json())
    except UnknownPolicyError as error:
        return JSONResponse({"error": str(error)}, status_code=404)
    return JSONResponse(voices.handles)


def service(store: str, handles: Mapping[str, str]) -> Starlette:
    """The application over snapshots of a store; its mesh lives and ends with it."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with Mesh(nodes=2) as mesh:
            restart = RestartPolicy.on_failure()
            sampler = await mesh.spawn(Sampler, base_model=BASE, store=store, name="sampler", restart=restart)
            app.state.mesh, app.state.voices = mesh, Voices(sampler, handles)
            await app.state.voices.load()
            keeper = asyncio.create_task(app.state.voices.keep_loaded(mesh))
            yield
            keeper.cancel()

    routes = [Route("/say", say, methods=["POST"]), Route("/swap", swap, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan)


async def taught(store: str) -> list[str]:
    """Snapshots to serve: `abc` learns to go on with that, then to say it backwards; `xyz` the one thing only."""
    handles: list[str] = []
    async with Mesh() as mesh:
        trainer = await mesh.spawn(Trainer, base_model=BASE, store=store)
        for policy, words in (("abc", ("abc", "cba")), ("xyz", ("xyz",))):
            await trainer.create(PolicySpec(base_model=BASE, rank=8, name=policy))
            for word in words:
                tokens = TOKENIZER.encode(word * 8)
                shifted, weights = ModelInput.of(tokens[:-1]), (1.0,) * (len(tokens) - 1)
                datum = Datum(model_input=shifted, targets=tuple(tokens[1:]), weights=weights)
                for _ in range(30):
                    await trainer.forward_backward(policy, [datum], LossConfig(name="cross_entropy"))
                    await trainer.optim_step(policy, AdamParams(learning_rate=1e-2))
                handles.append((await trainer.publish(policy)).handle)
    return handles


async def asked(client: httpx.AsyncClient, policy: str, *, swap_to: str | None = None) -> str:
    """What a policy says, and which snapshot said it; the other one is swapped in once it has begun."""
    wanted = {"policy": policy, "prompt": policy[0], "max_tokens": 9}
    text, last = "", {}
    async with client.stream("POST", "/say", json=wanted) as answer:
        async for line in answer.aiter_lines():
            if swap_to is not None and not text:
                (await client.post("/swap", json={policy: swap_to})).raise_for_status()
            last = json.loads(line)
            text += last.get("text", "")
    return f"{text} by {last['snapshot']}"


async def until(sampler: Sampler, holds: Callable[[SamplerStats], bool]) -> SamplerStats:
    """What a sampler tells of itself, once that holds."""
    while not holds(stats := await sampler.stats()):  # noqa: ASYNC110 - it tells nobody by itself
        await asyncio.sleep(0.01)
    return stats


async def shown(client: httpx.AsyncClient, app: Starlette, first: str, second: str) -> None:
    """Use the service in every way."""
    print("both at once:", *await asyncio.gather(asked(client, "abc"), asked(client, "xyz")), sep="\n  ")
    print("swapped meanwhile:", await asked(client, "abc", swap_to=second))
    print("after it:", await asked(client, "abc"))
    wanted = {"policy": "xyz", "prompt": "x", "max_tokens": 400}
    async with client.stream("POST", "/say", json=wanted) as answer:
        await anext(answer.aiter_lines())
    mesh, sampler = app.state.mesh, app.state.voices.sampler
    print("cancelled when its client left:", (await until(sampler, lambda stats: stats.cancelled > 0)).cancelled)
    events = mesh.watch(sampler)
    os.kill(mesh.pids[1], signal.SIGKILL)
    assert isinstance(await anext(events), Restarted)
    await until(sampler, lambda stats: len(stats.snapshots) > 0)
    print("after the sampler's process was killed:", await asked(client, "abc"))


async def main() -> None:
    """Teach, serve, use, end."""
    with tempfile.TemporaryDirectory() as store:
        first, second, other = await taught(store)
        app = service(store, {"abc": first, "xyz": other})
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        listening = socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        port = listening.getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None) as client:
            await shown(client, app, first, second)
        server.should_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(main())
