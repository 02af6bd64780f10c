"""The packet filter: put in and taken out through the host's own iptables, nothing else touched."""

import json
import os
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from kit.steered import steered, steering_of

from cedos.errors import SteeringError
from cedos.host.steer.kernel import filter_rules, forwarding_filter, iptables

# As the systemd unit has it: another user, unless the interpreter lies where only root may look.
OTHER_USER = all(folder.stat().st_mode & 1 for folder in Path(sys.executable).resolve().parents)
SERVER4 = "198.51.100.1"
CAPABILITIES = "-all,+net_admin,+net_raw"
UNPRIVILEGED = (
    "setpriv",
    *(("--reuid=65534", "--regid=65534", "--clear-groups") if OTHER_USER else ()),
    *(f"--{kind}={CAPABILITIES}" for kind in ("inh-caps", "ambient-caps", "bounding-set")),
    *("--securebits=+noroot", "--no-new-privs"),
)


def tables(host):
    saved = [host.client.run(f"{program}-save").stdout for program in ("iptables", "ip6tables")]
    return [line for part in saved for line in part.splitlines() if not line.startswith("#")]


def foreign_rules(host):
    for program, source in (("iptables", "203.0.113.5"), ("ip6tables", "2001:db8:9::5")):
        for rule in ("-P FORWARD DROP", f"-A INPUT -s {source} -j DROP", "-N THEIRS"):
            host.client.run(program, *rule.split())


def test_where_there_was_no_table_none_is_left(host):
    assert tables(host) == []
    with host.client.entered():
        assert not iptables.present()
        assert not iptables.remove()
        iptables.track()
        assert iptables.present()
        iptables.track()
        assert tables(host).count("-A OUTPUT -j CEDOS_OUT") == 2  # one in each IP version
        assert iptables.remove()
        assert not iptables.present()
    assert tables(host) == []


@pytest.mark.parametrize("daemon_first", [True, False])
@pytest.mark.parametrize("daemon_leaves_first", [True, False])
def test_the_last_of_the_daemon_and_a_helper_leaves_no_table(
    host, daemon_first, daemon_leaves_first
):
    """The process that made a table left first, and took the note that there was none with it."""
    with host.client.entered():
        begin = [lambda: filter_rules.bar(["lte0"]), lambda: forwarding_filter.put_quota(1)]
        for each in begin if daemon_first else reversed(begin):
            each()
        end = [iptables.remove, forwarding_filter.remove]
        for each in end if daemon_leaves_first else reversed(end):
            assert each()
    assert tables(host) == []


ASK = """
import json, os, socket, sys, time
user, to, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
os.setuid(user)  # before the socket is made, which keeps the user who made it
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
    asking.connect((to, 53))
    began_s, sent = time.monotonic(), 0
    for _ in range(count):
        try:
            sent += bool(asking.send(b"?"))
        except PermissionError:
            pass
    print(json.dumps([sent, time.monotonic() - began_s]))
"""


def test_users_ask_seldom_enough_to_be_read(host):
    """Cut what one user asks: 20,000 questions a second kept the daemon from other users' answers.

    Those to other hosts pushed other users' questions out of what it remembers.
    """

    def sent(user, to="127.0.0.1", count=10_000):
        words = (sys.executable, "-c", ASK, str(user), to, str(count))
        return json.loads(host.client.run(*words).stdout)

    with host.server.entered():
        resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with host.client.entered(), resolver, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stub:
        resolver.bind((SERVER4, 53))
        stub.bind(("127.0.0.1", 53))
        assert not iptables.put_back(filter_rules.hold_answers(True))
        number, took_s = sent(1000)
        assert 2_000 <= number <= 2_100 * (1 + took_s)
        number, took_s = sent(100_000)
        assert number <= 2_100 * (1 + took_s)
        for user in (1001, 0, 999):
            assert sent(user, count=1_900)[0] == 1_900
        number, took_s = sent(1000, SERVER4)
        assert number <= 2_100 * (1 + took_s)
        assert sent(0, SERVER4)[0] == 10_000
        assert sent(0)[0] == 10_000
        filter_rules.hold_answers(False)
        assert sent(1000)[0] == 10_000
        assert iptables.remove()


def test_a_kernel_that_knows_no_owners_of_packets_holds_answers_all_the_same(host, monkeypatch):
    monkeypatch.setattr(filter_rules, "_ASKED", ("-m cedosknowsnot -j DROP",))
    with host.client.entered():
        stands = filter_rules.hold_answers(True)
        assert iptables.stand(stands)
        assert not iptables.put_back(stands)
        assert sum("NFQUEUE" in line for line in tables(host)) == 4, "UDP and TCP, IPv4 and IPv6"
        assert iptables.remove()


def test_a_kernel_that_cannot_answer_what_is_refused_tracks_flows_all_the_same(host, monkeypatch):
    strange = (*iptables.TRACKING.rules, "-6 -m cedosknowsnot -j REJECT")
    monkeypatch.setattr(iptables, "TRACKING", replace(iptables.TRACKING, rules=strange))
    with host.client.entered():
        stands = iptables.track()
        assert tables(host).count("-A CEDOS_OUT -m conntrack --ctstate NEW") == 2
        assert not any("REJECT" in line for line in tables(host))
        assert iptables.stand([stands])
        assert not iptables.put_back([stands])
        assert iptables.remove()
    assert tables(host) == []


def test_other_peoples_rules_stay_as_they_are(host):
    foreign_rules(host)
    before = tables(host)
    with host.client.entered():
        iptables.track()
        during = tables(host)
        assert during.count("-A CEDOS_OUT -m conntrack --ctstate NEW") == 2
        assert [line for line in during if "CEDOS_" not in line] == before
        assert iptables.remove()
    assert tables(host) == before


def test_a_table_that_others_use_by_now_stays(host):
    with host.client.entered():
        iptables.track()
        foreign_rules(host)
        assert iptables.remove()
    after = tables(host)
    assert not any("CEDOS_" in line for line in after)
    assert "-A INPUT -s 203.0.113.5/32 -j DROP" in after
    assert ":FORWARD DROP [0:0]" in after


def test_what_has_gone_is_put_back_and_nothing_else_is_touched(host):
    with host.client.entered():
        iptables.track()
        assert not iptables.put_back([iptables.TRACKING])
        for flush in (
            ("ip6tables", "-F", "OUTPUT"),
            ("iptables", "-F"),
            (
                "sh",
                "-c",
                "for v in '' 6; do printf '*filter\nCOMMIT\n' | ip${v}tables-restore; done",
            ),
        ):
            host.client.run(*flush)
            assert iptables.put_back([iptables.TRACKING])
            assert not iptables.put_back([iptables.TRACKING])
            assert tables(host).count("-A OUTPUT -j CEDOS_OUT") == 2
        assert iptables.remove()
    assert tables(host) == []


@pytest.mark.parametrize("version", [4, 6])
@steered()
async def test_both_ip_versions_are_tracked(host, steering, version):
    host.seen_tcp(version)
    family = ("-f", "ipv6") if version == 6 else ()
    assert "dport=8000" in host.client.run("conntrack", "-L", *family).stdout


def test_without_iptables_everything_else_works(host, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)

    async def body():
        async with steering_of(host) as steering:
            assert any("iptables is not installed" in problem for problem in steering.problems)
            steering.set_default("lte0")
            assert host.seen_tcp(4) == host.address("lte0", 4)
            with pytest.raises(SteeringError, match="bar lte0: iptables is not installed"):
                await steering.barring.bar(["lte0"])

    before = host.state()
    host.run(body)
    assert host.state() == before


def test_two_capabilities_are_enough(host):
    code = (
        "from cedos.host.steer.kernel import iptables; iptables.track(); print(iptables.present())"
    )
    command = (*UNPRIVILEGED, sys.executable, "-c", code)
    done = host.client.run("env", f"XTABLES_LOCKFILE={host.directory}/lock", *command, check=False)
    assert done.stdout == "True\n", done.stderr
    assert "-A CEDOS_OUT -m conntrack --ctstate NEW" in tables(host)
    with host.client.entered():
        assert iptables.remove()
    assert tables(host) == []


def test_a_refusal_is_told_in_its_own_words(host, tmp_path, monkeypatch):
    for program in ("iptables", "ip6tables"):
        for name in (program, f"{program}-save", f"{program}-restore"):
            (tmp_path / name).write_text("#!/bin/sh\ncat >&2; echo Permission denied >&2; exit 4\n")
            (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with host.client.entered():
        with pytest.raises(PermissionError, match="Permission denied"):
            iptables.track()
        assert not iptables.remove()
