"""Prompts of model families by the package `renderers`, and what is read from their actions."""

import string
import sys

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from tinker_actors.algorithms.chat_datums import chat_datums
from tinker_actors.data import Image, Message, ToolCall, ToolList, TurnEnd
from tinker_actors.data.chat_rows import ChatRow
from tinker_actors.environments import PolicyAgent, PolicySeat
from tinker_actors.environments.tools import HermesFormat
from tinker_actors.errors import ModelError
from tinker_actors.models import FamilyRenderer, Renderer, Tokenizer, load_renderer
from tinker_actors.sampling import Sample, SamplingParams, SamplingReply

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
QUESTION = Message(role="user", content="2+2?")
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
KIMI = [
    *("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
]

MARKUP = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def tokenizer(special: list[str], plain: list[str]) -> Tokenizer:
    """One token for each byte, and the markup."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(special)
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    return Tokenizer(backend, eos_token=special[0])


@pytest.fixture(scope="module")
def qwen() -> Tokenizer:
    plain = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
    return tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], plain)


def test_a_conversation_goes_on_from_the_tokens_that_were_sampled(qwen):
    renderer = load_renderer(qwen, "renderers:qwen3")
    assert isinstance(renderer, FamilyRenderer)
    prompt = renderer.start([QUESTION])
    assert qwen.decode(prompt.tokens) == "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    sampled = [*qwen.encode(f"I add. {CALL}"), renderer.stop_ids[0]]
    assert renderer.stop_text == "<|im_end|>"
    held = [*prompt.tokens, *sampled]
    asked = [QUESTION, Message(role="assistant", content=renderer.told(sampled, renderer.parse(sampled)))]
    more = renderer.extend(held, asked, [Message(role="tool", content="4", tool_call_id="0")], sampled)
    assert not more.restarts
    assert qwen.decode(more.tokens) == (
        "\n<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("spaces", ["first", "always"])
@pytest.mark.parametrize(
    ("family", "special"),
    [
        ("qwen3?enable_thinking=false", ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<think>", "</think>"]),
        ("kimi-k2", KIMI[::-1]),  # it writes every content as a text of its own
    ],
)
def test_a_written_action_has_the_tokens_that_the_family_gives_it(spaces, family, special):
    letters = {letter: index for index, letter in enumerate("\u2581\n" + string.ascii_letters + string.punctuation)}
    backend = Backend(models.BPE(vocab=letters, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=spaces)
    backend.decoder = decoders.Metaspace(prepend_scheme=spaces)
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in [*special, *MARKUP]])
    renderer = FamilyRenderer(Tokenizer(backend, eos_token="<|im_end|>"), family)
    prompt = renderer.start([QUESTION]).tokens
    asked = [QUESTION, Message(role="assistant", content="four")]
    whole = renderer.start([*asked, Message(role="user", content="so")]).tokens
    action = renderer.encode_action("four")
    assert (*prompt, *action) == whole[: len(prompt) + len(action)]


def test_a_turn_that_was_cut_short_is_closed(qwen):
    renderer = load_renderer(qwen, "renderers:qwen3?enable_thinking=false")
    prompt = renderer.start([QUESTION])
    assert qwen.decode(prompt.tokens).endswith("assistant\n<think>\n\n</think>\n\n")
    sampled = qwen.encode("fou")
    asked = [QUESTION, Message(role="assistant", content="fou")]
    more = renderer.extend([*prompt.tokens, *sampled], asked, [Message(role="user", content="so?")], sampled)
    assert not more.restarts
    assert qwen.decode(more.tokens).startswith("<|im_end|>\n<|im_start|>user\nso?<|im_end|>\n")


def test_where_the_family_drops_earlier_reasoning_the_prompt_restarts(qwen):
    renderer = load_renderer(qwen, "renderers:qwen3")
    sampled = [*qwen.encode(f"<think>\nhm\n</think>\n\nlook\n{CALL}"), renderer.stop_ids[0]]
    told = renderer.told(sampled, renderer.parse(sampled))
    assert told == f"<think>\nhm\n</think>\nlook\n{CALL}"
    held = [*renderer.start([QUESTION]).tokens, *sampled]
    asked = [QUESTION, Message(role="assistant", content=told)]
    more = renderer.extend(held, asked, [Message(role="user", content="more")], sampled)
    assert more.restarts
    assert qwen.decode(more.tokens) == (
        f"<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\nlook\n{CALL}<|im_end|>\n"
        "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    )


def test_calls_are_read_from_tokens_and_those_that_are_malformed_stay_visible(qwen):
    renderer = load_renderer(qwen, "renderers:qwen3")
    spelled = [index for letter in "<tool_call>" for index in qwen.encode(letter)]
    assert renderer.told(spelled, "<tool_call>") == "<tool_call>"
    broken = renderer.told(qwen.encode('<tool_call>\n{"name": "add", \n</tool_call>'), "")
    (call,) = HermesFormat().read(broken, {}).calls
    assert call.name == ""
    assert "add" in call.arguments


@pytest.mark.parametrize("name", ["[]", "{}", "null", "1", "NaN", '"\\ud800"', '"add", "more": "\\ud800"', "[" * 3000])
def test_whatever_a_policy_calls_the_conversation_goes_on(qwen, name):
    renderer = load_renderer(qwen, "renderers:qwen3").with_tools(ToolList(schemas=(ADD,), described=""))
    for arguments in ("{}", '"\\ud800"', "NaN", "[]"):
        text = f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
        sampled = [*qwen.encode(text), renderer.stop_ids[0]]
        told = renderer.told(sampled, renderer.parse(sampled))
        told.encode()  # it is text
        asked = [QUESTION, Message(role="assistant", content=told)]
        held = [*renderer.start([QUESTION]).tokens, *sampled]
        assert not renderer.extend(
            held, asked, [Message(role="tool", content="no", tool_call_id="0")], sampled
        ).restarts
        assert renderer.extend(held, asked, [Message(role="user", content="no")], sampled).tokens


def test_calls_in_markup_that_texts_do_not_show_reach_the_environment():
    tokens = tokenizer(["<|endoftext|>", *KIMI], [])
    renderer = load_renderer(tokens, "renderers:kimi-k2").with_tools(ToolList(schemas=(ADD,), described=""))
    assert '"name":"add"' in tokens.decode(renderer.start([QUESTION]).tokens).replace(" ", "")
    markup = (
        "Adding.<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
        '{"a": 2}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
    )
    sampled = tokens.encode(markup)
    text = renderer.parse(sampled)
    assert "tool_call" not in text
    told = renderer.told(sampled, text)
    (call,) = HermesFormat().read(told, {}).calls
    assert (call.name, call.arguments) == ("add", '{"a": 2}')
    whole = renderer.start([QUESTION, Message(role="assistant", content=told), Message(role="user", content="go on")])
    assert "<|tool_call_argument_begin|>" in tokens.decode(whole.tokens)


class Sampler:
    """Samples what it was given."""

    def __init__(self, tokens, text):
        self.tokens, self.text = tuple(tokens), text

    async def sample(self, request):
        sample = Sample(tokens=self.tokens, logprobs=(0.0,) * len(self.tokens), text=self.text, end=TurnEnd.STOP)
        return SamplingReply(
            samples=(sample,), snapshot=request.snapshot, snapshot_step=0, prompt_tokens=len(request.prompt), seed=0
        )


async def test_an_agent_acts_with_what_the_renderer_tells_and_keeps_the_tokens():
    tokens = tokenizer(["<|endoftext|>", *KIMI], [])
    renderer = load_renderer(tokens, "renderers:kimi-k2")
    begin, middle, end = (f"<|tool_call_{part}|>" for part in ("begin", "argument_begin", "end"))
    section = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|><|im_end|>"
    sampled = tokens.encode(f'{section[0]}{begin}functions.add:0{middle}{{"a": 2}}{end}{section[1]}')
    spec = PolicySeat(
        sampler=Sampler(sampled, renderer.parse(sampled)),
        policy="p",
        snapshot="tinker://p/sampler_weights/000001",
        params=SamplingParams(max_tokens=99),
    )
    agent = PolicyAgent(spec, renderer, seed=0)
    await agent.equip(ToolList(schemas=(ADD,), described=""))
    action = await agent.act([QUESTION])
    assert action.text == CALL
    assert action.turns[0].action == tuple(sampled)
    again = await agent.act([Message(role="tool", content="4", tool_call_id="0", name="add")])
    assert not again.turns[0].restarts
    assert "4" in tokens.decode(again.turns[0].observation.tokens)


def test_conversations_are_learned_as_the_family_writes_them(qwen):
    call = ToolCall(id="0", name="add", arguments='{"a": 2}')
    row = ChatRow(
        messages=(
            QUESTION,
            Message(role="assistant", content="I add.", tool_calls=(call,)),
            Message(role="tool", content="4", tool_call_id="0"),
            Message(role="assistant", content="4"),
        ),
        trained=(False, True, False, True),
    )
    renderer = load_renderer(qwen, "renderers:qwen3?enable_thinking=false", tools=(ADD,))
    (datum,) = chat_datums(row, renderer)
    learned = [t for t, weight in zip(datum.targets, datum.weights, strict=True) if weight]
    assert qwen.decode(learned) == f"I add.\n{CALL}<|im_end|>4<|im_end|>"


def test_what_does_not_fit_is_named(qwen, monkeypatch):
    assert isinstance(load_renderer(qwen, "chatml"), Renderer)
    for family, why in {
        "nope": "No renderer config registered for name='nope'",
        "auto": "'auto' is no family; name the model's",
        "default": "'default' is no family",
        "custom?import_path=here.py:Name": "'custom' is no family",
        "qwen3?think=no": "think Extra inputs are not permitted",
        "llama-3": "Special token '<|begin_of_text|>' not found",
    }.items():
        with pytest.raises(ModelError) as refused:
            load_renderer(qwen, f"renderers:{family}")
        assert f"'renderers:{family}' can't be used" in str(refused.value)
        assert why in str(refused.value)
    renderer = load_renderer(qwen, "renderers:qwen3")
    picture = Message.of(Image.of(np.zeros((8, 8), np.uint8)), "what?")
    with pytest.raises(ModelError, match="renders text only"):
        renderer.start([picture])
    with pytest.raises(ModelError, match="2 sampled tokens are not the end of the 3 tokens held"):
        renderer.extend([1, 2, 3], [QUESTION], [QUESTION], [3, 2])
    with pytest.raises(ModelError, match="can't be rendered"):
        renderer.start([])
    monkeypatch.setitem(sys.modules, "renderers", None)
    with pytest.raises(ModelError, match=r"pip install 'tinker-actors\[renderers\]'"):
        load_renderer(qwen, "renderers:qwen3")
