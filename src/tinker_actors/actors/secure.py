"""The settings of sockets that reach other hosts: CURVE, who may connect, heartbeats."""

from __future__ import annotations

import zmq

from tinker_actors.actors.gatekeeper import DOMAIN, Gatekeeper
from tinker_actors.actors.keys import Keys

RECONNECT = (100, 1000)  # milliseconds between attempts: at first, at most


class Security:
    """One context's keys, or none: then nothing is encrypted and anyone is let in."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys | None, *, is_server: bool = True) -> None:
        self._keys = keys
        self._gate = Gatekeeper(context, keys.allowed) if keys is not None and is_server else None

    def close(self) -> None:
        """Stop deciding who may connect."""
        if self._gate is not None:
            self._gate.close()

    def configure_server(self, socket: zmq.Socket[bytes], *, is_ipv6: bool) -> None:
        """Set up a socket that is to be bound."""
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.IPV6, int(is_ipv6))
        for option, value in (
            (zmq.TCP_KEEPALIVE, 1),
            (zmq.TCP_KEEPALIVE_IDLE, 30),
            (zmq.TCP_KEEPALIVE_INTVL, 10),
            (zmq.TCP_KEEPALIVE_CNT, 3),
        ):
            socket.setsockopt(option, value)
        if self._keys is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt_string(zmq.CURVE_SECRETKEY, self._keys.secret)
            socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def configure_client(
        self, socket: zmq.Socket[bytes], server_key: str | None, ping: float, *, is_ipv6: bool
    ) -> None:
        """Set up a socket that is to connect to the owner of `server_key`."""
        beat = max(1, round(ping * 1000))
        socket.setsockopt(zmq.IPV6, int(is_ipv6))
        socket.setsockopt(zmq.HEARTBEAT_IVL, beat)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, beat)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, max(1000, beat))
        socket.setsockopt(zmq.HANDSHAKE_IVL, max(2000, 2 * beat))
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT[0])
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT[1])
        if self._keys is not None:
            socket.setsockopt_string(zmq.CURVE_PUBLICKEY, self._keys.public)
            socket.setsockopt_string(zmq.CURVE_SECRETKEY, self._keys.secret)
            socket.setsockopt_string(zmq.CURVE_SERVERKEY, server_key or self._keys.server)

    def explain(self, event: int, value: int) -> str:
        """Why a handshake failed, as far as the side that connects can know."""
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            key = "" if self._keys is None else f" {self._keys.public}"
            return f"it refused this host's key{key} (status {value}): it must stand in `allowed` there"
        if self._keys is None:
            return "it broke off the handshake: it expects keys (`keys=`), and this host was given none"
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            return "it has no keys, but this host was given some"
        return "it broke off the handshake: its own key is another one than expected here, or it has no keys"
