"""Token-exactness of the seat that a policy plays, over the real renderer and tokenizers made for the case."""

from dataclasses import dataclass, field

import pytest
from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from tinker_actors.coordinator import run_episode
from tinker_actors.data import EpisodeEnd, Message, Task, ToolCall, TurnEnd, rl_datums, tool_results
from tinker_actors.environments import DemonstrationAgent, Environment, PolicyAgent, PolicySeat, Step
from tinker_actors.errors import ConfigError, ContextOverflowError
from tinker_actors.models import Renderer, Tokenizer
from tinker_actors.sampling.requests import Sample, SamplingParams, SamplingReply, SamplingRequest

MARKUP = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<a>{{ m.content }}</a>{{ '\\n' }}"
    "{% else %}<u>{{ m.content }}</u>{{ '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


def tokenizer(vocabulary, merges=(), special=(), eos=None):
    backend = Backend(BPE(vocab=vocabulary, merges=list(merges)))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return Tokenizer(backend, eos_token=eos)


def digits():
    """Ids 0 to 9 for the digits; 10 is the end."""
    return tokenizer({str(digit): digit for digit in range(10)}, special=["<end>"], eos="<end>")


@dataclass
class ScriptedSampler:
    """Returns the given tokens, request after request."""

    replies: list
    renderer: Renderer
    end: TurnEnd = TurnEnd.STOP
    requests: list[SamplingRequest] = field(default_factory=list)

    async def sample(self, request):
        tokens = tuple(self.replies[len(self.requests)])
        self.requests.append(request)
        logprobs = tuple(-0.1 * (position + 1) for position in range(len(tokens)))
        sample = Sample(tokens=tokens, logprobs=logprobs, end=self.end, text=self.renderer.parse(tokens))
        return SamplingReply(
            samples=(sample,), snapshot="snap-7", snapshot_step=7, prompt_tokens=len(request.prompt), seed=0
        )


def policy_agent(renderer, replies, *, end=TurnEnd.STOP, params=None, **options):
    sampler = ScriptedSampler(replies, renderer, end)
    params = params or SamplingParams(max_tokens=8)
    spec = PolicySeat(sampler=sampler, policy="p", snapshot="snap-7", params=params, **options)
    return PolicyAgent(spec, renderer, seed=3), sampler


def user(*texts):
    return [Message(role="user", content=text) for text in texts]


class Talk(Environment):
    """Says the given lines one after the other; a reward of 1 for each answer."""

    def __init__(self, *lines):
        self.lines = list(lines)
        self.heard = []

    def reset(self, seed):
        return self.lines.pop(0)

    def step(self, action):
        self.heard.append(action)
        return Step(observation=self.lines.pop(0), reward=1.0) if self.lines else Step(reward=1.0, terminated=True)


async def play(environment, agent):
    return await run_episode(environment, {"agent": agent}, task=Task(environment="talk", seed=0), id="t")


async def test_sampled_tokens_are_kept_where_encoding_their_text_would_merge_them():
    renderer = Renderer(tokenizer({"a": 0, "b": 1, "ab": 2, "c": 3}, merges=[("a", "b")]), "plain")
    agent, sampler = policy_agent(renderer, [(0, 1), (3,)])
    environment = Talk("c", "cc")
    episode = await play(environment, agent)
    first, second = (request.prompt for request in sampler.requests)
    assert second == (*first, 0, 1, 3, 3)
    assert environment.heard == ["ab", "c"]
    (datum,) = rl_datums(episode.trajectory("agent"), 1.0)
    assert [target for target, bit in zip(datum.targets, datum.mask, strict=True) if bit] == [0, 1, 3]


async def test_only_what_the_sampler_returned_is_an_action():
    words = tokenizer({"x": 0, "y": 1, "\n": 2}, special=["<u>", "</u>", "<a>", "</a>"])
    renderer = Renderer(words, MARKUP)
    y, close_a = words.encode("y</a>")
    agent, _ = policy_agent(renderer, [(y, close_a), (y, close_a)])
    episode = await play(Talk("x", "x"), agent)
    first, second = episode.trajectory("agent").turns
    assert (first.action, first.text) == ((y, close_a), "y")
    assert words.decode(second.observation.tokens) == "\n<u>x</u>\n<a>"
    (datum,) = rl_datums(episode.trajectory("agent"), 1.0)
    assert sum(datum.mask) == 4
    assert words.decode([datum.model_input.tokens[0], *datum.targets]) == "<u>x</u>\n<a>y</a>\n<u>x</u>\n<a>y</a>"


async def test_a_sampled_stop_token_is_in_the_history_once_and_trained():
    renderer = Renderer(digits(), "plain")
    agent, sampler = policy_agent(renderer, [(5, 10), (6, 10)])
    episode = await play(Talk("1", "7"), agent)
    assert sampler.requests[1].prompt == (1, 5, 10, 7)
    first = episode.trajectory("agent").turns[0]
    assert (first.action, first.logprobs, first.text) == ((5, 10), (-0.1, -0.2), "5")
    assert sampler.requests[0].params.stop_tokens == (10,)


async def test_tool_results_are_observed_once_each_in_call_order():
    calls = [ToolCall(id=f"c{number}", name="f", arguments="{}") for number in range(3)]
    results = tool_results(calls, {"c2": "3", "c0": "1", "c1": "2"})
    agent, sampler = policy_agent(Renderer(digits(), "plain"), [(9, 10), (9, 10)])
    episode = await play(Talk("0", results), agent)
    second = episode.trajectory("agent").turns[1]
    assert [(message.content, message.tool_call_id) for message in second.messages] == [
        ("1", "c0"),
        ("2", "c1"),
        ("3", "c2"),
    ]
    assert sampler.requests[1].prompt == (0, 9, 10, 1, 2, 3)


async def test_a_turn_records_how_it_was_sampled_and_every_turn_has_a_seed_of_its_own():
    renderer = Renderer(digits(), "plain")
    agent, sampler = policy_agent(renderer, [(5, 10), (6, 10)], params=SamplingParams(max_tokens=4, temperature=0.7))
    episode = await play(Talk("1", "7"), agent)
    records = [turn.sampling for turn in episode.trajectory("agent").turns]
    assert [record.snapshot_min for record in records] == ["snap-7"] * 2
    assert [(record.snapshot_step, record.temperature) for record in records] == [(7, 0.7)] * 2
    seeds = [request.params.seed for request in sampler.requests]
    assert seeds == [record.seed for record in records]
    assert seeds[0] != seeds[1]
    again, repeated = policy_agent(renderer, [(5, 10), (6, 10)])
    await play(Talk("1", "7"), again)
    assert [request.params.seed for request in repeated.requests] == seeds


async def test_an_episode_that_outgrows_the_context_is_truncated_at_that_turn_and_samples_no_more():
    renderer = Renderer(digits(), "plain")
    agent, sampler = policy_agent(renderer, [(1, 2, 3, 4)] * 9, end=TurnEnd.LENGTH, context_length=16)
    # 4 + 4 + 4 = 12 tokens stand before turn 1 acts, 20 before turn 2 does
    episode = await play(Talk("1111", "2222", "3333", "4444"), agent)
    turns = episode.trajectory("agent").turns
    assert (episode.end, episode.error) == (EpisodeEnd.TRUNCATED, None)
    assert [turn.end for turn in turns] == [TurnEnd.LENGTH, TurnEnd.CONTEXT_OVERFLOW]
    assert len(sampler.requests) == 2
    assert sampler.requests[1].params.max_tokens == 4
    assert episode.trajectory("agent").reward == 1.0
    rl_datums(episode.trajectory("agent"), 1.0)


async def test_a_prompt_that_fills_the_context_is_not_sent():
    agent, sampler = policy_agent(Renderer(digits(), "plain"), [], context_length=4)
    episode = await play(Talk("123456"), agent)
    (turn,) = episode.trajectory("agent").turns
    assert (turn.end, turn.action, turn.observation.tokens) == (TurnEnd.CONTEXT_OVERFLOW, (), (1, 2, 3, 4, 5, 6))
    assert episode.end is EpisodeEnd.TRUNCATED
    assert sampler.requests == []


async def test_a_samplers_own_context_overflow_truncates_too():
    class Full:
        async def sample(self, request):
            raise ContextOverflowError("prompt 3, context 2")

    spec = PolicySeat(sampler=Full(), policy="p", snapshot="s")
    agent = PolicyAgent(spec, Renderer(digits(), "plain"), seed=0)
    episode = await play(Talk("123"), agent)
    assert episode.end is EpisodeEnd.TRUNCATED
    assert episode.trajectory("agent").turns[0].end is TurnEnd.CONTEXT_OVERFLOW


async def test_a_prompt_beyond_max_prompt_is_refused_with_both_lengths():
    agent, sampler = policy_agent(Renderer(digits(), "plain"), [], max_prompt=4)
    with pytest.raises(ContextOverflowError, match="the prompt has 6 tokens and max_prompt is 4"):
        await agent.act(user("123456"))
    assert sampler.requests == []


async def test_keep_last_gives_exactly_the_last_tokens():
    agent, sampler = policy_agent(Renderer(digits(), "plain"), [(7,)], max_prompt=4, overflow="keep_last")
    action = await agent.act(user("123456"))
    assert sampler.requests[0].prompt == (3, 4, 5, 6)
    assert action.turns[0].observation.tokens == (3, 4, 5, 6)


async def test_keep_last_starts_a_datum_at_each_cut_and_trains_every_token_once():
    renderer = Renderer(digits(), "plain")
    agent, sampler = policy_agent(renderer, [(7,), (8,), (9,)], max_prompt=5, overflow="keep_last")
    episode = await play(Talk("12", "34", "56"), agent)
    assert [request.prompt for request in sampler.requests] == [(1, 2), (1, 2, 7, 3, 4), (3, 4, 8, 5, 6)]
    turns = episode.trajectory("agent").turns
    assert [turn.restarts for turn in turns] == [False, False, True]
    datums = rl_datums(episode.trajectory("agent"), 1.0)
    trained = [target for datum in datums for target, bit in zip(datum.targets, datum.mask, strict=True) if bit]
    assert trained == [7, 8, 9]
    for prompt in (request.prompt for request in sampler.requests[1:]):
        assert any(datum.model_input.tokens[-len(prompt) :] == prompt for datum in datums)


def test_limits_that_leave_no_room_for_a_reply_are_refused():
    with pytest.raises(ConfigError, match="max_prompt is 8 and context_length is 8"):
        policy_agent(Renderer(digits(), "plain"), [], max_prompt=8, context_length=8)


async def test_a_demonstration_has_the_tokens_that_a_policy_would_have_said_it_in():
    renderer = Renderer(digits(), "plain")

    async def demonstrate():
        return "5"

    shown = await play(Talk("1", "7"), DemonstrationAgent(demonstrate, renderer))
    agent, _ = policy_agent(renderer, [(5, 10), (5, 10)])
    said = await play(Talk("1", "7"), agent)
    for one, other in zip(shown.trajectory("agent").turns, said.trajectory("agent").turns, strict=True):
        assert (one.observation, one.action, one.text) == (other.observation, other.action, other.text)
        assert one.logprobs is None
    assert shown.trajectory("agent").trainable
    assert shown.trajectory("agent").policy is None
