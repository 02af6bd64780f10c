"""Settings of emulated hosts reach their namespaces and leave the host as it was."""

from collections.abc import Callable
from pathlib import Path

import pytest

from emu.testbed import kernel
from emu.testbed.netns import Namespace

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
CHOSEN = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def test_cubic_is_chosen_inside_and_nothing_outside(
    make_namespace: Callable[[str], Namespace],
) -> None:
    before = ALLOWED.read_text(), CHOSEN.read_text()
    one, two = make_namespace("one"), make_namespace("two")
    kernel.use_cubic([one, two])
    for namespace in (one, two):
        assert namespace.sysctl("net.ipv4.tcp_congestion_control") == "cubic"
    assert (ALLOWED.read_text(), CHOSEN.read_text()) == before


def test_what_a_killed_one_widened_is_narrowed_by_the_next(
    make_namespace: Callable[[str], Namespace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's list is a file of our own here: what is tested is who writes it when."""
    allowed, lock = tmp_path / "allowed", tmp_path / "lock"
    allowed.write_text("reno bbr cubic\n")
    lock.write_text("reno bbr\n")
    monkeypatch.setattr(kernel, "_ALLOWED", allowed)
    monkeypatch.setattr(kernel, "_LOCK", lock)
    kernel.use_cubic([])
    assert allowed.read_text() == "reno bbr\n"
    assert lock.read_text() == ""


def test_an_error_inside_leaves_the_host_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed, lock = tmp_path / "allowed", tmp_path / "lock"
    allowed.write_text("reno bbr\n")
    monkeypatch.setattr(kernel, "_ALLOWED", allowed)
    monkeypatch.setattr(kernel, "_LOCK", lock)
    with pytest.raises(FileNotFoundError):
        kernel.use_cubic([Namespace("cedos-test-that-is-not-there")])
    assert allowed.read_text() == "reno bbr\n"
    assert lock.read_text() == ""


def test_offloads_are_off(make_namespace: Callable[[str], Namespace]) -> None:
    namespace = make_namespace("wire")
    namespace.ip("link", "add", "one", "type", "veth", "peer", "name", "two")
    with namespace.entered():
        kernel.without_offloads("one")
    features = {name: namespace.run("ethtool", "-k", name).stdout for name in ("one", "two")}
    for feature in ("tx-tcp-segmentation", "generic-segmentation-offload"):
        assert f"{feature}: off" in features["one"]
        assert f"{feature}: on" in features["two"]
    assert "generic-receive-offload: off" in features["one"]


def test_absent_sysctls_are_skipped(make_namespace: Callable[[str], Namespace]) -> None:
    namespace = make_namespace("sysctl")
    with namespace.entered():
        kernel.write_sysctls({"net.no.such_thing": "1", "net.ipv4.ip_forward": "1"})
    assert namespace.sysctl("net.ipv4.ip_forward") == "1"
    assert Path("/proc/sys/net/ipv4/ip_forward").read_text() == "0\n"
