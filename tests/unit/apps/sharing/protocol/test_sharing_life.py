"""Both machines through anything a link and its hosts can do: what must hold all the while, and after."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from kit.neighbours import Link, helper, requestor, uplink

from cedos.apps.sharing.protocol.commands import (
    AddPath,
    RemovePath,
    ResumePath,
    SendDatagram,
    StartForwarding,
    StopForwarding,
    SuspendPath,
    TakeAddress,
)

NAMES = ("bob", "cyd", "dan")
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["wait", "wait long", "lose", "restart helper", "stop helper", "uplink", "no uplink",
             "traffic", "stuck", "count", "restart requestor", "replay"]
        ),
        st.sampled_from(NAMES),
        st.floats(0, 1),
    ),
    max_size=40,
)  # fmt: skip


def check_requestor(commands):
    """Return the helpers whose paths are there; each command must fit those before it."""
    taken = set()
    added = set()
    suspended = set()
    for each in commands:
        match each:
            case TakeAddress(helper=name):
                assert name not in taken
                taken.add(name)
            case AddPath(helper=name):
                assert name in taken
                assert name not in added
                added.add(name)
            case SuspendPath(helper=name):
                assert name in added
                assert name not in suspended
                suspended.add(name)
            case ResumePath(helper=name):
                assert name in suspended
                suspended.discard(name)
            case RemovePath(helper=name):
                assert name in taken
                for names in (taken, added, suspended):
                    names.discard(name)
    return added


def check_helper(commands):
    """Return for whom a helper forwards; each command must fit those before it."""
    served = set()
    for each in commands:
        if isinstance(each, StartForwarding):
            assert each.requestor not in served
            served.add(each.requestor)
        elif isinstance(each, StopForwarding):
            assert each.requestor in served
            served.discard(each.requestor)
    return served


class Life:
    """A link on which anything happens; `carried` by each path."""

    def __init__(self):
        self.link = Link(requestor(rate_bps=7_000_000), {})
        for number, name in enumerate(NAMES, 1):
            self.link.helpers[name] = helper(name, number)
        self.restarts = 0
        self.carried = {}
        self.link.asker.start(self.link.now)

    def do(self, event, name, chance):
        link, now = self.link, self.link.now
        machine = link.helpers[name]
        known = {each.name: each.helper for each in link.asker.helpers()}
        match event:
            case "wait":
                link.run(chance)
            case "wait long":
                link.run(30 * chance)
            case "lose":
                bound = chance
                link.lose = lambda sender, data: data[-1] < 256 * bound
            case "restart helper":
                self.restarts += 1
                link.told = [each for each in link.told if each[0] != name]
                link.helpers[name] = helper(name, NAMES.index(name) + 1)
            case "stop helper":
                machine.stop(now)
            case "uplink":
                machine.on_uplink(uplink(NAMES.index(name) + 1, battery=chance), now)
            case "no uplink":
                machine.on_uplink(None, now)
            case "traffic" | "stuck" if name in known:
                more = 0 if event == "stuck" else int(chance * 1e6)
                total = self.carried.get(known[name], 0) + more
                self.carried[known[name]] = total
                link.asker.on_traffic(known[name], total, int(chance * 1e5), now)
            case "count":
                for each in machine.requestors():
                    machine.on_counted(each.requestor, int(chance * 4e8), now)
            case "restart requestor":
                self.restarts += 1
                link.asked.clear()
                link.asker = requestor(rate_bps=7_000_000, seed=f"again {self.restarts}")
                link.asker.start(now)
            case "replay" if link.sent:
                _, data = link.sent[int(chance * (len(link.sent) - 1))]
                link.asker.receive_datagram(data, link.address(name), now)
                machine.receive_datagram(data, link.address("asker"), now)
        link.settle()


@given(EVENTS)
@settings(deadline=None, max_examples=25)
def test_commands_fit_each_other_and_a_quiet_link_finds_its_helpers_again(events):
    life = Life()
    link = life.link
    for event in events:
        life.do(*event)
        check_requestor(link.asked)
        for name in NAMES:
            check_helper([each for owner, each in link.told if owner == name])
        for machine in (link.asker, *link.helpers.values()):
            machine.handle_timer(link.now)
            link.settle()
            assert (machine.next_timer() or math.inf) > link.now, "a timer that is due is done"

    # Everything works again: within the longest pauses there is enough.
    link.lose = lambda sender, data: False
    for number, name in enumerate(NAMES, 1):
        link.helpers[name] = helper(name, number)
    link.told.clear()
    link.run(150)
    paths = check_requestor(link.asked)
    assert len(paths) >= 2
    sent = sum(isinstance(each, SendDatagram) for each in link.asked[-400:])
    assert sent, "idle helpers get Hellos"
    serving = [name for name, each in link.helpers.items() if each.requestors()]
    assert len(serving) >= 2
