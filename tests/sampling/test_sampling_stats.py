"""What a sampler tells of itself: where each snapshot's weights are, what it computed, and what gave way to what."""

from sampling_harness import ask

from tinker_actors.actors.codec import Codec
from tinker_actors.sampling import Residence
from tinker_actors.sampling.lodging import bytes_of


def test_each_snapshot_says_where_its_weights_are_and_how_many_rows_it_computed(harness, publisher):
    whole = publisher.full("whole", seed=1)
    adapters = [publisher.lora(f"p{i}", seed=i, rank=2 + i) for i in range(3)]
    reader = harness().residents
    sizes = [bytes_of(reader.network.read(publisher.store.fetch(entry.snapshot))) for entry in adapters]
    engine = harness(max_adapters=1, adapter_memory=sizes[0] + sizes[1], prefix_caching=False)
    engine.refresh(whole.handle, *(entry.handle for entry in adapters))
    stats = engine.engine.stats()
    assert list(stats.by_snapshot) == list(stats.snapshots) == [whole.handle, *(entry.handle for entry in adapters)]
    assert [stats.by_snapshot[entry.handle].residence for entry in adapters] == [
        Residence.NETWORK,
        Residence.HOST,
        Residence.STORE,
    ]
    first, second, third = (stats.by_snapshot[entry.handle] for entry in adapters)
    assert (first.bytes, second.bytes, third.bytes) == (sizes[0], 0, 0)
    assert (second.host_bytes, third.host_bytes) == (sizes[1], 0)
    assert stats.adapter_bytes == sizes[0]
    assert stats.adapter_host_bytes == first.host_bytes + second.host_bytes
    parameters = {id(parameter): parameter.nbytes for parameter in whole.model.parameters()}
    assert stats.by_snapshot[whole.handle].bytes == sum(parameters.values())
    assert stats.by_snapshot[whole.handle].loaded

    last, prompt = adapters[2].handle, (9, 10, 11)
    engine.serve([ask(last, prompt, 2, max_tokens=4, default_stops=False)])
    stats = engine.engine.stats()
    entry = stats.by_snapshot[last]
    assert entry.residence is Residence.NETWORK
    assert entry.rows == len(prompt) + 2 * 3  # nothing is computed from a sample's last token
    assert (entry.requests, entry.under_way) == (1, 0)
    assert stats.by_snapshot[whole.handle].rows == 0
    assert (stats.adapters_loaded, stats.adapters_evicted, stats.adapters_read) == (1, 1, 1)
    assert stats.adapter_bytes == entry.bytes == sizes[2]
    assert not stats.by_snapshot[adapters[0].handle].loaded


def test_what_was_counted_of_a_snapshot_goes_with_it_and_with_its_last_request(harness, publisher):
    handles = [publisher.lora(f"p{number}", seed=number).handle for number in range(3)]
    engine = harness()
    meter = engine.engine._meter
    engine.refresh(handles[0])
    for before, after in zip(handles, [*handles[1:], handles[0]], strict=True):
        engine.serve([ask(before, "x", max_tokens=3, default_stops=False)])
        checked = engine.residents.check([after])
        engine.engine.replace([after], checked).result(60)
        engine.serve([ask(after, "x", max_tokens=1)])
        engine.engine.replace([after], {}).result(60)  # whoever left has gone by now
        assert set(meter._times) == set(meter._by_snapshot) == set(meter._rows) == {after}
    stats = engine.engine.stats()
    assert stats.requests == 6
    assert stats.by_snapshot[handles[0]].requests == 1


def test_requests_under_way_are_told_by_snapshot(harness, publisher):
    one, two = publisher.lora("one", seed=1), publisher.lora("two", seed=2)
    engine = harness()
    engine.refresh(one.handle, two.handle)
    for _ in range(3):
        engine.engine.submit(ask(one.handle, "x"))
    by_snapshot = engine.engine.stats().by_snapshot
    assert (by_snapshot[one.handle].under_way, by_snapshot[two.handle].under_way) == (3, 0)


def test_sequences_that_make_room_for_others_are_counted_and_the_pool_says_how_full_it_is(harness, publisher):
    one = publisher.lora("one", seed=1)
    shape = harness().residents.network.kv_shape
    token = shape.layers * shape.heads * 2 * shape.width * 4
    engine = harness(kv_memory=2 * 64 * token)
    engine.refresh(one.handle)
    assert engine.engine.stats().kv_capacity == 128
    assert engine.engine.stats().kv_bytes == 128 * token
    for number in range(3):  # each keeps 64 places when it is done; the third takes those of the first
        engine.serve([ask(one.handle, (7 + number,) * 40, max_tokens=2, default_stops=False)])
    stats = engine.engine.stats()
    assert stats.kv_evicted == 1
    assert (stats.kv_cached, stats.kv_tokens, stats.kv_occupancy) == (128, 0, 0.0)


def test_what_is_told_crosses_between_processes(harness, publisher):
    one = publisher.lora("one", seed=1)
    engine = harness()
    engine.refresh(one.handle)
    engine.serve([ask(one.handle, "x", max_tokens=2)])
    stats = engine.engine.stats()
    codec = Codec()
    assert codec.decode(codec.encode(stats)) == stats
