"""An asyncio actor framework for agentic reinforcement learning of language models."""
