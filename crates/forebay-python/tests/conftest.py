"""Every test has a directory and a session of its own."""

import itertools
import os

import pytest

import forebay

numbers = itertools.count()
OPTIONS = {"memory": "32MiB", "dirty_bytes_max": "16MiB", "flush_after": "5ms", "flush_interval": "20ms", "coherence": "close"}


@pytest.fixture
def name():
    return f"test-python-{os.getpid()}-{next(numbers)}"


@pytest.fixture
def session(name):
    with forebay.Session(name, **OPTIONS) as session:
        yield session


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"
