"""Harnesses that use the real `openai` client: what was sampled for them is trained on, once and exactly."""

import asyncio

import httpx
import openai
import pytest
from endpoint_harness import END, TOKENIZER, Says, asks, client, sampled, seated, user

from tinker_actors.data import EpisodeEnd, TurnEnd
from tinker_actors.sampling.requests import SamplingParams

ADD = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
}


async def echo(call):
    return (await asks(call, call.messages)).choices[0].message.content


async def test_a_conversation_over_several_turns_is_one_datum_of_exactly_what_was_sampled():
    sampler = Says(["one", "two", "three"])
    async with seated(echo, sampler) as play:
        played = await play("a", "b", "c")
    assert played.environment.heard == ["one", "two", "three"]
    assert played.episode.end is EpisodeEnd.TERMINATED
    (datum,) = played.datums
    assert played.trained() == sampled(sampler.replies)
    assert datum.targets.count(END) == 3 + 3  # sampled ones, and those that the template closes a user's message with
    assert played.trajectory.reward == 3.0
    assert [turn.reward for turn in played.trajectory.turns] == [1.0, 1.0, 1.0]


async def test_a_blocking_harness_with_the_sync_client_and_tools_keeps_one_datum():
    sampler = Says(['so <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "7"])

    def harness(call):
        with openai.OpenAI(base_url=call.base_url, api_key=call.api_key) as api:
            said = api.chat.completions.create(model="any", messages=call.observation, tools=[ADD])
            (tool_call,) = said.choices[0].message.tool_calls
            assert said.choices[0].finish_reason == "tool_calls"
            assert (tool_call.function.name, tool_call.function.arguments) == ("add", '{"a": 1}')
            result = {"role": "tool", "tool_call_id": tool_call.id, "content": "7"}
            whole = [*call.observation, said.choices[0].message.model_dump(exclude_none=True), result]
            return api.chat.completions.create(model="any", messages=whole, tools=[ADD]).choices[0].message.content

    async with seated(harness, sampler) as play:
        played = await play("what is it?")
    assert played.environment.heard == ["7"]
    assert len(played.datums) == 1
    assert played.trained() == sampled(sampler.replies)
    first, second = (request.prompt for request in sampler.requests)
    assert "add" in TOKENIZER.decode(first)  # the model is told of the tool
    assert second[: len(first)] == first
    assert TOKENIZER.decode(second).endswith("<|tool|>7<|end|><|assistant|>")


async def test_responses_api_with_tools_and_the_whole_history_keeps_one_datum():
    sampler = Says(['<tool_call>{"name": "add", "arguments": {}}</tool_call>', "done", "more"])
    tool = {"type": "function", "name": "add", "description": "Add.", "parameters": {}, "strict": False}

    async def harness(call):
        async with client(call) as api:
            items = [{"role": "user", "content": call.text}]
            first = await api.responses.create(model="any", input=items, instructions="be brief", tools=[tool])
            (called,) = first.output
            items += [item.model_dump() for item in first.output]
            items.append({"type": "function_call_output", "call_id": called.call_id, "output": "5"})
            second = await api.responses.create(model="any", input=items, instructions="be brief", tools=[tool])
            assert second.status == "completed"
            assert second.usage.output_tokens == len("done") + 1
            assert second.usage.input_tokens == len(sampler.requests[1].prompt)
            third = await api.responses.create(
                model="any", input="go on", instructions="be brief", previous_response_id=second.id, tools=[tool]
            )
            return third.output_text

    async with seated(harness, sampler) as play:
        played = await play("add")
    assert played.environment.heard == ["more"]
    assert len(played.datums) == 1
    assert played.trained() == sampled(sampler.replies)


async def test_streams_say_the_same_as_answers_in_one_piece():
    sampler = Says(["hello"] * 2 + ['hm <tool_call>{"name": "add", "arguments": {}}</tool_call>'] * 3)
    seen = {}

    async def harness(call):
        async with client(call) as api:
            stream = await api.chat.completions.create(
                model="any", messages=call.observation, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            seen["text"] = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            seen["finish"] = [c.choices[0].finish_reason for c in chunks if c.choices][-1]
            seen["usage"] = chunks[-1].usage.completion_tokens
            async with api.responses.stream(model="any", input=call.text) as events:
                kinds = [event.type async for event in events]
                seen["response"] = (await events.get_final_response()).output_text
            seen["kinds"] = kinds
            async with api.chat.completions.stream(model="any", messages=call.observation, tools=[ADD]) as events:
                final = (await events.get_final_completion()).choices[0]
            seen["call"] = final.message.tool_calls[0].function.name
            seen["call_finish"] = final.finish_reason
            tool = {"type": "function", "name": "add", "parameters": {}}
            async with api.responses.stream(model="any", input=call.text, tools=[tool]) as events:
                seen["items"] = [item.type for item in (await events.get_final_response()).output]
        return (await asks(call, [user("x")], tools=[ADD])).choices[0].message.content

    async with seated(harness, sampler) as play:
        played = await play("say")
    assert played.environment.heard == ["hm"]
    assert (seen["text"], seen["finish"], seen["usage"]) == ("hello", "stop", 6)
    assert seen["response"] == "hello"
    assert seen["kinds"][0] == "response.created"
    assert seen["kinds"][-1] == "response.completed"
    assert (seen["call"], seen["call_finish"]) == ("add", "tool_calls")
    assert seen["items"] == ["message", "function_call"]


async def test_token_ids_and_logprobs_are_those_of_the_sampler():
    sampler, seen = Says(["hi"]), []

    async def harness(call):
        said = await asks(call, call.observation, logprobs=True, top_logprobs=2, extra_body={"return_token_ids": True})
        seen.append(said)
        return said.choices[0].message.content

    async with seated(harness, sampler) as play:
        await play("say")
    prompt, tokens, logprobs = sampler.replies[0]
    (said,) = seen
    assert tuple(said.prompt_token_ids) == prompt
    assert tuple(said.choices[0].token_ids) == tokens
    assert tuple(entry.logprob for entry in said.choices[0].logprobs.content) == logprobs
    assert [len(entry.top_logprobs) for entry in said.choices[0].logprobs.content] == [2, 2, 2]
    assert sampler.requests[0].params.logprobs == 2
    usage = said.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), 3)  # T7: the stop token counts


async def test_a_differing_temperature_is_refused_or_overridden_as_the_seat_says():
    async def harness(call):
        return (await asks(call, call.observation, temperature=0.3)).choices[0].message.content

    async with seated(harness, Says(["x"])) as play:
        played = await play("say")
    assert played.episode.end is EpisodeEnd.FAILED
    assert "temperature is 0.3" in played.episode.error
    sampler = Says(["x"])
    async with seated(harness, sampler, difference="override") as play:
        assert (await play("say")).episode.end is EpisodeEnd.TERMINATED
    assert sampler.requests[0].params.temperature == 1.0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"5": 10}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [ADD], "tool_choice": "required"}, "tool_choice"),
        ({"top_p": 0.5}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"messages": []}, "messages"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(fields, param):
    refusals = []

    async def harness(call):
        with pytest.raises(openai.BadRequestError) as refused:
            await asks(call, **{"messages": call.observation, **fields})
        refusals.append(refused.value)
        return await echo(call)

    async with seated(harness, Says(["x"])) as play:
        await play("say")
    assert refusals[0].param == param
    assert refusals[0].type == "invalid_request_error"


async def test_limits_stops_and_seeds_of_the_request_are_honoured():
    sampler = Says(["x", "y", "y"])

    async def harness(call):
        await asks(call, call.observation, max_tokens=5, stop=["!", "?"])
        for _ in range(2):
            await asks(call, call.observation, max_completion_tokens=1000, seed=11, temperature=1.0, top_p=1.0)
        return "x"

    async with seated(harness, sampler) as play:
        await play("say")
    first, second, third = (request.params for request in sampler.requests)
    assert first.max_tokens == 5
    assert {"!", "?"} <= set(first.stop_strings)
    assert second.max_tokens == 64  # the seat's own limit
    assert second.seed == third.seed != first.seed


async def test_nobody_without_the_key_gets_in_and_after_the_episode_nobody_does():
    keys = []

    async def harness(call):
        keys.append(call)
        async with httpx.AsyncClient() as http:
            for headers in ({}, {"Authorization": "Bearer sk-other"}):
                answer = await http.post(f"{call.base_url}/chat/completions", json={"messages": []}, headers=headers)
                assert answer.status_code == 401
                assert answer.json()["error"]["type"] == "invalid_request_error"
            models = (await http.get(f"{call.keyed_url}/models")).json()
            assert [entry["id"] for entry in models["data"]] == ["pupil"]
        return await echo(call)

    async with seated(harness, Says(["x"])) as play:
        played = await play("say")
        assert played.episode.end is EpisodeEnd.TERMINATED, played.episode.error
        with pytest.raises(openai.APIStatusError) as late:
            await asks(keys[0], [user("still there?")])
        assert late.value.status_code == 410
        assert late.value.code == "episode_ended"
        url = play.server.url
        assert url is not None
    async with httpx.AsyncClient() as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(f"{url}/v1/models")


async def test_a_client_that_goes_away_cancels_the_sampling():
    sampling, cancelled = asyncio.Event(), asyncio.Event()

    async def never():
        sampling.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    sampler = Says([never, "x"])

    async def harness(call):
        task = asyncio.create_task(asks(call, call.observation))
        await sampling.wait()
        task.cancel()
        await cancelled.wait()
        return await echo(call)

    async with seated(harness, sampler) as play:
        played = await play("say")
    assert played.trained() == sampled(sampler.replies)
    assert played.agent.metrics["harness_cancelled"] == 1


async def test_calls_under_way_end_with_the_turn():
    sampling = asyncio.Event()
    left = []

    async def never():
        sampling.set()
        await asyncio.Event().wait()

    async def harness(call):
        left.append(asyncio.create_task(asks(call, [user("aside")])))
        await sampling.wait()
        return await echo(call)

    async with seated(harness, Says([never, "x"])) as play:
        played = await play("say")
        with pytest.raises(openai.APIStatusError) as over:
            await left[0]
    assert over.value.status_code == 410
    assert len(played.trained()) == 2


async def test_a_harness_that_never_calls_fails_the_episode_and_says_where_it_should_call():
    async def harness(call):
        return "42"

    async with seated(harness, Says([])) as play:
        played = await play("say")
    assert played.episode.end is EpisodeEnd.FAILED
    assert "without a call to http://127.0.0.1:" in played.episode.error


async def test_a_harness_that_hangs_fails_in_time():
    async def harness(call):
        await echo(call)
        await asyncio.Event().wait()

    async with seated(harness, Says(["x"]), seconds=0.2) as play:
        played = await play("say")
    assert played.episode.end is EpisodeEnd.FAILED
    assert "longer than 0.2 s" in played.episode.error


async def test_a_harness_that_raises_or_returns_no_text_fails_the_episode():
    def raises(call):
        raise ZeroDivisionError("oops")

    def number(call):
        return 3

    for harness, said in ((raises, "ZeroDivisionError: oops"), (number, "returned 3")):
        async with seated(harness, Says([])) as play:
            played = await play("say")
        assert played.episode.end is EpisodeEnd.FAILED
        assert said in played.episode.error


async def test_a_prompt_beyond_the_context_truncates_the_episode():  # T12
    sampler = Says(["x", "never"])
    async with seated(echo, sampler, context_length=60) as play:
        played = await play("say", "long " * 20, "never shown")
    assert played.episode.end is EpisodeEnd.TRUNCATED
    assert played.trajectory.turns[-1].end is TurnEnd.CONTEXT_OVERFLOW
    assert len(sampler.requests) == 1
    assert played.trained() == sampled(sampler.replies)


async def test_a_harness_may_shorten_a_history_that_has_grown_too_long():
    codes = []

    async def harness(call):
        try:
            return await echo(call)
        except openai.BadRequestError as error:
            codes.append(error.code)
            return (await asks(call, [user("short")])).choices[0].message.content

    sampler = Says(["x", "y", "z"])
    async with seated(harness, sampler, context_length=100) as play:
        played = await play("say", "long " * 20, "b")
    assert set(codes) == {"context_length_exceeded"}
    assert played.episode.end is EpisodeEnd.TERMINATED
    assert sorted(played.trained()) == sorted(sampled(sampler.replies))


async def test_a_body_too_large_or_no_json_is_refused():
    seen = []

    async def harness(call):
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {call.api_key}"}) as http:
            for body in (b"x" * (16 * 2**20 + 1), b"{", b"[" * 100_000, b"[]"):
                answer = await http.post(f"{call.base_url}/chat/completions", content=body)
                seen.append(answer.status_code)
            seen.append((await http.get(f"{call.base_url}/files")).status_code)
        return await echo(call)

    async with seated(harness, Says(["x"])) as play:
        await play("say")
    assert seen == [413, 400, 400, 400, 404]


async def test_tokens_stay_as_sampled_where_a_stop_string_cut_the_text():  # T11
    class Cut(Says):
        async def sample(self, request):
            reply = await super().sample(request)
            (sample,) = reply.samples
            object.__setattr__(sample, "text", sample.text.split("..")[0])
            return reply

    sampler = Cut(["a...", "b.."], stop=False)
    async with seated(echo, sampler, params=SamplingParams(max_tokens=8, stop=("..",))) as play:
        played = await play("say", "more")
    assert played.environment.heard == ["a", "b"]
    assert played.trained() == sampled(sampler.replies)
