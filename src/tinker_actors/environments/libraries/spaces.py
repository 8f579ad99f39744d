"""Values of gymnasium's spaces as text, and text as actions of them.

>>> import numpy
>>> from gymnasium.spaces import Box, Discrete, MultiDiscrete
>>> told(Box(-1, 1, (2,)), numpy.array([0.25, -1]))
'[0.25, -1]'
>>> told(Box(0, 9, (2, 2), dtype=int), numpy.array([[1, 2], [3, 4]]))
'[1, 2]\\n[3, 4]'
>>> chosen(Discrete(4), "I go down, so: 2")
2
>>> chosen(Discrete(4), "Not left. Up!", names=("left", "down", "right", "up"))
3
>>> chosen(MultiDiscrete([3, 5]), "[2, 4]").tolist()
[2, 4]
>>> chosen(Discrete(4), "7")
Traceback (most recent call last):
tinker_actors.environments.libraries.illegal.IllegalActionError: 7 is not an action
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from gymnasium import spaces

from tinker_actors.data import Message
from tinker_actors.environments.libraries.illegal import IllegalActionError
from tinker_actors.errors import ConfigError

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_LIST = re.compile(r"\[[^\[\]]*\]")
_HIGHLIGHTED = re.compile(r"\x1b\[(?:\d+;)*4[1-7](?:;\d+)*m(.*?)\x1b\[0m", re.DOTALL)
_ESCAPE = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_FEW = 24  # actions that are listed one by one
_DIGITS = 20  # of the numbers that are read; Python refuses to read some thousand


def told(space: spaces.Space[Any], value: Any) -> str | Message:
    """A value of a space as a seat reads it.

    Integers stand as they are, real numbers with four digits, arrays in brackets with a line for each row, tables with
    a line for each entry. Pictures (unsigned bytes of shape (height, width, 3 or 4), 8 pixels or more to a side) are
    shown as such.

    Raises:
        ConfigError: There is no text for values of this space.
    """
    if isinstance(space, spaces.Box) and is_picture(value):
        return Message.of(np.ascontiguousarray(value[..., :3]))
    return _text(space, value)


def is_picture(value: Any) -> bool:
    """Whether an array is a picture."""
    shape = getattr(value, "shape", ())
    return getattr(value, "dtype", None) == np.uint8 and len(shape) == 3 and shape[2] in (3, 4) and min(shape[:2]) >= 8


def plain(rendered: str) -> str:
    """What was rendered for a terminal, without its colours: what they highlight stands in brackets.

    >>> plain("S\\x1b[41mF\\x1b[0mF")
    'S[F]F'
    """
    return _ESCAPE.sub("", _HIGHLIGHTED.sub(r"[\1]", rendered)).strip("\n")


def _text(space: spaces.Space[Any], value: Any) -> str:
    if isinstance(space, spaces.Text):
        return str(value)
    if isinstance(space, spaces.Dict):
        return "\n".join(f"{name}: {_text(inner, value[name])}" for name, inner in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return ", ".join(_text(inner, part) for inner, part in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Sequence):
        return "[" + ", ".join(_text(space.feature_space, part) for part in value) + "]"
    if isinstance(space, spaces.OneOf):
        return _text(space.spaces[int(value[0])], value[1])
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
        return _array(np.asarray(value))
    raise ConfigError(f"there is no text for observations of {space}; override describe(seat, observation, info)")


def _array(value: Any) -> str:
    if value.ndim == 0:
        return _number(value.item())
    if value.ndim == 1:
        return "[" + ", ".join(_number(each) for each in value.tolist()) + "]"
    return ("\n" * (value.ndim - 1)).join(_array(row) for row in value)


def _number(value: Any) -> str:
    return format(value, ".4g") if isinstance(value, float) else str(int(value))


def hint(space: spaces.Space[Any], names: Sequence[str] = (), mask: Any = None) -> str:
    """What a seat may answer.

    Args:
        space: Of the actions.
        names: Of the actions of a discrete space, in order.
        mask: By action of a discrete space, whether it can be taken now; None if all can.
    """
    if isinstance(space, spaces.Discrete):
        legal = _legal(space, mask)
        if names or (mask is not None and len(legal) <= _FEW):
            return "Answer with one of: " + ", ".join(_names(space, names)[number] for number in legal) + "."
        return f"Answer with an integer from {int(space.start)} to {int(space.start + space.n) - 1}."
    if isinstance(space, spaces.Text):
        return f"Answer with a text of {space.min_length} to {space.max_length} characters."
    if isinstance(space, spaces.Box):
        low, high = _number(float(space.low.min())), _number(float(space.high.max()))
        return f"Answer with {space.low.size} numbers from {low} to {high} in brackets, such as [0.5, 1]."
    if isinstance(space, spaces.MultiDiscrete):
        most = ", ".join(str(int(start + n) - 1) for start, n in zip(space.start.flat, space.nvec.flat, strict=True))
        return f"Answer with {space.nvec.size} integers in brackets, of which the largest allowed are [{most}]."
    if isinstance(space, spaces.MultiBinary):
        return f"Answer with {int(np.prod(space.shape))} digits, 0 or 1, in brackets, such as [0, 1]."
    return f"Answer with JSON for {space}."


def _legal(space: spaces.Discrete, mask: Any) -> list[int]:
    numbers = range(int(space.start), int(space.start + space.n))
    return [number for number, open_ in zip(numbers, [True] * len(numbers) if mask is None else mask) if open_]  # noqa: B905


def _names(space: spaces.Discrete, names: Sequence[str]) -> dict[int, str]:
    numbers = range(int(space.start), int(space.start + space.n))
    if not names:
        return {number: str(number) for number in numbers}
    if len(names) != len(numbers):
        raise ConfigError(f"option 'actions' names {len(names)} actions; there are {len(numbers)}")
    return dict(zip(numbers, names, strict=True))


def chosen(space: spaces.Space[Any], text: str, names: Sequence[str] = (), mask: Any = None) -> Any:
    """The action that a text names.

    Of a discrete space: the last name or number in it. Of a text space: all of it, without space around. Of boxes and
    several integers: the numbers of its last list in brackets, or else all of them. Of tuples and tables: its JSON.

    Args:
        space: Of the actions.
        text: What the seat said.
        names: As for `hint`.
        mask: As for `hint`.

    Raises:
        IllegalActionError: It names none, or one that can't be taken; says why.
    """
    if isinstance(space, spaces.Discrete):
        return _discrete(space, text, names, mask)
    if isinstance(space, spaces.Text):
        action: Any = text.strip()
    elif isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        lists = _LIST.findall(text)
        action = _shaped(space, [float(each) for each in _NUMBER.findall(lists[-1] if lists else text)])
    else:
        action = _value(space, _json(text))
    if not space.contains(action):
        raise IllegalActionError(f"{' '.join(text.split())[-80:]!r} is not one of the actions allowed")
    return action


def _discrete(space: spaces.Discrete, text: str, names: Sequence[str], mask: Any) -> int:
    numbers = {name.lower(): number for number, name in _names(space, names).items()} if names else {}
    patterns = [rf"(?<!\w){re.escape(name)}(?!\w)" for name in sorted(numbers, key=len, reverse=True)]
    found = re.findall("|".join([*patterns, r"(?<![\w.])-?\d+(?![\w]|\.\d)"]), text.lower())
    if not found:
        raise IllegalActionError("no action was named")
    last = found[-1]
    if last not in numbers and len(last) > _DIGITS:
        raise IllegalActionError(f"{last[:_DIGITS]}... is not an action")
    number = numbers[last] if last in numbers else int(last)
    if number not in _legal(space, None):
        raise IllegalActionError(f"{last} is not an action")
    if number not in _legal(space, mask):
        raise IllegalActionError(f"{last} can't be chosen now")
    return number


def _shaped(space: spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary, numbers: Sequence[float]) -> Any:
    shape = space.shape
    if len(numbers) != int(np.prod(shape)):
        raise IllegalActionError(f"{int(np.prod(shape))} numbers are needed, {len(numbers)} were found")
    array = np.array(numbers).reshape(shape)
    if np.issubdtype(space.dtype, np.integer):
        if not (array == np.trunc(array)).all():
            raise IllegalActionError("integers are needed")
        limits = np.iinfo(cast("Any", space.dtype))
        if ((array < limits.min) | (array >= limits.max + 1.0)).any():  # a cast would make other numbers of them
            raise IllegalActionError(f"integers from {limits.min} to {limits.max} are needed")
    with np.errstate(over="ignore"):
        held = array.astype(space.dtype)
    if not np.isfinite(held).all():  # a space without bounds would take them
        raise IllegalActionError("finite numbers are needed")
    return held


def _json(text: str) -> Any:
    decoder = json.JSONDecoder()
    for start in (place for place, letter in enumerate(text) if letter in "{["):
        try:
            return decoder.raw_decode(text, start)[0]
        except ValueError:
            continue
        except RecursionError:  # of brackets by the thousand, which models do write: from each it would be read again
            break
    raise IllegalActionError("no JSON was found")


def _value(space: spaces.Space[Any], given: Any) -> Any:
    if isinstance(space, spaces.Dict):
        if not isinstance(given, Mapping) or given.keys() != space.spaces.keys():
            raise IllegalActionError(f"a table with the entries {', '.join(space.spaces)} is needed")
        return {name: _value(inner, given[name]) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(given, list) or len(cast("list[Any]", given)) != len(space.spaces):
            raise IllegalActionError(f"a list of {len(space.spaces)} is needed")
        parts = cast("list[Any]", given)
        return tuple(_value(inner, part) for inner, part in zip(space.spaces, parts, strict=True))
    if isinstance(space, spaces.Discrete | spaces.Text):
        return given
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        try:
            return _shaped(space, np.asarray(given, dtype=float).reshape(-1).tolist())
        except (TypeError, ValueError, OverflowError) as error:
            raise IllegalActionError(str(error)) from None
    raise ConfigError(f"there are no texts for actions of {space}; override choose(seat, text)")
