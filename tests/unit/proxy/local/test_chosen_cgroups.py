"""What people call cgroups, and which there are."""

from pathlib import Path

import pytest

from cedos.proxy.local.redirection import chosen_cgroups

SCOPE = "user.slice/user-1000.slice/app.slice/app-gnome-firefox-4711.scope"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A hierarchy with a browser's scope and two services of one name."""
    for folder in (SCOPE, "system.slice/apt.service", "machine.slice/box/system.slice/apt.service"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "cgroup.procs").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("word", "count"),
    [
        ("apt.service", 2),
        ("app-*firefox*.scope", 1),
        ("system.slice/apt.service", 1),
        ("/system.slice/apt.service", 1),
        (SCOPE, 1),
        ("cgroup.procs", 0),
        (f"{SCOPE}/cgroup.procs", 0),
        ("APT.service", 0),
        ("nothing.service", 0),
        ("nothing/here", 0),
        ("system.slice/../..", 0),
        ("/", 0),
        ("*.slice", 6),
    ],
)
def test_words(root: Path, word: str, count: int) -> None:
    found = chosen_cgroups(root, [word])
    assert len(found) == count
    assert all(number == path.stat().st_ino for number, path in found.items())


def test_an_absolute_path(root: Path) -> None:
    assert list(chosen_cgroups(root, [str(root / SCOPE)]).values()) == [root / SCOPE]


def test_one_that_is_meant_twice_counts_once(root: Path) -> None:
    assert len(chosen_cgroups(root, [SCOPE, "app-*"])) == 1
