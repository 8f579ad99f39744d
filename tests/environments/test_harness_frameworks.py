"""A real agent framework, `openai-agents`, over the endpoint: its tool loop is one datum of what was sampled."""

import agents
import openai
import pytest
from endpoint_harness import Remembers, Says, sampled, seated

from tinker_actors.actors import Mesh
from tinker_actors.data import Datum, EpisodeEnd, ModelInput
from tinker_actors.policies import PolicySpec
from tinker_actors.sampling import Sampler, SamplingParams
from tinker_actors.training import AdamParams, LossConfig, Trainer

CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'


@pytest.fixture(autouse=True)
def nothing_is_traced():
    agents.set_tracing_disabled(True)


def framework(api, heard=None):
    """A harness as its users write it."""

    @agents.function_tool
    def add(a: int, b: int) -> str:
        """Add."""
        if heard is not None:
            heard.append((a, b))
        return str(a + b)

    async def harness(call):
        async with openai.AsyncOpenAI(base_url=call.base_url, api_key=call.api_key, max_retries=0) as client:
            kind = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}[api]
            agent = agents.Agent(
                name="adder", instructions="Add.", tools=[add], model=kind(model=call.model, openai_client=client)
            )
            return (await agents.Runner.run(agent, call.text)).final_output

    return harness


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_frameworks_tool_loop_is_one_datum(api):
    sampler, heard = Says([f"I add. {CALL}", "5"]), []
    async with seated(framework(api, heard), sampler) as play:
        played = await play("2+3")
    assert played.episode.end is EpisodeEnd.TERMINATED, played.episode.error
    assert heard == [(2, 3)]
    assert played.environment.heard == ["5"]
    assert len(played.datums) == 1
    assert played.trained() == sampled(sampler.replies)


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_streaming_framework_is_captured_alike(api):
    sampler = Says([CALL, "5"])
    whole = framework(api)

    async def harness(call):
        run, agents.Runner.run = agents.Runner.run, _streamed
        try:
            return await whole(call)
        finally:
            agents.Runner.run = run

    async with seated(harness, sampler) as play:
        played = await play("2+3")
    assert played.environment.heard == ["5"], played.episode.error
    assert len(played.datums) == 1
    assert played.trained() == sampled(sampler.replies)


async def _streamed(agent, text):
    result = agents.Runner.run_streamed(agent, text)
    async for _ in result.stream_events():
        pass
    return result


async def test_what_a_real_sampler_said_to_a_framework_is_what_the_trainer_scores(tmp_path):
    rehearsed = Says([CALL, "5"])
    async with seated(framework("chat"), rehearsed) as play:
        await play("2+3")
    options = {"base_model": "tiny-llama", "store": str(tmp_path / "store"), "threads": 1}
    async with Mesh() as mesh:
        trainer = await mesh.spawn(Trainer, **options)
        policy = await trainer.create(PolicySpec(base_model="tiny-llama", kind="full", seed=1, name="pupil"))
        datums = [_to_imitate(prompt, tokens) for prompt, tokens, _ in rehearsed.replies]
        for _ in range(45):
            await trainer.forward_backward(policy, datums, LossConfig(name="cross_entropy"))
            await trainer.optim_step(policy, AdamParams(learning_rate=3e-3))
        snapshot = await trainer.publish(policy)
        sampler = await mesh.spawn(Sampler, **options)
        await sampler.refresh([snapshot.handle])
        heard = []
        remembers = Remembers(sampler)
        params = SamplingParams(max_tokens=100, temperature=0.5)
        async with seated(framework("chat", heard), remembers, snapshot=snapshot.handle, params=params) as play:
            played = await play("2+3")
        assert heard == [(2, 3)], played.episode.error
        assert len(played.datums) == 1
        assert played.trained() == sampled(remembers.replies)
        result = await trainer.forward(policy, played.datums, LossConfig(name="ppo"))
        assert result.metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
        scored = [
            value
            for row, datum in zip(result.logprobs, played.datums, strict=True)
            for value, kept in zip(row, datum.mask, strict=True)
            if kept
        ]
        assert scored == pytest.approx([logprob for *_, logprob in sampled(remembers.replies)], abs=1e-4)


def _to_imitate(prompt, tokens):
    whole = (*prompt, *tokens)
    weights = (0.0,) * (len(prompt) - 1) + (1.0,) * len(tokens)
    return Datum(where="rehearsal", model_input=ModelInput.of(whole[:-1]), targets=whole[1:], weights=weights)
