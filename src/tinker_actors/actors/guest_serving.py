"""What a node of another host may ask of this one: everything of the actors, little of the mesh's own machinery."""

from __future__ import annotations

from typing import Any

from tinker_actors.actors import envelope
from tinker_actors.actors.control import SYSTEM_IDS
from tinker_actors.actors.errors import CodecError, UnroutableError
from tinker_actors.actors.serving import Serving

_DESKS = SYSTEM_IDS // 2


def desk_id(index: int) -> int:
    """The id of the actor on node 0 that stands for the directory towards guest `index`."""
    return _DESKS + index


class GuestServing(Serving):
    """Serves a peer that is neither node 0 nor a child of this host's: of the mesh's own actors, only its desk."""

    def ask(self, parts: list[Any]) -> None:
        if self._is_private(parts[2]):
            error = UnroutableError(f"node {self.peer} may not ask actor {parts[2]}, which is the mesh's own")
            self.node.exchange.answer(self.peer, parts[1], [envelope.ERROR, parts[1], error])
        else:
            super().ask(parts)

    def gather(self, parts: list[Any]) -> None:
        if any(self._is_private(actor) for actor in parts[2]):
            error = UnroutableError(f"node {self.peer} may not ask actors that are the mesh's own")
            self.node.exchange.answer(self.peer, parts[1], [envelope.ERROR, parts[1], error])
        else:
            super().gather(parts)

    def tell(self, parts: list[Any]) -> None:
        if self._is_private(parts[1]):
            self.ack(parts[1])
            raise CodecError(f"node {self.peer} told actor {parts[1]} something, which is the mesh's own")
        super().tell(parts)

    def _is_private(self, actor: int) -> bool:
        return actor < SYSTEM_IDS and not (self.node.index == 0 and actor == desk_id(self.peer))
