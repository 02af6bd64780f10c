"""Files of a directory that may be another user's."""

import os
import stat
import subprocess
import sys
from contextlib import suppress

import pytest

from cedos.api.lock import only_daemon
from cedos.errors import CedosError
from cedos.kernel import own_file
from cedos.proxy.local import joined_gateway
from cedos.session import keys
from cedos.session.io.driver import Foreground
from cedos.session.io.idle_sessions import IdleFile
from cedos.session.known_hosts import KnownHosts
from cedos.storage.sharing_status import read_status

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


def test_a_file_that_grows_while_it_is_read_is_too_large(tmp_path, monkeypatch):
    """The owner of the state directory had `cedos restore` take all memory so."""
    path, read = tmp_path / "journal", os.read
    path.write_bytes(b"x" * 99)

    def grows(file, size):
        os.truncate(path, 1 << 28)
        return read(file, size)

    monkeypatch.setattr(os, "read", grows)
    with pytest.raises(OSError, match="is larger than 100 bytes"):
        own_file.read(path, 100)


READERS = {
    "session.key": keys.read_own,
    "clients.toml": keys.read_names,
    "gateway.toml": joined_gateway.read,
    "known_servers.toml": lambda path: KnownHosts(path).aliases(),
    "share-help.json": read_status,
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", READERS)
def test_root_waits_for_no_fifo_among_a_users_settings(tmp_path, name):
    path = tmp_path / name
    os.mkfifo(path, 0o600)
    try:
        assert READERS[name](path) is None
    except CedosError as error:
        assert "no plain file" in str(error)  # noqa: PT017


WRITERS = {
    "idle-sessions": lambda path: IdleFile(path, 64),
    "foreground": lambda path: Foreground(path.parent),
    "daemon.pid": lambda path: only_daemon(path, steers=False).__enter__(),
}


def absent(elsewhere, path):
    elsewhere.unlink()
    path.symlink_to(elsewhere)


@pytest.mark.parametrize("mode", [0o600, 0o640])
@pytest.mark.parametrize("plant", [os.link, os.symlink, absent, lambda _, path: os.mkfifo(path)])
@pytest.mark.parametrize("name", WRITERS)
def test_root_writes_to_no_other_file_in_a_users_folder(tmp_path, name, plant, mode):
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "folder" / name
    elsewhere.touch(mode)
    path.parent.mkdir()
    plant(elsewhere, path)
    with suppress(CedosError, OSError):
        WRITERS[name](path)
    if plant is absent:
        assert not elsewhere.exists()
    else:
        found = elsewhere.stat()
        assert (found.st_size, stat.S_IMODE(found.st_mode)) == (0, mode)
