"""Sampling: requests are let in or sent away at once, and answered through futures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from tinker_actors.data import ImageChunk
from tinker_actors.errors import UnknownPolicyError
from tinker_actors.gateway.caller import Caller, CallerOf, needs
from tinker_actors.gateway.futures import Answer, Future
from tinker_actors.gateway.gateway_of import GatewayOf
from tinker_actors.gateway.record_kinds import SamplerRecord, UsageKind
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.tinker.fetching import HELD
from tinker_actors.gateway.tinker.prompts import TextPart, read_prompt, read_text
from tinker_actors.gateway.tinker.sample_answers import sample_answer
from tinker_actors.gateway.tinker.sample_bodies import Asample
from tinker_actors.gateway.tinker.samplers import snapshot_of
from tinker_actors.gateway.tinker.shared import Body, Large, promise
from tinker_actors.gateway.writing import json_response
from tinker_actors.sampling import Overloaded, SamplingReply, SamplingRequest

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway

router = APIRouter(dependencies=[needs("sample")])


class CancelFuture(Body):
    """A request for samples that nobody waits for any more."""

    request_id: str


class Target(Body):
    """One client of a sampling session."""

    type: Literal["sampling_session"] = "sampling_session"
    sampling_session_id: str
    cloned_sampler_id: Large = 0


class RetrieveFutures(Body):
    """What a client has seen of its requests, and that it waits for more to be done."""

    target: Target
    prev_cursor: Large = 0
    timeout: Annotated[float, Field(ge=0)] | None = None
    retrieved_request_ids: tuple[str, ...] = ()


@router.post("/asample")
async def asample(body: Asample, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Begin to sample; 429 says to come back later. The same sequence number gives the same future."""
    sampler = gateway.records.sampler(caller, body.sampling_session_id)
    future = gateway.samples.find(sampler.sampler_id, body.seq_id)
    if future is None:
        future = _Asked(body, sampler, caller, gateway).start()
        gateway.samples.add(sampler.sampler_id, body.seq_id, future)
    names = [f"{future.request_id}:{index}" for index in range(body.num_samples)]
    return promise(future.request_id, sample_sequence_ids=names)


@router.post("/cancel_future")
async def cancel_future(body: CancelFuture, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Stop sampling what nobody waits for; what is done, or not known any more, stays as it is."""
    try:
        future = gateway.futures.find(caller, body.request_id)
    except RefusalError:
        return Response(status_code=204)
    if future.kind != "sample":
        raise RefusalError(400, f"request_id {body.request_id!r} is no request for samples", code="invalid_request")
    gateway.futures.cancel(future)
    return Response(status_code=204)


@router.post("/retrieve_futures")
async def retrieve_futures(body: RetrieveFutures, caller: CallerOf, gateway: GatewayOf) -> Response:
    """Wait until something of a sampling session is done; the answers themselves are fetched one by one."""
    sampler = gateway.records.sampler(caller, body.target.sampling_session_id)
    for request_id in body.retrieved_request_ids:
        gateway.futures.forget(caller, request_id)
    timeout = HELD if body.timeout is None else min(body.timeout, HELD)
    found = await gateway.samples.completions(
        sampler.sampler_id, body.target.cloned_sampler_id, body.prev_cursor, timeout
    )
    return json_response(found)


@dataclass(slots=True)
class _Asked:
    """One request on its way."""

    body: Asample
    sampler: SamplerRecord
    caller: Caller
    gateway: Gateway

    def start(self) -> Future:
        """Let it in and begin.

        Raises:
            RefusalError: Too much is under way, a field can't be served, or the checkpoint is gone.
        """
        body, sampler, gateway = self.body, self.sampler, self.gateway
        if not gateway.pace.lets_in():
            raise RefusalError(
                429,
                "the service has more requests than it can answer in time; ask again in 1 s",
                code="overloaded",
                headers={"Retry-After": "1"},
            )
        handle = snapshot_of(sampler, self.caller, gateway)
        ready = None if body.prompt.has_images else self._request(*read_text(body.prompt))
        held = sum(len(part.tokens) for part in body.prompt.chunks if isinstance(part, TextPart))
        leave = gateway.crowding.enter(sampler.base_model, self.caller.tenant, samples=body.num_samples, tokens=held)
        future = gateway.futures.start(self.caller.tenant, "sample", self._within(leave, handle, ready))
        assert future.task is not None
        future.task.add_done_callback(lambda _: leave())  # also if it is cancelled before it begins
        return future

    async def _within(self, leave: Callable[[], None], handle: str | None, ready: SamplingRequest | None) -> Answer:
        try:
            return await self._answer(handle, ready)
        finally:
            leave()  # before its client hears of the answer, and asks for more

    async def _answer(self, handle: str | None, ready: SamplingRequest | None) -> Answer:
        engines = self.gateway.runtime.engines_of(self.sampler.base_model)
        if ready is None:
            ready = self._request(*await read_prompt(self.body.prompt, engines.served.catalogue_name))
        again = False
        while True:
            try:
                async with self.gateway.serving.loaded(self.sampler.base_model, handle) as snapshot:
                    reply = await self._sampled(replace(ready, snapshot=snapshot))
                break
            except UnknownPolicyError:
                before, handle = handle, snapshot_of(self.sampler, self.caller, self.gateway)
                # the model of an inflight session has published anew meanwhile, or the sampler was started again
                if handle == before and again:
                    raise
                again = True
        self._count(reply)
        return sample_answer(self.body, reply)

    def _count(self, reply: SamplingReply) -> None:
        counts: dict[UsageKind, int] = {
            "prompt": reply.prompt_tokens - reply.cached_tokens,
            "cached": reply.cached_tokens,
            "sampled": sum(len(sample.tokens) for sample in reply.samples),
        }
        self.gateway.accounts.used(self.caller.tenant, self.sampler.session_id, self.sampler.base_model, counts)

    async def _sampled(self, request: SamplingRequest) -> SamplingReply:
        sampler = self.gateway.runtime.engines_of(self.sampler.base_model).sampler
        while True:
            try:
                return await sampler.sample(request)
            except Overloaded as full:  # by others than the Tinker API's clients, whom crowding keeps out
                await asyncio.sleep(full.retry_after)

    def _request(self, tokens: tuple[int, ...], images: tuple[ImageChunk, ...]) -> SamplingRequest:
        return self.body.request(tokens, images, job=self.caller.tenant)
