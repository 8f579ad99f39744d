import pytest
from sampling_harness import END, TOKENIZER, ask

from tinker_actors.data import TurnEnd
from tinker_actors.errors import (
    ContextOverflowError,
    PolicyError,
    SamplingError,
    SnapshotCorruptError,
    UnknownPolicyError,
)
from tinker_actors.sampling import InvalidRequestError, SamplingReply


@pytest.fixture
def served(harness, publisher):
    """An engine that serves one full-weights snapshot, and the snapshot."""
    one = publisher.full("one", seed=2)
    entry = harness()
    entry.refresh(one.handle)
    return entry, one


def test_a_batch_of_ragged_prompts_matches_the_model_row_by_row(served):
    engine, one = served
    requests = [
        ask(one.handle, "a" * length, max_tokens=length % 5 + 1, temperature=temperature, seed=length)
        for length in (1, 7, 3, 7, 12)
        for temperature in (0.6, 1.0, 1.7)
    ]
    for request, reply in zip(requests, engine.serve(requests), strict=True):
        (sample,) = reply.samples
        expected = one.logprobs(request.prompt, sample.tokens, request.params.temperature)
        assert sample.logprobs == pytest.approx(expected, abs=1e-5)
        assert reply.snapshot == one.handle
        assert reply.prompt_tokens == len(request.prompt)


def test_greedy_samples_equal_step_by_step_argmax(served):
    engine, one = served
    requests = [ask(one.handle, text, max_tokens=12, temperature=0) for text in ("a", "hello", "what is it")]
    for request, reply in zip(requests, engine.serve(requests), strict=True):
        assert list(reply.samples[0].tokens) == one.greedy(request.prompt, 12, stop={END})


def test_shared_prompts_are_computed_once(served):
    engine, one = served
    requests = [ask(one.handle, "same prompt", max_tokens=2, seed=i) for i in range(50)]
    requests.append(ask(one.handle, "another", max_tokens=2, num_samples=8))
    replies = engine.serve(requests)
    stats = engine.engine.stats()
    assert stats.prefilled_tokens == len("same prompt") + len("another")
    assert stats.prompt_tokens == 50 * len("same prompt") + len("another")
    assert stats.requests == 51
    assert stats.samples == 58
    assert len({reply.samples[0].tokens for reply in replies}) > 10


def test_a_seed_gives_the_same_samples_whatever_shares_the_batch(served, harness):  # C12
    engine, one = served
    group = ask(one.handle, "group", num_samples=6, max_tokens=8, seed=0)
    (alone,) = engine.serve([group])
    assert len({sample.tokens for sample in alone.samples}) > 1
    crowd = [ask(one.handle, f"other {i}", max_tokens=9, seed=i) for i in range(20)]
    together = engine.serve([*crowd[:11], group, *crowd[11:]])[11]
    other = harness(max_batch=2)
    other.refresh(one.handle)
    (split,) = other.serve([group])
    for reply in (together, split):
        assert [sample.tokens for sample in reply.samples] == [sample.tokens for sample in alone.samples]


def test_an_unseeded_reply_names_a_seed_that_repeats_it(served):
    engine, one = served
    first, second = engine.serve([ask(one.handle, "x", max_tokens=20)] * 2)
    assert first.seed != second.seed
    assert first.samples[0].tokens != second.samples[0].tokens
    (again,) = engine.serve([ask(one.handle, "x", max_tokens=20, seed=first.seed)])
    assert again.samples[0].tokens == first.samples[0].tokens


def test_the_sampled_stop_token_is_an_action_token_and_not_text(served):  # T7
    engine, one = served
    prompt = tuple(TOKENIZER.encode("hello"))
    greedy = one.greedy(prompt, 6)
    stop = greedy[2]
    assert stop not in greedy[:2]
    (reply,) = engine.serve([ask(one.handle, prompt, max_tokens=6, temperature=0, stop=(stop,), default_stops=False)])
    (sample,) = reply.samples
    assert list(sample.tokens) == greedy[:3]
    assert sample.logprobs == pytest.approx(one.logprobs(prompt, greedy[:3]), abs=1e-5)
    assert sample.end is TurnEnd.STOP
    assert sample.text == TOKENIZER.decode(greedy[:2], skip_special=True)


def test_the_tokenizers_stop_ids_end_a_sample_unless_told_otherwise(harness, publisher):
    def mostly_end(model):
        embedding = model.get_input_embeddings().weight
        embedding[END] = 1e3 * embedding.mean(0)  # towers over the rest wherever it points the right way

    biased = publisher.full("biased", seed=1, change=mostly_end)
    engine = harness()
    engine.refresh(biased.handle)
    prompts = [tuple(TOKENIZER.encode(text)) for text in ("a", "b", "c", "d")]
    ending = next(prompt for prompt in prompts if biased.greedy(prompt, 1) == [END])
    stops, goes_on = engine.serve(
        [
            ask(biased.handle, ending, max_tokens=3, temperature=0),
            ask(biased.handle, ending, max_tokens=3, temperature=0, default_stops=False),
        ]
    )
    assert stops.samples[0].tokens == (END,)
    assert stops.samples[0].end is TurnEnd.STOP
    assert stops.samples[0].text == ""
    assert len(goes_on.samples[0].tokens) == 3
    assert goes_on.samples[0].end is TurnEnd.LENGTH


def test_a_stop_string_cuts_the_text_and_keeps_every_token(served):  # T11
    engine, one = served
    prompt = tuple(TOKENIZER.encode("go"))
    greedy = one.greedy(prompt, 10, stop={END})
    string = TOKENIZER.decode(greedy[3:5])
    whole = TOKENIZER.decode(greedy)
    (reply,) = engine.serve([ask(one.handle, prompt, max_tokens=10, temperature=0, stop=("never", string))])
    (sample,) = reply.samples
    end = whole.index(string)
    assert sample.text == whole[:end]
    assert list(sample.tokens) == greedy[: end + 2]
    assert len(sample.logprobs) == len(sample.tokens)
    assert sample.end is TurnEnd.STOP


def test_special_tokens_are_not_text_and_their_spelling_is_a_stop_token(served):
    engine, one = served
    special = next(
        (prompt, greedy, place)
        for prompt in ((token,) for token in range(7, 103))
        for greedy in [one.greedy(prompt, 6)]
        for place in range(1, 5)
        if greedy[place] in TOKENIZER.special_ids and not set(greedy[:place]) & TOKENIZER.special_ids
    )
    prompt, greedy, place = special
    spelled = TOKENIZER.token_text(greedy[place])
    goes_on, stops = engine.serve(
        [
            ask(one.handle, prompt, max_tokens=6, temperature=0, default_stops=False),
            ask(one.handle, prompt, max_tokens=6, temperature=0, default_stops=False, stop=(spelled,)),
        ]
    )
    assert list(goes_on.samples[0].tokens) == greedy
    assert goes_on.samples[0].text == TOKENIZER.decode(greedy, skip_special=True)
    assert spelled not in goes_on.samples[0].text
    assert list(stops.samples[0].tokens) == greedy[: place + 1]
    assert stops.samples[0].end is TurnEnd.STOP
    assert stops.samples[0].text == TOKENIZER.decode(greedy[:place])


def test_reaching_the_context_ends_a_sample_as_overflow(served):  # T12
    engine, one = served
    room_for_four, fits, full = engine.serve(
        [
            ask(one.handle, (9,) * 60, max_tokens=8, default_stops=False),
            ask(one.handle, (9,) * 60, max_tokens=4, default_stops=False),
            ask(one.handle, (9,) * 64, max_tokens=8, num_samples=2),
        ]
    )
    assert len(room_for_four.samples[0].tokens) == 4
    assert room_for_four.samples[0].end is TurnEnd.CONTEXT_OVERFLOW
    assert room_for_four.samples[0].end.is_truncated
    assert fits.samples[0].end is TurnEnd.LENGTH
    assert [(sample.tokens, sample.end) for sample in full.samples] == [((), TurnEnd.CONTEXT_OVERFLOW)] * 2


def test_a_prompt_longer_than_the_context_is_refused_with_both_lengths(served):
    engine, one = served
    with pytest.raises(ContextOverflowError, match=r"65 tokens.*64"):
        engine.engine.submit(ask(one.handle, (9,) * 65))


def test_a_token_outside_the_vocabulary_is_refused_by_position(served):
    engine, one = served
    with pytest.raises(InvalidRequestError, match=r"prompt\[1\] is 5000"):
        engine.engine.submit(ask(one.handle, (9, 5000)))


def test_a_snapshot_that_is_not_loaded_is_refused_and_never_served_by_the_base(harness, publisher):  # A2
    engine = harness()
    with pytest.raises(UnknownPolicyError, match="tinker://one/sampler_weights/000001 is not loaded"):
        engine.engine.submit(ask("tinker://one/sampler_weights/000001", "x"))
    one, two = publisher.full("one", seed=2), publisher.full("two", seed=2)
    engine.refresh(one.handle)
    with pytest.raises(UnknownPolicyError, match="000001"):
        engine.engine.submit(ask(two.handle, "x"))
    (reply,) = engine.serve([ask(one.handle, "x")])
    assert reply.snapshot == one.handle


def test_an_unknown_or_corrupt_snapshot_fails_the_refresh_and_leaves_what_was_served(served, publisher):
    engine, one = served
    two = publisher.full("two", seed=2)
    with pytest.raises(UnknownPolicyError):
        engine.refresh(two.handle, "tinker://two/sampler_weights/000009")
    weights = next(path for path in (publisher.store.root / "two").rglob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(SnapshotCorruptError):
        engine.refresh(two.handle)
    with pytest.raises(PolicyError, match="sampler_weights is needed"):
        engine.refresh("tinker://two/weights/final")
    assert engine.residents.handles() == (one.handle,)
    assert isinstance(engine.serve([ask(one.handle, "x")])[0], SamplingReply)


def test_broken_logits_fail_their_own_request_only(served, publisher):
    engine, one = served
    broken = publisher.full("broken", seed=1, change=lambda model: model.model.norm.weight.fill_(float("nan")))
    engine.refresh(one.handle, broken.handle)
    answers = engine.serve([ask(broken.handle, "x", num_samples=3), ask(one.handle, "x")])
    assert isinstance(answers[0], SamplingError)
    assert broken.handle in str(answers[0])
    assert answers[1].samples
    assert engine.engine.stats().failed == 1


def test_a_cancelled_request_leaves_before_the_next_step_and_others_go_on(served):
    engine, one = served
    gone = engine.engine.submit(ask(one.handle, "gone", max_tokens=40, default_stops=False, num_samples=4))
    engine.engine.cancel(gone)
    (reply,) = engine.serve([ask(one.handle, "stays", max_tokens=3, default_stops=False)])
    stats = engine.engine.stats()
    assert len(reply.samples[0].tokens) == 3
    assert (stats.cancelled, stats.generated_tokens, stats.waiting) == (1, 3, 0)


def test_cancelling_amid_a_batch_stops_its_rows_at_the_next_step(served):
    engine, one = served
    long = engine.engine.submit(ask(one.handle, "long", max_tokens=50, default_stops=False, num_samples=4))
    short = ask(one.handle, "x", max_tokens=1)
    original = engine.engine._answer

    def cancel_then_answer(done):
        engine.engine.cancel(long)
        original(done)

    engine.engine._answer = cancel_then_answer
    engine.serve([short])
    engine.engine.replace((one.handle,), {}).result(timeout=60)
    assert engine.engine.stats().generated_tokens == 5  # the one step that all five rows shared


def test_a_failing_batch_fails_its_requests_and_not_the_engine(served, monkeypatch):
    engine, one = served
    network = engine.residents.pin(one.handle).network
    monkeypatch.setattr(network, "logits", lambda *_, **__: 1 / 0)
    answers = engine.serve([ask(one.handle, "x"), ask(one.handle, "y")])
    assert all(isinstance(answer, SamplingError) and "ZeroDivisionError" in str(answer) for answer in answers)
    monkeypatch.undo()
    assert engine.serve([ask(one.handle, "x")])[0].samples


def test_samples_whose_text_cannot_be_told_fail_alone_and_not_the_engine(served, monkeypatch):
    engine, one = served
    monkeypatch.setattr(engine.engine._admission.text, "decode", lambda _: 1 / 0)
    (answer,) = engine.serve([ask(one.handle, "x")])
    assert isinstance(answer, SamplingError)
    assert "ZeroDivisionError" in str(answer)
    monkeypatch.undo()
    assert engine.serve([ask(one.handle, "x")])[0].samples


def test_stopping_fails_what_waits_and_refuses_what_comes(served):
    engine, one = served
    engine.engine.submit(ask(one.handle, "x", max_tokens=40))
    engine.engine._stopping = True
    engine.engine.start()
    engine.engine.stop()
    _, answer = engine.answers.get(timeout=60)
    assert isinstance(answer, SamplingError)
    with pytest.raises(SamplingError, match="stopped"):
        engine.engine.submit(ask(one.handle, "x"))


def test_a_step_respects_its_limits_on_rows_and_tokens(harness, publisher):
    one = publisher.full("one", seed=2)
    engine = harness(max_batch=2, max_step_tokens=20)
    engine.refresh(one.handle)
    sizes, network = [], engine.residents.pin(one.handle).network
    original = network.logits

    def logits(rows, pool):
        sizes.append((len(rows.ids), len(rows.spans)))
        return original(rows, pool)

    network.logits = logits
    requests = [ask(one.handle, (9 + i,) * 10, max_tokens=3, default_stops=False) for i in range(6)]
    requests.append(ask(one.handle, (9,) * 50, max_tokens=1, temperature=0))
    replies = engine.serve(requests)
    assert [len(reply.samples[0].tokens) for reply in replies] == [3] * 6 + [1]
    assert list(replies[-1].samples[0].tokens) == one.greedy((9,) * 50, 1)  # computed in parts
    assert max(tokens for tokens, _ in sizes) == 20
    assert max(rows for _, rows in sizes) == 2


def test_requests_submitted_together_get_the_same_bits_whatever_else_waits(harness, publisher):
    one, two = publisher.lora("one", seed=2), publisher.lora("two", seed=3)
    wanted = [ask(one.handle, "a" * length, max_tokens=9, seed=length) for length in (1, 4, 9, 2)]
    noise = [ask(two.handle, "b" * length, max_tokens=5, seed=length) for length in (3, 40, 7)]
    found = []
    for before, after in ((0, 0), (1, 2), (3, 0), (0, 3)):
        engine = harness(max_batch=3)
        engine.refresh(one.handle, two.handle)
        for request in noise[:before]:
            engine.engine.submit(request)
        together = engine.engine.submit_together(wanted)
        for request in noise[:after]:
            engine.engine.submit(request)
        engine.engine.start()
        answers = dict(engine.answers.get(timeout=60) for _ in range(len(wanted) + before + after))
        found.append([answers[ticket].samples for ticket in together])
        assert engine.engine.stats().steps > 9  # more than the longest takes: there was not room for all
    assert found[0] == found[1] == found[2] == found[3]


def test_a_request_that_cannot_be_served_fails_alone_among_those_submitted_together(served):
    engine, one = served
    good, long, unknown = engine.engine.submit_together(
        [ask(one.handle, "x"), ask(one.handle, (9,) * 65), ask("tinker://p/sampler_weights/000009", "x")]
    )
    assert isinstance(long, ContextOverflowError)
    assert isinstance(unknown, UnknownPolicyError)
    engine.engine.start()
    ticket, answer = engine.answers.get(timeout=60)
    assert ticket is good
    assert answer.samples
