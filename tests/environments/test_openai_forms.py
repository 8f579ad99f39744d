"""Text that grows token by token, forms of calls while they grow, and streams of an endpoint bound to an episode."""

from __future__ import annotations

import random

import openai
import pytest
from endpoint_harness import TOKENIZER, Says, sampled, seated
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from tinker_actors.environments.openai.unfolding import Unfolding
from tinker_actors.environments.tools import HermesFormat, JsonFormat, PlainFormat, tool
from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.sampling import SampledToken, SamplingParams
from tinker_actors.sampling.stops import cut_at_stop


def bytewise() -> Tokenizer:
    """Every byte is a token, as where a model spells a rare character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: place for place, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


def test_characters_of_several_tokens_come_whole():
    tokenizer = bytewise()
    text = "naïve 日本 👩‍👩‍👧 end"
    unfolding = Unfolding(tokenizer, stops=(), stop_ids=())
    parts = [unfolding.push(token) for token in tokenizer.encode(text)]
    assert "".join(parts) == text
    assert not any("\ufffd" in part for part in parts)
    assert parts.count("") == len(text.encode()) - len(text)


def test_the_bytes_of_a_token_may_be_part_of_a_character():
    tokenizer = bytewise()
    text = "é日\n ü"
    assert b"".join(tokenizer.token_bytes(token) for token in tokenizer.encode(text)) == text.encode()
    assert [TOKENIZER.token_bytes(token) for token in TOKENIZER.encode("a<|end|>")] == [b"a", b"<|end|>"]


def test_text_before_a_stop_string_is_told_and_nothing_of_the_string():
    tokenizer, rng = bytewise(), random.Random(0)
    for _ in range(300):
        text = "".join(rng.choices("ab日", k=rng.randrange(1, 30)))
        stops = tuple("".join(rng.choices("ab日", k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 4)))
        # a sample ends with the character that completes a stop string
        text = next((text[:size] for size in range(len(text)) if cut_at_stop(text[:size], stops) != text[:size]), text)
        unfolding = Unfolding(tokenizer, stops=stops, stop_ids=())
        told = "".join(unfolding.push(token) for token in tokenizer.encode(text))
        whole = cut_at_stop(text, stops)
        assert whole.startswith(told)
        assert len(whole) - len(told) < max(map(len, stops))  # what may yet become a stop string is held back


def test_stop_tokens_are_no_text():
    unfolding = Unfolding(TOKENIZER, stops=(), stop_ids={TOKENIZER.encode(".")[0]})
    assert "".join(unfolding.push(token) for token in TOKENIZER.encode("a.b")) == "ab"


def add(a: int, b: int = 2) -> int:
    return a + b


TOOLS = {"add": tool(add)}
CALLS = [
    (HermesFormat(), 'Well <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', 5),
    (JsonFormat(), '{"name": "add", "parameters": {"a": 1}}', 0),
    (PlainFormat("{name}({arguments})"), "Well add(1) it", 5),
    (PlainFormat("<{arguments}>"), "a <1>", 2),
]


@pytest.mark.parametrize(("format", "text", "place"), CALLS)
def test_a_growing_text_never_shows_what_becomes_a_call(format, text, place):
    assert format.begins(text, TOOLS) == place
    for size in range(len(text)):
        assert format.begins(text[:size], TOOLS) <= max(place, 0)
    assert format.begins("nothing of the kind ", TOOLS) == len("nothing of the kind ")


@pytest.mark.parametrize(("format", "text", "place"), CALLS)
def test_the_grammar_of_calls_allows_what_the_format_writes_and_nothing_else(format, text, place):
    llguidance = pytest.importorskip("llguidance")
    from tinker_actors.sampling.grammars import Grammars

    words = Grammars(TOKENIZER, TOKENIZER.vocab_size)._words
    for several in (True, False):
        grammar = format.grammar(TOOLS, several=several)
        matcher = llguidance.LLMatcher(words, grammar)
        tokens = TOKENIZER.encode(format.write("add", {"a": 1}, TOOLS))
        assert matcher.try_consume_tokens(tokens) == len(tokens)
        assert matcher.is_accepting()
        other = llguidance.LLMatcher(words, grammar)
        assert other.try_consume_tokens(TOKENIZER.encode("Well")) == 0


class Streams(Says):
    """Says its texts token by token."""

    @property
    def stream(self):
        return self

    async def sample_tokens(self, request):
        reply = await self.sample(request)
        (sample,) = reply.samples
        for token, logprob, top in zip(sample.tokens, sample.logprobs, sample.top_logprobs, strict=True):
            yield SampledToken(index=0, token=token, logprob=logprob, top=top)
        yield reply


async def test_a_seats_stream_comes_token_by_token_and_is_trained_once():
    sampler, seen = Streams(["hello"]), []

    async def harness(call):
        async with openai.AsyncOpenAI(base_url=call.base_url, api_key=call.api_key) as api:
            stream = await api.chat.completions.create(
                model=call.model,
                messages=call.observation,
                stream=True,
                logprobs=True,
                top_logprobs=1,
                extra_body={"return_token_ids": True},
            )
            seen.extend([chunk async for chunk in stream])
        return "".join(chunk.choices[0].delta.content or "" for chunk in seen)

    async with seated(harness, sampler) as play:
        played = await play("say")
    assert played.environment.heard == ["hello"]
    assert [chunk.choices[0].delta.content for chunk in seen[1:6]] == list("hello")
    tokens = [token for chunk in seen for token in getattr(chunk.choices[0], "token_ids", ())]
    assert tuple(tokens) == sampler.replies[0][1]
    assert played.trained() == sampled(sampler.replies)


async def test_formats_are_served_where_nobody_learns():
    sampler = Says(['{"a": 1}', "x"])

    async def harness(call):
        async with openai.AsyncOpenAI(base_url=call.base_url, api_key=call.api_key) as api:
            said = await api.chat.completions.create(
                model=call.model,
                messages=call.observation,
                response_format={"type": "json_object"},
                presence_penalty=0.5,
            )
        return said.choices[0].message.content

    async with seated(harness, sampler, difference="honour", params=SamplingParams(max_tokens=9)) as play:
        await play("say")
    assert "%json" in sampler.requests[0].params.grammar
    assert sampler.requests[0].params.presence_penalty == 0.5
