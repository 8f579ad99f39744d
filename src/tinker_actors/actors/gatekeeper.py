"""Who may connect: the ZAP handler (RFC 27) of one context, in a thread of its own.

Without one, ZeroMQ lets every CURVE client in, whatever its key. It answers while user code blocks the event loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

import zmq
from zmq.utils import z85

logger = logging.getLogger(__name__)

DOMAIN = b"tinker-actors"
_ENDPOINT = "inproc://zeromq.zap.01"
_STOP = "inproc://gatekeeper-stop"


class Gatekeeper:
    """Lets in the keys of `allowed` (Z85) and nobody else. Start it before any socket of the context is bound."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], allowed: Collection[str]) -> None:
        self._allowed = frozenset(key.encode() for key in allowed)
        self.refused = 0
        self._stop = context.socket(zmq.PAIR)
        self._stop.bind(_STOP)
        requests = context.socket(zmq.REP)
        requests.bind(_ENDPOINT)
        stopped = context.socket(zmq.PAIR)
        stopped.connect(_STOP)
        self._thread = threading.Thread(target=self._serve, args=(requests, stopped), daemon=True, name="gatekeeper")
        self._thread.start()

    def close(self) -> None:
        """End the thread, which closes its own sockets."""
        if self._thread.is_alive():
            self._stop.send(b"")
            self._thread.join()
        self._stop.close(0)

    def _serve(self, requests: zmq.Socket[bytes], stopped: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(requests, zmq.POLLIN)
        poller.register(stopped, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if stopped in ready:
                requests.close(0)
                stopped.close(0)
                return
            version, request, _domain, address, _identity, mechanism, *credentials = requests.recv_multipart()
            key = z85.encode(credentials[0]) if mechanism == b"CURVE" and credentials else b""
            good = key in self._allowed
            if not good:
                self.refused += 1
                logger.warning("refused a peer at %s: its public key %s is not allowed", address.decode(), key.decode())
            status = (b"200", b"OK") if good else (b"400", b"this key is not allowed")
            requests.send_multipart([version, request, *status, key, b""])
