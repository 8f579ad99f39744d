"""Where nodes listen on a network: `tcp://HOST:PORT` addresses."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from tinker_actors.actors.checks import check_type
from tinker_actors.errors import ConfigError

PREFIX = "tcp://"
_ANY = ("0.0.0.0", "::", "*")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host, without brackets, and a port; port 0 is any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Read `tcp://HOST:PORT`; an IPv6 address stands in brackets, port `*` is 0.

        Raises:
            ConfigError: it is no such address.

        >>> Endpoint.parse("tcp://[::1]:7000")
        Endpoint(host='::1', port=7000)
        """
        check_type("an address", url, str, "a text like tcp://HOST:PORT")
        host, separator, port = url.removeprefix(PREFIX).rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            separator = ""
        port = "0" if port == "*" else port
        if not (url.startswith(PREFIX) and host and separator and port.isascii() and port.isdigit()) or (
            int(port) > 65535
        ):
            raise ConfigError(f"expected an address like tcp://HOST:PORT, got {url!r}")
        return cls("0.0.0.0" if host == "*" else host, int(port))

    @property
    def is_any(self) -> bool:
        """Whether it stands for every address of its host."""
        return self.host in _ANY

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of its own host can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_ipv6(self) -> bool:
        """Whether its host is an IPv6 address."""
        return ":" in self.host

    @property
    def url(self) -> str:
        """As `parse` reads it."""
        return f"{PREFIX}[{self.host}]:{self.port}" if self.is_ipv6 else f"{PREFIX}{self.host}:{self.port}"

    def at(self, host: str) -> Endpoint:
        """The same port of `host`, if this one stands for every address of its host."""
        return Endpoint(host, self.port) if self.is_any else self


def address_towards(endpoint: Endpoint) -> str:
    """The address of this host on the way to `endpoint`; nothing is sent.

    Raises:
        OSError: there is no way, or no such host.
    """
    found = socket.getaddrinfo(endpoint.host, endpoint.port or 1, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, target = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
