"""`cedos gateway`, `cedos join` and `cedos forward` on the command line."""

import asyncio
import configparser
import os
import socket
from pathlib import Path
from threading import Thread

import pytest
from kit.waiting import until
from structlog.testing import capture_logs

from cedos.api.messages import NetworkMessage, RuleMessage
from cedos.commands.console import user_rules
from cedos.commands.gateway import forward, gateway, join
from cedos.controller.rule import RuleRequest
from cedos.errors import (
    CedosError,
    ConfigError,
    DaemonUnreachableError,
    PrivilegeError,
    SessionError,
)
from cedos.model import NetworkKind
from cedos.proxy.gateway.gateway import InvitedClients
from cedos.proxy.local import joined_gateway
from cedos.session import keys
from cedos.session.protocol.crypto import KeyPair


@pytest.fixture(autouse=True)
def config_home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def invited(cedos, name="laptop"):
    result = cedos("gateway", "--name", "gw.example", "--listen", "7100", "--invite", name)
    assert result.exit_code == 0
    assert "anyone who has it may use this gateway" in result.stderr
    command, word, line = result.stdout.split()
    assert (command, word) == ("cedos", "join")
    return line


def other_gateway(address):
    """The line of a gateway with a key of its own."""
    host, _, port = address.rpartition(":")
    key = KeyPair(os.urandom(32)).public
    return joined_gateway.invitation((host, int(port)), key, os.urandom(32))


def test_who_is_invited_joins_and_leaves(cedos, config_home):
    line = invited(cedos)
    assert cedos("gateway", "--list").stdout == "laptop\n"
    joined = cedos("join", "--no-check", line)
    assert joined.exit_code == 0
    assert "127.0.0.1 port 1080" in joined.stdout
    file = config_home / "cedos" / "gateway.toml"
    assert [str(each) for each in joined_gateway.read(file)] == ["gw.example:7100"]
    assert cedos("join", "--leave").exit_code == 0
    assert not file.exists()
    assert cedos("forward").exit_code == 2
    assert "cedos join LINE" in cedos("forward").stderr


async def test_a_gateway_whose_key_for_sharing_is_damaged_goes_on_without(config_home, monkeypatch):
    """The gateway ended, and all its clients were without it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(config_home / "state"))
    key = config_home / "cedos" / "share-gateway.key"
    key.parent.mkdir()
    key.write_bytes(b"damaged")
    key.chmod(0o600)
    clients = InvitedClients(config_home / "clients.toml")
    with gateway._Sharing(clients) as share, capture_logs() as logs:
        running = asyncio.create_task(share.run(None))
        await until(lambda: logs)
        assert not running.done()
        assert share.answer(None, b"") is None
        running.cancel()
    assert "cannot share" in logs[0]["event"]


def test_a_laptop_joins_several_gateways_and_leaves_one(cedos, config_home):
    file = config_home / "cedos" / "gateway.toml"
    first = invited(cedos)
    assert cedos("join", "--no-check", first).exit_code == 0
    assert cedos("join", "--no-check", other_gateway("gw2.example:7200")).exit_code == 0
    assert [str(each) for each in joined_gateway.read(file)] == [
        "gw.example:7100",
        "gw2.example:7200",
    ]
    unknown = cedos("join", "--leave", "gw3.example")
    assert unknown.exit_code == 1
    assert "there are gw.example:7100, gw2.example:7200" in unknown.stderr
    assert cedos("join", "--leave", "gw.example").exit_code == 0
    assert [str(each) for each in joined_gateway.read(file)] == ["gw2.example:7200"]
    assert cedos("join", "--leave").exit_code == 0
    assert not file.exists()


def test_who_is_invited_is_known_by_name(cedos):
    first, second = invited(cedos), invited(cedos, "phone")
    assert first != second
    again = cedos("gateway", "--invite", "phone")
    assert again.exit_code == 2
    assert "--revoke phone" in again.stderr
    assert cedos("gateway", "--revoke", "phone").exit_code == 0
    assert cedos("gateway", "--list").stdout == "laptop\n"
    unknown = cedos("gateway", "--revoke", "phone")
    assert unknown.exit_code == 1
    assert "there are laptop" in unknown.stderr


def meanwhile(monkeypatch, module, name, do):
    """Have another thread `do` something before a module's function is called the first time."""
    call, other = getattr(module, name), Thread(target=do)

    def late(*arguments):
        monkeypatch.setattr(module, name, call)
        other.start()
        other.join(0.3)  # where nothing keeps it waiting, it is done
        return call(*arguments)

    monkeypatch.setattr(module, name, late)
    return other


def test_who_is_revoked_beside_an_invitation_stays_so(config_home, monkeypatch):
    """In 141 of 200 such pairs of commands the revoked client was invited again."""
    file = config_home / "clients.toml"
    InvitedClients(file).invite("phone")
    other = meanwhile(
        monkeypatch, keys, "write_names", lambda: InvitedClients(file).revoke("phone")
    )
    InvitedClients(file).invite("tablet")
    other.join()
    assert InvitedClients(file).names == ["tablet"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_what_root_revokes_is_read_by_the_gateways_own_user(tmp_path, umask):
    """The service could not read root's file, went on with the old one, and did not start again."""
    folder = tmp_path / "cedos-gateway"
    folder.mkdir(0o700)
    os.chown(folder, 65_534, 65_534)
    file, before = folder / "clients.toml", os.umask(umask)
    try:
        for change in (InvitedClients.invite, InvitedClients.revoke):
            change(InvitedClients(file), "phone")
            status = file.stat()
            assert (status.st_uid, status.st_mode & 0o777) == (65_534, 0o666 & ~umask)
        # A file that others read, as in /etc, stays so; none is written through a link.
        file.chmod(0o640)
        os.chown(file, 0, 65_533)
        InvitedClients(file).invite("phone")
        status = file.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (0, 65_533, 0o640)
        other = tmp_path / "other"
        other.write_text("")
        file.unlink()
        file.symlink_to(other)
        InvitedClients(file).invite("phone")
        assert (other.read_text(), file.is_symlink()) == ("", False)
    finally:
        os.umask(before)


def test_two_gateways_that_are_joined_at_once_are_both_joined(cedos, config_home, monkeypatch):
    first, second = other_gateway("gw1.example:7100"), other_gateway("gw2.example:7100")
    other = meanwhile(
        monkeypatch, joined_gateway, "write", lambda: join.add(joined_gateway.parse(second))
    )
    assert cedos("join", "--no-check", first).exit_code == 0
    other.join()
    both = joined_gateway.read(config_home / "cedos" / "gateway.toml")
    assert {each.host for each in both} == {"gw1.example", "gw2.example"}


def test_a_further_line_has_the_name_and_port_of_the_last(cedos):
    """`--invite` without them printed an address that no laptop reaches."""
    invited(cedos)
    line = cedos("gateway", "--invite", "phone").stdout
    assert "@gw.example:7100/" in line
    line = cedos("gateway", "--name", "gw2.example", "--invite", "tablet").stdout
    assert "@gw2.example:7009/" in line
    assert "@gw2.example:7009/" in cedos("gateway", "--invite", "watch").stdout


def test_root_s_invitation_is_written_to_no_link(cedos, config_home):
    """The service's user could have root overwrite any file, or wait for a pipe for good."""
    file, elsewhere = config_home / "cedos" / "gateway-address", config_home / "passwd"
    file.parent.mkdir()
    elsewhere.write_text("root:x:0:0\n")
    file.symlink_to(elsewhere)
    invited(cedos)
    assert elsewhere.read_text() == "root:x:0:0\n"
    assert file.read_text() == "gw.example 7100\n"
    file.unlink()
    os.mkfifo(file)
    assert cedos("gateway", "--invite", "phone").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gateway", "--invite", "a b"), "cannot be the name of a client"),
        (("gateway", "--invite", "a", "--list"), "exclude each other"),
        (("gateway", "--listen", "0"), "is not 7009"),
        (("gateway", "--allow-inside", "10.0.0.1/8"), "is not a network"),
        (("join",), "either a LINE, or --leave"),
        (("join", "https://gw.example"), "not a line cedos://"),
        (("join", "cedos://secret@gw.example:7009/key"), "not whole"),
        (("forward", "-L", "intranet"), "not a forwarding such as"),
        (("forward", "-L", "80:intranet:0"), "not a destination"),
        (("forward", "--dns-direct", "corp.example"), "goes with --dns or --redirect"),
        (("forward", "-n", "nothere0"), "there is no interface"),
        (("forward", "-D", "localhost:1080"), "not 1080, 127.0.0.1:1080 or"),
        (("forward", "-D", "192.0.2.1:1080"), "only loopback is served"),
        (("forward", "-L", "0.0.0.0:8080:intranet:80"), "only loopback is served"),
        (("forward", "--dns", "[::]:53"), "only loopback is served"),
        (("forward", "--redirect", "no such user"), "there is no user 'no such user' here"),
        (("forward", "--redirect", str(1 << 32)), "there is no user"),
    ],
)
def test_what_cannot_be_meant_is_refused(cedos, arguments, says):
    result = cedos(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_secret_is_never_repeated(cedos):
    line = invited(cedos)
    result = cedos("join", line[:-3])
    assert result.exit_code == 2
    assert line[8:40] not in result.stderr


def test_a_gateway_that_is_not_there_is_told(cedos, config_home):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = invited(cedos).replace("gw.example:7100", f"127.0.0.1:{port}")
    result = cedos("join", line)
    assert result.exit_code == 1
    assert f"127.0.0.1:{port} is not joined: no connection" in result.stderr
    assert not (config_home / "cedos" / "gateway.toml").exists()


def test_the_unit_that_redirects_has_two_privileges(cedos):
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str
    parsed.read_string(cedos("example", "redirect-unit").stdout)
    service = parsed["Service"]
    for key in ("AmbientCapabilities", "CapabilityBoundingSet"):
        assert service[key] == "CAP_BPF CAP_NET_ADMIN"
    words = service["ExecStart"].split()
    assert words[1:3] == ["forward", "--redirect"]
    # systemd puts what LoadCredential names there, under this name.
    assert service["LoadCredential"].split(":")[0] == "gateway"
    assert "${CREDENTIALS_DIRECTORY}/gateway" in words


def test_a_gateway_whose_last_client_was_revoked_invites_nobody(cedos, monkeypatch):
    """Start again without a client: the gateway invited one, and printed its line into the journal."""

    async def ended(*_):
        pass

    monkeypatch.setattr(gateway, "_run", ended)
    monkeypatch.setattr(gateway.logs, "configure", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as free:
        start = ("gateway", "--listen", f"127.0.0.1:{free.getsockname()[1]}")
    assert "cedos join" in cedos(*start).stdout
    assert cedos("gateway", "--revoke", "laptop").exit_code == 0
    assert cedos(*start).stdout == ""
    assert cedos("gateway", "--list").stdout == ""


def test_a_port_that_was_free_stays_the_gateways(cedos, monkeypatch):
    """Another program could take it once the line to join was printed."""
    tried = []

    async def run(*_):
        with pytest.raises(OSError, match="in use"):
            socket.create_server(place).close()
        tried.append(place)

    monkeypatch.setattr(gateway, "_run", run)
    monkeypatch.setattr(gateway.logs, "configure", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = free.getsockname()
    assert "cedos join" in cedos("gateway", "--listen", f"127.0.0.1:{place[1]}").stdout
    assert tried == [place]
    socket.create_server(place).close()


def test_a_port_that_is_taken_is_told(cedos):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        result = cedos("gateway", "--listen", where)
        assert (result.exit_code, result.stdout) == (4, ""), "no line to join is printed"
        cedos("join", "--no-check", invited(cedos))
        for command in (("forward", "-D"), ("forward", "--dns"), ("gateway", "--listen")):
            result = cedos(*command, where)
            assert result.exit_code == 4
            assert "cannot listen at 127.0.0.1" in result.stderr
            assert ": Address already in use; " in result.stderr


def test_the_units_have_no_privilege(cedos):
    for what, command in (("gateway-unit", "gateway"), ("forward-unit", "forward")):
        parsed = configparser.ConfigParser(strict=False, interpolation=None)
        parsed.optionxform = str
        parsed.read_string(cedos("example", what).stdout)
        service = parsed["Service"]
        assert service["NoNewPrivileges"] == "yes"
        assert "AmbientCapabilities" not in service
        assert service["ExecStart"].split()[1] == command


@pytest.mark.parametrize(
    ("error", "level", "said"),
    [
        (None, "info", "the daemon chooses the networks"),
        (DaemonUnreachableError("none there"), "info", "no daemon answers yet: until then metered"),
        (PrivilegeError("you may not open it"), "warning", "the daemon cannot be asked: metered"),
    ],
)
def test_a_person_is_told_who_chooses(monkeypatch, error, level, said):
    def networks(_client):
        if error is not None:
            raise error
        return []

    monkeypatch.setattr(forward.ControlClient, "networks", networks)
    with capture_logs() as logged:
        forward.say_who_chooses(Path("/nowhere"))
    (entry,) = logged
    assert entry["log_level"] == level
    assert entry["event"].startswith(said)
    assert entry.get("why") == (str(error) if level == "warning" else None)


class RuleOfGateways:
    """A daemon with a rule for gateways."""

    def __init__(self, _socket):
        pass

    def rules(self):
        rule = RuleRequest(host="192.0.2.0/24", never=("wlan0",))
        return [RuleMessage(number=1, rule=rule, network=None, why="")]

    def changes(self):
        return 1

    def networks(self):
        return [
            NetworkMessage(name=each, interface=each, kind=NetworkKind.WIFI, metered=False, up=True)
            for each in ("wlan0", "lte0")
        ]


@pytest.fixture
def ruled_gateways(monkeypatch):
    monkeypatch.setattr(user_rules, "ControlClient", RuleOfGateways)


@pytest.mark.usefixtures("ruled_gateways")
async def test_a_gateway_that_is_joined_meanwhile_is_under_the_rules_at_once(monkeypatch, tmp_path):
    """The rule counted after a minute at most."""
    made_links = {}

    class Link(forward.GatewayLink):
        def __init__(self, joined, chooser, networks, **options):
            super().__init__(joined, chooser, networks, **options)
            made_links[joined.host] = networks

    async def listen(*_arguments, **_options):
        assert not made_links["192.0.2.1"]("wlan0", "192.0.2.1")
        await asyncio.sleep(0.2)

    async def follow_joined(_file, link, made):
        await asyncio.sleep(0.1)
        link.follow([other], made)
        assert not made_links["192.0.2.2"]("wlan0", "192.0.2.2")
        assert made_links["192.0.2.2"]("lte0", "192.0.2.2")
        followed.append(True)

    followed = []
    first, other = (joined_gateway.parse(other_gateway(f"192.0.2.{each}:7000")) for each in (1, 2))
    monkeypatch.setattr(forward, "GatewayLink", Link)
    monkeypatch.setattr(forward, "_listen", listen)
    monkeypatch.setattr(forward, "_follow_joined", follow_joined)
    await forward._run([first], tmp_path, [], None, forward.Fail.OPEN, (), [], (), priced=False)
    assert followed == [True]


@pytest.mark.usefixtures("ruled_gateways")
async def test_joining_keeps_to_the_rules(monkeypatch):
    async def connect(_address, *, networks=lambda *_: True, **_options):
        allowed = {each: networks(each, "192.0.2.1") for each in ("wlan0", "lte0")}
        assert allowed == {"wlan0": False, "lte0": True}
        raise SessionError("that is all")

    monkeypatch.setattr(join, "connect", connect)
    with pytest.raises(CedosError, match="that is all"):
        await join._try(joined_gateway.parse(other_gateway("192.0.2.1:7000")))


def test_no_network_calls_this_host_the_gateway(monkeypatch):
    """One whose resolver did had the redirecting service end for good, and all went direct."""
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, 1, 6, "", ("127.0.0.1", 0))]
    )
    forward._refuse_loop("gateway.test")
    for here in ("127.0.0.1", "::1", "localhost"):
        with pytest.raises(ConfigError, match="is this host"):
            forward._refuse_loop(here)
