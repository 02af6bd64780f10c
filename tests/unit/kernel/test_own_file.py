"""Files of a directory that may be another user's."""

import os
import stat
import subprocess
import sys

import pytest

from cedos.kernel import own_file

USER = 61_000

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")


def owners(folder):
    return {path.name: path.lstat().st_uid for path in [folder, *folder.rglob("*")]}


def test_what_root_makes_in_a_services_folder_is_the_services(tmp_path):
    """`sudo cedos budget set` beside a stopped service took all its budgets from it."""
    os.close(own_file.create(tmp_path / "mine"))
    folder = tmp_path / "state"
    folder.mkdir()
    os.chown(folder, USER, USER)
    os.close(own_file.create(folder / "budgets.json"))
    assert (tmp_path / "mine").stat().st_uid == 0
    found = (folder / "budgets.json").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (USER, USER, 0o600)


def test_root_takes_a_folder_with_all_in_it_and_follows_no_link(tmp_path):
    others, state = tmp_path / "others", tmp_path / "state"
    for folder in (others, state, state / "inner"):
        folder.mkdir()
        (folder / "file").touch()
    (state / "link").symlink_to(others / "file")
    (state / "inner" / "folder").symlink_to(others)
    for path in [state, others, *state.rglob("*"), others / "file"]:
        os.chown(path, USER, USER, follow_symlinks=False)
    (tmp_path / "name").symlink_to(state)
    state.chmod(0o777)
    (state / "inner").chmod(0o2775)
    # Else a service's user made programs there that all users ran as root.
    (state / "file").chmod(0o6777)
    (others / "file").chmod(0o666)
    own_file.take(tmp_path / "name")
    assert set(owners(state).values()) == {0}
    # Who had it went on renaming root's files there, its journal among them.
    found = [stat.S_IMODE(each.stat().st_mode) for each in (state, state / "inner", state / "file")]
    assert found == [0o755, 0o755, 0o755]
    assert (others / "file").stat().st_mode & 0o777 == 0o666
    assert set(owners(others).values()) == {USER}
    own_file.take(state)  # there is nothing to do
    with pytest.raises(FileNotFoundError):
        own_file.take(tmp_path / "absent")


def test_the_mode_of_what_was_put_in_its_place_stays(tmp_path):
    mine, others, link = tmp_path / "mine", tmp_path / "others", tmp_path / "link"
    for path in (mine, others):
        path.touch(0o600)
    os.chown(others, USER, USER)
    link.symlink_to(mine)
    for path in (others, link):
        with pytest.raises(OSError, match="was replaced"):
            own_file.change_mode(path, 0o666)
    assert {path.stat().st_mode & 0o777 for path in (mine, others)} == {0o600}
    own_file.change_mode(mine, 0o660)
    assert mine.stat().st_mode & 0o777 == 0o660


def test_folders_without_end_keep_no_daemon_from_starting(tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    folder = os.open(state, os.O_RDONLY)
    try:
        for _ in range(2_000):
            os.mkdir("deeper", dir_fd=folder)
            inner = os.open("deeper", os.O_RDONLY, dir_fd=folder)
            os.close(folder)
            folder = inner
        os.chown(state, USER, USER)
        own_file.take(state)
        assert state.stat().st_uid == 0
    finally:
        os.close(folder)
        subprocess.run(["rm", "-rf", state], check=True)


def test_two_programs_write_one_file_whole_each_time(tmp_path):
    """A podcast's run beside another one ended, and its book could be read in part."""
    path, content = tmp_path / "book.json", b"x" * 20_000
    own_file.write(path, content)
    loop = (
        "import sys; from pathlib import Path; from cedos.kernel import own_file\n"
        f"for _ in range(1000): own_file.write(Path(sys.argv[1]), {len(content)} * b'x')"
    )
    both = [subprocess.Popen([sys.executable, "-c", loop, path]) for _ in range(2)]
    while any(each.poll() is None for each in both):
        assert path.read_bytes() == content
    assert [each.returncode for each in both] == [0, 0]
    assert list(tmp_path.iterdir()) == [path]


def test_the_draft_of_a_killed_program_goes_with_the_next_write(tmp_path):
    """Kill a program in the midst of a write: its draft stayed for good."""
    path = tmp_path / "book.json"
    with subprocess.Popen(["true"]) as ended:
        pass
    left, living, other = (
        tmp_path / f"book.{each}.new" for each in (ended.pid, os.getppid(), "kept")
    )
    for each in (left, living, other):
        each.touch()
    own_file.write(path, b"{}")
    assert set(tmp_path.iterdir()) == {living, other, path}
    left.mkdir()  # one that cannot be removed is no failure of the write
    own_file.write(path, b"[]")
    assert path.read_bytes() == b"[]"
