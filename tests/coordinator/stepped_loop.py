"""An event loop whose time moves only when it is told to."""

import asyncio


class SteppedLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        super().__init__()
        self.now = 0.0

    def time(self):
        return self.now

    def settle(self, seconds=0.0):
        """Let time pass, and then everything happen that happens by itself."""
        self.now += seconds
        self.run_until_complete(self._turns())

    async def _turns(self):
        for _ in range(30):
            await asyncio.sleep(0)
