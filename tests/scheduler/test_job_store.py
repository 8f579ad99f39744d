"""The job store: what it keeps, which transitions it takes, and whose word counts."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduler.job_material import request

from tinker_actors.errors import JobError, JobStateError, UnknownJobError
from tinker_actors.scheduler.job_records import JobQuery
from tinker_actors.scheduler.job_store import JobStore
from tinker_actors.scheduler.states import TRANSITIONS, JobKind, JobState, Reason

REASONS = {
    JobState.QUEUED: Reason.INTERRUPTED,
    JobState.RUNNING: Reason.STARTED,
    JobState.CANCELLING: Reason.CANCEL_ASKED,
    JobState.SUCCEEDED: Reason.FINISHED,
    JobState.FAILED: Reason.ERROR,
    JobState.CANCELLED: Reason.CANCEL_DONE,
}


@given(moves=st.lists(st.tuples(st.sampled_from(list(JobState)), st.sampled_from(["present", "former"])), max_size=30))
@settings(max_examples=100, deadline=None)
def test_every_sequence_of_moves_is_legal_logged_and_idempotent(moves: list[tuple[JobState, str]]):
    store = JobStore(Path(":memory:"))
    job = store.add(request("0"))
    for wanted, speaker in moves:
        before, log = store.get(job.id), store.transitions(job.id)
        if speaker == "former":
            assert store.move(job.id, wanted, Reason.ERROR, attempt=before.attempt - 1) is None
            assert store.get(job.id) == before
            continue
        legal = wanted is before.state or wanted in TRANSITIONS[before.state]
        if not legal:
            with pytest.raises(JobStateError, match=rf"is {before.state.value} and can't become {wanted.value}"):
                go(store, before.id, wanted, before.attempt)
            assert (store.get(job.id), store.transitions(job.id)) == (before, log)
            continue
        after = go(store, job.id, wanted, before.attempt)
        again = go(store, job.id, wanted, after.attempt)
        assert after == again == store.get(job.id)
        assert after.state is wanted
        assert after.attempt == before.attempt + (wanted is JobState.STARTING and wanted is not before.state)
        assert (after.ended is not None) == wanted.is_over
        assert len(store.transitions(job.id)) == len(log) + (wanted is not before.state)
    log = store.transitions(job.id)
    assert [line.present for line in log] == [None, *(line.wanted for line in log[:-1])]
    assert log[-1].wanted is store.get(job.id).state
    store.close()


def go(store: JobStore, job: str, wanted: JobState, attempt: int):
    if wanted is JobState.STARTING:
        return store.begin(job)
    moved = store.move(job, wanted, REASONS[wanted], attempt=attempt)
    assert moved is not None
    return moved


def test_what_was_stored_is_there_in_another_process_life(tmp_path: Path):
    store = JobStore(tmp_path / "jobs.sqlite")
    jobs = [store.add(request("0", tenant=tenant, priority=3)) for tenant in ("a", "b", "a")]
    store.begin(jobs[1].id, [4, 5])
    # not closed, as if killed
    again = JobStore(tmp_path / "jobs.sqlite")
    assert again.jobs() == store.jobs()
    assert [job.id for job in again.jobs(tenant="a")] == [jobs[0].id, jobs[2].id]
    assert [job.id for job in again.jobs(JobState.STARTING)] == [jobs[1].id]
    assert again.get(jobs[1].id).devices == (4, 5)
    assert again.starts == 1
    store.close()
    again.close()


def test_jobs_are_found_page_by_page_newest_first_and_only_those_of_the_tenant(tmp_path: Path):
    store = JobStore(tmp_path / "jobs.sqlite")
    mine = [store.add(replace(request("0"), name=f"Run {number}", tenant="mine")) for number in range(5)]
    theirs = store.add(replace(request("0"), name="Run 0", tenant="theirs"))
    store.move(mine[1].id, JobState.CANCELLED, Reason.CANCEL_ASKED)

    def found(tenant: str | None = "mine", **query: Any) -> list[str]:
        return [job.id for job in store.search(JobQuery(**query), tenant)]

    newest = [job.id for job in reversed(mine)]
    assert found() == newest
    assert found(limit=2) == newest[:2]
    assert found(limit=2, before=mine[3].number) == newest[2:4]
    assert found(states=(JobState.CANCELLED,)) == [mine[1].id]
    assert found(kinds=(JobKind.RL_LORA,)) == []
    assert found(text="rUN 3") == found(text=mine[3].id) == [mine[3].id]
    assert found(None, text="run 0") == [theirs.id, mine[0].id]
    assert found(text="%") == found(text="_") == []
    assert {state.value: count for state, count in store.counts("mine").items() if count} == {
        "queued": 4,
        "cancelled": 1,
    }
    assert sum(store.counts().values()) == 6
    store.close()


def test_outlines_of_jobs_are_had_without_reading_their_configurations(tmp_path: Path):
    store = JobStore(tmp_path / "jobs.sqlite")
    job = store.add(request("0"))
    assert store.jobs(outlines=True) == [replace(job, config={})]
    with sqlite3.connect(store.path) as other:
        other.execute("UPDATE jobs SET config = 'no JSON'")
    other.close()
    assert store.jobs(JobState.QUEUED, outlines=True) == [replace(job, config={})]
    store.close()


def test_what_cannot_be_used_is_named(tmp_path: Path):
    store = JobStore(tmp_path / "jobs.sqlite")
    with pytest.raises(UnknownJobError, match="there is no job 'job-x'"):
        store.get("job-x")
    store.close()
    newer = sqlite3.connect(tmp_path / "jobs.sqlite")
    newer.execute("PRAGMA user_version = 7")
    newer.close()
    with pytest.raises(JobError, match="has version 7; this program reads version 1"):
        JobStore(tmp_path / "jobs.sqlite")
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(JobError, match="file is not a database"):
        JobStore(tmp_path / "text")
    with pytest.raises(JobError, match="unable to open"):
        JobStore(tmp_path / "no" / "folder")
