"""A request to a run: to save after its present step, whether that is due or not, and to end there."""

from __future__ import annotations

import asyncio


class StopRequest:
    """Belongs to one run. Whoever runs it may `ask`, on its event loop; the run then ends by its own cancellation."""

    def __init__(self) -> None:
        self.asked = False
        """Whether the run is to stop."""
        self.heeded = False
        """Whether it has saved its state and stops."""

    def ask(self) -> None:
        """Ask the run to save and stop."""
        self.asked = True

    async def halt(self) -> None:
        """Stop the run: called by its task once its state is saved.

        Raises:
            asyncio.CancelledError: Always.
        """
        self.heeded = True
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
