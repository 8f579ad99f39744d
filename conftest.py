"""Keeps doctest collection away from the rooms' conftest files, which all have one module name."""

collect_ignore_glob = ["tests/*/conftest.py"]
