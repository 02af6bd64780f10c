"""Directories that move with the environment."""

from pathlib import Path

import pytest

from cedos.config.directories import Directories, directories
from cedos.errors import ConfigError


def test_directories() -> None:
    usual = directories({})
    assert usual == Directories(Path("/var/lib/cedos"), Path("/run/cedos"))
    assert usual.socket == Path("/run/cedos/control.sock")
    assert usual.pid_file == Path("/run/cedos/daemon.pid")
    assert usual.history == Path("/var/lib/cedos/history.sqlite")
    systemd = {"STATE_DIRECTORY": "/s/a:/s/b", "RUNTIME_DIRECTORY": "/r"}
    assert directories(systemd) == Directories(Path("/s/a"), Path("/r"))
    own = {**systemd, "CEDOS_STATE_DIR": "/x", "CEDOS_RUNTIME_DIR": "/y"}
    assert directories(own) == Directories(Path("/x"), Path("/y"))
    with pytest.raises(ConfigError, match="CEDOS_STATE_DIR must be an absolute path, not x"):
        directories({"CEDOS_STATE_DIR": "x"})
