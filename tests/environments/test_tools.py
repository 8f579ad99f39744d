"""Tools: schemas from functions, the forms of calls, results in order, and environments built on them."""

import asyncio
import itertools
import json
import threading
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field

from tinker_actors.coordinator import run_episode
from tinker_actors.data import EpisodeEnd, Image, Message, Task, ToolCall, TurnEnd, rl_datums
from tinker_actors.environments import LiveEnvironment, PolicyAgent, PolicySeat, ScriptedAgent, Step, load_environment
from tinker_actors.environments.tools import PlainFormat, Toolbox, ToolEnvironment, tool, tool_format
from tinker_actors.errors import ConfigError
from tinker_actors.models import Renderer, load_tokenizer
from tinker_actors.sampling.requests import Sample, SamplingParams, SamplingReply

TASK = Task(environment="sums", seed=4)


def calc(expression: str) -> int:
    """Add numbers.

    Args:
        expression: Such as
            1+2.
    """
    return sum(int(part) for part in expression.split("+"))


def move(steps: int, where: Literal["up", "down"] = "up") -> str:
    return f"{steps} {where}"


def calls(*bodies):
    return "".join(f"<tool_call>{body}</tool_call>" for body in bodies)


async def contents(box, text):
    return [message.content for message in (await box.use(text)).results]


class Point(BaseModel):
    x: int
    y: int = 0


def test_a_schema_comes_from_hints_and_docstring():
    def look(at: Point, zoom: Annotated[float, Field(gt=0)] = 1.0, *, words: list[str] | None = None) -> str:
        """Look closer.

        It takes a while.

        Args:
            at: Where.
            zoom (float): How close.
        """
        return f"{at.x},{at.y} {zoom} {words}"

    schema = tool(look).schema["function"]
    assert schema["description"] == "Look closer. It takes a while."
    parameters = schema["parameters"]
    assert parameters["required"] == ["at"]
    assert parameters["properties"]["zoom"] == {
        "default": 1.0,
        "description": "How close.",
        "exclusiveMinimum": 0,
        "type": "number",
    }
    assert parameters["properties"]["at"]["description"] == "Where."
    assert parameters["$defs"]["Point"]["properties"]["x"] == {"type": "integer"}
    assert parameters["additionalProperties"] is False


def test_functions_without_usable_hints_are_refused():
    with pytest.raises(ConfigError, match="'a' of tool 'f' has no type hint"):
        tool(lambda a: a, name="f")

    def spread(*words: str) -> str:
        return ""

    with pytest.raises(ConfigError, match=r"takes \*words"):
        tool(spread)

    def opaque(x: threading.Thread) -> str:
        return ""

    with pytest.raises(ConfigError, match="no schema can be made"):
        tool(opaque)


async def test_arguments_arrive_as_their_types():
    async def describe(at: Point, *, schema: int, copy: bool = False) -> str:
        return f"{type(at).__name__} {at.x} {schema + 1} {copy}"

    box = Toolbox([describe])
    text = calls('{"name": "describe", "arguments": {"at": {"x": "3"}, "schema": 1}}')
    assert await contents(box, text) == ["Point 3 2 False"]


async def test_each_result_stands_once_in_call_order_however_long_each_takes():
    begun = {name: asyncio.Event() for name in "abc"}

    async def wait(name: str, after: str = "") -> str:
        begun[name].set()
        if after:
            await begun[after].wait()  # ends only if the calls are made at the same time
        return f"t-{name}"

    box = Toolbox([wait])
    used = await box.use(
        calls(
            '{"name": "wait", "arguments": {"name": "a", "after": "c"}}',
            '{"name": "wait", "arguments": {"name": "b", "after": "c"}}',
            '{"name": "wait", "arguments": {"name": "c"}}',
        )
    )
    assert [(message.tool_call_id, message.content) for message in used.results] == [
        ("call-0", "t-a"),
        ("call-1", "t-b"),
        ("call-2", "t-c"),
    ]
    assert {message.role for message in used.results} == {"tool"}
    again = await box.use(calls('{"name": "wait", "arguments": {"name": "a"}}'))
    assert again.results[0].tool_call_id == "call-3"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"name": "move", "arguments": {"steps": "three"}}', "argument 'steps' is 'three': Input should be a valid"),
        ('{"name": "move", "arguments": {"steps": 1, "where": "left"}}', "argument 'where' is 'left'"),
        ('{"name": "move", "arguments": {}}', "argument 'steps' is missing"),
        ('{"name": "move", "arguments": {"steps": 1, "speed": 2}}', "there is no argument 'speed'"),
        ('{"name": "fly", "arguments": {}}', "there is no tool 'fly'; those there are: move"),
        ('{"name": "move", "arguments": [1]}', "a JSON object is needed"),
        ('{"name": "move", "arguments": "{"}', "are not JSON"),
        ('{"name": "move", "arg', "the call can't be read"),
        ("[1]", "the call can't be read"),
        ('{"name": "move", "arguments": ' + "[" * 5000, "the call can't be read"),
        ('{"name": "move", "arguments": {"\\ud83d": 1}}', "the call can't be read"),
        ('{"name": "move", "arguments": "{\\"steps\\": \\"\\\\uD800\\"}"}', "surrogates not allowed"),
        ('{"name": "move", "arguments": {"steps": ' + "[" * 200 + "]" * 200 + "}}", "the call can't be read"),
    ],
)
async def test_a_call_that_does_not_fit_is_answered_by_an_error(body, said):
    used = await Toolbox([move]).use(calls(body))
    (message,) = used.results
    assert message.content.startswith("error: ")
    assert said in message.content
    assert used.errors == 1


async def test_whatever_a_tool_raises_is_its_result_and_the_others_stand():
    def broken(how: str) -> str:
        if how == "exit":
            raise SystemExit(3)
        if how == "cancel":
            raise asyncio.CancelledError("gone")
        if how == "value":
            raise ValueError("no such value")
        return "fine"

    box = Toolbox([broken], format="{name}({arguments})")
    assert await contents(box, "broken(value) broken(exit) broken(cancel) broken(-)") == [
        "error: ValueError: no such value",
        "error: SystemExit: 3",
        "error: CancelledError: gone",
        "fine",
    ]


async def test_a_call_beyond_its_time_is_given_up_and_a_plain_function_holds_nobody_up():
    release = threading.Event()
    threads = []

    def stuck(x: int) -> str:
        threads.append(threading.current_thread())
        release.wait(30)
        return "late"

    box = Toolbox([tool(stuck, seconds=0.05), move], format="{name}({arguments})")
    try:
        assert await contents(box, "stuck(1) move(2, 'down')") == ["error: stuck took longer than 0.05 s", "2 down"]
    finally:
        release.set()
        threads[0].join(5)


async def test_a_tools_own_timeout_error_is_not_the_limits():
    async def ask(x: int) -> str:
        raise TimeoutError("the server is slow")

    assert await contents(Toolbox([ask], format="<{arguments}>"), "<1>") == ["error: TimeoutError: the server is slow"]


async def test_cancelling_the_use_cancels_its_calls():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(x: int) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    use = asyncio.create_task(Toolbox([wait], format="<{arguments}>").use("<1>"))
    await begun.wait()
    use.cancel()
    with pytest.raises(asyncio.CancelledError):
        await use
    assert ended.is_set()


async def test_more_calls_than_allowed_and_longer_results_than_allowed_are_cut_with_a_note():
    def repeat(n: int) -> str:
        return "x" * n

    box = Toolbox([repeat], format="<{arguments}>", max_calls=1, max_characters=5)
    first, second = await contents(box, "<7><1>")
    assert first == "xxxxx\n[2 more characters]"
    assert second.startswith("error")
    assert len((await box.use("<1><2><3>")).results) == 3


async def test_a_result_may_hold_images():
    def picture(size: int) -> list:
        return ["here: ", Image.of(np.zeros((size, size), np.uint8))]

    used = await Toolbox([picture], format="<{arguments}>").use("<8>")
    assert used.results[0].shown == "here: [image 8x8]"


async def test_what_is_returned_becomes_text():
    def several(kind: str) -> object:
        return {"model": Point(x=1), "none": None, "dict": {"é": [1]}, "odd": object()}[kind]

    box = Toolbox([several], format="<{arguments}>")
    answers = await contents(box, "<model><none><dict><odd>")
    assert answers[:3] == ['{"x":1,"y":0}', "null", '{"é": [1]}']
    assert "returned object, which JSON can't say" in answers[3]


@pytest.mark.parametrize(
    ("text", "found", "left"),
    [
        ("calc(3+4)", ['{"expression": "3+4"}'], ""),
        ("so calc((1+2)+3) and\ncalc(')')", ['{"expression": "(1+2)+3"}', '{"expression": "\')\'"}'], "so  and"),
        ("recalc(3)", [], "recalc(3)"),
        ("calc(3", [], "calc(3"),
        ("calc(it's)", ['{"expression": "it\'s"}'], ""),
        ("move(3, 'a,b')", ['{"steps": 3, "where": "a,b"}'], ""),
        ("move(3, up, [1, 2])", ['{"steps": 3, "where": "up", "argument 3": [1, 2]}'], ""),
        ("move()", ["{}"], ""),
        ("the answer is 7", [], "the answer is 7"),
    ],
)
def test_calls_in_plain_text(text, found, left):
    tools = Toolbox([calc, move], format="{name}({arguments})").tools
    said = PlainFormat("{name}({arguments})").read(text, tools)
    assert [call.arguments for call in said.calls] == found
    assert said.text == left


def test_markup_calls_keep_order_text_and_a_missing_closing_tag():
    said = tool_format("hermes").read(
        'I add.\n<tool_call>\n{"name": "b", "arguments": {"z":1,  "a":2}}\n</tool_call>\n<tool_call>{"name": "a"}', {}
    )
    assert said.text == "I add."
    assert said.calls[0] == ToolCall(id="0", name="b", arguments='{"z": 1, "a": 2}')
    assert (said.calls[1].name, said.calls[1].arguments) == ("a", "{}")


def test_json_calls_are_those_that_name_a_known_tool():
    tools = Toolbox([calc]).tools
    read = tool_format("json").read
    assert (
        read('{"name": "calc", "parameters": {"expression": "1"}}', tools).calls[0].arguments == '{"expression": "1"}'
    )
    assert [call.id for call in read('[{"name": "calc"}, {"name": "calc"}]', tools).calls] == ["0", "1"]
    for text in ('{"name": "other"}', "7", "[]", "not json", "[" * 5000):
        assert read(text, tools).calls == ()


@pytest.mark.parametrize("form", ["hermes", "json"])
async def test_whatever_json_stands_for_a_name_or_arguments_an_action_can_not_fail_its_episode(form):
    box = Toolbox([move, calc], format=form)
    values = ("[]", "{}", "null", "1", "NaN", '"move"', '"calc"', '{"steps": [1]}', '{"expression": NaN}', "[[]]")
    for name, key, arguments in itertools.product(values, ("arguments", "parameters"), values):
        body = f'{{"name": {name}, "{key}": {arguments}}}'
        for text in (calls(body), body, f"[{body}, []]"):
            used = await box.use(text)
            assert len(used.results) == len(used.calls)


@pytest.mark.parametrize("form", ["hermes", "json", "{name}({arguments})", "<{name}:{arguments}>"])
def test_what_a_format_writes_it_reads(form):
    box = Toolbox([move, calc], format=form)
    for name, arguments in (("move", {"steps": 3, "where": "down, (or"}), ("calc", {"expression": "1+2"})):
        (call,) = box.format.read(box.written(name, **arguments), box.tools).calls
        assert call.name == name
        assert call.arguments.replace('"3"', "3") == str(arguments).replace("'", '"')


def test_forms_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match=r"tool_format is 'xml'; one of hermes, json"):
        tool_format("xml")
    with pytest.raises(ConfigError, match="must mark where the arguments begin"):
        tool_format("{arguments}")
    with pytest.raises(ConfigError, match=r"names no tool, and there are 2 \(calc, move\)"):
        Toolbox([calc, move], format="<{arguments}>")
    with pytest.raises(ConfigError, match="two tools 'calc'"):
        Toolbox([calc, calc])


class Sums(ToolEnvironment):
    max_turns = 4
    tool_format = "<{arguments}>"

    def tools(self):
        return [self.calc]

    def calc(self, expression: str) -> int:
        return calc(expression)

    def begin(self, seed):
        return f"{seed}+3="

    async def answer(self, text):
        if text == "wait":
            return Step(observation="well?", reward=0.25, metrics={"waited": 1.0})
        return float(text == "7")


async def play(*actions):
    said = iter(actions)
    seen = []

    def act(messages):
        seen.append([(message.role, message.content) for message in messages])
        return next(said)

    return await run_episode(Sums(), {"agent": ScriptedAgent(act)}, task=TASK, id="e"), seen


async def test_an_episode_with_tools_goes_on_until_the_answer():
    episode, seen = await play("<4+3><x>", "wait", "7")
    assert seen == [
        [("user", "4+3=")],
        [("tool", "7"), ("tool", "error: ValueError: invalid literal for int() with base 10: 'x'")],
        [("user", "well?")],
    ]
    assert episode.end is EpisodeEnd.TERMINATED
    assert [turn.reward for turn in episode.trajectory("agent").turns] == [0.0, 0.25, 1.0]
    assert episode.metrics == {"tool_calls": 2.0, "tool_errors": 1.0, "waited": 1.0}


async def test_an_episode_that_only_calls_tools_is_truncated():
    episode, _ = await play(*["<1>"] * 4)
    assert episode.end is EpisodeEnd.TRUNCATED
    assert episode.metrics["tool_calls"] == 4.0


def test_an_environment_with_tools_has_one_seat():
    with pytest.raises(ConfigError, match="one seat is needed"):
        type("Two", (Sums,), {"seats": ("a", "b")})


class Marked(Sums):
    tool_format = "hermes"


class Writes:
    """A sampler that writes the given texts, one after the other; remembers the prompts."""

    def __init__(self, tokenizer, *texts):
        self.tokenizer, self.texts, self.prompts = tokenizer, list(texts), []

    async def sample(self, request):
        self.prompts.append(self.tokenizer.decode(request.prompt))
        text = self.texts.pop(0)
        tokens = (*self.tokenizer.encode(text), self.tokenizer.eos_id)
        sample = Sample(tokens=tokens, logprobs=(-1.0,) * len(tokens), end=TurnEnd.STOP, text=text)
        return SamplingReply(
            samples=(sample,), snapshot="snap", snapshot_step=0, prompt_tokens=len(request.prompt), seed=0
        )


SHOWS_TOOLS = (
    "{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


async def played_by_policy(environment, *texts, template=None):
    tokenizer = load_tokenizer("tiny-llama")
    sampler = Writes(tokenizer, *texts)
    spec = PolicySeat(sampler=sampler, policy="p", snapshot="snap", params=SamplingParams(max_tokens=200))
    agent = PolicyAgent(spec, Renderer(tokenizer, template), seed=1)
    return await run_episode(environment, {"agent": agent}, task=TASK, id="e"), sampler


CALLS = calls(*(json.dumps({"name": "calc", "arguments": {"expression": text}}) for text in ("1+1", "no", "2+2")))


async def test_results_stand_once_in_the_prompt_in_call_order_and_are_masked():
    episode, sampler = await played_by_policy(Marked(), CALLS, "7", template=SHOWS_TOOLS)
    first, second = sampler.prompts
    results = "<|tool|>2<|end|><|tool|>error: ValueError: invalid literal for int() with base 10: 'no'<|end|><|tool|>4"
    assert second == f"{first}{CALLS}<|end|>{results}<|end|><|assistant|>"
    (datum,) = rl_datums(episode.trajectory("agent"), 1.0)
    trained = [target for target, bit in zip(datum.targets, datum.mask, strict=True) if bit]
    assert sampler.tokenizer.decode(trained) == f"{CALLS}<|end|>7<|end|>"


async def test_tools_reach_the_prompt_through_the_template_that_shows_them():
    _, sampler = await played_by_policy(Marked(), "7", template=SHOWS_TOOLS)
    shown, _, rest = sampler.prompts[0].removeprefix("<|system|>").partition("<|end|>")
    assert json.loads(shown) == [tool(Marked().calc).schema]
    assert rest == "<|user|>4+3=<|end|><|assistant|>"


async def test_a_system_message_names_the_tools_where_the_template_does_not():
    class Told(Marked):
        def begin(self, seed):
            return [Message(role="system", content="Be brief."), Message(role="user", content="4+3=")]

    _, sampler = await played_by_policy(Told(), CALLS, "7")
    assert sampler.prompts[0].startswith("<|system|>Be brief.\n\nThese tools are there for you:\n{")
    assert '"name": "calc"' in sampler.prompts[0]
    assert sampler.prompts[1].startswith(sampler.prompts[0] + CALLS)
    _, sampler = await played_by_policy(Marked(), "7")
    assert sampler.prompts[0].startswith("<|system|>These tools")


async def test_plain_text_adds_nothing_to_the_prompt():
    _, sampler = await played_by_policy(Sums(), "7", template=SHOWS_TOOLS)
    assert sampler.prompts == ["<|user|>4+3=<|end|><|assistant|>"]


async def test_plain_methods_that_may_block_run_in_one_thread():
    class Blocks(Sums):
        blocking = True

        def begin(self, seed):
            self.threads = {threading.current_thread()}
            return "go"

        def answer(self, text):
            self.threads.add(threading.current_thread())
            return 1.0

    environment = Blocks()
    said = iter(["<1>", "7"])
    await run_episode(environment, {"agent": ScriptedAgent(lambda _: next(said))}, task=TASK, id="e")
    (thread,) = environment.threads
    assert thread is not threading.main_thread()
    await asyncio.to_thread(thread.join, 5)
    assert not thread.is_alive()


async def test_the_example_of_the_documentation_plays_its_demonstrations(tmp_path):
    page = (Path(__file__).parents[2] / "docs/tools.md").read_text()
    (tmp_path / "sums.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    live = LiveEnvironment(load_environment(str(tmp_path / "sums.py"))(), luck=0)
    await live.reset(3)
    results = await live.step({"agent": await live.demonstrate("agent")})
    assert results.observations["agent"][0].role == "tool"
    assert (await live.step({"agent": await live.demonstrate("agent")})).rewards == {"agent": 1.0}
    await live.close()
