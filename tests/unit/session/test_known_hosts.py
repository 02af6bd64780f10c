"""The file of servers that a user knows."""

import os
import random
import re
import resource
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
