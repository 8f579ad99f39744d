"""What is trained on of a conversation that a harness retries, forks or rewrites: every token that counts, once."""

import asyncio

from endpoint_harness import Says, asks, client, sampled, seated, user


async def test_of_a_retried_turn_the_one_that_was_gone_on_from_counts():
    sampler = Says(["first", "second", "end"])

    async def harness(call):
        first = (await asks(call, call.observation)).choices[0].message.content
        await asks(call, call.observation)  # as a client does that didn't see the answer
        whole = [*call.observation, {"role": "assistant", "content": first}, user("go on")]
        return (await asks(call, whole)).choices[0].message.content

    async with seated(harness, sampler) as play:
        played = await play("say")
    assert played.trained() == sampled([sampler.replies[0], sampler.replies[2]])
    assert len(played.datums) == 1
    assert played.agent.metrics["harness_superseded"] == 1


async def test_of_a_retried_turn_that_nothing_follows_the_last_one_counts():
    sampler = Says(["first", "second"])

    async def harness(call):
        await asks(call, call.observation)
        await asks(call, call.observation)
        return "an answer of its own"

    async with seated(harness, sampler) as play:
        played = await play("say")
    assert played.trained() == sampled(sampler.replies[1:])
    assert played.trajectory.turns[-1].text == "an answer of its own"
    seeds = [request.params.seed for request in sampler.requests]
    assert seeds[0] != seeds[1]


async def test_branches_are_datums_of_their_own_and_every_token_is_trained_once():
    sampler = Says(["plan", "left", "right", "sum"])

    async def harness(call):
        plan = {"role": "assistant", "content": (await asks(call, call.observation)).choices[0].message.content}
        trunk = [*call.observation, plan]
        left = (await asks(call, [*trunk, user("l")])).choices[0].message.content
        await asks(call, [*trunk, user("r")])
        whole = [*trunk, user("l"), {"role": "assistant", "content": left}, user("sum up")]
        return (await asks(call, whole)).choices[0].message.content

    async with seated(harness, sampler) as play:
        played = await play("say")
    plan, left, right, end = sampler.replies
    assert len(played.datums) == 2
    assert played.trained() == sampled([right, plan, left, end])
    assert played.trajectory.turns[-1].reward == 1.0
    assert played.trajectory.turns[-1].action == end[1]
    assert played.agent.metrics["harness_restarts"] == 1


async def test_responses_that_go_on_from_the_same_one_are_branches():
    sampler = Says(["plan", "left", "right"])

    async def harness(call):
        async with client(call) as api:
            plan = await api.responses.create(model="any", input=call.text)
            for side in ("l", "r"):
                end = await api.responses.create(model="any", input=side, previous_response_id=plan.id)
            return end.output_text

    async with seated(harness, sampler) as play:
        played = await play("say")
    plan, left, right = sampler.replies
    assert len(played.datums) == 2
    assert played.trained() == sampled([left, plan, right])
    assert played.trajectory.turns[-1].action == right[1]


async def test_a_turn_that_is_retried_within_a_branch_counts_once():
    sampler = Says(["plan", "left", "right", "right again", "end"])

    async def harness(call):
        plan = {"role": "assistant", "content": (await asks(call, call.observation)).choices[0].message.content}
        trunk = [*call.observation, plan]
        await asks(call, [*trunk, user("l")])
        await asks(call, [*trunk, user("r")])
        right = (await asks(call, [*trunk, user("r")])).choices[0].message.content
        whole = [*trunk, user("r"), {"role": "assistant", "content": right}, user("end")]
        return (await asks(call, whole)).choices[0].message.content

    async with seated(harness, sampler) as play:
        played = await play("say")
    plan, left, _, right, end = sampler.replies
    assert len(played.datums) == 2
    assert played.trained() == sampled([left, plan, right, end])
    assert played.agent.metrics["harness_superseded"] == 1


async def test_a_stream_that_is_left_and_asked_for_again_counts_once():
    sampler = Says(["first", "second"])

    async def harness(call):
        async with client(call) as api:
            left = await api.chat.completions.create(model="any", messages=call.observation, stream=True)
            await anext(aiter(left))
            await left.close()
            return (await asks(call, call.observation)).choices[0].message.content

    async with seated(harness, sampler) as play:
        played = await play("say")
    assert played.environment.heard == ["second"]
    assert played.trained() == sampled(sampler.replies[-1:])


async def test_history_that_the_harness_rewrites_begins_another_datum():
    sampler = Says(["one", "two"])

    async def harness(call):
        await asks(call, call.observation)
        whole = [*call.observation, {"role": "assistant", "content": "something else"}, user("go on")]
        return (await asks(call, whole)).choices[0].message.content

    async with seated(harness, sampler) as play:
        played = await play("say")
    assert len(played.datums) == 2
    assert played.trained() == sampled(sampler.replies)


async def test_calls_at_the_same_time_are_each_trained_once():
    sampler = Says([f"answer {number}" for number in range(6)])

    async def harness(call):
        said = await asyncio.gather(*(asks(call, [user(f"question {number}")]) for number in range(6)))
        return " ".join(entry.choices[0].message.content for entry in said)

    async with seated(harness, sampler) as play:
        played = await play("say")
    assert sorted(played.trained()) == sorted(sampled(sampler.replies))
    assert len(played.datums) == 6
