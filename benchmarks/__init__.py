"""Measurements against other libraries: `python -m benchmarks.NAME [--quick] [--json FILE]`."""
