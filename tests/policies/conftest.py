import itertools

import fsspec
import pytest

from tinker_actors.policies import SnapshotStore

_folders = itertools.count()


@pytest.fixture(scope="module")
def s3():
    """The URL of a bucket in an S3 server of this module's own."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        files = fsspec.filesystem("s3")
        files.mkdir("bucket")
        yield "s3://bucket"
    type(files).clear_instance_cache()
    server.stop()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of copies of what lies elsewhere, empty."""
    monkeypatch.setenv("TINKER_ACTORS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "snapshots"


@pytest.fixture(params=["memory", "s3"])
def url(request, cache):
    """An empty store's URL."""
    root = "memory://" if request.param == "memory" else request.getfixturevalue("s3") + "/"
    return f"{root}store-{next(_folders)}"


@pytest.fixture
def remote(url):
    return SnapshotStore(url)
