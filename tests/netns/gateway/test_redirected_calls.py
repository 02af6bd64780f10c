"""Datagrams of programs that know of no proxy: carried as Wi-Fi dies, from and to whom they believe."""

import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from kit.waiting import wait_until

from cedos.proxy.local.redirection_programs import PLACES6
from emu.workloads import call
from tests.netns.gateway.conftest import ORIGIN
from tests.netns.gateway.deaths import renumbered, silent
from tests.netns.gateway.test_redirection import OTHER, PYTHON, USER, as_user, said

ORIGIN6 = "2001:db8:c::2"
PORTS = 9001, 9002

ECHO = f"""
import select, socket
made = []
for family, host in ((socket.AF_INET, "{ORIGIN}"), (socket.AF_INET6, "{ORIGIN6}")):
    for port in {PORTS}:
        one = socket.socket(family, socket.SOCK_DGRAM)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((host, port))
        made.append(one)
print("ready", flush=True)
while True:
    for one in select.select(made, [], [])[0]:
        data, sender = one.recvfrom(65535)
        one.sendto(b"%s %d " % (sender[0].encode(), sender[1]) + data, sender)
"""

ASK = """
import json, socket, sys
said = {}
def ask(one, data, *to):
    one.settimeout(5)
    one.sendto(data, *to) if to else one.send(data)
    answer, sender = one.recvfrom(65535)
    host, port, rest = answer.split(b" ", 2)
    assert rest == data
    return [host.decode(), int(port), *sender[:2]]
"""


@pytest.fixture
def home():
    """A folder in which the redirected user may write."""
    with TemporaryDirectory() as folder:
        os.chown(folder, USER, USER)
        yield Path(folder)


@pytest.fixture
def echo(laptop):
    laptop.far.ip("address", "add", f"{ORIGIN6}/128", "dev", "lo", "nodad")
    process = laptop.far.popen(PYTHON, "-c", ECHO, stdout=subprocess.PIPE)
    laptop.keep(process)
    assert process.stdout.readline() == b"ready\n"


def asked(laptop, script, user=USER):
    return json.loads(said(laptop, PYTHON, "-c", ASK + script, user=user))


def own_prefix(laptop):
    """The route that makes the addresses of IPv6's places this host's."""
    return str(laptop.near.run("ip", "-6", "route", "show", "table", "local", str(PLACES6)).stdout)


@pytest.mark.parametrize("dies", [silent, renumbered])
def test_a_call_of_a_program_that_knows_nothing_goes_on(dies, laptop, home):
    laptop.forward("--redirect", str(USER), "--fail", "closed")
    # The session is made before: a call's first words may wait for it.
    assert as_user(laptop, "curl", "-sS", f"http://{ORIGIN}:1/").wait(20) != 0
    program = (PYTHON, "-c", Path(call.__file__).read_text())
    up, down = home / "caller", home / "callee"
    callee = laptop.far.popen(*program, "callee", ORIGIN, "2", str(down), stdout=subprocess.PIPE)
    laptop.keep(callee)
    assert callee.stdout.readline() == b"ready\n"
    caller = as_user(laptop, *program, "caller", ORIGIN, "2", str(up))
    time.sleep(1.2)
    dies(laptop)
    assert (caller.wait(20), callee.wait(20)) == (0, 0), caller.stderr.read()
    for direction in (call.heard(up, down), call.heard(down, up)):
        print(f"{dies.__name__}: {direction.lost} of {direction.sent}, {direction.gap_s:.3f} s")
        assert direction.sent == 100
        assert direction.lost <= 3
        assert direction.gap_s < 0.5


@pytest.mark.usefixtures("echo")
def test_a_program_sees_whom_it_asked(laptop):
    """Connected or not, several places by one socket, bound to an address, large, by IPv6."""
    own = json.loads(laptop.near.run("ip", "-j", "route", "get", ORIGIN).stdout)[0]["prefsrc"]
    laptop.forward("--redirect", str(USER), "--fail", "closed")
    found = asked(
        laptop,
        f"""
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
said["two"] = [ask(one, b"x", ("{ORIGIN}", port)) for port in {PORTS}]
said["large"] = ask(one, bytes(60000), ("{ORIGIN}", 9001))
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.connect(("{ORIGIN}", 9001))
said["connected"] = ask(one, b"x")
said["names"] = [one.getsockname()[0], *one.getpeername()]
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind(("{own}", 0))
said["bound"] = ask(one, b"x", ("{ORIGIN}", 9001))
one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
said["within"] = ask(one, b"x", ("::ffff:{ORIGIN}", 9001))
said["six"] = [ask(one, b"x", ("{ORIGIN6}", port)) for port in {PORTS}]
one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
one.connect(("{ORIGIN6}", 9001))
said["connected six"] = ask(one, bytes(60000))
said["names six"] = [one.getsockname()[0], *one.getpeername()[:2]]
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.connect(("{ORIGIN}", 9))
try:
    ask(one, b"x")
except ConnectionRefusedError:
    said["nobody listens"] = "refused"
one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
one.connect(("::ffff:{ORIGIN}", 9001))
said["connected within"] = ask(one, b"x") + [one.getpeername()[0]]
print(json.dumps(said))
""",
    )
    two = found["two"]
    assert [each[2:] for each in two] == [[ORIGIN, 9001], [ORIGIN, 9002]]
    # Who was asked sees one port of the gateway for one socket of the program (RFC 4787, REQ-1).
    assert two[0][:2] == two[1][:2] == found["large"][:2]
    assert two[0][0] != own
    assert found["connected"][2:] == found["bound"][2:] == [ORIGIN, 9001]
    assert found["names"] == ["127.0.0.1", ORIGIN, 9001]
    assert found["within"][2:] == [f"::ffff:{ORIGIN}", 9001]
    assert [each[2:] for each in found["six"]] == [[ORIGIN6, 9001], [ORIGIN6, 9002]]
    assert found["connected six"][2:] == [ORIGIN6, 9001]
    assert found["names six"] == ["::1", ORIGIN6, 9001]
    assert found["nobody listens"] == "refused"
    assert found["connected within"][2:] == [f"::ffff:{ORIGIN}", 9001, f"::ffff:{ORIGIN}"]
    assert asked(laptop, f"""
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(json.dumps(ask(one, b"x", ("{ORIGIN}", 9001))))
""", OTHER)[0] == own  # fmt: skip


@pytest.mark.usefixtures("echo")
def test_what_is_left_alone(laptop):
    """A host that spoke first is answered directly; so are all without the proxy."""
    own = json.loads(laptop.near.run("ip", "-j", "route", "get", ORIGIN).stdout)[0]["prefsrc"]
    ask = f"""
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(json.dumps(ask(one, b"x", ("{ORIGIN}", 9001))[0]))
"""
    assert own_prefix(laptop) == ""
    forward = laptop.forward("--redirect", str(USER))
    assert asked(laptop, ask) != own
    assert own_prefix(laptop) != ""
    server = as_user(
        laptop,
        *(PYTHON, "-c"),
        "import socket\n"
        "one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f"one.bind(('{own}', 7000))\n"
        "print('ready', flush=True)\n"
        "for _ in range(2):\n"
        "    data, sender = one.recvfrom(100)\n"
        "    one.sendto(data, sender)\n",
    )
    assert server.stdout.readline() == b"ready\n"
    talk = (
        "import socket\n"
        "one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f"one.bind(('{ORIGIN}', 0)); one.connect(('{own}', 7000)); one.settimeout(5)\n"
        "for _ in range(2): one.send(b'x'); one.recv(10)\n"
    )
    laptop.far.run(PYTHON, "-c", talk)
    forward.terminate()
    forward.wait()
    assert own_prefix(laptop) == ""
    forward = laptop.forward("--redirect", str(USER))
    assert asked(laptop, ask) != own
    forward.kill()
    forward.wait()
    assert asked(laptop, ask) == own
    # Connected sockets go on to send to such addresses: they must not leave this host later either.
    assert "expires" not in own_prefix(laptop) != ""


@pytest.mark.usefixtures("echo")
def test_who_speaks_first_draws_nothing_out_with_fail_closed(laptop):
    """A neighbour can send under any host's address to the socket that is about to call it."""
    own = json.loads(laptop.near.run("ip", "-j", "route", "get", ORIGIN).stdout)[0]["prefsrc"]
    laptop.forward("--redirect", str(USER), "--fail", "closed")
    calling = as_user(
        laptop,
        *(PYTHON, "-c"),
        ASK
        + f"""
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind(("0.0.0.0", 7000))
print("ready", flush=True)
one.recvfrom(100)
print(json.dumps(ask(one, b"x", ("{ORIGIN}", 9001))), flush=True)
""",
    )
    assert calling.stdout.readline() == b"ready\n"
    talk = (
        "import socket\n"
        "one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        f"one.bind(('{ORIGIN}', 9001)); one.sendto(b'x', ('{own}', 7000))\n"
    )
    laptop.far.run(PYTHON, "-c", talk)
    seen = json.loads(calling.stdout.readline())
    assert seen[0] != own
    assert seen[2:] == [ORIGIN, 9001]


def test_no_datagram_to_port_53_leaves_past_the_gateway(laptop):
    """Those of sockets that were bound to an address of this host did."""
    laptop.far.ip("address", "add", f"{ORIGIN6}/128", "dev", "lo", "nodad")
    server = laptop.far.popen(
        *(PYTHON, "-c"),
        "import select, socket\n"
        "made = [socket.socket(each, socket.SOCK_DGRAM) for each in (socket.AF_INET, socket.AF_INET6)]\n"
        f"made[0].bind(('{ORIGIN}', 53)); made[1].bind(('{ORIGIN6}', 53))\n"
        "print('ready', flush=True)\n"
        "for one in select.select(made, [], [])[0]: print(one.recvfrom(100), flush=True)\n",
        stdout=subprocess.PIPE,
    )
    laptop.keep(server)
    assert server.stdout.readline() == b"ready\n"
    route = json.loads(laptop.near.run("ip", "-j", "route", "get", ORIGIN).stdout)[0]
    own, own6, device = route["prefsrc"], "2001:db8:1::2", route["dev"]
    for each, last in ((laptop.near, 2), (laptop.far, 1)):
        each.ip("address", "add", f"2001:db8:1::{last}/64", "dev", device, "nodad")
    laptop.near.ip("-6", "route", "add", "default", "via", "2001:db8:1::1", "dev", device)
    laptop.forward("--redirect", str(USER), "--fail", "closed")
    script = f"""
import socket
for bound, to in (("{own}", "{ORIGIN}"), ("::ffff:{own}", "::ffff:{ORIGIN}"), ("{own6}", "{ORIGIN6}")):
    for connected in (True, False):
        one = socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM)
        one.bind((bound, 0))
        if connected:
            one.connect((to, 53))
            one.send(b"secret")
        else:
            one.sendto(b"secret", (to, 53))
"""
    said(laptop, PYTHON, "-c", script)
    assert not select.select([server.stdout], [], [], 0.5)[0], server.stdout.readline()
    # Nor does a question to a router that calls itself the resolver by its address on the link.
    script = f"""
import socket
one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
for to in ("fe80::1", "ff02::1"):
    try:
        one.sendto(b"secret" * 100, (f"{{to}}%{device}", 53))
    except PermissionError:
        print("refused")
"""
    assert said(laptop, PYTHON, "-c", script) == "refused\nrefused\n"


@pytest.mark.usefixtures("echo")
def test_who_was_called_by_one_user_draws_nothing_of_another_out(laptop):
    """A socket bound to an interface is left alone: its answer led another user's port out, too."""
    route = json.loads(laptop.near.run("ip", "-j", "route", "get", ORIGIN).stdout)[0]
    laptop.forward("--redirect", str(USER), "--redirect", str(OTHER))
    ask = f"""
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind(("0.0.0.0", 7000))
DEVICE
print(json.dumps(ask(one, b"x", ("{ORIGIN}", 9001))[0]))
"""
    device = f"one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'{route['dev']}')"
    assert asked(laptop, ask.replace("DEVICE", device), OTHER) == route["prefsrc"]
    assert asked(laptop, ask.replace("DEVICE", "")) != route["prefsrc"]


def datagrams_port(laptop):
    """Return the proxy's port for redirected datagrams: no other one of UDP is open at all addresses."""
    lines = laptop.near.run("ss", "-Hlun").stdout.split()
    return {
        int(each[8:]) for each in lines if each.startswith("0.0.0.0:") and each[8:] != "*"
    }.pop()


SEND = """
import socket
for family, host in ((socket.AF_INET, "FOUR"), (socket.AF_INET6, "SIX")):
    one = socket.socket(family, socket.SOCK_DGRAM)
    for _ in range(NUMBER):
        one.sendto(bytes(1000), (host, PORT))
"""


def buffers(laptop, port):
    """Return the bytes that wait, and the datagrams that were dropped, at each socket of a port."""
    lines = laptop.near.run("cat", "/proc/net/udp", "/proc/net/udp6").stdout.splitlines()
    rows = [line.split() for line in lines if f":{port:04X} " in line]
    return [(int(row[4].partition(":")[2], 16), int(row[-1])) for row in rows]


@pytest.mark.parametrize(
    ("redirected", "to"),
    [(True, 9001), (True, 53), (False, 9001)],
)
def test_another_users_flood_pushes_out_no_datagram(redirected, to, laptop):
    """Fill the proxy's buffer as a user or a stranger: it denied others their datagrams and look-ups."""
    both = ("--redirect", str(USER), "--redirect", str(OTHER))
    forward = laptop.forward(*both, "--fail", "closed")
    port = datagrams_port(laptop)
    places = SEND.replace("FOUR", ORIGIN).replace("SIX", ORIGIN6).replace("PORT", str(to))
    direct = SEND.replace("FOUR", "127.0.0.1").replace("SIX", "::1").replace("PORT", str(port))
    # The proxy reads nothing while its buffers fill.
    forward.send_signal(signal.SIGSTOP)
    flood = (places if redirected else direct).replace("NUMBER", "10_000")
    said(laptop, PYTHON, "-c", flood, user=USER if redirected else USER + 9)
    assert sum(dropped > 0 for _, dropped in buffers(laptop, port)) == 2, "of each IP version one"
    said(laptop, PYTHON, "-c", places.replace("NUMBER", "1"), user=OTHER)
    assert sum(waits > 0 and not dropped for waits, dropped in buffers(laptop, port)) == 2


# The kernel may keep what another processor entered.
ONE_PROCESSOR = """
import os
import select
os.sched_setaffinity(0, {0})
"""

CONNECTED = f"""
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.connect(("{ORIGIN}", 9001))
ask(one, b"x")
"""

AGAIN = """
print("ready", flush=True)
sys.stdin.readline()
for _ in range(3):
    try:
        print(ask(one, b"y")[2:])
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.mark.usefixtures("echo")
def test_a_burst_of_one_user_ends_no_socket_of_another(laptop):
    """Others' connected sockets led nowhere from then on, and their programs noticed nothing."""
    laptop.forward("--redirect", str(USER), "--redirect", str(OTHER), "--fail", "closed")
    script = ASK + ONE_PROCESSOR + CONNECTED + AGAIN
    waiting = [
        as_user(laptop, PYTHON, "-c", script, user=user, stdin=subprocess.PIPE)
        for user in (USER, OTHER)
    ]
    for each in waiting:
        assert each.stdout.readline() == b"ready\n"
    burst = """
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(100_000):
    one.sendto(b"x", (f"203.0.113.{10 + number % 100}", 20_000 + number // 100))
print("{}")
"""
    asked(laptop, ONE_PROCESSOR + burst)
    own, others = (each.communicate(b"\n", timeout=30)[0].decode().splitlines() for each in waiting)
    assert str([ORIGIN, 9001]) in others
    assert "ConnectionAbortedError" in own


@pytest.mark.usefixtures("echo")
def test_a_stranger_sends_nothing_to_a_place(laptop):
    """Send as another socket to a stand-in address, which the kernel shows to all users."""
    laptop.forward("--redirect", str(USER))
    for family, host, loopback in (("AF_INET", ORIGIN, "127.1"), ("AF_INET6", ORIGIN6, "[fd63")):
        calling = as_user(
            laptop,
            *(PYTHON, "-c"),
            "import socket, time\n"
            f"one = socket.socket(socket.{family}, socket.SOCK_DGRAM)\n"
            f"one.connect(('{host}', 9001))\n"
            "print('ready', flush=True)\n"
            "time.sleep(60)\n",
        )
        assert calling.stdout.readline() == b"ready\n"
        shown = laptop.near.run("ss", "-Hun", "state", "established").stdout.split()
        address, port = next(
            each for each in shown if each.startswith(loopback) and ":" in each[4:]
        ).rsplit(":", 1)
        for user in (USER, OTHER):
            for act in ("sendto(b'x', here)", "connect(here)"):
                script = (
                    "import socket\n"
                    f"here = ('{address.strip('[]')}', {port})\n"
                    "try:\n"
                    f"    socket.socket(socket.{family}, socket.SOCK_DGRAM).{act}\n"
                    "except PermissionError:\n"
                    "    print('refused')\n"
                )
                assert said(laptop, PYTHON, "-c", script, user=user) == "refused\n"


@pytest.mark.usefixtures("echo")
def test_the_end_of_one_redirection_leaves_another_its_datagrams(laptop):
    """The one that ended deleted the route of both: the other's datagrams by IPv6 left in clear."""
    ask = (
        ASK
        + f"""
one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
one.connect(("{ORIGIN6}", 9001))
print(ask(one, b"1")[0], flush=True)
sys.stdin.readline()
print(ask(one, b"2")[0], flush=True)
"""
    )
    first, second = (laptop.forward("--redirect", str(user)) for user in (OTHER, USER))
    calling = as_user(laptop, PYTHON, "-c", ask, stdin=subprocess.PIPE)
    carried = calling.stdout.readline()
    first.terminate()
    first.wait()
    routes = own_prefix(laptop).splitlines()
    assert len(routes) == 1
    assert calling.communicate(b"\n", timeout=10)[0] == carried
    # Where another program deletes it, it is back before the next check.
    laptop.near.ip("-6", "route", "del", "table", "local", "local", str(PLACES6), "dev", "lo")
    wait_until(lambda: own_prefix(laptop).splitlines() == routes, 3)
    laptop.forward("--redirect", str(OTHER)).kill()
    assert len(own_prefix(laptop).splitlines()) == 2
    second.terminate()
    second.wait()
    assert own_prefix(laptop) == ""
