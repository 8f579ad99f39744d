"""The OpenAI-compatible API over base models, policies and snapshots."""
