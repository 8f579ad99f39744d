"""The Tinker API, as the official client speaks it."""
