"""Log-probs of given tokens, tokens as they are drawn, and text that a grammar allows."""

import json

import pytest
import torch
from sampling_harness import ask

from tinker_actors.sampling import InvalidRequestError, PromptScoring, SamplingRequest
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
    _, reply = engine.answers.get(timeout=60)
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


def distribution(one, tokens, temperature=1.0):
    with torch.no_grad():
        return (one.model(input_ids=torch.tensor([tokens])).logits[0] / temperature).log_softmax(-1)


def scoring_of(one, *, prompt=PROMPT, prompt_logprobs=False, **fields):
    params = SamplingParams(max_tokens=2, temperature=0.7, seed=5, default_stops=False)
    return SamplingRequest(
        prompt=prompt,
        snapshot=one.handle,
        params=params,
        prompt_logprobs=prompt_logprobs,
        scoring=PromptScoring(**fields),
    )


def test_the_most_likely_tokens_of_every_place_of_a_prompt_come_at_temperature_one(served):
    engine, one = served
    (reply,) = engine.serve([scoring_of(one, tops=4)])
    values, ids = distribution(one, PROMPT)[:-1].topk(4)
    assert reply.prompt_scores.top_tokens.tolist() == ids.tolist()
    assert reply.prompt_scores.top_logprobs == pytest.approx(values.numpy(), abs=1e-5)
    assert reply.prompt_logprobs == ()


def test_candidates_are_scored_where_they_are_asked_for(served):
    engine, one = served
    candidates = tuple((7, 8, 9) if place == 20 else (11,) if place == 33 else () for place in range(len(PROMPT) - 1))
    (reply,) = engine.serve([scoring_of(one, candidates=candidates)])
    logprobs = distribution(one, PROMPT)
    expected = [*logprobs[20, [7, 8, 9]].tolist(), float(logprobs[33, 11])]
    assert reply.prompt_scores.candidate_logprobs == pytest.approx(expected, abs=1e-5)


def test_draws_at_a_place_follow_its_distribution_and_are_told_at_temperature_one(served):
    engine, one = served
    prompt = PROMPT[:6]
    first, again = engine.serve([scoring_of(one, prompt=prompt, draws=800)] * 2)
    tokens, logprobs = first.prompt_scores.drawn_tokens, first.prompt_scores.drawn_logprobs
    assert tokens.shape == logprobs.shape == (5, 800)
    assert tokens.tolist() == again.prompt_scores.drawn_tokens.tolist()
    plain, cooled = distribution(one, prompt), distribution(one, prompt, 0.7)
    assert logprobs == pytest.approx(plain[:-1].gather(1, torch.tensor(tokens).long()).numpy(), abs=1e-5)
    likely = int(cooled[3].argmax())
    share = float(cooled[3, likely].exp())
    assert (tokens[3] == likely).mean() == pytest.approx(share, abs=4 * (share * (1 - share) / 800) ** 0.5)


def test_a_prompts_last_tokens_are_scored_alone_and_what_is_before_them_comes_from_the_cache(served):
    engine, one = served
    whole, _ = engine.serve([scoring_of(one, prompt_logprobs=True, tops=2), scoring_of(one, tops=1)])
    (last,) = engine.serve([scoring_of(one, prompt_logprobs=True, tops=2, last=3)])
    assert last.prompt_logprobs == whole.prompt_logprobs[-3:]
    assert last.prompt_scores.top_tokens.tolist() == whole.prompt_scores.top_tokens[-3:].tolist()
    assert last.samples == whole.samples
    assert (whole.cached_tokens, last.cached_tokens) == (0, len(PROMPT) - 4)


def test_all_kinds_of_scores_and_several_samples_go_together(served):
    engine, one = served
    candidates = ((3,),) * (len(PROMPT) - 1)
    params = SamplingParams(max_tokens=2, seed=5, default_stops=False)
    request = SamplingRequest(
        prompt=PROMPT,
        snapshot=one.handle,
        params=params,
        num_samples=3,
        prompt_logprobs=True,
        scoring=PromptScoring(tops=2, candidates=candidates, draws=2, last=5),
    )
    (reply,) = engine.serve([request])
    scores = reply.prompt_scores
    assert reply.prompt_logprobs == pytest.approx(one.logprobs(PROMPT[:1], list(PROMPT[1:]))[-5:], abs=1e-5)
    assert scores.top_tokens.shape == (5, 2)
    assert scores.candidate_logprobs == pytest.approx(distribution(one, PROMPT)[:-1, 3].numpy(), abs=1e-5)
    assert scores.drawn_tokens.shape == (len(PROMPT) - 1, 2)
    assert len(reply.samples) == 3


def test_a_prompt_of_one_token_has_no_places(served):
    engine, one = served
    (reply,) = engine.serve([scoring_of(one, prompt=(9,), tops=2, draws=3)])
    assert reply.prompt_scores.top_tokens.size == reply.prompt_scores.drawn_tokens.size == 0


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"last": 40}, r"scoring.last is 40; None or an integer in \[1, 39\]"),
        ({"last": 0}, "scoring.last"),
        ({"tops": 1001}, "scoring.tops"),
        ({"draws": -1}, "scoring.draws"),
        ({"candidates": ((1,),)}, "one tuple for each of the 39 places"),
        ({"candidates": ((-1,),) * 39}, r"scoring.candidates\[0\]"),
    ],
)
def test_scoring_that_no_prompt_of_this_length_has_is_refused(served, fields, named):
    _, one = served
    with pytest.raises(InvalidRequestError, match=named):
        scoring_of(one, **fields)


def test_a_candidate_outside_the_vocabulary_is_refused(served):
    engine, one = served
    with pytest.raises(InvalidRequestError, match=r"scoring.candidates\[2\]\[0\] is 1000000"):
        engine.engine.submit(scoring_of(one, candidates=((), (), (10**6,), *((),) * 36)))
