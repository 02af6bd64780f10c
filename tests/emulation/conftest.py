"""Fixtures for tests of whole emulations."""

import shutil
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def registry(monkeypatch):
    """A register of testbeds for this test alone: empty at its end, or something was left behind.

    Not below `tmp_path`, which nobody but root may enter: Mahimahi reads its traces there.
    """
    directory = Path(tempfile.mkdtemp(prefix="cedos-test-", dir="/run"))
    directory.chmod(0o755)
    monkeypatch.setenv("CEDOS_EMU_RUNTIME_DIR", str(directory))
    yield directory
    shutil.rmtree(directory)
