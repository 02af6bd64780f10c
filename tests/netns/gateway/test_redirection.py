"""Programs that know of no proxy, led to it by the kernel; others are left alone."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.netns.gateway.conftest import CEDOS, GATEWAY, ORIGIN
from tests.netns.gateway.deaths import SIZE, silent, whole_in_spite_of

USER, OTHER = 54_321, 54_322
TALK = f"""
import json, socket, sys
with socket.create_connection(("{ORIGIN}", int(sys.argv[1])), 5) as one:
    print(json.dumps([one.getsockname()[0], one.getpeername()]))
"""
SAY_AND_GO = f"""
import socket
with socket.create_connection(("{ORIGIN}", 9000), 5) as one:
    one.sendall(b"said and gone")
"""


TAKE = f"""
import socket
with socket.create_server(("{ORIGIN}", 9000)) as server:
    print("ready", flush=True)
    print(server.accept()[0].recv(100).decode(), flush=True)
"""
PYTHON = "/usr/bin/python3"  # the other users may not see ours


def as_user(laptop, *words, user=USER, stdin=None):
    process = laptop.near.popen(
        *("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *words),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    laptop.keep(process)
    return process


def said(laptop, *words, user=USER):
    process = as_user(laptop, *words, user=user)
    out, complaint = process.communicate(timeout=20)
    assert process.returncode == 0, complaint
    return out.decode()


def test_a_download_goes_on(laptop):
    laptop.world.shape("20mbit")
    data = os.urandom(SIZE)
    laptop.serve_file(data)
    laptop.forward("--redirect", str(USER), "--fail", "closed")
    curl = as_user(laptop, "curl", "-sS", f"http://{ORIGIN}:8080/file")
    whole_in_spite_of(silent, laptop, curl, data)


def test_who_is_redirected_and_who_is_not(laptop):
    laptop.serve_file(b"x")
    route = laptop.near.run("ip", "-j", "route", "get", ORIGIN).stdout
    outside = json.loads(route)[0]["prefsrc"]
    words = (PYTHON, "-c", TALK, "8080")
    laptop.forward("--redirect", str(USER))
    # The program sees whom it asked for, and is a connection of this host alone.
    assert json.loads(said(laptop, *words)) == ["127.0.0.1", [ORIGIN, 8080]]
    assert json.loads(said(laptop, *words, user=OTHER)) == [outside, [ORIGIN, 8080]]
    bound = TALK.replace(", 5)", f", 5, ('{outside}', 0))")
    assert json.loads(said(laptop, PYTHON, "-c", bound, "8080"))[0] == outside
    # What a program says that goes at once arrives.
    server = laptop.far.popen(*(PYTHON, "-c", TAKE), stdout=subprocess.PIPE)
    laptop.keep(server)
    assert server.stdout.readline() == b"ready\n"
    assert said(laptop, PYTHON, "-c", SAY_AND_GO) == ""
    assert server.stdout.readline() == b"said and gone\n"
    # A refused port is refused, and a stranger at the proxy's own ports too.
    refused = as_user(laptop, "curl", "-sS", f"http://{ORIGIN}:1/")
    assert refused.wait(10) in (7, 56), refused.stderr.read()
    ports = laptop.near.run("ss", "-Hltn").stdout.split()
    own = [each for each in ports if each.startswith("127.0.0.1:")]
    assert len(own) == 2  # for connections, and for names
    for each in own:
        stranger = as_user(laptop, "curl", "-sS", "-m", "5", f"http://{each}/", user=OTHER)
        assert stranger.wait(10) in (7, 56), stranger.stderr.read()  # reset, maybe at once
    # QUIC is refused, and other datagrams are not.
    send = (
        "import socket\n"
        "one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "try:\n"
        "    one.{how}\n"
        "    print('sent')\n"
        "except PermissionError:\n"
        "    print('refused')\n"
    )
    for how, port, user, what in (
        ("connect(('{}', {}))", 443, USER, "refused"),
        ("sendto(b'x', ('{}', {}))", 443, USER, "refused"),
        ("sendto(b'x', ('{}', {}))", 53, USER, "sent"),
        ("sendto(b'x', ('{}', {}))", 443, OTHER, "sent"),
    ):
        words = send.format(how=how.format(ORIGIN, port))
        assert said(laptop, PYTHON, "-c", words, user=user).strip() == what, (how, port)


SIX = """
import socket, sys
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    with socket.socket(socket.AF_INET6, kind) as one:
        one.settimeout(0.5)
        try:
            one.connect(("2001:db8:77::1", int(sys.argv[1])))
            print("connected to", one.getsockname()[0])
        except OSError as error:
            print(type(error).__name__)
"""


@pytest.mark.parametrize("fail", ["open", "closed"])
def test_without_ipv6_on_loopback_it_goes_direct_or_nowhere(laptop, fail):
    """With `--fail closed` it went direct, too."""
    near = laptop.near
    near.sysctl("net.ipv6.conf.lo.disable_ipv6", 1)
    near.ip("link", "add", "six0", "type", "veth", "peer", "six1")
    near.ip("link", "set", "six1", "up")
    near.ip("address", "add", "2001:db8:66::2/64", "dev", "six0", "nodad")
    near.ip("link", "set", "six0", "up")
    near.ip("-6", "route", "add", "default", "dev", "six0")
    laptop.forward("--redirect", str(USER), "--fail", fail)
    found = said(laptop, PYTHON, "-c", SIX, "8080").split("\n")
    direct = ["TimeoutError", "connected to 2001:db8:66::2"]
    assert found[:2] == (["PermissionError"] * 2 if fail == "closed" else direct)
    # Others' do not change.
    assert said(laptop, PYTHON, "-c", SIX, "8080", user=OTHER).split("\n")[:2] == direct


def test_ipv6_and_ipv4_within_it(laptop):
    """The laptop itself has no IPv6 but loopback's."""
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("this kernel has no IPv6")
    origin = "2001:db8:c::2"
    laptop.far.ip("address", "add", f"{origin}/128", "dev", "lo", "nodad")
    laptop.serve_file(b"x")
    take = TAKE.replace("9000)", "9000), family=socket.AF_INET6").replace(ORIGIN, origin)
    server = laptop.far.popen(PYTHON, "-c", take, stdout=subprocess.PIPE)
    laptop.keep(server)
    assert server.stdout.readline() == b"ready\n"
    laptop.forward("--redirect", str(USER))
    say = SAY_AND_GO.replace(ORIGIN, origin) + "    print(one.getpeername()[:2])\n"
    assert said(laptop, PYTHON, "-c", say) == f"('{origin}', 9000)\n"
    assert server.stdout.readline() == b"said and gone\n"
    within = (
        "import socket\n"
        "one = socket.socket(socket.AF_INET6)\n"
        f"one.connect(('::ffff:{ORIGIN}', 8080))\n"
        "print(one.getsockname()[0], one.getpeername()[0])\n"
    )
    assert said(laptop, PYTHON, "-c", within).split() == ["::ffff:127.0.0.1", f"::ffff:{ORIGIN}"]
    # A port of any address of IPv4 alone is bound to no address: it went direct.
    anywhere = within.replace("one.connect", "one.bind(('::ffff:0.0.0.0', 0))\none.connect")
    assert said(laptop, PYTHON, "-c", anywhere).split() == ["::ffff:127.0.0.1", f"::ffff:{ORIGIN}"]


def test_a_killed_proxy_leaves_nothing(laptop, tmp_path):
    laptop.world.shape("20mbit")
    laptop.serve_file(bytes(SIZE))
    forward = laptop.forward("--redirect", str(USER), "--fail", "closed")
    curl = as_user(laptop, "curl", "-sS", "-o", "/dev/null", f"http://{ORIGIN}:8080/file")
    time.sleep(0.7)
    forward.kill()
    forward.wait()
    assert curl.wait(5) == 56, "it took a part for the whole"
    talked = json.loads(said(laptop, PYTHON, "-c", TALK, "8080"))
    assert talked[0] != "127.0.0.1"
    assert talked[1] == [ORIGIN, 8080]


def test_a_gateway_that_has_gone_is_gone_around(laptop):
    """Also by a proxy whose own user is redirected: it does not come back to itself."""
    laptop.serve_file(b"all of it")
    laptop.forward("--redirect", str(USER), "--redirect", str(os.getuid()))
    laptop.gateway.kill()
    laptop.gateway.wait()
    url = f"http://{ORIGIN}:8080/file"
    assert said(laptop, "curl", "-sS", url) == "all of it"
    assert said(laptop, "curl", "-sS", url, user=os.getuid()) == "all of it"


def test_what_this_host_has_a_route_for_stays_with_it(laptop, tmp_path):
    """A VPN's network: the proxy goes there by the host's own way, not through the gateway."""
    laptop.serve_file(b"through the tunnel")
    laptop.near.ip("route", "add", f"{ORIGIN}/32", "via", "10.9.2.1", "dev", "lte0")
    laptop.forward("--redirect", str(USER), "--log-level", "debug")
    assert said(laptop, "curl", "-sS", f"http://{ORIGIN}:8080/file") == "through the tunnel"
    assert "10.9.2.2" in (tmp_path / "served.log").read_text()


def refusal(laptop, *command):
    """Return the exit status of a command that does not start, and its complaint."""
    process = laptop.near.popen(*command, stderr=subprocess.PIPE, env=laptop.environment("laptop"))
    laptop.keep(process)
    return process.wait(20), process.stderr.read().decode()


def test_a_gateway_on_this_host_is_refused(laptop):
    laptop.near.ip("address", "add", f"{GATEWAY}/32", "dev", "lo")
    code, complaint = refusal(laptop, CEDOS, "forward", "--redirect", str(USER))
    assert code == 2
    assert "is this host" in complaint


def test_it_says_what_is_missing(laptop):
    bounds = ("--bounding-set=-bpf,-net_admin,-sys_admin", "--inh-caps=-all")
    command = (CEDOS, "forward", "--redirect", "nobody")
    code, complaint = refusal(laptop, "setpriv", *bounds, *command)
    assert code == 3
    assert "CAP_BPF" in complaint
    assert "Traceback" not in complaint


# Takes the ports as soon as it can, and says what comes there.
TAKE_OVER = """
import socket, sys, time
sockets, until_s = {}, time.monotonic() + 6
while time.monotonic() < until_s:
    for kind, port in ((int(each[0]), int(each[1:])) for each in sys.argv[1:]):
        one = sockets.get((kind, port))
        if one is None:
            one = socket.socket(socket.AF_INET, kind)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("0.0.0.0" if kind == socket.SOCK_DGRAM else "127.0.0.1", port))
                if kind == socket.SOCK_STREAM:
                    one.listen(100)
            except OSError:
                one.close()
                continue
            one.setblocking(False)
            sockets[kind, port] = one
        try:
            if kind == socket.SOCK_STREAM:
                one = one.accept()[0]
                one.settimeout(0.2)
            print(one.recv(100).decode(), flush=True)
        except OSError:
            continue
print("took", len(sockets))
"""
SAY_ON = f"""
import socket, time
until_s, living = time.monotonic() + 5, socket.socket(type=socket.SOCK_DGRAM)
living.connect(("{ORIGIN}", 9999))
while time.monotonic() < until_s:
    try:
        living.send(b"datagram")
    except OSError:
        pass
    try:
        with socket.create_connection(("{ORIGIN}", 8080), 1) as one:
            one.sendall(b"secret")
    except OSError:
        pass
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_who_takes_its_ports_when_it_ends_gets_nothing_of_others(laptop, number):
    """Its ports were free 0.1 s before connections were led there no more, and for datagrams for good.

    A closed terminal ended the proxy without a word to the kernel.
    """
    laptop.serve_file(b"x")
    # Programs inherit a SIGHUP that nohup has made ignored.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        process = laptop.forward("--redirect", str(USER))
    finally:
        signal.signal(number, before)
    listed = laptop.near.run("ss", "-Hlntu4").stdout.splitlines()
    ports = {(kind, at.rpartition(":")[2]) for kind, _, _, _, at, *_ in map(str.split, listed)}
    kinds = {"tcp": int(socket.SOCK_STREAM), "udp": int(socket.SOCK_DGRAM)}
    words = [f"{kinds[kind]}{port}" for kind, port in sorted(ports)]
    taking = as_user(laptop, PYTHON, "-c", TAKE_OVER, *words, user=OTHER)
    asking = as_user(laptop, PYTHON, "-c", SAY_ON)
    time.sleep(1.0)
    process.send_signal(number)
    assert process.wait(10) == 0
    out, complaint = taking.communicate(timeout=20)
    asking.wait(20)
    *got, took = out.decode().splitlines()
    assert took == f"took {len(ports)}", complaint
    assert not got, sorted(set(got))


# Connects without a packet (TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_NO_COOKIE), and as a call, then speaks.
SPEAK_LATER = f"""
import errno, socket, sys
sockets = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
sockets[0].setsockopt(socket.IPPROTO_TCP, 30, 1)
sockets[0].setsockopt(socket.IPPROTO_TCP, 34, 1)
for one in sockets:
    one.connect(("{ORIGIN}", 8080))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, sys.argv[1].encode())
print("connected", flush=True)
sys.stdin.readline()
for one in sockets:
    try:
        one.send(b"secret")
        print("sent")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


@pytest.mark.parametrize("interface", ["", "lo"])
def test_what_was_led_there_and_has_not_arrived_ends_with_it(laptop, interface):
    """The port's next owner was sent the words of programs, also of sockets bound to an interface."""
    process = laptop.forward("--redirect", str(USER))
    speaking = as_user(laptop, PYTHON, "-c", SPEAK_LATER, interface, stdin=subprocess.PIPE)
    assert speaking.stdout.readline() == b"connected\n"
    assert "127.0.0.1" in laptop.near.run("ss", "-Htn", "state", "syn-sent").stdout
    process.terminate()
    assert process.wait(10) == 0
    out, _ = speaking.communicate(b"\n", timeout=10)
    assert out.decode().split() == ["ECONNABORTED", "EDESTADDRREQ"]  # the kernel disconnected both


LIVE_ON = f"""
import socket, time
until_s, living = time.monotonic() + 20, socket.socket(type=socket.SOCK_DGRAM)
living.connect(("{ORIGIN}", 9999))
print("connected", flush=True)
while time.monotonic() < until_s:
    try:
        living.send(b"datagram")
    except ConnectionRefusedError:
        pass
    except OSError:
        print("ended")
        break
    time.sleep(0.1)
"""


def test_the_next_one_ends_the_datagram_sockets_of_one_that_was_killed(laptop):
    """They went on to send to its port, which another user may have by then."""
    process = laptop.forward("--redirect", str(USER))
    living = as_user(laptop, PYTHON, "-c", LIVE_ON)
    assert living.stdout.readline() == b"connected\n"
    process.kill()
    process.wait(10)
    laptop.forward("--redirect", str(OTHER))
    assert living.communicate(timeout=30)[0] == b"ended\n"


def test_the_next_one_leaves_those_of_a_living_one_of_another_account(laptop):
    """The service has an account of its own, and a person's `sudo cedos forward` ended its sockets."""
    laptop.forward("--redirect", str(USER))
    living = as_user(laptop, PYTHON, "-c", LIVE_ON)
    assert living.stdout.readline() == b"connected\n"
    next_one = (
        "import os; os.geteuid = lambda: 61200\n"
        "from cedos.proxy.local.redirection import Redirection\n"
        f"Redirection([{OTHER}])._end_those_of_dead()\n"
    )
    laptop.near.run(sys.executable, "-c", next_one)
    assert not select.select([living.stdout], [], [], 1)[0], "its socket was ended"


def test_with_fail_closed_no_names_are_looked_up_past_it(laptop, tmp_path):
    """Refuse to start where programs ask systemd-resolved by its socket: that asks the network."""
    switch = tmp_path / "nsswitch.conf"
    switch.write_text("passwd: files\nhosts: files resolve [!UNAVAIL=return] dns\n")
    script = (
        f"mount --bind {switch} /etc/nsswitch.conf; mount -t tmpfs none /run;"
        "mkdir -p /run/systemd/resolve; touch /run/systemd/resolve/io.systemd.Resolve;"
        f"exec {CEDOS} forward --redirect {USER} --fail closed"
    )
    code, complaint = refusal(laptop, "unshare", "-m", "sh", "-c", script)
    assert code == 2
    assert "nsswitch.conf" in complaint
