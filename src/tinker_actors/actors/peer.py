"""Another node of the mesh, as this one sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinker_actors.actors.codec import Frame
from tinker_actors.actors.serving import Serving

if TYPE_CHECKING:
    from tinker_actors.actors.link import Outbound
    from tinker_actors.actors.network import Wire
    from tinker_actors.actors.node import Node


class Peer:
    """Another node, over all its incarnations.

    Attributes:
        link: the way to its present incarnation, or None while there is none.
        is_open: its actors are there; until then requests wait in `backlog`.
        is_announced: its actors may be asked as soon as there is a link.
        dead: why it is not coming back.
        cut: why it can't be reached now.
        wire: its connection through the network, if it is reached in that way.
    """

    __slots__ = (
        "backlog",
        "cut",
        "dead",
        "identity",
        "incarnation",
        "index",
        "is_announced",
        "is_open",
        "link",
        "serving",
        "wire",
    )

    def __init__(self, node: Node, index: int) -> None:
        self.index = index
        self.incarnation = 0
        self.identity = b""
        self.link: Outbound | None = None
        self.is_open = False
        self.is_announced = False
        self.dead: Exception | None = None
        self.cut: Exception | None = None
        self.wire: Wire | None = None
        self.backlog: list[tuple[int, bytes, Sequence[Frame]]] = []
        self.serving = Serving(node, index)
