"""Somebody flushes what the daemon put into the kernel, while a hard budget's wall stands: it is back."""

import random
import socket
import threading
import time
from collections import Counter
from contextlib import suppress

import pytest
from kit.waiting import wait_until

from cedos.budget_kinds import Resource
from cedos.model import Budget, Every

PORT = 8000
SEED = 4
WITHIN_S = 1.0
THROUGH_BYTES = 100_000
HELD = "^net.mptcp.(pm_type|path_manager|close_timeout)"
METERED = "192.168.44."
RATE = "20mbit"  # of the metered network


class Host:
    """A laptop whose metered network is barred, and a program that tries it again and again."""

    def __init__(self, tethered):
        self.laptop, self.phones = tethered.laptop, tethered.phones
        self._far = tethered.metered
        self.through_bytes = 0
        self._open = True
        for where in (self.phones, self.laptop):
            where.run(
                *f"tc qdisc add dev lte0 root tbf rate {RATE} burst 3000 latency 50ms".split()
            )
        with self.phones.entered():
            self._listening = socket.create_server(("", PORT), backlog=500)
        self._threads = [
            threading.Thread(target=act, daemon=True) for act in (self._pour, self._try)
        ]
        for thread in self._threads:
            thread.start()

    def _pour(self):
        while self._open:
            with suppress(OSError):
                one, _ = self._listening.accept()
                threading.Thread(target=self._pour_to, args=(one,), daemon=True).start()

    @staticmethod
    def _pour_to(one):
        with suppress(OSError), one:
            one.settimeout(2)
            while True:
                one.sendall(bytes(1 << 14))

    def _try(self):
        with self.laptop.entered():
            while self._open:
                with socket.socket() as connecting, suppress(OSError):
                    connecting.settimeout(0.2)
                    connecting.connect((self._far, PORT))
                    if not connecting.getsockname()[0].startswith(METERED):
                        continue  # without the rules there is a way round, over the other network
                    while data := connecting.recv(1 << 14):
                        self.through_bytes += len(data)
                time.sleep(0.003)

    def ours(self):
        """Return the part of the host's state that the daemon is responsible for."""
        shown = [self.laptop.ip(*f"-{version} rule".split()) for version in (4, 6)]
        shown += [self.laptop.ip(*f"-{v} route show table all".split()) for v in (4, 6)]
        shown += [self.laptop.run(f"{name}-save").stdout for name in ("iptables", "ip6tables")]
        shown += [self.laptop.run("sysctl", "-a", "-r", HELD).stdout]
        for what in ("qdisc show dev lte0", "filter show dev lte0 egress"):
            shown += [self.laptop.run("tc", *what.split(), check=False).stdout]
        lines = [line for part in shown for line in part.splitlines()]
        return sorted(
            line for line in lines if not line.startswith(("#", ":", "COMMIT", "*", "multicast"))
        )

    def close(self):
        self._open = False
        self._listening.close()


@pytest.fixture
def host(tethered):
    made = Host(tethered)
    yield made
    made.close()


def emptied(*tables):
    text = "".join(f"*{table}\\nCOMMIT\\n" for table in tables)
    return {name: f"printf '{text}' | {name}-restore" for name in ("iptables", "ip6tables")}


# iptables-nft calls its own what nft shows in other words; both commands are one transaction a table.
IPTABLES = emptied("filter", "raw", "nat")
AT_THE_INTERFACE = "tc qdisc del dev lte0 clsact"
RULES = (
    "ip rule flush; ip rule add from all lookup main pref 32766;"
    " ip rule add from all lookup default pref 32767"
)
ROUTES = (
    "for table in $(ip route show table all | sed -n 's/.* table \\([0-9]*\\).*/\\1/p' | sort -u);"
    " do ip route flush table $table; done"
)
SYSCTLS = (
    "sysctl -q -e -w net.mptcp.pm_type=0 net.mptcp.path_manager=kernel net.mptcp.close_timeout=33"
)
ENDPOINTS = "ip mptcp endpoint flush"  # none of them is ours: what is ours to steer stays as it is
FLUSHES = {
    **IPTABLES,
    "the wall's chain": "iptables -F CEDOS_BAR_OUT",
    "tracking": "iptables -F CEDOS_OUT",
    "iptables -F": "iptables -F",
    "rules": RULES,
    "routes": ROUTES,
    "sysctls": SYSCTLS,
    "endpoints": ENDPOINTS,
    "the filter at the interface": AT_THE_INTERFACE,
    "filters at the interface": "tc filter del dev lte0 egress",
    "both walls": "; ".join((AT_THE_INTERFACE, *IPTABLES.values(), AT_THE_INTERFACE)),
    "both walls, the other way": "; ".join((*IPTABLES.values(), AT_THE_INTERFACE)),
    "all together": "; ".join(
        (*IPTABLES.values(), RULES, ROUTES, SYSCTLS, ENDPOINTS, AT_THE_INTERFACE)
    ),
}


@pytest.mark.parametrize("rounds", [2 * len(FLUSHES), pytest.param(50, marks=pytest.mark.long)])
def test_whatever_is_flushed_is_back_within_a_second(host, install, rounds):
    cedos = install(host.laptop)
    chance = random.Random(SEED)
    took = {}
    through = {}
    with cedos.up():
        until = "2099-12-01T00:00:00"
        set_ = Budget("data", Resource.DATA, 1e6, until, every=Every.MONTH, hard=True)
        cedos.client.set_budget(set_)
        wait_until(lambda: cedos.client.budgets()[0].barred)
        time.sleep(1.0)
        looking_s = -time.monotonic()
        right = host.ours()
        looking_s += time.monotonic()
        assert any("CEDOS_BAR_OUT" in line for line in right)
        for number in range(rounds):
            kind = list(FLUSHES)[number % len(FLUSHES)]
            before_bytes = host.through_bytes
            host.laptop.run("sh", "-c", FLUSHES[kind])
            began_s = time.monotonic()
            while (now := host.ours()) != right:
                waited_s = time.monotonic() - began_s
                missing, more = Counter(right) - Counter(now), Counter(now) - Counter(right)
                assert waited_s < 5, (kind, missing, more)
                time.sleep(0.01)
            took.setdefault(kind, []).append(time.monotonic() - began_s)
            through.setdefault(kind, []).append(host.through_bytes - before_bytes)
            time.sleep(chance.uniform(0.0, 0.4))
    print({kind: round(max(times), 2) for kind, times in took.items()})
    print({kind: max(bytes_) for kind, bytes_ in through.items()})
    # What has been back for long is seen by a look that begins then.
    assert max(max(times) for times in took.values()) < WITHIN_S + 2 * max(looking_s, 0.25)
    assert max(max(bytes_) for bytes_ in through.values()) <= THROUGH_BYTES
