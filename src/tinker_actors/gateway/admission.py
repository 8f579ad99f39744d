"""Who is let in: whoever has a good key, or a token for one, or, where no key was ever made, programs of the same host.

Without keys the danger is the browser of somebody on that host: any page that it shows may send requests to 127.0.0.1.
Three things keep it out. A page of another origin is told apart by `Origin` and `Sec-Fetch-Site`, which scripts can't
set. A page that made its own name resolve to 127.0.0.1 (DNS rebinding) is of the same origin in the browser's eyes, but
the name stands in `Host`. And no answer allows another origin to read it (CORS). With keys none of this is needed: a
key is sent in a header that a foreign page neither knows nor has the browser add.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from tinker_actors.errors import ConfigError
from tinker_actors.gateway.caller import LOCAL, Caller
from tinker_actors.gateway.keys import KeyStore
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.tokens import PREFIX as TOKEN_PREFIX
from tinker_actors.gateway.tokens import Tokens

_PROXIED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


class Admission:
    """Says who asks; an `Admit` for the gate.

    Args:
        keys: The keys of the service; None for a service that can't have any.

    Attributes:
        tokens: Those that stand for keys.
    """

    def __init__(self, keys: KeyStore | None = None) -> None:
        self._keys = keys
        self.tokens = Tokens()
        self._closed = False

    @property
    def needs_key(self) -> bool:
        """Whether nobody gets in without a key; once so, always so."""
        self._closed = self._closed or (self._keys is not None and self._keys.ever)
        return self._closed

    def __call__(self, connection: HTTPConnection) -> Caller:
        """Who asks.

        Raises:
            RefusalError: 401 without a good key where one is needed; 403 for what doesn't come from this host.
        """
        if self._keys is None or not self.needs_key:
            only_this_host(connection)
            return LOCAL
        given = key_of(connection.headers)
        caller = None if given is None else _of(given, self._keys, self.tokens)
        if caller is None:
            what = "no API key was given" if given is None else "the API key is unknown, expired or revoked"
            raise RefusalError(
                401,
                f"{what}; send one as `X-API-Key: KEY` or `Authorization: Bearer KEY`",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer" if given is None else 'Bearer error="invalid_token"'},
            )
        return caller


def _of(given: str, keys: KeyStore, tokens: Tokens) -> Caller | None:
    """Whom a key or a token lets in."""
    until = None
    if given.startswith(TOKEN_PREFIX):
        standing = tokens.read(given)
        key = None if standing is None else keys.of_id(standing.key)
        until = None if standing is None else standing.until
    else:
        key = keys.find(given)
    if key is None:
        return None
    return Caller(tenant=key.tenant, key=key.id, scopes=key.scopes, until=until or key.expires)


def key_of(headers: Mapping[str, str]) -> str | None:
    """The key that a request bears, if any."""
    if given := headers.get("x-api-key", "").strip():
        return given
    scheme, _, rest = headers.get("authorization", "").strip().partition(" ")
    return rest.strip() or None if scheme.lower() == "bearer" else None


def only_this_host(connection: HTTPConnection) -> None:
    """Let only programs of this host pass, and pages that the gateway itself served.

    Raises:
        RefusalError: 403; says which header or address didn't fit.
    """
    headers = connection.headers
    if connection.client is not None and not is_loopback(connection.client.host):
        raise _stranger(f"the request comes from {connection.client.host}")
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_loopback(_host_name(hosts[0])):
        raise _stranger(f"its Host is {', '.join(hosts)!r}, not localhost or 127.0.0.1")
    if proxy := next((name for name in _PROXIED if name in headers), None):
        raise _stranger(f"it came through a proxy ({proxy})")
    _same_origin(connection, headers, hosts[0])


def _same_origin(connection: HTTPConnection, headers: Headers, host: str) -> None:
    site = headers.get("sec-fetch-site", "none")
    follows_a_link = (
        connection.scope.get("method") in ("GET", "HEAD")
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
    if site not in ("none", "same-origin") and not follows_a_link:
        raise _stranger(f"a page of another origin sent it (Sec-Fetch-Site: {site})")
    for origin in headers.getlist("origin"):
        if urlsplit(origin).netloc.lower() != host.strip().lower():
            raise _stranger(f"a page of another origin sent it (Origin: {origin})")


def _stranger(why: str) -> RefusalError:
    return RefusalError(
        403, f"a gateway without API keys serves this host alone, and {why}; see `tinker-actors keys`", code="forbidden"
    )


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host.strip()}").hostname or ""
    except ValueError:  # such as an unfinished [
        return ""


def is_loopback(host: str) -> bool:
    """Whether a name or address can only be this host."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def refuse_off_host(host: str, keys: KeyStore | None) -> None:
    """Refuse to listen where other hosts reach it, unless there is a key that lets somebody in.

    Args:
        host: The name or address to listen on.
        keys: The keys of the service.

    Raises:
        ConfigError: It is beyond loopback and there is no good key.
    """
    if is_loopback(host) or (keys is not None and keys.any_good):
        return
    raise ConfigError(
        f"host is {host!r}, which other hosts reach, and there is no API key; make one with `tinker-actors keys add "
        "TENANT` and the same --root, or listen on 127.0.0.1"
    )
