"""The file of servers that a user knows."""

import fcntl
import os
import random
import re
import resource
import stat
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.errors import ConfigError
from cedos.session import keys
from cedos.session.known_hosts import KnownHosts, KnownServer
from cedos.session.protocol.crypto import KeyPair

ONE, TWO = (KeyPair(random.Random(seed).randbytes(32)).public for seed in (1, 2))


@pytest.fixture
def hosts(tmp_path):
    return KnownHosts(tmp_path / "cedos" / "hosts.toml")


def test_what_was_saved_is_found_by_address_and_by_name(hosts):
    with pytest.raises(ConfigError, match=r"no key is known for server\.example:7008 in .*--key"):
        hosts.find("server.example", None, 7008)
    hosts.save(KnownServer("server.example", 7008, ONE))
    hosts.save(KnownServer("2001:db8::1", 9000, TWO), "music")
    assert hosts.find("server.example", 7008) == KnownServer("server.example", 7008, ONE)
    assert hosts.find("server.example", None, 7008) == KnownServer("server.example", 7008, ONE)
    assert hosts.find("music", None) == KnownServer("2001:db8::1", 9000, TWO)
    assert hosts.find("music", 9000) == KnownServer("2001:db8::1", 9000, TWO)
    assert hosts.find("2001:db8::1", 9000) == KnownServer("2001:db8::1", 9000, TWO)
    with pytest.raises(ConfigError, match="music at port 9000, not 7008"):
        hosts.find("music", 7008)
    with pytest.raises(ConfigError, match=r"for \[2001:db8::1\]:7008"):
        hosts.find("2001:db8::1", 7008)
    assert hosts.path.stat().st_mode & 0o777 == 0o600


def test_another_key_or_name_is_not_taken_over(hosts):
    server = KnownServer("server.example", 7008, ONE)
    hosts.save(server, "music")
    text = hosts.path.read_text()
    hosts.save(server, "music")
    hosts.save(server)
    assert hosts.path.read_text() == text
    with pytest.raises(ConfigError, match=r"another key for server\.example:7008"):
        hosts.save(server._replace(key=TWO))
    with pytest.raises(ConfigError, match="music is the name of another server"):
        hosts.save(server._replace(port=7009), "music")
    for alias in ("", "-x", "two words", "a/b", "x" * 64):
        with pytest.raises(ConfigError, match="cannot be the name"):
            hosts.save(server, alias)
    assert hosts.path.read_text() == text


def test_a_full_disk_leaves_no_half_of_a_table(hosts):
    """No command with a server could read the file any more."""
    hosts.save(KnownServer("a.example", 7008, ONE))
    text = hosts.path.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(text) + 20, before[1]))
    try:
        with pytest.raises(ConfigError, match="No space"):
            hosts.save(KnownServer("b.example", 7008, TWO))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert hosts.path.read_bytes() == text


def test_what_a_person_wrote_stays(hosts):
    hosts.path.parent.mkdir()
    hosts.path.write_text(
        f'# mine\n[hosts.any]\nhost = "a.example"  # every port\nkey = "{keys.to_text(ONE)}"'
    )
    hosts.path.chmod(0o600)
    assert hosts.find("a.example", 1) == KnownServer("a.example", 1, ONE)
    assert hosts.find("any", None, 7008) == KnownServer("a.example", 7008, ONE)
    with pytest.raises(ConfigError, match="has no port for any"):
        hosts.find("any", None)
    hosts.save(KnownServer("a.example", 2, TWO), "second.one")
    assert "# mine" in hosts.path.read_text()
    assert hosts.find("a.example", 2).key == TWO  # the entry for this very port
    assert hosts.find("second.one", None) == KnownServer("a.example", 2, TWO)
    assert hosts.find("a.example", 1).key == ONE


def test_what_is_wrong_is_told_with_its_line(hosts):
    hosts.path.parent.mkdir()
    key = keys.to_text(ONE)
    for text, line, said in (
        ("[hosts\n", 1, "not valid TOML"),
        ('[hosts.a]\nhost = "x"\n', 1, "needs key"),
        ('[hosts.a]\nhost = "x"\nkey = "short"\n', 3, "43 letters"),
        (f'[hosts.a]\nhost = "x y"\nkey = "{key}"\n', 2, "host must be"),
        (f'[hosts.a]\nhost = "x"\nport = 70000\nkey = "{key}"\n', 3, "from 1 to 65535"),
        (f'[hosts.a]\nhots = "x"\nkey = "{key}"\n', 2, "did you mean host"),
    ):
        hosts.path.write_text(text)
        hosts.path.chmod(0o600)
        with pytest.raises(ConfigError, match=f"hosts.toml:{line}: .*{said}"):
            hosts.find("a", None)
    hosts.path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"hosts\.toml"):
        hosts.find("a", None)


def test_a_file_that_others_write_is_not_believed(hosts):
    hosts.save(KnownServer("server.example", 7008, ONE))
    hosts.path.chmod(0o620)
    with pytest.raises(ConfigError, match="chmod go-w"):
        hosts.find("server.example", 7008)
    hosts.path.chmod(0o644)
    assert hosts.find("server.example", 7008).key == ONE
    if os.geteuid() == 0:
        os.chown(hosts.path, 12345, -1)
        with pytest.raises(ConfigError, match="other users can write it"):
            hosts.find("server.example", 7008)


@given(st.text(max_size=30))
def test_any_name_makes_a_file_that_can_be_read(tmp_path_factory, name):
    hosts = KnownHosts(tmp_path_factory.mktemp("hosts") / "hosts.toml")
    server = KnownServer("server.example", 7008, ONE)
    try:
        hosts.save(server, name)
    except ConfigError:
        assert not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name)
        return
    assert tomllib.loads(hosts.path.read_text())["hosts"].keys() == {name}
    assert hosts.find(name, None) == server


KEY = bytes(range(32))


def test_an_own_key_is_made_once_for_its_owner_alone(tmp_path):
    path = tmp_path / "new" / "session.key"
    made = keys.own_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert keys.own_key(path).private == made.private == keys.read_own(path).private
    assert [each.name for each in path.parent.iterdir()] == ["session.key"]
    assert keys.own_key(tmp_path / "other.key").private != made.private


def test_a_key_that_appears_meanwhile_is_kept(tmp_path):
    path = tmp_path / "session.key"
    first = keys.own_key(path)
    keys._write_new(path, b"another one")
    assert keys.own_key(path).private == first.private


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (keys.to_text(KEY), 0o640, "chmod 600"),
        (keys.to_text(KEY), 0o604, "chmod 600"),
        ("", 0o600, "43 letters"),
        ("ü" * 43, 0o600, "not a private key"),
        (keys.to_text(KEY)[:-1], 0o600, "43 letters"),
    ],
)
def test_what_is_no_safe_key_is_refused(tmp_path, content, mode, message):
    path = tmp_path / "session.key"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=message) as raised:
        keys.own_key(path)
    assert str(path) in str(raised.value)


def test_a_missing_key_and_a_folder_that_is_a_file(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        keys.read_own(tmp_path / "no.key")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        keys.own_key(tmp_path / "file" / "session.key")


@given(st.binary(min_size=32, max_size=32))
def test_key_texts(key):
    text = keys.to_text(key)
    assert len(text) == 43
    assert keys.from_text(text) == key
    for wrong in (text[:-1], text + "A", text[:-1] + "=", text[:-1] + "+", "é" + text[1:]):
        with pytest.raises(ValueError, match="key"):
            keys.from_text(wrong)


def test_one_key_has_one_text():
    """The last letter carries two bits that must be zero: no second spelling of a key."""
    text = keys.to_text(KEY)
    accepted = 0
    for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_":
        try:
            keys.from_text(text[:-1] + letter)
        except ValueError:
            continue
        accepted += 1
    assert accepted == 16


@pytest.mark.parametrize("which", ["clients", "servers"])
def test_a_lock_that_is_held_is_not_waited_for_without_end(which, hosts, tmp_path, monkeypatch):
    """Another user who held the lock kept root's command waiting, without a word."""
    monkeypatch.setattr(keys, "_LOCK_S", 0.2)
    server = KnownServer("server.example", 7008, ONE)

    def change():
        if which == "clients":
            with keys.changed_alone(tmp_path / "clients.toml"):
                pass
        else:
            hosts.save(server)

    change()
    server = server._replace(host="other.example")
    lock = (tmp_path / ".clients.toml.lock" if which == "clients" else hosts.path).open("rb")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another program changes it"):
            change()
    change()


def test_a_file_of_names_that_is_wrong_names_each_problem(tmp_path):
    path = tmp_path / "clients.toml"
    path.write_text(f'[hosts]\none = "short"\ntwo = "{keys.to_text(KEY)}"\nthree = "x"\n')
    with pytest.raises(ConfigError) as raised:
        keys.read_names(path)
    assert '"one"' in str(raised.value)
    assert '"three"' in str(raised.value)
    assert '"two"' not in str(raised.value)
    for text in ("[host]\n", "hosts = 1\n", "[hosts\n", "[hosts]\none = 1\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="clients"):
            keys.read_names(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="clients"):
        keys.read_names(path)


def test_where_keys_are(monkeypatch, tmp_path):
    monkeypatch.delenv("CEDOS_USER_DIR", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert keys.own_key_path() == tmp_path / "cedos" / "session.key"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert keys.own_key_path() == tmp_path / ".config" / "cedos" / "session.key"


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("processor : 0\nflags\t\t: fpu aes avx\n", True),
        ("Features\t: fp asimd aes pmull\n", True),
        ("flags : fpu vaes\n", False),
        ("", False),
    ],
)
def test_hardware_is_read_from_cpuinfo(tmp_path, text, has):
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    assert keys.hardware_aes(path) is has
    assert keys.hardware_aes(tmp_path / "none") is False
