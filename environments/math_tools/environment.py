"""Arithmetic that is too hard for the head, with a calculator as a tool."""

from __future__ import annotations

import ast
import operator
import random
from collections.abc import Callable, Mapping

from tinker_actors.environments.tools import ToolEnvironment
from tinker_actors.errors import ConfigError

OPERATORS: Mapping[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_NODES: Mapping[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_LONGEST = 40


class MathTools(ToolEnvironment):
    """`12*34=`: the answer is a number, and the tool `calc` computes expressions. Reward 1 for the exact number.

    Args:
        digits: Of each number at most.
        form: How calls are written, as `ToolEnvironment.tool_format`; the default suits tiny models.
        skill: The share of demonstrated calls that compute the question, and of demonstrated answers after a call
            that repeat its result; the others are calls of other numbers, and other answers.
        held_out: Every so many-th question is asked by evaluations alone, and they ask no other.
    """

    max_turns = 3

    def __init__(self, digits: int = 2, form: str = "<{arguments}>", skill: float = 0.5, held_out: int = 5) -> None:
        if digits < 1:
            raise ConfigError(f"digits is {digits}; at least 1 is needed")
        if not 0 <= skill <= 1:
            raise ConfigError(f"skill is {skill}; a share from 0 to 1 is needed")
        if held_out < 3:
            raise ConfigError(f"held_out is {held_out}; at least 3 is needed")
        self.limit, self.tool_format, self.skill, self.held_out = 10**digits, form, skill, held_out

    def tools(self) -> list[Callable[..., object]]:
        """The calculator."""
        return [self.calc]

    async def calc(self, expression: str) -> int:
        """Compute with whole numbers.

        Args:
            expression: Such as 12*34.
        """
        self.result = compute(expression)
        return self.result

    def begin(self, seed: int) -> str:
        """Draw the question from the task's seed."""
        task = random.Random(seed)
        self.question = self._drawn(task)
        self.right = compute(self.question)
        self.result: int | None = None
        return f"{self.question}="

    def answer(self, text: str) -> float:
        """Compare the number."""
        return float(text.strip() == str(self.right))

    def demonstrate(self) -> str:
        """A call at first, then an answer, each as good as `skill` says."""
        good = self.rng.random() < self.skill
        if self.result is None:
            return self.toolbox.written("calc", expression=self.question if good else self._drawn(self.rng))
        return str(self.result if good else self.rng.randrange(self.limit))

    def _drawn(self, rng: random.Random) -> str:
        while True:
            a, sign, b = rng.randrange(self.limit), rng.choice(list(OPERATORS)), rng.randrange(self.limit)
            if ((a + 2 * b) % self.held_out == 0) == self.evaluating:
                return f"{a}{sign}{b}"


def compute(expression: str) -> int:
    """The value of an expression of whole numbers, `+`, `-`, `*` and brackets.

    Raises:
        ValueError: It is something else, or too long.
    """
    if len(expression) > _LONGEST:
        raise ValueError(f"the expression has {len(expression)} characters; at most {_LONGEST} are computed")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{expression!r} is no expression of whole numbers") from None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _NODES:
        return OPERATORS[_NODES[type(node.op)]](_value(node.left), _value(node.right))
    raise ValueError(f"{ast.unparse(node)!r} is not computed; whole numbers, + - * and brackets are")
