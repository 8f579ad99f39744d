"""Log-probs of given tokens, tokens as they are drawn, and text that a grammar allows."""

import json

import pytest
from sampling_harness import ask

from tinker_actors.sampling import InvalidRequestError, SamplingRequest
from tinker_actors.sampling.grammars import json_schema, regex
from tinker_actors.sampling.requests import SamplingParams

PROMPT = tuple(range(9, 49))


@pytest.fixture
def served(harness, publisher):
    one = publisher.lora("one", seed=2)
    entry = harness(context_length=128, max_step_tokens=16)
    entry.refresh(one.handle)
    return entry, one


def test_prompt_tokens_are_scored_at_temperature_one_beside_the_samples(served):
    engine, one = served
    params = SamplingParams(max_tokens=3, temperature=0.5, seed=1, default_stops=False)
    asked = SamplingRequest(prompt=PROMPT, snapshot=one.handle, params=params, num_samples=2, prompt_logprobs=True)
    plain = ask(one.handle, PROMPT, 2, max_tokens=3, temperature=0.5, seed=1, default_stops=False)
    scored, unscored = engine.serve([asked, plain])
    assert scored.prompt_logprobs == pytest.approx(one.logprobs(PROMPT[:1], list(PROMPT[1:])), abs=1e-5)
    assert unscored.prompt_logprobs == ()
    assert scored.samples == unscored.samples


def test_targets_are_scored_at_the_requests_temperature_and_nothing_is_sampled(served):
    engine, one = served
    targets = (50, 60, 70, 50)
    request = SamplingRequest(
        prompt=PROMPT, snapshot=one.handle, targets=targets, params=SamplingParams(temperature=0.7)
    )
    (reply,) = engine.serve([request])
    assert reply.target_logprobs == pytest.approx(one.logprobs(PROMPT, list(targets), 0.7), abs=1e-5)
    assert reply.samples[0].tokens == ()


def test_streamed_tokens_are_those_of_the_reply(served):
    engine, one = served
    told = []
    engine.engine._progress = told.extend
    request = ask(one.handle, PROMPT, 3, max_tokens=6, seed=3, default_stops=False)
    ticket = engine.engine.submit(request, streams=True)
    engine.engine.start()
    _, reply = engine.answers.get(timeout=20)
    assert {entry for entry, _ in told} == {ticket}
    for index, sample in enumerate(reply.samples):
        mine = [token for _, token in told if token.index == index]
        assert tuple(token.token for token in mine) == sample.tokens
        assert tuple(token.logprob for token in mine) == sample.logprobs


def test_the_most_likely_tokens_come_with_each_sampled_one(served):
    engine, one = served
    (reply,) = engine.serve([ask(one.handle, PROMPT, max_tokens=4, temperature=0, logprobs=3, default_stops=False)])
    sample = reply.samples[0]
    for token, logprob, tops in zip(sample.tokens, sample.logprobs, sample.top_logprobs, strict=True):
        assert len(tops) == 3
        assert tops[0] == (token, pytest.approx(logprob, abs=1e-6))


def test_a_grammar_is_followed_to_its_end_by_every_sample(served):
    pytest.importorskip("llguidance")
    engine, one = served
    shape = {"type": "object", "properties": {"a": {"enum": ["x", "yz"]}}, "required": ["a"]}
    schema = json_schema({**shape, "additionalProperties": False, "x-guidance": {"whitespace_flexible": False}})
    documents, words = engine.serve(
        [
            ask(one.handle, "j", 6, max_tokens=60, seed=1, temperature=3.0, grammar=schema),
            ask(one.handle, "r", 6, max_tokens=60, seed=2, temperature=3.0, grammar=regex("(yes|no)[0-9]{2}")),
        ]
    )
    for sample in documents.samples:
        assert json.loads(sample.text)["a"] in {"x", "yz"}
    for sample in words.samples:
        assert sample.text[:-2] in {"yes", "no"}
        assert sample.text[-2:].isdigit()
    assert len({sample.text for sample in words.samples}) > 1


def test_what_is_no_grammar_is_refused(served):
    pytest.importorskip("llguidance")
    engine, one = served
    with pytest.raises(InvalidRequestError, match="grammar can't be used"):
        engine.engine.submit(ask(one.handle, "x", grammar="this is none"))
