"""A seat behind an endpoint, around a sampler that says what it is told, or a real one."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import openai

from tinker_actors.coordinator import EpisodeLimits, run_episode
from tinker_actors.data import ModelInput, Task, TurnEnd, rl_datums
from tinker_actors.environments import Environment, PolicySeat, Step
from tinker_actors.environments.outside import Capture, EndpointServer, FunctionHarness, HarnessAgent
from tinker_actors.environments.tools import HermesFormat
from tinker_actors.models import Renderer, load_tokenizer
from tinker_actors.sampling.requests import Sample, SamplingParams, SamplingReply

TOKENIZER = load_tokenizer("tiny-llama")
END = TOKENIZER.eos_id


@dataclass
class Says:
    """A sampler that says these texts, each closed by the stop token; log-probs tell which token it was."""

    texts: list
    requests: list = field(default_factory=list)
    replies: list = field(default_factory=list)
    stop: bool = True

    async def sample(self, request):
        text = self.texts[len(self.requests)]
        self.requests.append(request)
        if not isinstance(text, str):
            text = await text()
        tokens = (*TOKENIZER.encode(text), *((END,) if self.stop else ()))
        logprobs = tuple(-0.01 * (1 + len(self.replies)) - 0.0001 * place for place in range(len(tokens)))
        tops = tuple(((token, value), (1, -9.0)) for token, value in zip(tokens, logprobs, strict=True))
        sample = Sample(
            tokens=tokens,
            logprobs=logprobs,
            end=TurnEnd.STOP if self.stop else TurnEnd.LENGTH,
            text=text,
            top_logprobs=tops if request.params.logprobs else (),
        )
        reply = SamplingReply(
            samples=(sample,), snapshot=request.snapshot, snapshot_step=3, prompt_tokens=len(request.prompt), seed=0
        )
        self.replies.append((request.prompt, tokens, logprobs))
        return reply


class Remembers:
    """A sampler in front of another one, which keeps what was sampled."""

    def __init__(self, sampler):
        self.sampler, self.replies = sampler, []

    async def sample(self, request):
        reply = await self.sampler.sample(request)
        (sample,) = reply.samples
        self.replies.append((request.prompt, sample.tokens, sample.logprobs))
        return reply


class Talk(Environment):
    """Says its lines one after the other, and gives 1 for every answer."""

    max_turns = 10

    def __init__(self, *lines):
        self.lines, self.heard = list(lines), []

    def reset(self, seed):
        return self.lines.pop(0)

    def step(self, action):
        self.heard.append(action)
        return Step(observation=self.lines.pop(0), reward=1.0) if self.lines else Step(reward=1.0, terminated=True)


@dataclass
class Played:
    episode: object
    agent: HarnessAgent
    environment: Talk

    @property
    def trajectory(self):
        return self.episode.trajectory("agent")

    @property
    def datums(self):
        return rl_datums(self.trajectory, 1.0)

    def trained(self):
        """Every trained token with its log-prob, datum by datum, and what stands before it."""
        found = []
        for datum in self.datums:
            tokens = (datum.model_input.tokens[0], *datum.targets)
            rows = zip(itertools.count(1), datum.targets, datum.mask, datum.logprobs, strict=False)
            found += [(tokens[:place], token, logprob) for place, token, mask, logprob in rows if mask]
        return found


def sampled(replies):
    """What a sampler returned, in the same shape."""
    return [
        ((*prompt, *tokens[:place]), tokens[place], logprobs[place])
        for prompt, tokens, logprobs in replies
        for place in range(len(tokens))
    ]


@asynccontextmanager
async def seated(harness, sampler, **options):
    """Plays a harness; yields a function that plays an episode of these lines."""
    server = EndpointServer()
    snapshot = options.pop("snapshot", "snap-3")
    params = options.pop("params", None) or SamplingParams(max_tokens=options.pop("max_tokens", 64))
    template, limits = options.pop("template", None), options.pop("limits", None)
    seconds, context_length = options.pop("seconds", None), options.pop("context_length", None)

    async def play(*lines):
        spec = PolicySeat(
            sampler=sampler, policy="pupil", snapshot=snapshot, params=params, context_length=context_length
        )
        capture = Capture(spec, Renderer(TOKENIZER, template), seed=7, seat="agent", format=HermesFormat(), **options)
        runs = harness if hasattr(harness, "run") else FunctionHarness(harness)
        agent = HarnessAgent(runs, capture, server, seconds=seconds)
        environment = Talk(*lines)
        task = Task(environment="talk", seed=0)
        episode = await run_episode(
            environment, {"agent": agent}, task=task, id="e", limits=limits or EpisodeLimits(turn_seconds=30)
        )
        return Played(episode, agent, environment)

    play.server = server
    try:
        yield play
    finally:
        await server.close()


__all__ = ["END", "TOKENIZER", "ModelInput", "Played", "Remembers", "Says", "Talk", "sampled", "seated"]


def client(call, **options):
    """The real client of a call's endpoint."""
    return openai.AsyncOpenAI(base_url=call.base_url, api_key=call.api_key, max_retries=0, **options)


async def asks(call, messages, **fields):
    """What the endpoint answers."""
    async with client(call) as api:
        return await api.chat.completions.create(model=call.model, messages=messages, **fields)


def user(text):
    """A user's message."""
    return {"role": "user", "content": text}
