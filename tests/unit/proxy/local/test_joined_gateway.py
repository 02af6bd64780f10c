"""The line that a person pastes, and the file that keeps it."""

import os
import pwd
from types import SimpleNamespace

import pytest

from cedos.errors import ConfigError
from cedos.proxy.local import joined_gateway
from cedos.proxy.local.joined_gateway import add, invitation, parse, read, write
from cedos.session.protocol.crypto import KeyPair

SECRET, SERVER = bytes(range(32)), KeyPair(bytes(range(1, 33))).public


@pytest.mark.parametrize("host", ["gw.example", "192.0.2.1", "2001:db8::1"])
def test_a_line_is_what_it_was_made_of(host, tmp_path):
    joined = parse(f"  {invitation((host, 7009), SERVER, SECRET)}\n")
    assert (joined.host, joined.port, joined.server_key) == (host, 7009, SERVER)
    assert joined.client.public == KeyPair(SECRET).public
    file = tmp_path / "new" / "gateway.toml"
    write(file, [joined])
    assert file.stat().st_mode & 0o077 == 0
    (again,) = read(file)
    assert (again.host, again.client.public) == (host, joined.client.public)
    write(file, [joined])  # joined again
    assert [each.name for each in file.parent.iterdir()] == ["gateway.toml"]


LINE = invitation(("gw.example", 7009), SERVER, SECRET)


@pytest.mark.parametrize(
    "line",
    [
        "", "cedos://", LINE[:-1], LINE.replace("7009", "70090"),
        LINE.replace("gw.example", "[gw.example]"), LINE.replace("gw.example", ""),
        LINE.replace("cedos:", "https:"), LINE + "/more", LINE.replace(":7009", ":7009,"),
        LINE.replace(":7009", ":7009,gw2.example:7009"),
    ],
)  # fmt: skip
def test_what_is_no_line_is_told_without_its_secret(line):
    with pytest.raises(ValueError, match=r".+") as raised:
        parse(line)
    assert LINE[8:40] not in str(raised.value)


def test_a_file_has_several_gateways_in_order(tmp_path):
    file = tmp_path / "gateway.toml"
    places = [("gw.example", 7009), ("192.0.2.7", 7010), ("2001:db8::1", 7009)]
    known = []
    for number, place in enumerate(places):
        server = KeyPair(bytes([number]) * 32).public
        known = add(known, parse(invitation(place, server, SECRET)))
    write(file, known)
    assert [each.address for each in read(file)] == places
    moved = parse(invitation(("gw3.example", 7009), known[1].server_key, SECRET))
    assert [each.host for each in add(known, moved)] == ["gw.example", "gw3.example", "2001:db8::1"]
    with pytest.raises(ConfigError, match="which is the limit"):
        add(known * 6, parse(LINE))
    write(file, [])
    with pytest.raises(ConfigError, match="no gateway is joined"):
        read(file)


def test_a_file_that_others_read_is_refused(tmp_path):
    file = tmp_path / "gateway.toml"
    with pytest.raises(ConfigError, match="cedos join"):
        read(file)
    write(file, [parse(LINE)])
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read(file)
    file.write_text('[[gateway]]\nhost = "gw.example"\n')
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="port"):
        read(file)


def test_root_by_sudo_finds_the_gateway_of_who_called(tmp_path, monkeypatch):
    own, theirs = tmp_path / "root", tmp_path / "alice"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(own))
    monkeypatch.setenv("SUDO_USER", "alice")
    monkeypatch.setattr(pwd, "getpwnam", {"alice": SimpleNamespace(pw_dir=str(theirs))}.__getitem__)
    for uid, expected in ((0, theirs / ".config"), (1000, own)):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        file = expected / "cedos" / "gateway.toml"
        # Where nobody has one, the own one is named.
        assert joined_gateway.path() == joined_gateway.own_path()
        file.parent.mkdir(parents=True)
        file.touch()
        assert joined_gateway.path() == file
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert joined_gateway.path() == joined_gateway.own_path()
    joined_gateway.own_path().unlink()
    monkeypatch.setenv("SUDO_USER", "nobody here")
    assert joined_gateway.path() == joined_gateway.own_path()
