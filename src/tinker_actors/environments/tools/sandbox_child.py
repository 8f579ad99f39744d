"""What confines Python code before it begins: run as a program of its own, with the standard library alone.

    python -I sandbox_child.py CONFIG STATUS_FD

Three processes: the outer one waits and is what the caller knows; the first of a pid namespace sets up the file system,
and takes everything in that namespace with it when it ends; the last one gives up its rights, says at STATUS_FD what
confines it, and becomes the interpreter that runs the code. What the kernel refuses is left out, and said.

Sources: unshare(2), pivot_root(2), landlock(7), seccomp(2), capabilities(7), prctl(2).
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys
import time
from typing import Any, NoReturn

_LIBC = ctypes.CDLL(None, use_errno=True)

_NEW = {"mount": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}
_BIND, _REC, _PRIVATE, _REMOUNT = 4096, 16384, 1 << 18, 32
_RDONLY, _NOSUID, _NODEV, _DETACH = 1, 2, 4, 2
_RELATIME_OF_STATVFS, _RELATIME = 4096, 1 << 21
_PDEATHSIG, _NO_NEW_PRIVS, _SECCOMP, _SUBREAPER = 1, 38, 22, 36
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SWEEP_SECONDS = 2.0


def main() -> NoReturn:
    config: dict[str, Any] = json.loads(sys.argv[1])
    status = int(sys.argv[2])
    _die_with_parent()
    if os.getppid() != config["parent"]:  # it died first
        sys.exit(1)
    applied: dict[str, Any] = {"namespaces": _unshare(config)}
    if "pid" in applied["namespaces"]:
        inner = os.fork()
        if inner:
            os.close(status)
            signal.signal(signal.SIGTERM, lambda *_: os.kill(inner, signal.SIGKILL))
            _leave(os.waitpid(inner, 0)[1])
        _die_with_parent()
    else:
        _prctl(_SUBREAPER, 1)
    _oversee(config, status, applied)


def _oversee(config: dict[str, Any], status: int, applied: dict[str, Any]) -> NoReturn:
    """Set up the file system, let the code run, and end what it leaves behind."""
    applied["root"] = "mount" in applied["namespaces"] and _change_root(config)
    if not applied["root"]:
        config["uid"] = None  # another user may not reach the interpreter where it lies
    code = os.fork()
    if not code:
        _run(config, status, applied)
    os.close(status)
    if "pid" in applied["namespaces"]:
        # whatever is left in the namespace ends with this process; orphans are taken over until then
        while True:
            ended, how = os.wait()
            if ended == code:
                _leave(how)
    signal.signal(signal.SIGTERM, lambda *_: (_sweep(), os._exit(128 + signal.SIGTERM)))
    _, how = os.waitpid(code, 0)
    _sweep()
    _leave(how)


def _run(config: dict[str, Any], status: int, applied: dict[str, Any]) -> NoReturn:
    """Give up what the code must not have, then become its interpreter."""
    try:
        os.chdir(config["folder"])
        if config["uid"] is not None:
            os.setgroups([])
            os.setresgid(config["uid"], config["uid"], config["uid"])
            os.setresuid(config["uid"], config["uid"], config["uid"])
        _die_with_parent()
        for name, value in config["limits"].items():
            kind = getattr(resource, name)
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))
        applied["uid"] = os.getuid()
        _give_up_capabilities()
        _prctl(_NO_NEW_PRIVS, 1)
        applied["landlock"] = _landlock(config) if config["landlock"] else 0
        applied["seccomp"] = _seccomp() if config["seccomp"] else False
        os.write(status, json.dumps(applied).encode() + b"\n")
        os.set_inheritable(status, False)
        os.execve(config["program"][0], config["program"], config["env"])
    except BaseException as error:  # the boundary to the caller: it is told why the code can't run
        os.write(status, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
    os._exit(127)


def _unshare(config: dict[str, Any]) -> list[str]:
    """Enter namespaces of one's own: as root directly, else through a user namespace."""
    wanted = list(config["namespaces"])
    flags = sum(_NEW[name] for name in wanted)
    if not wanted:
        return []
    if config["uid"] is not None and not _LIBC.unshare(flags):
        return wanted
    config["uid"] = None
    uid, gid = os.geteuid(), os.getegid()
    if _LIBC.unshare(flags | _NEW["user"]):
        return []
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError:
        return [name for name in wanted if name != "mount"]  # without a map nothing can be mounted
    return [*wanted, "user"]


def _change_root(config: dict[str, Any]) -> bool:
    """A root that holds what the code may read, read-only, and its folder. Whether it was possible."""
    root = config["root"]
    if platform.machine() not in _PIVOT_ROOT:
        return False
    try:
        _mount(None, "/", None, _REC | _PRIVATE)
        _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=755")
        for path in config["readable"]:
            _bring(root, path, _RDONLY | _NOSUID | _NODEV)
        for path in config["devices"]:
            _bring(root, path, _NOSUID)
        _bring(root, config["folder"], _NOSUID | _NODEV)
        os.mkdir(f"{root}/.old", 0o700)
        if _LIBC.syscall(_PIVOT_ROOT[platform.machine()], root.encode(), f"{root}/.old".encode()):
            raise OSError(ctypes.get_errno(), "pivot_root")
        os.chdir("/")
        if _LIBC.umount2(b"/.old", _DETACH):
            raise OSError(ctypes.get_errno(), "umount2")
        os.rmdir("/.old")
        _mount(None, "/", None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    except OSError:
        # the host's files must not be left in reach by half a change; Landlock has nothing to do with the root
        if os.path.isdir("/.old"):
            raise
        return False
    return True


def _bring(root: str, path: str, flags: int) -> None:
    """Mount a file or folder into the new root; a symbolic link is written anew."""
    if not os.path.lexists(path):
        return
    target = root + path
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    if os.path.lexists(target):
        return
    if os.path.islink(path) and path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.mkdir(target, 0o755)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(path, target, None, _BIND | _REC)
    standing = os.statvfs(target).f_flag
    kept = standing & 0xC0F | (_RELATIME if standing & _RELATIME_OF_STATVFS else 0)
    _mount(None, target, None, _BIND | _REMOUNT | flags | kept)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind, data)]
    if _LIBC.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]):
        raise OSError(ctypes.get_errno(), f"mount {target}")


def _give_up_capabilities() -> None:
    """Those of a user namespace; root gave up its own with its user id."""
    header = struct.pack("Ii", 0x20080522, 0)
    _LIBC.capset(header, struct.pack("6I", 0, 0, 0, 0, 0, 0))


_FILE_RIGHTS = 1 | 2 | 4 | 1 << 14 | 1 << 15  # execute, write, read, truncate, ioctl
_READ = 1 | 4 | 8  # execute, read files, read folders


def _landlock(config: dict[str, Any]) -> int:
    """Leave access to the folder and to what may be read. The version of Landlock; 0 if the kernel has none."""
    version = _LIBC.syscall(444, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return 0
    rights = (1 << 13) - 1 | (1 << 13 if version >= 2 else 0) | (1 << 14 if version >= 3 else 0)
    rights |= 1 << 15 if version >= 5 else 0
    words = [rights, *([3] if version >= 4 else []), *([3] if version >= 6 else [])]  # files, TCP, scopes
    attributes = struct.pack(f"{len(words)}Q", *words)
    ruleset = _LIBC.syscall(444, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return 0
    for path, allowed in (
        *((path, _READ) for path in config["readable"]),
        *((path, 2 | 4) for path in config["devices"]),
        (config["folder"], rights),
    ):
        if not os.path.exists(path):
            continue
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed &= rights if os.path.isdir(path) else rights & _FILE_RIGHTS
        if _LIBC.syscall(445, ruleset, 1, struct.pack("=Qi", allowed, beneath), 0):
            raise OSError(ctypes.get_errno(), f"landlock_add_rule {path}")
        os.close(beneath)
    if _LIBC.syscall(446, ruleset, 0):
        return 0
    os.close(ruleset)
    return version


# socket, ptrace, process_vm_readv and _writev, io_uring_setup, bpf, perf_event_open, add_key, request_key, keyctl,
# mount, umount2, pivot_root, unshare, setns, userfaultfd, kexec_load, init_module, finit_module, open_tree, move_mount,
# fsopen
_REFUSED = {
    "x86_64": (
        0xC000003E,
        (41, 101, 310, 311, 425, 321, 298, 248, 249, 250, 165, 166, 155, 272, 308, 323, 246, 175, 313, 428, 429, 430),
    ),
    "aarch64": (
        0xC00000B7,
        (198, 117, 270, 271, 425, 280, 241, 217, 218, 219, 40, 39, 41, 97, 268, 282, 104, 105, 273, 428, 429, 430),
    ),
}


def _seccomp() -> bool:
    """Refuse system calls that reach out or up; whether the kernel does so."""
    if platform.machine() not in _REFUSED:
        return False
    machine, numbers = _REFUSED[platform.machine()]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    refuse = len(numbers) + 1  # how far from the first comparison to the refusal
    program = [(load, 0, 0, 4), (equal, 0, refuse + 2, machine), (load, 0, 0, 0), (at_least, refuse, 0, 0x40000000)]
    program += [(equal, refuse - 1 - place, 0, number) for place, number in enumerate(numbers)]
    program += [(give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050000 | 13)]  # allow; else "permission denied"
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    lines = ctypes.create_string_buffer(code, len(code))
    return not _prctl(_SECCOMP, 2, struct.pack("HxxxxxxP", len(program), ctypes.addressof(lines)))


def _prctl(option: int, *values: Any) -> int:
    words = [value if isinstance(value, bytes) else ctypes.c_ulong(value) for value in values]
    return _LIBC.prctl(option, *words, *(ctypes.c_ulong(0) for _ in range(4 - len(words))))


def _die_with_parent() -> None:
    _prctl(_PDEATHSIG, signal.SIGKILL)


def _sweep() -> None:
    """End every process that the code left behind: they have become this one's children."""
    until = time.monotonic() + _SWEEP_SECONDS
    while time.monotonic() < until:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            left = [int(pid) for pid in file.read().split()]
        if not left:
            return
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for pid in left:
            os.waitpid(pid, 0)


def _leave(how: int) -> NoReturn:
    os._exit(os.WEXITSTATUS(how) if os.WIFEXITED(how) else 128 + os.WTERMSIG(how))


if __name__ == "__main__":
    main()
