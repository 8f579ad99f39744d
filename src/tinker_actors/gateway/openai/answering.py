"""Answers conversations and texts from the gateway's samplers."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tinker_actors.data import Message, ModelInput, ToolList, TurnEnd
from tinker_actors.environments.openai.asked import (
    Answered,
    Asked,
    Begun,
    Choice,
    CompletionAsked,
    Piece,
    Tell,
    Wanted,
)
from tinker_actors.environments.openai.errors import ApiError, sampling_errors
from tinker_actors.environments.openai.messages import gone_on
from tinker_actors.environments.openai.speech import Telling, choices_of, sampled, shown_prompt
from tinker_actors.environments.openai.tools import CallReader, tools_of
from tinker_actors.environments.policy_agent import stops_of
from tinker_actors.environments.threads import beside
from tinker_actors.errors import ContextOverflowError, ModelError, PolicyError, UnknownPolicyError
from tinker_actors.gateway.caller import Caller
from tinker_actors.gateway.openai.names import Target, target_of
from tinker_actors.gateway.openai.speakers import Speaker
from tinker_actors.gateway.record_kinds import UsageKind
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.sampling.requests import SampledToken, SamplingParams, SamplingReply, SamplingRequest
from tinker_actors.sampling.scoring import PromptScoring

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway

MOST_SAMPLES = 512
"""Answers of one request to completions, over all prompts."""

_SESSION = "openai"
"""In the books of a tenant, what stands in the place of a session."""

_NO_LIMIT = 2**31 - 1  # the sampler ends at the context's


class Answering:
    """Answers what one caller asks.

    Args:
        gateway: What is served.
        caller: Who asks.
    """

    def __init__(self, gateway: Gateway, caller: Caller) -> None:
        self._gateway, self._caller = gateway, caller

    async def answer(self, asked: Asked, tell: Tell | None = None) -> Answered:
        """Answer a conversation.

        Raises:
            ApiError: The request can't be served: says why, and whose fault it is.
        """
        target = await target_of(self._gateway, self._caller, asked.model)
        speaker = await self._gateway.speakers.of(target.base_model)
        reader = CallReader(speaker.format, asked)
        messages = asked.messages
        if asked.previous is not None:
            before = self._gateway.speakers.remembered.find(self._caller.tenant, asked.previous)
            messages = gone_on(before[:-1], before[-1], messages)
        if speaker.tokenizer.images is None and any(message.images for message in messages):
            raise ApiError(f"messages has an image, and {target.base_model} reads none", param="messages")
        renderer = speaker.chats
        if asked.tools:
            described = speaker.format.describe(tools_of(asked.tools)) or ""
            renderer = renderer.with_tools(ToolList(schemas=asked.tools, described=described))
        # a template may refuse messages in any order that it doesn't know
        try:
            size = sum(len(message.content) for message in messages)
            prompt = await beside(lambda: renderer.start(messages).input, size=size)
        except ModelError as error:
            raise ApiError(str(error), param="messages") from None
        with sampling_errors(prompt="messages", grammar=asked.constrained_by):
            params = params_of(asked, most=_NO_LIMIT)
            stops = params.stop if asked.ignore_eos else stops_of(params, renderer)
            params = replace(params, stop=(*stops, *reader.stops), grammar=reader.grammar)
            answered = await self._sampled(target, speaker.tokenizer, prompt, params, asked, reader, tell)
        if asked.store and asked.n == 1:
            whole = (*messages, answered.choices[0].message)
            self._gateway.speakers.remembered.keep(self._caller.tenant, answered.id, whole)
        return answered

    async def complete(self, asked: CompletionAsked, tell: Tell | None = None) -> tuple[Answered, ...]:
        """Go on from texts; errors as of `answer`."""
        target = await target_of(self._gateway, self._caller, asked.model)
        speaker = await self._gateway.speakers.of(target.base_model)
        if len(asked.prompts) * asked.n > MOST_SAMPLES:
            raise ApiError(
                f"n is {asked.n} for {len(asked.prompts)} prompts; at most {MOST_SAMPLES} answers are sampled at once",
                param="n",
            )
        id = secrets.token_hex(12)
        tasks = [
            asyncio.create_task(self._gone_on(target, speaker, asked, prompt, id, place * asked.n, tell))
            for place, prompt in enumerate(asked.prompts)
        ]
        try:
            return tuple(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _gone_on(
        self,
        target: Target,
        speaker: Speaker,
        asked: CompletionAsked,
        prompt: str | tuple[int, ...],
        id: str,
        first: int,
        tell: Tell | None,
    ) -> Answered:
        tokenizer = speaker.tokenizer
        scores = asked.max_tokens == 0
        with sampling_errors(prompt="prompt", grammar=None):
            if isinstance(prompt, str):
                text = prompt
                tokens = await beside(lambda: tuple(tokenizer.encode_from_start(text)), size=len(prompt))
            else:
                await self._check_fits(target, len(prompt))
                text, tokens = tokenizer.decode(prompt), prompt
            params = params_of(replace(asked, max_tokens=1) if scores else asked, most=_NO_LIMIT)
            given = ModelInput.of(tokens)
            begun = Begun(id=id, model=target.name, prompt=tokens, text=text, first=first)
            answered = await self._sampled(
                target, tokenizer, given, params, asked, _NoCalls(), None if scores else tell, begun
            )
        if scores:  # the prompt's log-probs were asked for, and a sampler can't but sample
            nothing = Choice(message=Message(role="assistant"), end=TurnEnd.LENGTH, tokens=())
            answered = replace(answered, choices=(nothing,) * asked.n)
            if tell is not None:
                tell(begun)
                for index in range(asked.n):
                    tell(Piece(index=first + index, choice=nothing))
        return answered

    async def _sampled(
        self,
        target: Target,
        tokenizer: Tokenizer,
        prompt: ModelInput,
        params: SamplingParams,
        wanted: Wanted,
        reader: CallReader | _NoCalls,
        tell: Tell | None,
        begun: Begun | None = None,
    ) -> Answered:
        await self._check_fits(target, len(prompt))
        begun = begun or Begun(id=secrets.token_hex(12), model=target.name, prompt=prompt.tokens)
        telling = tell and Telling(begun, tell, tokenizer=tokenizer, params=params, reader=reader, wanted=wanted)
        request = SamplingRequest(
            prompt=prompt.tokens,
            images=prompt.images,
            snapshot=target.name,
            params=params,
            num_samples=wanted.n,
            prompt_logprobs=wanted.prompt_logprobs is not None,
            scoring=PromptScoring(tops=wanted.prompt_logprobs or 0),
            job=self._caller.tenant,
        )
        drawn = telling and telling.drawn
        with self._let_in(target, samples=wanted.n, tokens=len(prompt)):
            try:
                reply = await self._asked(target, request, drawn)
            except UnknownPolicyError:  # a sampler that was started again is to be told once more what to serve
                reply = await self._asked(target, request, drawn)
        self._count(target, reply)
        answered = _answered(begun, reply, tokenizer, wanted, reader)
        if telling:
            telling.ended(answered)
        return answered

    async def _check_fits(self, target: Target, length: int) -> None:
        """Refuse a prompt before the sampler would: to send one that is far too long takes as long."""
        limit = await self._gateway.runtime.context_length(target.base_model)
        if length > limit:
            raise ContextOverflowError(f"the prompt has {length} tokens; the context holds {limit}")

    async def _asked(
        self, target: Target, request: SamplingRequest, drawn: Callable[[SampledToken], None] | None
    ) -> SamplingReply:
        sampler = self._gateway.runtime.engines_of(target.base_model).sampler
        async with self._gateway.serving.loaded(target.base_model, target.handle) as snapshot:
            return await sampled(sampler, replace(request, snapshot=snapshot), drawn)

    @contextlib.contextmanager
    def _let_in(self, target: Target, *, samples: int, tokens: int) -> Iterator[None]:
        """Mind others' share of the sampler, and say its refusals in the API's form."""
        crowding = self._gateway.crowding
        try:
            with crowding.within(target.base_model, self._caller.tenant, samples=samples, tokens=tokens):
                yield
        except PolicyError as error:
            raise ApiError(str(error), status=404, param="model", code="model_not_found") from None
        except RefusalError as error:
            raise _refused(error) from None

    def _count(self, target: Target, reply: SamplingReply) -> None:
        counts: dict[UsageKind, int] = {
            "prompt": reply.prompt_tokens - reply.cached_tokens,
            "cached": reply.cached_tokens,
            "sampled": sum(len(sample.tokens) for sample in reply.samples),
        }
        self._gateway.accounts.used(self._caller.tenant, _SESSION, target.base_model, counts)


def _refused(error: RefusalError) -> ApiError:
    """The gateway's refusal in the API's form."""
    after = error.headers.get("Retry-After")
    return ApiError(
        error.detail,
        status=error.status,
        type="rate_limit_error" if error.status == 429 else "invalid_request_error",
        code=error.code,
        retry_after=None if after is None else float(after),
    )


class _NoCalls:
    """Reads texts in which there are no calls."""

    tools: tuple[()] = ()

    def begins(self, text: str) -> int:
        return len(text)

    def message(self, text: str, id: str) -> Message:
        return Message(role="assistant", content=text)


def params_of(wanted: Wanted, *, most: int) -> SamplingParams:
    """How answers are sampled; what was not asked is the API's default.

    Args:
        wanted: What was asked.
        most: New tokens where no number was asked for.

    Raises:
        ApiError: A value can't be served.
    """
    if wanted.top_p == 0:
        raise ApiError("top_p is 0; a number above 0 is needed (temperature 0 is greedy)", param="top_p")
    names = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
    asked = {name: value for name in names if (value := getattr(wanted, name)) is not None}
    if asked.get("top_k") == 0:  # off, as some clients write it
        del asked["top_k"]
    return SamplingParams(
        max_tokens=most if wanted.max_tokens is None else wanted.max_tokens,
        logit_bias=wanted.logit_bias,
        stop=wanted.stop,
        default_stops=not wanted.ignore_eos,
        seed=wanted.seed,
        logprobs=wanted.top_logprobs,
        **asked,
    )


def _answered(
    begun: Begun, reply: SamplingReply, tokenizer: Tokenizer, wanted: Wanted, reader: CallReader | _NoCalls
) -> Answered:
    return Answered(
        id=begun.id,
        model=begun.model,
        prompt=begun.prompt,
        text=begun.text,
        first=begun.first,
        prompt_shown=() if wanted.prompt_logprobs is None else shown_prompt(begun.prompt, reply, tokenizer),
        choices=choices_of(reply.samples, id=begun.id, reader=reader, wanted=wanted, tokenizer=tokenizer),
        cached_tokens=reply.cached_tokens,
    )
