"""The benchmark of rollouts measures what it says: the same episodes, with coordinators and by hand."""

import time

from benchmarks.rollouts import measure


async def test_it_compares_the_same_episodes_and_a_stuck_environment_ends_with_the_measurement():
    rows, ratios = await measure(1, time.process_time, episodes=3)
    assert [(row.case, row.system, row.unit) for row in rows] == [
        ("two_seat_turns_per_s", "tinker_actors", "turns/s"),
        ("two_seat_turns_per_s", "asyncio_loop", "turns/s"),
        ("limited_turns_per_s", "tinker_actors", "turns/s"),
        ("limited_turns_per_s", "asyncio_loop", "turns/s"),
        ("stuck_turn_p99_ms", "tinker_actors", "ms"),
        ("stuck_turn_p99_ms", "none_stuck", "ms"),
    ]
    assert all(row.median > 0 for row in rows)
    assert set(ratios) == {
        ("two_seat_turns_per_s", "asyncio_loop"),
        ("limited_turns_per_s", "asyncio_loop"),
        ("stuck_turn_p99_ms", "none_stuck"),
    }
