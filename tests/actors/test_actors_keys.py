"""Who may join a mesh: keys, their files, and every way in which they don't fit."""

import asyncio
import signal
import stat
import sys
from pathlib import Path

import pytest
from zoo import Counter

from tinker_actors.actors import HandshakeError, JoinError, Keys, ListenError, Mesh
from tinker_actors.actors.keys import generate
from tinker_actors.cli import main
from tinker_actors.errors import ConfigError

ANY = "tcp://127.0.0.1:0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generate(tmp_path / "keys", ["head", "worker"])
    generate(tmp_path / "others", ["stranger"])
    return tmp_path / "keys"


@pytest.fixture
def stranger(folder: Path) -> Keys:
    """A key pair that nobody allowed, of someone who knows the right server key."""
    other = Keys.load(folder.parent / "others" / "stranger.secret")
    server = Keys.load(folder / "head.secret").public
    return Keys(public=other.public, secret=other.secret, allowed=frozenset([server]), server=server)


@pytest.mark.parametrize("url", ["tcp://0.0.0.0:7000", "tcp://*:7000", "tcp://[::]:7000", "tcp://192.0.2.1:7000"])
def test_listening_for_other_hosts_needs_keys(url: str) -> None:
    with pytest.raises(ConfigError, match="needs keys"):
        Mesh(listen=url)


def test_joining_another_host_needs_keys() -> None:
    with pytest.raises(ConfigError, match="needs keys"):
        Mesh.join("tcp://192.0.2.1:7000")


@pytest.mark.parametrize(
    "url", ["7000", "tcp://", "tcp://host", "tcp://:7000", "tcp://::1:70", "ipc:///x", "tcp://h:99999"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="tcp://HOST:PORT"):
        Mesh(listen=url)


async def test_an_address_of_another_host_can_not_be_listened_on(folder: Path) -> None:
    with pytest.raises(ListenError, match=r"192\.0\.2\.1"):
        async with Mesh(listen="tcp://192.0.2.1:7000", keys=Keys.load(folder / "head.secret")):
            pass


def test_the_command_makes_private_files_and_prints_public_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys"
    assert main(["keys", "mesh", str(keys), "head", "worker"]) == 0
    printed = capsys.readouterr().out
    files = sorted(path.name for path in keys.iterdir())
    assert files == ["allowed", "head.secret", "worker.secret"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys.iterdir()} == {0o600}
    head, worker = Keys.load(keys / "head.secret"), Keys.load(keys / "worker.secret")
    assert printed.splitlines() == [f"head {head.public}", f"worker {worker.public}"]
    assert head.allowed == worker.allowed == {head.public, worker.public}
    assert worker.server == head.public
    assert head.secret not in printed + repr(head)
    assert main(["keys", "mesh", str(keys), "late"]) == 0
    late = Keys.load(keys / "late.secret")
    assert late.server == head.public
    assert Keys.load(keys / "late.secret", server="worker").server == worker.public
    assert main(["keys", "mesh", str(keys), "other", "head"]) == 2
    assert not (keys / "other.secret").exists()
    assert Keys.load(keys / "head.secret").public == head.public


def test_a_secret_that_others_can_read_is_refused(folder: Path) -> None:
    (folder / "head.secret").chmod(0o640)
    with pytest.raises(ConfigError, match="0640"):
        Keys.load(folder / "head.secret")


async def test_nodes_with_the_right_keys_talk(folder: Path) -> None:
    head, worker = (Keys.load(folder / f"{name}.secret") for name in ("head", "worker"))
    async with Mesh(listen="tcp://0.0.0.0:0", keys=head) as mesh:
        port = (mesh.url or "").rpartition(":")[2]
        async with Mesh.join(f"tcp://127.0.0.1:{port}", keys=worker) as joined:
            counter = await mesh.spawn(Counter, name="counter", node=1)
            assert await counter.add(2) == 2
            assert await joined.get("counter").add(2) == 4


async def _fails_to_join(mesh: Mesh, keys: Keys | None) -> str:
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(HandshakeError) as caught:
        async with Mesh.join(mesh.url or "", keys=keys):
            pass
    assert loop.time() - began < 5.0  # not the join's own time limit
    assert mesh.nodes == 1
    return str(caught.value)


async def test_a_node_without_keys_hears_that_it_needs_some(folder: Path) -> None:
    async with Mesh(listen=ANY, keys=Keys.load(folder / "head.secret")) as mesh:
        assert "expects keys" in await _fails_to_join(mesh, None)


async def test_an_unknown_key_is_refused_by_name(folder: Path, stranger: Keys) -> None:
    async with Mesh(listen=ANY, keys=Keys.load(folder / "head.secret")) as mesh:
        assert stranger.public in await _fails_to_join(mesh, stranger)


async def test_another_server_key_than_expected_is_named(folder: Path) -> None:
    async with Mesh(listen=ANY, keys=Keys.load(folder / "head.secret")) as mesh:
        worker = Keys.load(folder / "worker.secret", server="worker")
        assert "another one than expected" in await _fails_to_join(mesh, worker)


async def test_keys_for_a_mesh_without_any_are_refused(folder: Path) -> None:
    async with Mesh(listen=ANY) as mesh:
        assert "it has no keys" in await _fails_to_join(mesh, Keys.load(folder / "worker.secret"))


async def test_meshes_in_one_process_have_allow_lists_of_their_own(folder: Path, stranger: Keys) -> None:
    other = Keys.load(folder.parent / "others" / "stranger.secret")
    async with (
        Mesh(listen=ANY, keys=Keys.load(folder / "head.secret")) as one,
        Mesh(listen=ANY, keys=other) as two,
        Mesh.join(two.url or "", keys=other) as joined,
    ):
        assert joined.node == 1
        await _fails_to_join(one, stranger)


async def test_plaintext_that_goes_to_an_encrypted_mesh_never_arrives(folder: Path) -> None:
    import zmq

    async with Mesh(listen=ANY, keys=Keys.load(folder / "head.secret")) as mesh:
        exchange = mesh._open()[1].exchange
        context = zmq.Context()
        with context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            socket.connect(mesh.url or "")
            socket.send(b"forged")
            while not monitor.poll(0):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            socket.disable_monitor()
            monitor.close(0)
        context.term()
        assert exchange.bad_messages == 0


async def test_where_nobody_listens_joining_fails_in_time() -> None:
    async with Mesh(listen=ANY) as mesh:
        url = mesh.url or ""
    with pytest.raises(JoinError, match="nobody answered"):
        async with Mesh.join(url, timeout=0.3):
            pass


async def test_what_is_no_mesh_is_not_joined() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(JoinError):
            async with Mesh.join(f"tcp://127.0.0.1:{port}", timeout=2.0):
                pass


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_node_that_waits_for_an_answer_hears_a_signal(number: signal.Signals, code: int) -> None:
    """Its address may be wrong, which nobody wants to wait a minute for."""
    connected = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server:
        url = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        command = (sys.executable, "-m", "tinker_actors.cli", "node", "--join", url)
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(30.0):
                await connected.wait()
                process.send_signal(number)
                assert await process.wait() == code
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.stderr is not None
        assert await process.stderr.read() == b""
