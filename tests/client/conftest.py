"""What all tests of the client share."""

import gc

import pytest


@pytest.fixture(autouse=True)
def collected():
    """What the official client leaves is collected here, where its warnings are expected, and in no other test."""
    yield
    gc.collect()
