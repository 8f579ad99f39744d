from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from tinker_actors.data import Message, ToolCall
from tinker_actors.errors import ModelError
from tinker_actors.models.renderer import Renderer
from tinker_actors.models.tiny import CHARACTERS
from tinker_actors.models.tokenizer import Tokenizer

SPECIAL = ("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "</a>")

# A system turn is injected where none is given, as SmolLM2's template does.
INJECTS_SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nBe kind<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Reasoning is kept only after the last user turn, as Qwen3's template does.
STRIPS_THINKING = """\
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# The text begins with the beginning-of-sequence token, contents are trimmed and a space precedes the end token.
BOS_FIRST = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'user' %}{{ '[INST] ' + message.content | trim + ' [/INST]' }}"
    "{% elif message.role == 'assistant' %}{{ ' ' + message.content | trim + ' ' + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)

TRIMS = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Case T6: the closing is one token, and the line break after it is the template's.
TAGS = (
    "{% for message in messages %}{% if message.role == 'user' %}{{ '<u>' + message.content + '</u>\\n' }}"
    "{% else %}{{ '<a>' + message.content + '</a>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<a>' }}{% endif %}"
)
TAGS_IN_LETTERS = TAGS.replace("</a>", "</b>")  # the same with a closing that is no token of its own

TEMPLATES = {
    "chatml": "chatml",
    "injects": INJECTS_SYSTEM,
    "trims": TRIMS,
    "tags": TAGS,
    "letters": TAGS_IN_LETTERS,
    "plain": "plain",
}


def character_tokenizer(merges: list[tuple[str, str]] | None = None, *, stop: str | None = None) -> Tokenizer:
    tokens = [*SPECIAL, *CHARACTERS, *(a + b for a, b in merges or [])]
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab=vocab, merges=merges or []))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    extra = [] if stop is None else [vocab[stop]]
    return Tokenizer(backend, eos_token="</s>", bos_token="<s>", pad_token="<pad>", extra_stop_ids=extra)


TOKENIZER = character_tokenizer()


def user(content: str) -> Message:
    return Message(role="user", content=content)


def assistant(content: str) -> Message:
    return Message(role="assistant", content=content)


def play(renderer: Renderer, turns: list[tuple[str, list[int]]]) -> tuple[str, list[int]]:
    """Run a conversation of (user text, sampled tokens); returns the text and a mask of what was sampled."""
    first, sampled = turns[0]
    messages = [user(first)]
    tokens = list(renderer.start(messages).tokens)
    mask = [0] * len(tokens)
    for index, (_, sampled) in enumerate(turns):
        tokens, mask = [*tokens, *sampled], mask + [1] * len(sampled)
        messages.append(assistant(renderer.parse(sampled)))
        if index + 1 < len(turns):
            new = [user(turns[index + 1][0])]
            more = renderer.extend(tokens, messages, new, sampled)
            assert not more.restarts
            tokens, mask = [*tokens, *more.tokens], mask + [0] * len(more.tokens)
            messages += new
    return renderer.tokenizer.decode(tokens), mask


def test_chatml_turns_hold_one_end_token_each_and_the_newline_is_the_templates() -> None:
    renderer = Renderer(TOKENIZER, "chatml")
    end = TOKENIZER.token_id("<|im_end|>")
    assert renderer.stop_ids == (end, TOKENIZER.eos_id)
    text, mask = play(renderer, [("1+1", [*TOKENIZER.encode("3"), end]), ("no", [*TOKENIZER.encode("2"), end])])
    assert text == (
        "<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n3<|im_end|>\n"
        "<|im_start|>user\nno<|im_end|>\n<|im_start|>assistant\n2<|im_end|>"
    )
    assert sum(mask) == 4


def test_closing_after_a_sampled_closing_tag_is_only_the_line_break() -> None:  # case T6
    renderer = Renderer(TOKENIZER, TAGS)
    sampled = TOKENIZER.encode("y</a>")
    held = [*renderer.start([user("x")]).tokens, *sampled]
    more = renderer.extend(held, [user("x"), assistant("y")], [user("z")], sampled)
    assert renderer.stop_ids[0] == TOKENIZER.token_id("</a>")
    assert TOKENIZER.decode(more.tokens) == "\n<u>z</u>\n<a>"


def test_closing_tag_sampled_in_several_tokens_is_not_written_twice() -> None:
    renderer = Renderer(TOKENIZER, TAGS_IN_LETTERS)
    assert (renderer.stop_ids, renderer.stop_text) == ((TOKENIZER.eos_id,), "</b>")
    sampled = TOKENIZER.encode("y</b>")
    held = [*renderer.start([user("x")]).tokens, *sampled]
    whole = TOKENIZER.decode([*held, *renderer.extend(held, [user("x"), assistant("y")], [user("z")], sampled).tokens])
    assert whole.count("</b>") == 1
    cut = TOKENIZER.encode("y</")
    held = [*renderer.start([user("x")]).tokens, *cut]
    more = renderer.extend(held, [user("x"), assistant("y</")], [user("z")], cut)
    assert TOKENIZER.decode(more.tokens) == "</b>\n<u>z</u>\n<a>"


@pytest.mark.parametrize(("last", "appended"), [(">\n", "<u>z</u>\n<a>"), (">.", "\n<u>z</u>\n<a>")])
def test_closing_tag_whose_last_token_says_more_is_not_written_twice(last: str, appended: str) -> None:
    tokenizer = character_tokenizer([(">", "\n"), (">", ".")])
    renderer = Renderer(tokenizer, TAGS_IN_LETTERS)
    sampled = tokenizer.encode("y</b" + last)  # T11: the token that ended the sample stays whole
    assert tokenizer.token_text(sampled[-1]) == last
    held = [*renderer.start([user("x")]).tokens, *sampled]
    more = renderer.extend(held, [user("x"), assistant("y")], [user("z")], sampled)
    assert not more.restarts
    assert tokenizer.decode(more.tokens) == appended


def test_sample_cut_by_length_is_closed_by_template_tokens() -> None:
    renderer = Renderer(TOKENIZER, "chatml")
    text, mask = play(renderer, [("hi", TOKENIZER.encode("12")), ("go on", [])])
    assert "assistant\n12<|im_end|>\n<|im_start|>user\ngo on<|im_end|>" in text
    assert sum(mask) == 2


def test_other_stop_token_is_kept_and_the_turn_still_closed() -> None:
    renderer = Renderer(TOKENIZER, "chatml")
    sampled = [*TOKENIZER.encode("4"), TOKENIZER.eos_id]
    held = [*renderer.start([user("x")]).tokens, *sampled]
    more = renderer.extend(held, [user("x"), assistant("4")], [user("z")], sampled)
    assert TOKENIZER.decode(more.tokens).startswith("<|im_end|>\n<|im_start|>user")


def test_sampled_tokens_are_kept_where_encoding_would_merge_them() -> None:  # case T1
    tokenizer = character_tokenizer([("a", "b")])
    merged = tokenizer.token_id("ab")
    a, b = tokenizer.token_id("a"), tokenizer.token_id("b")
    assert tokenizer.encode("ab") == [merged]
    renderer = Renderer(tokenizer, "plain")
    prompt = list(renderer.start([user("x")]).tokens)
    more = renderer.extend([*prompt, a, b], [user("x"), assistant("ab")], [user("y")], [a, b])
    whole = [*prompt, a, b, *more.tokens]
    assert whole == [*prompt, a, b, tokenizer.token_id("y")]
    assert merged not in whole


def test_injected_system_turn_appears_once() -> None:
    renderer = Renderer(TOKENIZER, INJECTS_SYSTEM)
    text, _ = play(renderer, [("a", TOKENIZER.encode("b<|im_end|>")), ("c", TOKENIZER.encode("d<|im_end|>"))])
    assert text.count("Be kind") == 1
    assert text.startswith("<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\na")


def test_stripped_reasoning_restarts_with_the_whole_prompt() -> None:
    renderer = Renderer(TOKENIZER, STRIPS_THINKING)
    sampled = TOKENIZER.encode("<think>hm</think>\n4<|im_end|>")
    messages = [user("2+2"), assistant("<think>hm</think>\n4")]
    held = [*renderer.start(messages[:1]).tokens, *sampled]
    more = renderer.extend(held, messages, [user("sure?")], sampled)
    assert more.restarts
    assert TOKENIZER.decode(more.tokens) == (
        "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
        "<|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert more.tokens == renderer.start([*messages, user("sure?")]).tokens


def test_reasoning_kept_for_a_tool_result_does_not_restart() -> None:
    renderer = Renderer(TOKENIZER, STRIPS_THINKING)
    sampled = TOKENIZER.encode("<think>hm</think>call<|im_end|>")
    messages = [user("2+2"), assistant("<think>hm</think>call")]
    held = [*renderer.start(messages[:1]).tokens, *sampled]
    more = renderer.extend(held, messages, [Message(role="tool", content="4", tool_call_id="1")], sampled)
    assert not more.restarts
    assert TOKENIZER.decode(more.tokens) == "\n<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n"


def test_trimmed_content_stays_as_it_was_sampled() -> None:
    renderer = Renderer(TOKENIZER, TRIMS)
    text, _ = play(renderer, [("a", TOKENIZER.encode("  4\n<|im_end|>")), ("c", TOKENIZER.encode("d<|im_end|>"))])
    assert "assistant\n  4\n<|im_end|>\n<|im_start|>user\nc" in text


def test_bos_first_template_gives_one_bos_and_the_same_ids_as_its_text() -> None:  # case T9
    renderer = Renderer(TOKENIZER, BOS_FIRST)
    tokens = list(renderer.start([user("hi")]).tokens)
    assert tokens[0] == TOKENIZER.bos_id
    assert tokens == TOKENIZER.encode("<s>[INST] hi [/INST]")
    text, _ = play(renderer, [("hi", TOKENIZER.encode(" yo </s>")), ("bye", TOKENIZER.encode(" so"))])
    assert text == "<s>[INST] hi [/INST] yo </s>[INST] bye [/INST] so"


LETTERS = {letter: index for index, letter in enumerate("▁abcdefghijklmnopqrstuvwxyz\n ")}


@pytest.mark.parametrize("spaces", ["first", "always", "normalizer"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_tokenizer_that_begins_texts_with_a_space_writes_none_where_a_text_goes_on(spaces: str, closed: bool) -> None:
    backend = Backend(models.BPE(vocab=LETTERS, merges=[]))
    if spaces == "normalizer":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=spaces)
        backend.decoder = decoders.Metaspace(prepend_scheme=spaces)
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL[3:5]])
    renderer = Renderer(Tokenizer(backend, eos_token="<|im_end|>"), TRIMS)
    action = renderer.encode_action("yo")
    assert [renderer.tokenizer.token_text(token) for token in action] == ["y", "o", "<|im_end|>"]
    sampled = action if closed else action[:-1]
    held = [*renderer.start([user("hi")]).tokens, *sampled]
    more = renderer.extend(held, [user("hi"), assistant("yo")], [user("bye")], sampled)
    assert not more.restarts
    whole = renderer.start([user("hi"), assistant("yo"), user("bye")]).tokens  # T9: the same ids either way
    assert (*held, *more.tokens) == whole


def test_a_text_begins_with_one_bos_where_the_model_expects_one() -> None:
    backend = Backend(models.BPE(vocab=LETTERS, merges=[]))
    backend.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    plain = Tokenizer(backend, bos_token="<s>")
    backend = Backend.from_str(backend.to_str())
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", plain.bos_id or 0)])
    expects = Tokenizer(backend, bos_token="<s>")
    assert (plain.adds_bos, expects.adds_bos) == (False, True)
    assert plain.encode_from_start("ab") == [1, 2]
    assert expects.encode_from_start("ab") == expects.encode_from_start("<s>ab") == [expects.bos_id, 1, 2]


def test_refused_role_names_the_template_and_the_roles() -> None:
    with pytest.raises(ModelError, match=r"\[system, user\].*Only user and assistant"):
        Renderer(TOKENIZER, BOS_FIRST).start([Message(role="system", content="s"), user("u")])


def test_plain_puts_contents_one_after_the_other() -> None:
    renderer = Renderer(TOKENIZER, "plain")
    assert renderer.stop_ids == (TOKENIZER.eos_id,)
    text, mask = play(renderer, [("1+1=", TOKENIZER.encode("2</s>")), ("2+2=", TOKENIZER.encode("4</s>"))])
    assert text == "1+1=2</s>2+2=4</s>"
    assert sum(mask) == 4


def test_action_text_leaves_out_stop_and_special_tokens() -> None:
    renderer = Renderer(TOKENIZER, "chatml")
    assert renderer.parse(TOKENIZER.encode("4 2<|im_end|>")) == "4 2"
    assert renderer.parse(TOKENIZER.encode("<s>4<|im_end|>x")) == "4x"
    assert renderer.parse([]) == ""


def test_written_action_ends_with_the_stop_token_and_parses_back() -> None:
    renderer = Renderer(TOKENIZER, "chatml")
    tokens = renderer.encode_action("go left")
    assert tokens[-1] == TOKENIZER.token_id("<|im_end|>")
    assert renderer.parse(tokens) == "go left"


def test_tool_calls_are_written_as_sampled_and_later_by_the_template() -> None:
    renderer = Renderer(TOKENIZER, "chatml")
    call = ToolCall(id="1", name="add", arguments='{"a": 1}')
    text = '\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    sampled = TOKENIZER.encode(text + "<|im_end|>")
    messages = [user("x"), Message(role="assistant", content="", tool_calls=(call,))]
    held = [*renderer.start(messages[:1]).tokens, *sampled]
    result = Message(role="tool", content="2", tool_call_id="1")
    more = renderer.extend(held, messages, [result], sampled)
    assert TOKENIZER.decode([*held, *more.tokens]) == TOKENIZER.decode(renderer.start([*messages, result]).tokens)


def test_template_that_writes_arguments_as_text_gets_text() -> None:
    call = ToolCall(id="1", name="add", arguments='{"a":  1}')
    message = Message(role="assistant", content="", tool_calls=(call,))
    as_text = "{% for call in messages[0].tool_calls or [] %}{{ 'call ' + call.function.arguments }}{% endfor %}"
    assert TOKENIZER.decode(Renderer(TOKENIZER, as_text).start([message]).tokens) == 'call {"a":  1}'


def test_stop_token_that_opens_the_next_turn_is_not_written_twice() -> None:
    template = (  # turns have no closing: the next role's token ends them
        "{% for message in messages %}"
        "{{ '<s>' if message.role == 'user' else '</a>' }}{{ message.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '</a>' }}{% endif %}"
    )
    tokenizer = character_tokenizer(stop="<s>")
    renderer = Renderer(tokenizer, template)
    sampled = tokenizer.encode("4<s>")
    held = [*renderer.start([user("x")]).tokens, *sampled]
    more = renderer.extend(held, [user("x"), assistant("4")], [user("y")], sampled)
    assert tokenizer.decode([*held, *more.tokens]) == "<s>x</a>4<s>y</a>"


def test_tools_and_variables_reach_the_template() -> None:
    template = "{{ tools | tojson }}{{ mode }}{{ messages[0].content }}"
    renderer = Renderer(TOKENIZER, template, tools=[{"name": "t<1>"}], variables={"mode": "!"})
    assert TOKENIZER.decode(renderer.start([user("u")]).tokens) == json.dumps([{"name": "t<1>"}]) + "!u"


def test_generation_marks_and_the_date_render() -> None:
    template = "{% generation %}{{ messages[0].content }}{% endgeneration %}{{ strftime_now('%Y') }}"
    text = TOKENIZER.decode(Renderer(TOKENIZER, template).start([user("u")]).tokens)
    assert text[0] == "u"
    assert text[1:].isdecimal()


def test_template_cannot_reach_python_internals() -> None:
    with pytest.raises(ModelError, match="can't render"):
        Renderer(TOKENIZER, "{{ ''.__class__.__mro__ }}")


@pytest.mark.parametrize(
    ("template", "said"),
    [("{% for", "can't be compiled"), ("chatlm", "unknown chat template"), (None, "no chat template of its own")],
)
def test_unusable_template_is_refused_with_its_reason(template: str | None, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        Renderer(TOKENIZER, template)


def test_named_template_without_its_tokens_is_refused() -> None:
    from tinker_actors.models import load_tokenizer

    with pytest.raises(ModelError, match="im_start"):
        Renderer(load_tokenizer("tiny-llama"), "chatml")


def test_extend_refuses_a_conversation_that_the_assistant_did_not_end() -> None:
    renderer = Renderer(TOKENIZER, "chatml")
    with pytest.raises(ModelError, match="user"):
        renderer.extend([1], [user("x")], [user("y")], [1])
    with pytest.raises(ModelError, match="not the end"):
        renderer.extend([1, 2], [user("x"), assistant("y")], [user("y")], [3])


texts = st.text(alphabet="ab 4\n<>/", max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(TEMPLATES)),
    turns=st.lists(st.tuples(texts, texts, st.booleans()), min_size=1, max_size=4),
)
def test_extending_only_appends_and_each_sampled_token_is_there_once(
    name: str, turns: list[tuple[str, str, bool]]
) -> None:
    renderer = Renderer(TOKENIZER, TEMPLATES[name])
    sampled = [[*TOKENIZER.encode(action), *renderer.stop_ids[: int(ends)]] for _, action, ends in turns]
    text, mask = play(renderer, [(said, tokens) for (said, _, _), tokens in zip(turns, sampled, strict=True)])
    assert sum(mask) == sum(len(tokens) for tokens in sampled)
    if all(ends for _, _, ends in turns) and name in ("chatml", "injects", "tags"):
        conversation = [message for said, action, _ in turns for message in (user(said), assistant(action))]
        whole = TOKENIZER.decode(renderer.start(conversation).tokens)
        assert whole.startswith(text)
