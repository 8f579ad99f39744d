"""Which nodes there are, as node 0 tells the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import envelope

if TYPE_CHECKING:
    from tinker_actors.actors.directory import Directory
    from tinker_actors.actors.node import Node


@dataclass(slots=True)
class Member:
    """Another node. Nodes of node 0's own host reach each other by `url`, all others by `network`."""

    index: int
    incarnation: int = 0
    url: str = ""  # ipc
    network: str | None = None  # tcp
    key: str | None = None  # public key, if links are encrypted
    is_guest: bool = False  # of another host
    is_up: bool = False


class Roster:
    """All nodes but node 0."""

    def __init__(self, node: Node, directory: Directory) -> None:
        self._node = node
        self._directory = directory
        self.members: dict[int, Member] = {}

    def introduce(self, member: Member) -> None:
        """Tell a node what it must know before its actors start: names, and the other nodes."""
        for name, ref in self._node.names.items():
            self._node.exchange.send(member.index, [envelope.NAME, name, ref])
        for other in self.members.values():
            if other is not member and other.is_up:
                self._tell(member, other)

    def announce(self, member: Member) -> None:
        """Let requests to a node through, from here and from the other nodes."""
        member.is_up = True
        self._node.exchange.open_peer(member.index)
        for other in self.members.values():
            if other is not member:
                self._tell(other, member)

    def down(self, member: Member, error: Exception, *, final: bool) -> None:
        """A node's incarnation ended."""
        member.is_up = False
        self._node.exchange.peer_down(member.index, member.incarnation, error, final=final)
        notice = [envelope.PEER, member.index, member.incarnation, None, None, error, final]
        self._directory.tell_nodes(notice, besides=member.index)

    def _tell(self, to: Member, about: Member) -> None:
        url = about.network if to.is_guest or about.is_guest else about.url
        if url is not None:
            parts: list[Any] = [envelope.PEER, about.index, about.incarnation, url, about.key, None, False]
            self._node.exchange.send(to.index, parts)
