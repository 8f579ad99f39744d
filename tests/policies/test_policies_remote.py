"""Stores that are no local folder: an object store's protocol against a real server, and fsspec's memory."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest

from tinker_actors.errors import ConfigError, PolicyError, SnapshotCorruptError, StoreError, UnknownPolicyError
from tinker_actors.policies import Origin, Retention, SnapshotStore
from tinker_actors.policies.remote_place import RemotePlace


def writing(text):
    def write(folder: Path) -> None:
        (folder / "adapter_model.safetensors").write_text(text)
        (folder / "sub").mkdir()
        (folder / "sub" / "more.json").write_text("{}")

    return write


def publish(store, text="w", policy="p", **facts):
    ttl = facts.pop("ttl", None)
    return store.publish(policy, writing(text), Origin(**{"step": 0, "base_model": "tiny-llama", **facts}), ttl=ttl)


def files_of(url):
    """The file system of a URL and the path there, for looking at a store from outside."""
    files, path = fsspec.core.url_to_fs(url)
    files.invalidate_cache()
    return files, path


def test_what_is_published_is_found_again_with_all_it_says(remote, url):
    first = publish(remote)
    second = publish(remote, "v", step=3, parent=first.handle, kind="full", ttl=60.0, spec={"rank": 4})
    saved = remote.checkpoint("p", "final", writing("moments"), Origin(step=3, base_model="tiny-llama"))
    reader = SnapshotStore(url)
    assert (first.number, second.number, saved.number) == (1, 2, 1)
    assert second.path == f"{url}/p/sampler_weights/000002"
    assert reader.get(second.handle) == second
    assert reader.list("p") == (first, second)
    assert reader.latest("p", "weights") == saved
    assert reader.policies() == ("p",)
    assert reader.manifest(second.handle).spec == {"rank": 4}
    with pytest.raises(PolicyError, match="final exists"):
        reader.checkpoint("p", "final", writing("other"), Origin(step=4, base_model="tiny-llama"))
    with pytest.raises(UnknownPolicyError, match=r"000009 is not in the store .*: 000001, 000002"):
        reader.get("tinker://p/sampler_weights/000009")
    assert reader.list("q") == ()


def test_a_reader_elsewhere_gets_a_copy_and_keeps_it(remote, url, cache):
    snapshot = publish(remote, "weights")
    shutil.rmtree(cache)  # as on another host
    reader = SnapshotStore(url)
    folder = reader.fetch(snapshot)
    assert (folder / "adapter_model.safetensors").read_text() == "weights"
    assert (folder / "sub" / "more.json").read_text() == "{}"
    assert folder.is_relative_to(cache)
    files, path = files_of(snapshot.path)
    files.rm(f"{path}/adapter_model.safetensors")
    assert reader.fetch(snapshot) == folder  # nothing was read but the manifest
    assert [entry.name for entry in cache.iterdir()] == [folder.name]


def test_a_copy_that_was_altered_is_made_again(remote):
    snapshot = publish(remote, "weights")
    held = remote.fetch(snapshot) / "adapter_model.safetensors"
    held.write_text("others")
    assert (remote.fetch(snapshot) / "adapter_model.safetensors").read_text() == "weights"


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "sub/more.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "tear", "remove", "add"])
def test_a_damaged_object_is_named(remote, cache, name, damage):
    snapshot = publish(remote, "weights of the policy")
    files, path = files_of(f"{snapshot.path}/{name}")
    content = files.cat_file(path)
    if damage == "remove":
        files.rm_file(path)
    elif damage == "add":
        files.pipe_file(f"{path}.bin", b"x")
    else:
        files.pipe_file(path, content[:-2] if damage == "tear" else content[:-2] + bytes([content[-2] ^ 1]))
    shutil.rmtree(cache)
    wrong = UnknownPolicyError if (damage, name) == ("remove", "manifest.json") else SnapshotCorruptError
    with pytest.raises(wrong, match=snapshot.handle if wrong is UnknownPolicyError else name):
        remote.fetch(snapshot)
    assert list(cache.glob("*")) == []


def test_what_is_deleted_while_it_is_fetched_is_gone_and_not_corrupt(remote, url, cache, monkeypatch):
    snapshot, find = publish(remote), RemotePlace._find
    shutil.rmtree(cache)

    def beaten(place, folder):
        monkeypatch.setattr(RemotePlace, "_find", find)
        SnapshotStore(url).delete(snapshot.handle)
        return find(place, folder)

    monkeypatch.setattr(RemotePlace, "_find", beaten)
    with pytest.raises(UnknownPolicyError, match="is gone"):
        remote.fetch(snapshot)


def test_a_writer_that_fails_leaves_nothing_and_its_number_is_spent(remote):
    good = publish(remote)

    def fail(folder: Path) -> None:
        (folder / "adapter_model.safetensors").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        remote.publish("p", fail, Origin(step=1, base_model="tiny-llama"))
    assert remote.list("p") == (good,)
    assert publish(remote).number == 3


def test_what_has_no_manifest_yet_is_not_there(remote):
    good = publish(remote)
    files, path = files_of(good.path)
    files.pipe_file(path.replace("000001", "000002") + "/adapter_model.safetensors", b"an upload under way")
    assert remote.list("p") == (good,)
    assert remote.latest("p") == good
    with pytest.raises(UnknownPolicyError):
        remote.get(good.handle.replace("000001", "000002"))


def test_what_a_killed_writer_of_the_same_name_left_does_not_spoil_a_checkpoint(remote, cache):
    files, path = files_of(f"{remote.root}/p/weights/step-1/left.bin")
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    files.pipe_file(path, b"half")
    saved = remote.checkpoint("p", "step-1", writing("w"), Origin(step=1, base_model="tiny-llama"))
    shutil.rmtree(cache)
    remote.verify(saved)


def test_numbers_are_never_given_again(remote, url):
    publish(remote)
    remote.delete(publish(remote).handle)
    remote.delete("tinker://p/sampler_weights/000001")
    assert remote.list("p") == ()
    assert publish(SnapshotStore(url)).number == 3


def test_writers_at_one_time_never_get_one_number_on_s3(s3, cache):
    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(lambda _: publish(SnapshotStore(f"{s3}/race")).number, range(8)))
    assert sorted(numbers) == list(range(1, 9))
    store = SnapshotStore(f"{s3}/race")
    assert [snapshot.number for snapshot in store.list("p")] == sorted(numbers)


def test_expiry_drops_objects_and_copies_but_not_the_pinned(remote, cache):
    handles = [publish(remote, str(number)).handle for number in range(4)]
    remote.pin(handles[0])
    assert remote.pinned("p") == {handles[0]}
    assert remote.expire("p", Retention(keep_last=1), in_use={handles[1]}) == (handles[2],)
    assert [snapshot.handle for snapshot in remote.list("p")] == [handles[0], handles[1], handles[3]]
    assert len(list(cache.iterdir())) == 3
    with pytest.raises(PolicyError, match="pinned"):
        remote.delete(handles[0])
    remote.unpin(handles[0])
    remote.delete(handles[0])
    files, path = files_of(f"{remote.root}/p/sampler_weights")
    assert {found.removeprefix(path).split("/")[1] for found in files.find(path)} == {"000002", "000004"}


def test_a_bucket_that_is_not_there_is_an_error_of_the_store(s3, cache):
    with pytest.raises(StoreError, match="can't take a number in the store s3://no-such-bucket"):
        publish(SnapshotStore("s3://no-such-bucket/x"))


def test_a_url_that_nobody_knows_is_refused():
    with pytest.raises(ConfigError, match=r"nothing://there can't be used"):
        SnapshotStore("nothing://there")


def test_a_file_url_is_the_folder(tmp_path):
    snapshot = publish(SnapshotStore(f"file://{tmp_path}/store"))
    assert SnapshotStore(tmp_path / "store").fetch(snapshot) == tmp_path / "store/p/sampler_weights/000001"


def test_copies_beyond_the_limit_go_unless_used_lately(remote, cache, monkeypatch):
    from tinker_actors.policies import fetched

    monkeypatch.setattr(fetched, "_UNTOUCHED", -1.0)
    first, second = publish(remote, "a" * 1000), publish(remote, "b" * 1000)
    size = sum(file.stat().st_size for file in remote.fetch(second).rglob("*") if file.is_file())
    copies = fetched.FetchedCopies(cache, limit=int(2.5 * size))
    kept = remote.fetch(second)
    third = publish(remote, "c" * 1000)
    copies._shrink()
    assert remote.fetch(third).is_dir()
    assert kept.is_dir()
    assert not (cache / remote.manifest(first.handle).digest).exists()
