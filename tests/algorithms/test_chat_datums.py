"""Masks of written conversations, token by token."""

from __future__ import annotations

from typing import Any

import pytest

from tinker_actors.algorithms.chat_datums import Dropped, chat_datums, fitted
from tinker_actors.data import Datum
from tinker_actors.data.chat_rows import read_chat_row
from tinker_actors.errors import DataError
from tinker_actors.models import Renderer, load_tokenizer

TOKENIZER = load_tokenizer("tiny-llama")
FORGETFUL = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('/')[-1] }}{% else %}{{ m.content }}{% endif %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TURNS = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "ab"},
    {"role": "user", "content": "more"},
    {"role": "assistant", "content": "cd"},
]


def datums(messages: list[dict[str, Any]] = TURNS, template: str | None = None, **more: Any) -> tuple[Datum, ...]:
    return chat_datums(read_chat_row({"messages": messages}), Renderer(TOKENIZER, template), **more)


def shown(datum: Datum) -> str:
    """All tokens as text, with those that are trained in brackets."""
    first = TOKENIZER.token_text(datum.model_input.tokens[0])
    texts = [
        f"[{TOKENIZER.token_text(target)}]" if weight else TOKENIZER.token_text(target)
        for target, weight in zip(datum.targets, datum.weights or (), strict=True)
    ]
    return first + "".join(texts)


def test_every_assistant_turn_is_trained_with_its_stop_token_and_nothing_else_is():
    (datum,) = datums()
    first, second = "<|user|>hi<|end|><|assistant|>[a][b][<|end|>]", "<|user|>more<|end|><|assistant|>[c][d][<|end|>]"
    assert shown(datum) == first + second


def test_only_the_last_turn_is_trained_on_request_over_the_same_tokens():
    (datum,), (every,) = datums(train_on="last"), datums()
    assert shown(datum) == "<|user|>hi<|end|><|assistant|>ab<|end|><|user|>more<|end|><|assistant|>[c][d][<|end|>]"
    assert (datum.model_input, datum.targets) == (every.model_input, every.targets)


def test_a_turn_of_weight_0_is_read_and_not_trained():
    (datum,) = datums([TURNS[0], {**TURNS[1], "weight": 0}, *TURNS[2:]])
    assert shown(datum) == "<|user|>hi<|end|><|assistant|>ab<|end|><|user|>more<|end|><|assistant|>[c][d][<|end|>]"
    (datum,) = datums([*TURNS[:3], {**TURNS[3], "weight": 0}])
    assert shown(datum) == "<|user|>hi<|end|><|assistant|>[a][b][<|end|>]"
    with pytest.raises(DataError, match="nothing is to be learned"):
        datums([*TURNS[:3], {**TURNS[3], "weight": 0}], train_on="last")


def test_a_template_that_rewrites_history_gives_a_datum_for_each_stretch():
    messages = [TURNS[0], {"role": "assistant", "content": "no/ab"}, *TURNS[2:]]
    first, second = datums(messages, FORGETFUL)
    assert shown(first) == "<|user|>hi<|end|><|assistant|>[n][o][/][a][b][<|end|>]"
    assert shown(second) == "<|user|>hi<|end|><|assistant|>ab<|end|><|user|>more<|end|><|assistant|>[c][d][<|end|>]"
    (last,) = datums(messages, FORGETFUL, train_on="last")
    assert shown(last) == shown(second)


def test_tool_calls_are_trained_as_the_template_writes_them():
    call = {"id": "x", "function": {"name": "add", "arguments": {"a": 1}}}
    tool = {"role": "tool", "content": "2", "tool_call_id": "x"}
    (datum,) = datums([TURNS[0], {"role": "assistant", "content": "", "tool_calls": [call]}, tool, TURNS[3]])
    text = shown(datum).replace("][", "").replace("[", "").replace("]", "")
    assert text == (
        '<|user|>hi<|end|><|assistant|><tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|end|>'
        "<|tool|>2<|end|><|assistant|>cd<|end|>"
    )
    assert "[>][<|end|>]<|tool|>2<|end|><|assistant|>[c][d][<|end|>]" in shown(datum)


def test_a_long_example_is_refused_dropped_or_cut_as_the_policy_says():  # T13
    made = datums()
    whole = (*made[0].model_input.tokens, made[0].targets[-1])
    length = len(whole)
    assert fitted(made, length, "refuse") == made
    with pytest.raises(DataError, match=f"{length} tokens, and {length - 1} is the limit"):
        fitted(made, length - 1, "refuse")
    assert isinstance(fitted(made, length - 1, "drop"), Dropped)
    for policy, tokens in (("keep_first", whole[:9]), ("keep_last", whole[-9:])):
        kept = fitted(made, 9, policy)  # type: ignore[arg-type]
        assert not isinstance(kept, Dropped)
        assert (*kept[0].model_input.tokens, kept[0].targets[-1]) == tokens
    assert shown(fitted(made, 9, "keep_first")[0]) == "<|user|>hi<|end|><|assistant|>[a][b][<|end|>]<|user|>"  # type: ignore[index]
    assert shown(fitted(made, 4, "keep_last")[0]) == "<|assistant|>[c][d][<|end|>]"  # type: ignore[index]
    assert isinstance(fitted(made, 4, "keep_first"), Dropped)  # nothing to be learned is left
