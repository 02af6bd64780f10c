"""Names through the gateway, between real programs and a real resolver, as Wi-Fi dies."""

import subprocess
import time

import pytest
from kit.waiting import wait_until

from tests.netns.gateway.conftest import CEDOS, GATEWAY, ORIGIN
from tests.netns.gateway.deaths import silent
from tests.netns.gateway.test_redirection import PYTHON, USER

FAR_RESOLVER, NOBODY, NEAR_RESOLVER = "10.99.0.53", "10.9.1.99", "127.0.0.53"
SOON_S = 2.0  # far below the five seconds after which the C library asks again


def with_resolver(folder, address, *words):
    """A command that finds this resolver, and no other, in its /etc/resolv.conf."""
    file = folder / f"resolv.{address}"
    file.write_text(f"nameserver {address}\noptions timeout:5 attempts:1\n")
    mounted = f'mount --bind {file} /etc/resolv.conf && exec "$@"'
    return "unshare", "--mount", "sh", "-c", mounted, "sh", *words


class Names:
    """A laptop whose resolver is dead, a gateway whose own one is not, and one for local names."""

    def __init__(self, laptop, folder):
        self.laptop, self.folder = laptop, folder
        laptop.far.ip("address", "add", f"{FAR_RESOLVER}/32", "dev", "lo")
        self._serve(laptop.far, FAR_RESOLVER, f"--address=/far.test/{ORIGIN}")
        self._serve(laptop.near, NEAR_RESOLVER, "--address=/lan/192.168.77.1")
        laptop.gateway.kill()
        laptop.gateway.wait()
        self._start(
            laptop.far,
            "gateway",
            with_resolver(folder, FAR_RESOLVER, CEDOS, "gateway", "--name", GATEWAY),
            "--allow-local",
        )

    def _serve(self, where, address, *options):
        self.laptop.keep(
            where.popen(
                *("dnsmasq", "--keep-in-foreground", "-C", "/dev/null", "--no-resolv"),
                *("--no-hosts", "--bind-interfaces", f"--listen-address={address}", "--pid-file="),
                *options,
                stderr=subprocess.DEVNULL,
            )
        )

    def forward(self, *options, resolver=NOBODY):
        words = with_resolver(self.folder, resolver, CEDOS, "forward", "--log-level", "debug")
        self._start(self.laptop.near, "laptop", words, *options)

    def _start(self, where, whose, words, *options):
        log = self.folder / f"{whose}.names.log"
        with log.open("wb") as out:
            process = where.popen(
                *words, *options, stderr=out, stdout=subprocess.DEVNULL,
                env=self.laptop.environment("server" if whose == "gateway" else whose),
            )  # fmt: skip
        self.laptop.keep(process)
        wait_until(
            lambda: any(word in log.read_text() for word in ("ready", "carries", "looks names up"))
        )

    def program(self, script, user=USER):
        """Return a program's output and its duration; its resolver is the dead one."""
        began_s = time.monotonic()
        process = self.laptop.near.popen(
            *with_resolver(self.folder, NOBODY, "setpriv", f"--reuid={user}", f"--regid={user}"),
            *("--clear-groups", PYTHON, "-c", script),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.laptop.keep(process)
        out, complaint = process.communicate(timeout=30)
        return (out or complaint.splitlines()[-1]).decode().strip(), time.monotonic() - began_s


@pytest.fixture
def names(laptop, tmp_path):
    return Names(laptop, tmp_path)


FIND = "import socket; print(socket.gethostbyname({!r}))"
ASK = """
import socket, struct
question = struct.pack("!6H", 7, 256, 1, 0, 0, 0) + b"\\3far\\4test\\0" + struct.pack("!2H", 1, 1)
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.settimeout(4)
one.sendto(question, ("10.9.1.99", 53))
answer, sender = one.recvfrom(512)
print(sender[0], sender[1], socket.inet_ntoa(answer[-4:]))
with socket.create_connection(("10.9.1.99", 53), 4) as one:
    one.sendall(struct.pack("!H", len(question)) + question)
    print(one.getpeername()[0], socket.inet_ntoa(one.recv(512)[-4:]))
"""


def test_names_of_users_that_are_redirected(names):
    names.forward("--redirect", str(USER), "--fail", "closed")
    for dies in (lambda _laptop: None, silent):
        dies(names.laptop)
        found, took_s = names.program(FIND.format("far.test"))
        assert (found, took_s < SOON_S) == (ORIGIN, True), took_s
    # A program that looks at who answers sees whom it asked.
    assert names.program(ASK)[0].splitlines() == [f"{NOBODY} 53 {ORIGIN}", f"{NOBODY} {ORIGIN}"]
    # Others ask as they did, in vain.
    found, took_s = names.program(FIND.format("far.test"), USER + 1)
    assert "gaierror" in found
    assert took_s > SOON_S


def test_names_of_this_place_stay_here(names):
    names.forward("--redirect", str(USER), "--fail", "closed", resolver=NEAR_RESOLVER)
    assert names.program(FIND.format("printer.lan"))[0] == "192.168.77.1"
    assert names.program(FIND.format("far.test"))[0] == ORIGIN


def test_without_the_gateway_its_names_are_asked_here(names):
    names.forward("--redirect", str(USER), resolver=NEAR_RESOLVER)
    assert names.program(FIND.format("far.test"))[0] == ORIGIN
    for process in names.laptop._started:
        if "gateway" in process.args:
            process.kill()
            process.wait()
    found, took_s = names.program(FIND.format("far.test"))
    assert ORIGIN not in found
    assert took_s < 6.0
    assert names.program(FIND.format("printer.lan"))[0] == "192.168.77.1"


def test_a_resolver_for_who_asks_it(names):
    names.forward("--dns", "127.0.0.1:5353")
    ask = ASK.replace(NOBODY, "127.0.0.1").replace(", 53)", ", 5353)")
    assert names.program(ask)[0].splitlines() == [f"127.0.0.1 5353 {ORIGIN}", f"127.0.0.1 {ORIGIN}"]
