"""A gateway that stops, is killed or falls silent, under what it carries."""

import time

import pytest
from kit.waiting import wait_until

from tests.netns.gateway.conftest import ORIGIN

PROXY = "socks5h://127.0.0.1:1080"
SIZE = 12_000_000


def small_file(laptop, most_s):
    began_s = time.monotonic()
    small = laptop.curl("-x", PROXY, f"http://{ORIGIN}:8080/small")
    assert small.communicate(timeout=20)[0] == b"small"
    took_s = time.monotonic() - began_s
    print(f"a new connection took {1e3 * took_s:.0f} ms")
    assert took_s < most_s


def said(laptop, words, within_s):
    wait_until(
        lambda: words in (laptop.folder / "forward.log").read_text(),
        within_s,
        describe=(laptop.folder / "forward.log").read_text,
    )


def carrying(laptop):
    """A download under way that lasts for a minute, and the file `small` beside it."""
    laptop.world.shape("2mbit")
    laptop.serve_file(bytes(SIZE))
    (laptop.folder / "served" / "small").write_bytes(b"small")
    laptop.forward()
    curl = laptop.curl("-x", PROXY, "-o", "/dev/null", f"http://{ORIGIN}:8080/file")
    time.sleep(1)
    assert curl.poll() is None
    return curl


def test_a_stopped_gateway_closes_its_connections(laptop):
    """The laptop goes direct within a second, and joins again once the gateway is back."""
    curl = carrying(laptop)
    began_s = time.monotonic()
    laptop.gateway.terminate()
    assert curl.wait(5) != 0
    took_s = time.monotonic() - began_s
    print(f"what it carried broke {1e3 * took_s:.0f} ms after SIGTERM")
    assert took_s < 1.0
    assert laptop.gateway.wait(5) == 0
    small_file(laptop, 1.0)
    said(laptop, "connections go direct", 0)
    laptop.start_gateway_again()
    deadline_s = time.monotonic() + 10
    while "use the gateway again" not in (laptop.folder / "forward.log").read_text():
        assert time.monotonic() < deadline_s
        small_file(laptop, 1.5)
        time.sleep(0.2)


def test_a_killed_gateway_says_itself_what_it_lost(laptop):
    """Its connections break as soon as it is back; all others go on meanwhile and afterwards."""
    curl = carrying(laptop)
    laptop.gateway.kill()
    laptop.gateway.wait()
    small_file(laptop, 3.0)
    small_file(laptop, 1.5)
    said(laptop, "connections go direct", 0)
    assert curl.poll() is None
    laptop.start_gateway_again()
    began_s = time.monotonic()
    assert curl.wait(10) != 0
    print(f"what it carried broke {1e3 * (time.monotonic() - began_s):.0f} ms after it was back")
    small_file(laptop, 3.0)
    said(laptop, "use the gateway again", 5)


@pytest.mark.long  # (by itself in tests/unit/proxy)
def test_what_a_gateway_carried_that_is_gone_breaks_while_others_go_direct(laptop):
    curl = carrying(laptop)
    for where in ("INPUT", "OUTPUT"):  # its host died: not even a refusal comes
        side = "--dport" if where == "INPUT" else "--sport"
        laptop.far.run("iptables", "-I", where, "-p", "tcp", side, "7009", "-j", "DROP")
    began_s = time.monotonic()
    small_file(laptop, 4.0)
    small_file(laptop, 1.5)
    assert curl.wait(20) != 0
    took_s = time.monotonic() - began_s
    print(f"what it carried broke after {took_s:.1f} s")
    assert took_s > 8
    said(laptop, "is gone", 1)
    for where in ("INPUT", "OUTPUT"):
        laptop.far.run("iptables", "-D", where, "1")
    deadline_s = time.monotonic() + 15
    while "again" not in (laptop.folder / "forward.log").read_text():
        assert time.monotonic() < deadline_s
        small_file(laptop, 3.0)
        time.sleep(0.5)
