"""Directories that move with the environment."""

from pathlib import Path

import pytest

from cedos.config.directories import Directories, directories, user_folder
from cedos.errors import ConfigError


def test_directories() -> None:
    usual = directories({})
    assert usual == Directories(Path("/var/lib/cedos"), Path("/run/cedos"))
    assert usual.socket == Path("/run/cedos/control.sock")
    assert usual.pid_file == Path("/run/cedos/daemon.pid")
    assert usual.history == Path("/var/lib/cedos/history.sqlite")
    # A service that asks the daemon has folders of its own.
    service = {"STATE_DIRECTORY": "/s/a:/s/b", "RUNTIME_DIRECTORY": "/r"}
    assert directories(service) == usual
    own = {**service, "CEDOS_STATE_DIR": "/x", "CEDOS_RUNTIME_DIR": "/y"}
    assert directories(own) == Directories(Path("/x"), Path("/y"))
    with pytest.raises(ConfigError, match="CEDOS_STATE_DIR must be an absolute path, not x"):
        directories({"CEDOS_STATE_DIR": "x"})


def test_a_users_own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_folder("config", {}) == tmp_path / ".config" / "cedos"
    assert user_folder("state", {}) == tmp_path / ".local" / "state" / "cedos"
    assert user_folder("cache", {"XDG_CACHE_HOME": "/c"}) == Path("/c/cedos")
    emulated = {"XDG_CACHE_HOME": "/c", "CEDOS_USER_DIR": "/laptop"}
    assert user_folder("cache", emulated) == Path("/laptop/cache")
    with pytest.raises(ConfigError, match="CEDOS_USER_DIR must be an absolute path, not x"):
        user_folder("config", {"CEDOS_USER_DIR": "x"})
