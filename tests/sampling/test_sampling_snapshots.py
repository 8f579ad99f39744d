from itertools import pairwise

import pytest
from sampling_harness import TOKENIZER, ask

from tinker_actors.errors import ModelError, PolicyError, UnknownPolicyError
from tinker_actors.policies import Origin
from tinker_actors.sampling import SamplingReply
from tinker_actors.sampling.prefixes import BLOCK

CACHED = tuple(TOKENIZER.encode("say hello. " * 3))  # long enough for its beginning to be found again
assert len(CACHED) > 2 * BLOCK


def check(reply, published, temperature=1.0, prompt=None):
    assert isinstance(reply, SamplingReply), reply
    assert reply.snapshot == published.handle
    assert reply.snapshot_step == published.snapshot.step
    for sample in reply.samples:
        expected = published.logprobs(prompt, sample.tokens, temperature)
        assert sample.logprobs == pytest.approx(expected, abs=1e-5)


def test_adapters_of_different_ranks_mix_in_one_batch(harness, publisher):  # A5
    small, large = publisher.lora("small", seed=1, rank=4), publisher.lora("large", seed=2, rank=8, step=7)
    full = publisher.full("full", seed=2)
    everyone = [small, large, full]
    engine = harness()
    engine.refresh(*(entry.handle for entry in everyone))
    requests, owners = [], []
    for i in range(24):
        owners.append(everyone[i % 3])
        text = "ab" if i % 2 else "a longer prompt"
        requests.append(ask(owners[-1].handle, text, max_tokens=6, temperature=0.8, seed=i))
    for request, owner, reply in zip(requests, owners, engine.serve(requests), strict=True):
        check(reply, owner, 0.8, request.prompt)


@pytest.mark.parametrize("at_once", [True, False])
def test_the_same_prompt_on_two_snapshots_is_computed_for_each(harness, publisher, at_once):  # A1
    one, two, full = publisher.lora("p", seed=1), publisher.lora("p", seed=2), publisher.full("p", seed=3)
    engine = harness()
    everyone = (one, two, full)
    engine.refresh(*(entry.handle for entry in everyone))
    requests = [ask(entry.handle, CACHED, max_tokens=8, temperature=0) for entry in everyone * 2]
    replies = engine.serve(requests) if at_once else [engine.serve([request])[0] for request in requests]
    # asked again after it was answered, the last token of the prompt is computed anew
    assert engine.engine.stats().prefilled_tokens == 3 * len(CACHED) + (0 if at_once else 3)
    greedy = [entry.greedy(CACHED, 8, stop=set(TOKENIZER.stop_ids)) for entry in everyone]
    assert len(set(map(tuple, greedy))) == 3
    assert [list(reply.samples[0].tokens) for reply in replies] == greedy * 2


def test_after_a_refresh_samples_are_those_of_the_new_snapshot(harness, publisher):  # A1
    one, two = publisher.lora("p", seed=1), publisher.lora("p", seed=2, step=1)
    engine = harness()
    for held in ([one], [one, two], [two], [one]):  # beside the snapshot that has the prompt in its cache, and without
        engine.refresh(*(entry.handle for entry in held))
        (reply,) = engine.serve([ask(held[-1].handle, CACHED, max_tokens=8, temperature=0)])
        assert list(reply.samples[0].tokens) == held[-1].greedy(CACHED, 8, stop=set(TOKENIZER.stop_ids))
        check(reply, held[-1], prompt=CACHED)
    with pytest.raises(UnknownPolicyError, match="000002 is not loaded"):
        engine.engine.submit(ask(two.handle, CACHED))


def refresh_amid(engine, first, handles):
    """Refresh in the middle of a batch that runs on `first`; the batch's long sample goes on for 30 tokens."""
    long = ask(first.handle, "hello", max_tokens=30, default_stops=False, seed=1)
    short = ask(first.handle, "hello", max_tokens=2, default_stops=False)
    original, refreshed = engine.engine._answer, []

    def refresh_then_answer(done):
        if not refreshed:
            refreshed.append(engine.engine.replace(handles, engine.residents.check(handles)))
            refreshed.append(engine.engine.stats().generated_tokens)
        original(done)

    engine.engine._answer = refresh_then_answer
    long_reply, _ = engine.serve([long, short])
    refreshed[0].result(timeout=60)
    assert refreshed[1] < 30
    return long, long_reply


def test_a_running_request_finishes_on_its_snapshot_while_another_is_loaded(harness, publisher):  # A4
    one, two = publisher.lora("a", seed=1), publisher.lora("b", seed=2, rank=8)
    engine = harness()
    engine.refresh(one.handle)
    request, reply = refresh_amid(engine, one, (one.handle, two.handle))
    assert len(reply.samples[0].tokens) == 30
    check(reply, one, prompt=request.prompt)
    (other,) = engine.serve([ask(two.handle, "hello", seed=1)])
    check(other, two, prompt=request.prompt)


def test_a_running_request_finishes_on_its_snapshot_although_it_is_released(harness, publisher):
    one, two = publisher.lora("p", seed=1), publisher.lora("p", seed=2)
    engine = harness()
    engine.refresh(one.handle)
    request, reply = refresh_amid(engine, one, (two.handle,))
    check(reply, one, prompt=request.prompt)
    engine.serve([ask(two.handle, "hello")])
    assert engine.residents.held() == 1


def test_a_waiting_request_keeps_its_snapshot_through_a_refresh(harness, publisher):
    one, two = publisher.lora("p", seed=1), publisher.lora("p", seed=2)
    engine = harness()
    engine.refresh(one.handle)
    waiting = engine.engine.submit(ask(one.handle, "hello", seed=1))
    refreshed = engine.engine.replace((two.handle,), engine.residents.check((two.handle,)))
    engine.engine.start()
    refreshed.result(timeout=60)
    ticket, reply = engine.answers.get(timeout=60)
    assert ticket is waiting
    check(reply, one, prompt=waiting.request.prompt)


def test_released_adapters_leave_memory(harness, publisher):  # A7
    handles = [publisher.lora("p", seed=seed).handle for seed in range(4)]
    engine = harness()
    for _ in range(10):
        for first, second in pairwise(handles):
            engine.refresh(first, second)
            engine.residents.collect()
            assert engine.residents.held() == 2
    assert engine.residents.network.resident == 2
    engine.refresh()
    engine.residents.collect()
    assert engine.residents.network.resident == 0


def test_a_snapshot_of_another_base_is_refused(harness, publisher):
    stranger = publisher.lora("s", seed=1, base="tiny-qwen3")
    with pytest.raises(PolicyError, match=r"tiny-qwen3; this sampler serves tiny-llama"):
        harness().refresh(stranger.handle)


def test_an_adapter_that_cannot_be_placed_leaves_what_was_served(harness, publisher):
    good = publisher.lora("good", seed=1)

    def write(folder):
        (folder / "adapter_config.json").write_text("{}")

    bad = publisher.store.publish("bad", write, Origin(step=0, base_model="tiny-llama"))
    engine = harness()
    with pytest.raises(ModelError):
        engine.refresh(good.handle, bad.handle)
    assert engine.residents.handles() == ()
    assert engine.residents.network.resident == 0
