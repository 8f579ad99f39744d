"""A person at the terminal as an agent: shown what the seat is shown, asked for each action."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from tinker_actors.data import Message, ToolList, Trajectory
from tinker_actors.environments.agents import Action, Agent
from tinker_actors.environments.halfblocks import half_blocks, shades
from tinker_actors.environments.visible import visible
from tinker_actors.errors import EpisodeError


class PersonLeftError(EpisodeError):
    """The person ended the input instead of answering."""


class Lines:
    """Lines of a terminal, a pipe or a file, awaited on the event loop: a wait for one ends when it is cancelled.

    Args:
        descriptor: What is read, and by nobody else.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held = b""
        self._ended = False

    async def next(self) -> str | None:
        """The next line without its end, or None where there is no more."""
        while b"\n" not in self._held and not self._ended:
            await self._readable()
            read = os.read(self._descriptor, 65536)
            self._held += read
            self._ended = not read
        if not self._held:
            self._ended = False  # a terminal may go on after Ctrl-D
            return None
        line, _, self._held = self._held.partition(b"\n")
        return line.decode(errors="replace").removesuffix("\r")

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_reader(self._descriptor, lambda: ready.done() or ready.set_result(None))
        except PermissionError:  # a file: it can be read at any time
            return
        try:
            await ready
        finally:
            loop.remove_reader(self._descriptor)


class Terminal:
    """Where people are shown observations and asked for answers, one at a time.

    Args:
        console: Where to show.
        lines: What they type.
        echo: Whether to write down what was read, because no terminal does.
    """

    def __init__(self, console: Console, lines: Lines, *, echo: bool = False) -> None:
        self.console = console
        self.turn = asyncio.Lock()
        self.left = False
        self._lines = lines
        self._echo = echo

    @classmethod
    @functools.cache
    def of_process(cls) -> Terminal:
        """The one of this process: its standard input and output."""
        return cls(Console(), Lines(sys.stdin.fileno()), echo=not sys.stdin.isatty())

    def show(self, messages: Sequence[Message]) -> None:
        """Show messages, images among them."""
        for message in messages:
            speaker = "" if message.role == "user" else f"{message.name or message.role}: "
            for part in message.parts or (message.content,):
                if isinstance(part, str):
                    self.console.print(Text.assemble((speaker, "dim"), visible(part)), soft_wrap=True)
                else:
                    coloured = self.console.is_terminal and not self.console.no_color
                    self.console.print(half_blocks(part) if coloured else shades(part))

    async def ask(self, seat: str) -> str:
        """What the person answers; a line that ends with a backslash goes on in the next one.

        Raises:
            PersonLeftError: The input has ended.
        """
        while True:
            said = await self._line(f"{seat}> ")
            while said.endswith("\\"):
                said = f"{said[:-1]}\n{await self._line('... ')}"
            if said.strip():
                return said
            self.console.print(Text("an answer is needed; Ctrl-D leaves", style="dim"))

    async def _line(self, prompt: str) -> str:
        self.console.print(Text(prompt, style="bold"), end="")
        self.console.file.flush()
        line = await self._lines.next()
        if line is None or self._echo:
            self.console.print(Text(visible(line or "")), soft_wrap=True)
        if line is None:
            self.left = True
            raise PersonLeftError("the person has left")
        return line


class PersonAgent(Agent):
    """A person plays. There is no hurry: whoever seats one sets no limits of time.

    Args:
        terminal: Where; several people may share one.
        seat: The seat's name, for the prompt.
        tells_reward: Whether the reward is shown when the episode is over.
    """

    def __init__(self, terminal: Terminal, seat: str = "agent", *, tells_reward: bool = True) -> None:
        self._terminal = terminal
        self._seat = seat
        self._tells_reward = tells_reward

    async def equip(self, tools: ToolList) -> None:
        """Describe the tools."""
        self._terminal.console.print(Text(visible(tools.described), style="dim"), soft_wrap=True)

    async def act(self, messages: Sequence[Message]) -> Action:
        """Show the messages and ask.

        Raises:
            PersonLeftError: The person has left.
        """
        async with self._terminal.turn:
            self._terminal.show(messages)
            return Action.written(messages, await self._terminal.ask(self._seat))

    async def finish(self, trajectory: Trajectory, error: str | None) -> None:
        """Tell the reward."""
        if self._tells_reward and not self._terminal.left:
            told = f"{self._seat}: reward {trajectory.reward:g}" + (f" ({visible(error)})" if error else "")
            self._terminal.console.print(Text(told, style="dim"), soft_wrap=True)
