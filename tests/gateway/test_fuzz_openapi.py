"""Every operation of the application's own OpenAPI description, over a real socket, by schemathesis: none may fail.

A few examples of each in the usual run, and many with `-m exhaustive`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from tests.gateway.fuzzing import ENDLESS
from tests.gateway.gateways import TINY
from tests.gateway.job_gateways import talking

from tinker_actors.gateway.config import ServeConfig
from tinker_actors.gateway.gateway import Gateway, create_app
from tinker_actors.gateway.listening import listening, serving
from tinker_actors.gateway.opening import submissions_for
from tinker_actors.gateway.runtime import Runtime
from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.scheduler_settings import SchedulerSettings
from tinker_actors.scheduler.service import Scheduler


class Serving(threading.Thread):
    """A gateway with models and jobs, served by a thread of its own."""

    def __init__(self, root: Path) -> None:
        super().__init__(name="serving")
        self._root = root
        self._ready, self._loop = threading.Event(), asyncio.new_event_loop()
        self.url = ""
        self.description: dict[str, Any] = {}

    def run(self) -> None:
        """Serve until told to end."""
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        async with Runtime(self._root / "service", [TINY], in_process=True) as runtime:
            folder, room = self._root / "scheduler", Resources(memory=2**40, adapter_slots=64, cpu_workers=4)
            scheduler = await runtime.mesh.spawn(
                Scheduler, str(folder), room, settings=SchedulerSettings(command=talking, grace=1.0)
            )
            checks = submissions_for(ServeConfig(root=str(self._root / "service")), scheduler, folder)
            async with Gateway(runtime=runtime, limits=ENDLESS, scheduler=scheduler, submissions=checks) as gateway:
                app = create_app(gateway)
                self.description = app.openapi()
                with listening("127.0.0.1", 0) as listener:
                    async with serving(app, listener) as self.url:
                        self._ready.set()
                        await self._over.wait()

    def __enter__(self) -> Serving:
        self.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self.join(60)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("served")) as service:
        yield service


def ask_all(service: Serving, examples: int) -> dict[int, int]:
    """Ask every operation so many times; the statuses."""
    schema = schemathesis.openapi.from_dict(service.description)
    statuses: dict[int, int] = {}
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 40
    for operation in operations:

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
            derandomize=examples < 100,
        )
        @given(operation.as_strategy())
        def ask(case: Any) -> None:
            answer = case.call(base_url=service.url, timeout=60)
            assert answer.status_code < 500, f"{case.method} {case.formatted_path}: {answer.status_code} {answer.text}"
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1

        ask()
    return statuses


@pytest.mark.slow
def test_no_operation_fails_whatever_it_is_asked(service: Serving):
    statuses = ask_all(service, 3)
    assert sum(statuses.values()) > 100
    assert statuses.get(200, 0) > 10


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_no_operation_fails_however_often_it_is_asked(service: Serving):
    ask_all(service, 300)
