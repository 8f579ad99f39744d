"""Two hosts: network namespaces joined by a link that can be cut, delayed and made lossy.

The hosts' ends are TUN devices; this module's thread carries the packets between them, so no kernel module for
delays is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x0001 | 0x1000
HOSTS = ("10.213.7.1", "10.213.7.2")


class Hosts:
    """Namespaces `names[0]` and `names[1]` with the addresses `HOSTS`.

    Attributes:
        is_cut: packets are dropped.
        delay: seconds that each packet takes.
        loss: share of packets that get lost.
    """

    def __init__(self, names: tuple[str, str]) -> None:
        self.names = names
        self.is_cut = False
        self.delay = 0.0
        self.loss = 0.0
        self.dropped = 0
        self._random = random.Random(0)
        self._ends = [_tun(name, host) for name, host in zip(names, HOSTS, strict=True)]
        self._stop = os.eventfd(0)
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        for descriptor in (*self._ends, self._stop):
            os.close(descriptor)

    def prefix(self, host: int) -> tuple[str, ...]:
        """What runs a command on a host."""
        return ("ip", "netns", "exec", self.names[host])

    @contextlib.contextmanager
    def inside(self, host: int) -> Iterator[None]:
        """This thread, and what it starts, is on a host."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.names[host]}", os.O_RDONLY)
        _enter(there)
        try:
            yield
        finally:
            _enter(home)
            os.close(there)
            os.close(home)

    def _carry(self) -> None:
        waiting: list[tuple[float, int, int, bytes]] = []
        count = 0
        while True:
            left = None if not waiting else max(0.0, waiting[0][0] - time.monotonic())
            ready = select.select([*self._ends, self._stop], [], [], left)[0]
            if self._stop in ready:
                return
            for side, end in enumerate(self._ends):
                if end in ready:
                    packet = os.read(end, 65536)
                    if self.is_cut or self._random.random() < self.loss:
                        self.dropped += 1
                        continue
                    count += 1
                    heapq.heappush(waiting, (time.monotonic() + self.delay, count, 1 - side, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, side, packet = heapq.heappop(waiting)
                os.write(self._ends[side], packet)


def _tun(namespace: str, host: str) -> int:
    """A TUN device, moved into a namespace; its other end stays with us."""
    device = f"ta{os.getpid() % 100000}{host[-1]}"
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", device.encode(), _IFF_TUN_NO_PI))
    _ip("link", "set", device, "netns", namespace)
    _ip("-n", namespace, "link", "set", "lo", "up")
    _ip("-n", namespace, "address", "add", f"{host}/24", "dev", device)
    _ip("-n", namespace, "link", "set", device, "up")
    return descriptor


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns failed")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def make() -> Hosts:
    """Two hosts, or a skipped test that says why there can be none."""
    if shutil.which("ip") is None:
        pytest.skip("needs iproute2's `ip`")
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("needs /dev/net/tun, for which this user has no rights")
    names = tuple(f"ta-{os.getpid()}-{side}" for side in "ab")
    made: list[str] = []
    try:
        for name in names:
            _ip("netns", "add", name)
            made.append(name)
        return Hosts((names[0], names[1]))
    except (OSError, subprocess.CalledProcessError) as error:
        for name in made:
            _ip("netns", "delete", name)
        pytest.skip(f"can't make network namespaces: {getattr(error, 'stderr', None) or error}")


def remove(hosts: Hosts) -> None:
    """Undo `make`."""
    hosts.close()
    for name in hosts.names:
        _ip("netns", "delete", name)
