import errno
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.killing import killed_before_each_step

from tinker_actors.errors import ConfigError, PolicyError, SnapshotCorruptError, UnknownPolicyError
from tinker_actors.policies import Origin, Retention, SnapshotStore
from tinker_actors.policies.handles import Handle
from tinker_actors.policies.local_place import LocalPlace


def writing(text: str):
    def write(folder: Path) -> None:
        (folder / "adapter_model.safetensors").write_text(text)
        (folder / "sub").mkdir()
        (folder / "sub" / "more.json").write_text("{}")

    return write


def publish(store: SnapshotStore, text: str = "w", policy: str = "p", **facts):
    ttl = facts.pop("ttl", None)
    return store.publish(policy, writing(text), Origin(**{"step": 0, "base_model": "tiny-llama", **facts}), ttl=ttl)


@pytest.fixture
def store(tmp_path):
    return SnapshotStore(tmp_path / "store")


def test_a_published_snapshot_is_found_again_with_all_it_says(store):
    first = publish(store)
    second = publish(store, "v", step=3, parent=first.handle, kind="full")
    assert (first.number, second.number) == (1, 2)
    assert second.handle == "tinker://p/sampler_weights/000002"
    assert (second.step, second.parent, second.kind, second.base_model) == (3, first.handle, "full", "tiny-llama")
    reader = SnapshotStore(store.root)
    assert reader.get(second.handle) == second
    assert reader.latest("p") == second
    assert reader.list("p") == (first, second)
    assert reader.policies() == ("p",)
    assert (Path(second.path) / "adapter_model.safetensors").read_text() == "v"
    reader.verify(second)


def test_an_id_with_colons_is_stored_and_listed_under_its_own_name(store):
    snapshot = publish(store, policy="s:train:1")
    assert snapshot.handle == "tinker://s:train:1/sampler_weights/000001"
    assert store.get(snapshot.handle) == snapshot
    assert store.policies() == ("s:train:1",)
    assert ":" not in str(store.fetch(snapshot).relative_to(store.root))
    store.pin(snapshot.handle)
    assert store.pinned("s:train:1") == {snapshot.handle}


def test_the_unknown_is_an_error(store):
    with pytest.raises(UnknownPolicyError, match="p"):
        store.latest("p")
    publish(store)
    with pytest.raises(UnknownPolicyError, match="000009"):
        store.get("tinker://p/sampler_weights/000009")
    with pytest.raises(UnknownPolicyError):
        store.latest("p", "weights")
    with pytest.raises(PolicyError):
        publish(store, policy="../p")


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "sub/more.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "tear", "remove"])
def test_a_damaged_file_is_named(store, name, damage):
    snapshot = publish(store, "weights of the policy")
    path = Path(snapshot.path) / name
    content = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(content[:-2] if damage == "tear" else content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    with pytest.raises(SnapshotCorruptError, match=name):
        store.verify(snapshot)


def test_an_edited_manifest_is_refused_even_as_valid_json(store):
    snapshot = publish(store, step=3)
    path = Path(snapshot.path) / "manifest.json"
    path.write_text(path.read_text().replace('"step": 3', '"step": 4'))
    with pytest.raises(SnapshotCorruptError, match="altered"):
        store.get(snapshot.handle)


def test_a_file_that_was_added_is_refused(store):
    snapshot = publish(store)
    (Path(snapshot.path) / "adapter_model.bin").write_text("x")
    with pytest.raises(SnapshotCorruptError, match=r"adapter_model\.bin"):
        store.verify(snapshot)


def test_a_directory_under_another_ones_name_is_refused(store):
    first, second = publish(store), publish(store)
    store.delete(second.handle)
    os.rename(first.path, second.path)
    with pytest.raises(SnapshotCorruptError, match="000001"):
        store.get(second.handle)


def test_numbers_are_never_given_again(store):
    publish(store)
    store.delete(publish(store).handle)
    assert publish(store).number == 3
    store.delete(store.latest("p").handle)
    store.delete(store.latest("p").handle)
    assert SnapshotStore(store.root).list("p") == ()
    assert publish(SnapshotStore(store.root)).number == 4


def test_a_torn_number_does_not_bring_an_old_one_back(store):
    for _ in range(12):
        last = publish(store)
    counter = Path(last.path).parent / ".numbers"
    counter.write_bytes(counter.read_bytes()[:-2])  # the line of 12 is torn to 1
    store.delete(last.handle)
    assert publish(store).number == 12
    assert publish(store).number == 13


def test_a_writer_that_fails_leaves_nothing_and_the_last_good_one(store):
    good = publish(store)

    def fail(folder: Path) -> None:
        (folder / "adapter_model.safetensors").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        store.publish("p", fail, Origin(step=1, base_model="tiny-llama"))
    assert store.list("p") == (good,)
    assert {path.name for path in Path(good.path).parent.iterdir()} == {".numbers", "000001"}
    assert publish(store).number == 3


def test_a_writer_that_is_killed_leaves_the_last_good_one(store):
    good = publish(store)
    code = (
        "import os, sys; from tinker_actors.policies import Origin, SnapshotStore\n"
        "def write(folder):\n"
        "    (folder / 'w').write_text('half'); os.kill(os.getpid(), 9)\n"
        "SnapshotStore(sys.argv[1]).publish('p', write, Origin(step=1, base_model='b'))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(store.root)]).returncode == -9
    assert store.latest("p") == good
    assert publish(store).number == 3


def test_expiry_by_count_keeps_the_last_the_pinned_and_those_in_use(store):
    handles = [publish(store).handle for _ in range(6)]
    store.pin(handles[1])
    assert store.expire("p", Retention(keep_last=2), in_use={handles[2]}) == (handles[0], handles[3])
    assert [snapshot.number for snapshot in store.list("p")] == [2, 3, 5, 6]
    assert store.expire("p", Retention(keep_last=9)) == ()
    store.unpin(handles[1])
    assert store.expire("p", Retention(keep_last=1)) == (handles[1], handles[2], handles[4])


def test_expiry_by_age_and_time_to_live_never_takes_the_newest(store):
    old, brief, newest = publish(store), publish(store, ttl=0.001), publish(store, ttl=0.001)
    now = newest.created_at
    assert brief.expires_at == pytest.approx(brief.created_at + 0.001)
    everything = store.list("p")
    assert Retention().expired(everything, now=now + 1) == [brief]
    assert Retention(max_age=5).expired(everything, now=now + 4) == [brief]
    assert Retention(max_age=5).expired(everything, now=now + 6) == [old, brief]
    assert Retention(max_age=5).expired(everything, now=now + 6, kept={old.handle}) == [brief]
    while time.time() <= brief.expires_at:
        pass
    assert store.expire("p", Retention()) == (brief.handle,)


def test_two_may_delete_a_snapshot_at_once(store, monkeypatch):
    snapshot = publish(store)
    place = LocalPlace(Path(store.root))
    rename = os.rename

    def beaten(source, target):  # another is faster, between the look and the deed
        monkeypatch.setattr(os, "rename", rename)
        place.discard(Handle.parse(snapshot.handle))
        rename(source, target)

    monkeypatch.setattr(os, "rename", beaten)
    place.discard(Handle.parse(snapshot.handle))
    assert store.list("p") == ()
    assert not list(Path(store.root).rglob(".gone-*"))


def test_what_could_not_be_deleted_whole_is_deleted_again(store, monkeypatch):
    snapshot, unlink = publish(store), os.unlink

    def failing(path, **options):
        if path == "adapter_model.safetensors":
            raise OSError(errno.EIO, "Input/output error")
        unlink(path, **options)

    with monkeypatch.context() as failure:
        failure.setattr(os, "unlink", failing)
        with pytest.raises(OSError, match="Input/output"):
            store.delete(snapshot.handle)
    assert store.list("p") == ()
    with pytest.raises(UnknownPolicyError):
        store.delete(snapshot.handle)
    assert not [path for path in Path(store.root).rglob("*") if path.is_file() and path.name != ".numbers"]


def test_a_pinned_snapshot_cannot_be_deleted(store):
    snapshot = publish(store)
    store.pin(snapshot.handle)
    store.pin(snapshot.handle)
    assert store.pinned("p") == {snapshot.handle}
    with pytest.raises(PolicyError, match="is pinned"):
        store.delete(snapshot.handle)
    store.unpin(snapshot.handle)
    store.delete(snapshot.handle)
    assert store.pinned("p") == frozenset()
    with pytest.raises(UnknownPolicyError):
        store.pin(snapshot.handle)


@pytest.mark.parametrize("bound", [{"keep_last": 0}, {"max_age": 0.0}, {"max_age": float("inf")}])
def test_a_bound_that_cannot_work_is_refused_by_name(bound):
    (name,) = bound
    with pytest.raises(ConfigError, match=f"{name} is"):
        Retention(**bound)


@pytest.mark.parametrize("ttl", [0.0, -1.0, float("nan")])
def test_a_time_to_live_that_cannot_work_is_refused(store, ttl):
    with pytest.raises(PolicyError, match="ttl is"):
        publish(store, ttl=ttl)
    assert store.list("p") == ()


def test_a_checkpoint_has_a_name_of_its_own_and_is_not_rewritten(store):
    origin = Origin(step=2, base_model="tiny-llama")
    publish(store)
    checkpoint = store.checkpoint("p", "final", writing("moments"), origin)
    assert (checkpoint.handle, checkpoint.number) == ("tinker://p/weights/final", 1)
    with pytest.raises(PolicyError, match="exists"):
        store.checkpoint("p", "final", writing("other"), origin)
    store.verify(checkpoint)
    assert store.latest("p", "weights") == checkpoint
    assert len(store.list("p")) == 1
    store.delete(checkpoint.handle)
    assert store.checkpoint("p", "final", writing("other"), origin).number == 2


def _publish_some(root: str, count: int) -> list[int]:
    return [publish(SnapshotStore(root)).number for _ in range(count)]


def test_two_processes_never_get_one_number(store):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.starmap(_publish_some, [(str(store.root), 10)] * 2)
    assert sorted(first + second) == list(range(1, 21))


def _two(root: Path) -> None:
    store = SnapshotStore(root / "store")
    publish(store)
    store.checkpoint("p", "first", writing("moments"), Origin(step=1, base_model="tiny-llama"))


def _stores_and_deletes(root: Path) -> None:
    store = SnapshotStore(root / "store")
    store.pin(publish(store, "second").handle)
    store.checkpoint("p", "second", writing("moments"), Origin(step=2, base_model="tiny-llama"))
    store.delete("tinker://p/sampler_weights/000001")
    store.delete("tinker://p/weights/first")


def _is_whole_and_goes_on(root: Path) -> None:
    store = SnapshotStore(root / "store")
    store.sweep()
    left = [*store.list("p"), *store.list("p", "weights")]
    for snapshot in left:
        store.verify(snapshot)
    kept = {Path(snapshot.path) for snapshot in left}
    for kind in ("sampler_weights", "weights"):
        for folder in (root / "store" / "p" / kind).iterdir():
            assert folder in kept or folder.name == ".numbers", folder
    assert publish(store).number > max((snapshot.number for snapshot in store.list("p")[:-1]), default=0)


@pytest.mark.slow
def test_a_process_may_be_killed_between_any_two_steps(tmp_path):
    assert killed_before_each_step(tmp_path, _two, _stores_and_deletes, _is_whole_and_goes_on) > 30


def test_what_is_being_written_stays_when_what_was_left_is_swept(store, monkeypatch):
    publish(store)
    folder = Path(store.root) / "p" / "sampler_weights"
    (folder / ".draft-killed").mkdir()
    (folder / ".draft-killed" / "lock").touch()
    (folder / ".draft-nothing").mkdir()

    def write(draft: Path) -> None:
        store.sweep()
        assert [path.name for path in folder.glob(".draft-*")] == [draft.parent.name]
        (draft / "w").touch()

    store.verify(store.publish("p", write, Origin(step=1, base_model="tiny-llama")))
    assert not list(folder.glob(".draft-*"))


@pytest.mark.parametrize("after", ["tempfile.mkdtemp", "fcntl.flock"])
def test_a_draft_that_is_swept_before_its_writer_holds_it_is_made_again(store, monkeypatch, after):
    sweeps = 0
    publish(store)
    module, _, name = after.rpartition(".")
    before = getattr(sys.modules[module], name)

    def swept(*arguments, **options):
        nonlocal sweeps
        if any("draft" in str(getattr(argument, "name", argument)) for argument in (*arguments, *options.values())):
            monkeypatch.setattr(after, before)
            if name == "flock":
                store.sweep()
                return before(*arguments, **options)
            found = before(*arguments, **options)
            store.sweep()
            assert not os.path.exists(found)
            return found
        return before(*arguments, **options)

    monkeypatch.setattr(after, swept)
    store.verify(publish(store))


@pytest.fixture
def meanwhile(store, monkeypatch):
    """Deletes a snapshot as another process would, right before the next manifest or file is read."""

    def at_next_read(snapshot, name):
        opened = Path.open

        def beaten(path, *arguments, **options):
            if path.name == name and path.parent == Path(snapshot.path):
                monkeypatch.setattr(Path, "open", opened)
                SnapshotStore(store.root).delete(snapshot.handle)
            return opened(path, *arguments, **options)

        monkeypatch.setattr(Path, "open", beaten)

    return at_next_read


def test_what_is_deleted_while_it_is_looked_for_is_gone_and_not_corrupt(store, meanwhile):
    first, second, third = publish(store), publish(store), publish(store)
    meanwhile(first, "manifest.json")
    assert store.list("p") == (second, third)
    meanwhile(second, "manifest.json")
    with pytest.raises(UnknownPolicyError, match="000002 is not in the store"):
        store.get(second.handle)
    meanwhile(third, "adapter_model.safetensors")
    with pytest.raises(UnknownPolicyError, match="000003 is gone"):
        store.fetch(third)


def test_a_checkpoint_that_another_process_stored_meanwhile_stays_and_is_named(store):
    origin = Origin(step=2, base_model="tiny-llama")

    def write(folder: Path) -> None:
        SnapshotStore(store.root).checkpoint("p", "final", writing("theirs"), origin)
        (folder / "w").touch()

    with pytest.raises(PolicyError, match="tinker://p/weights/final exists"):
        store.checkpoint("p", "final", write, origin)
    assert (store.fetch(store.latest("p", "weights")) / "adapter_model.safetensors").read_text() == "theirs"


def test_a_handle_that_was_reserved_is_taken_once_by_its_policy_alone(store):
    origin, reserved = Origin(step=1, base_model="b"), store.reserve("p")
    assert publish(store).number == 2
    for wrong in (reserved.replace("/p/", "/q/"), "tinker://p/sampler_weights/mine", "tinker://p/weights/000001"):
        with pytest.raises(PolicyError, match=wrong):
            store.publish("p", writing("w"), origin, handle=wrong)
    assert store.publish("p", writing("w"), origin, handle=reserved).number == 1
    with pytest.raises(PolicyError, match="000001 exists"):
        store.publish("p", writing("v"), origin, handle=reserved)
    assert store.latest("p").number == 2


def test_a_manifest_that_says_more_than_this_version_knows_is_refused_by_name(store):
    snapshot = publish(store)
    path = Path(snapshot.path) / "manifest.json"
    body = json.loads(path.read_text()) | {"colour": "red"}
    del body["digest"]
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(body | {"digest": digest}))
    with pytest.raises(SnapshotCorruptError, match="colour"):
        store.get(snapshot.handle)


def test_what_is_pinned_while_others_expire_stays(store, monkeypatch):
    handles = [publish(store).handle for _ in range(3)]
    discard = LocalPlace.discard

    def pinning(place, handle):
        monkeypatch.setattr(LocalPlace, "discard", discard)
        SnapshotStore(store.root).pin(handles[1])
        discard(place, handle)

    monkeypatch.setattr(LocalPlace, "discard", pinning)
    assert store.expire("p", Retention(keep_last=1)) == (handles[0],)
    assert store.pinned("p") == {handles[1]}
    store.verify(store.get(handles[1]))


def test_what_is_deleted_while_it_is_pinned_is_told_and_leaves_no_pin(store, monkeypatch):
    snapshot, pin = publish(store), LocalPlace.pin

    def beaten(place, handle, *, pinned):
        monkeypatch.setattr(LocalPlace, "pin", pin)
        SnapshotStore(store.root).delete(str(handle))
        pin(place, handle, pinned=pinned)

    monkeypatch.setattr(LocalPlace, "pin", beaten)
    with pytest.raises(UnknownPolicyError, match="000001"):
        store.pin(snapshot.handle)
    assert store.pinned("p") == frozenset()


def test_a_folder_whose_name_no_policy_can_have_is_none(store):
    publish(store)
    (Path(store.root) / "lost+found").mkdir()
    assert store.policies() == ("p",)
