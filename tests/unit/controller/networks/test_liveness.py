"""The state of a network: given these witnesses at these times, this state. And what always holds."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.controller.events import Witness
from cedos.controller.networks.liveness import BELIEVED_S, Liveness
from cedos.model import NetworkLife

UNKNOWN, ALIVE, SILENT, DEAD, CAPTIVE = NetworkLife
WORDS = {
    "ping": Witness.PING, "name": Witness.NAME, "page": Witness.PAGE,
    "connection": Witness.CONNECTION, "elsewhere": Witness.ELSEWHERE, "transfer": Witness.TRANSFER,
    "radio": Witness.RADIO,
}  # fmt: skip


def played(script):
    """Play lines such as `3.0 ping lost`, `4 page box`, `5 silent 1.5`; return also the last instant."""
    liveness, at_s = Liveness(), 0.0
    for line in filter(None, map(str.strip, script.splitlines())):
        at, what, *more = re.split(r"\s+", line)
        at_s = float(at)
        if what == "silent":
            waiting = [WORDS[each] for each in more[1:]]
            liveness.silent(float(more[0]), at_s, *waiting)
        elif what == "carried":
            liveness.on_bytes(at_s)
        elif what == "moved":
            liveness.forget()
        elif what == "slept":
            liveness.on_sleep(float(more[0]))
        elif more == ["heard"]:
            liveness.on_heard(WORDS[what], at_s)
        elif more == ["box"]:
            liveness.on_intercepted(WORDS[what], at_s, "another page came", "http://gw/")
        elif more == ["useless"]:
            liveness.useless(WORDS[what])
        elif more[0] == "lost":
            asked_s = float(more[1]) if more[1:] else None
            for _ in range(int(more[2]) if more[2:] else 1):
                liveness.on_missed(WORDS[what], at_s, asked_s)
        elif what != "now":
            raise AssertionError(line)
    return liveness, at_s


SCRIPTS = {
    "nothing was ever heard": ("0 now ?", UNKNOWN),
    "one lost ping, page and names switched off": ("2 ping lost 0", UNKNOWN),
    "pings lost for hours": ("2 ping lost 0\n32 ping lost 30\n7200 ping lost 7198", UNKNOWN),
    "pings and a fresh name lost": ("2 ping lost 0\n4 name lost 2", DEAD),
    "pings lost, names answered": ("2 ping lost 0\n2.1 name heard", ALIVE),
    "a ping answered": ("0.1 ping heard", ALIVE),
    "one ping of many lost, and a name": ("0 ping heard\n9 ping lost 7\n10 name lost 8", UNKNOWN),
    "three pings lost, and a name": ("0 ping heard\n9 ping lost 7 3\n10 name lost 8", DEAD),
    "the test page alone": ("0 page lost 0", UNKNOWN),
    "the test page was redirected, no more": ("1 page box", UNKNOWN),
    "redirected, and pings pass": ("0 ping heard\n1 page box\n2 ping heard", UNKNOWN),
    "redirected, and connections elsewhere fail": ("1 page box\n2 connection lost 1", CAPTIVE),
    "such a portal lets pings through": (
        "1 page box\n2 connection lost 1\n3 ping heard\n33 page box\n34 ping heard",
        CAPTIVE,
    ),
    "such a portal answers web pages itself": (
        "1 page box\n2 connection lost 1\n3 transfer heard\n4 name heard",
        CAPTIVE,
    ),
    "a large transfer over TLS went through": (
        "1 page box\n2 connection lost 1\n3 carried",
        ALIVE,
    ),
    "names and connections intercepted": ("1 name box\n2 connection box", CAPTIVE),
    "redirected, and no ping": ("1 page box\n2 ping lost 0", CAPTIVE),
    "after the log-in": ("1 page box\n2 connection lost 1\n9 page heard", ALIVE),
    "a filtered page": ("1 page box\n2 connection lost 1\n2.1 page useless", UNKNOWN),
    "no resolver and no connections behind a silent portal": (
        "0 ping heard\n1 name lost 0\n2 connection lost 1\n3 ping heard",
        DEAD,
    ),
    "several servers do not answer here, and do elsewhere": (
        "0 ping heard\n2 connection lost 1\n2 elsewhere lost 1\n3 ping heard",
        DEAD,
    ),
    "that is tried again": (
        "0 ping heard\n2 connection lost 1\n2 elsewhere lost 1\n7.5 now ?",
        UNKNOWN,
    ),
    "in vain: it is tried later": (
        "2 connection lost 1\n2 elsewhere lost 1\n8 connection lost 7\n8 elsewhere lost 7\n17 now ?",
        DEAD,
    ),
    "a pause": ("0 transfer heard\n1 silent 0.5 transfer ping", SILENT),
    "a pause is over": ("0 transfer heard\n1 silent 0.5 transfer\n1.1 transfer heard", ALIVE),
    "one server stopped to answer, pings dropped": (
        "0 transfer heard\n4 silent 3.5 transfer",
        UNKNOWN,
    ),
    "transfers and pings silent": (
        "0 ping heard\n0.5 transfer heard\n3.6 ping lost 1 3\n4 silent 3.5 transfer",
        DEAD,
    ),
    "an outage is over with the first ping": (
        "0 ping heard\n1 silent 0.5 ping\n2 connection lost 1\n2 elsewhere lost 1\n3 ping heard",
        ALIVE,
    ),
    "a short silence that a ping ends explains no look-up of before": (
        "0 ping heard\n1.2 name lost 0\n1.5 ping heard\n1.9 silent 0.4 transfer\n2 ping heard\n"
        "2.4 connection lost 0",
        DEAD,
    ),
    "nor does a lost ping": (
        "0 ping heard\n1.2 name lost 0\n1.5 ping heard\n2.5 ping lost 2\n3 ping heard\n"
        "3.1 connection lost 0",
        DEAD,
    ),
    "pings never answered count no more once others are": (
        "0 transfer heard\n9 ping lost 7 5\n10 connection lost 9",
        UNKNOWN,
    ),
    "data while a ping waited": ("0 ping heard\n2 transfer heard\n3 ping lost 1 9", ALIVE),
    "the radio says so": ("0 ping heard\n5 radio lost", DEAD),
    "the radio was behind": ("0 ping heard\n5 radio lost\n5.5 ping heard", ALIVE),
    "the radio has it again": ("0 ping heard\n5 radio lost\n6 radio useless", ALIVE),
    "old evidence": ("2 ping lost 0\n4 name lost 2\n65 now ?", UNKNOWN),
    "another place": ("2 ping lost 0\n4 name lost 2\n5 moved", UNKNOWN),
    "after a sleep": ("2 ping lost 0\n4 name lost 2\n5 slept 3600", UNKNOWN),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_these_witnesses_make_this_state(name):
    script, life = SCRIPTS[name]
    liveness, at_s = played(script)
    assert liveness.verdict(at_s).life is life


def test_pings_that_are_never_answered_are_not_sent_any_more():
    liveness = Liveness(3)
    for at_s in range(5):
        assert not liveness.drops_pings
        liveness.on_heard(Witness.NAME, at_s)
        liveness.on_missed(Witness.PING, at_s + 0.5, at_s - 0.5)
    assert liveness.drops_pings
    assert liveness.ping_loss is None
    liveness.forget()
    assert not liveness.drops_pings


def test_the_share_of_lost_pings_is_known_where_it_tells_something():
    liveness = Liveness(4)
    liveness.on_missed(Witness.PING, 0.5)
    assert liveness.ping_loss is None, "pings may be dropped"
    liveness.on_heard(Witness.PING, 1.0)
    liveness.on_missed(Witness.PING, 3.0, 2.0)
    assert liveness.ping_loss.value == pytest.approx(2 / 3)
    for at_s in range(4, 8):
        liveness.on_missed(Witness.PING, at_s, at_s - 1.0)
    assert liveness.ping_loss.value == 1.0
    liveness.on_heard(Witness.TRANSFER, 7.5)
    assert liveness.ping_loss is None


WITNESSES = st.sampled_from(list(Witness))
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["heard", "missed", "box", "silent", "carried"]),
        WITNESSES,
        st.floats(0.0, 20.0),
        st.floats(0.0, 5.0),
    ),
    max_size=30,
)


def happened(events):
    liveness, now_s = Liveness(), 0.0
    for what, witness, later_s, lasted_s in events:
        now_s += later_s
        if what == "heard":
            liveness.on_heard(witness, now_s)
        elif what == "missed":
            liveness.on_missed(witness, now_s, now_s - lasted_s)
        elif what == "box":
            liveness.on_intercepted(witness, now_s, "a box")
        elif what == "silent":
            liveness.silent(lasted_s, now_s, witness)
        else:
            liveness.on_bytes(now_s)
    return liveness, now_s


@given(EVENTS, WITNESSES.filter(lambda each: each is not Witness.RADIO))
def test_no_single_kind_of_witness_condemns(events, alone):
    only = [(what, alone, later_s, lasted_s) for what, _, later_s, lasted_s in events]
    liveness, now_s = happened(only)
    assert not liveness.verdict(now_s).condemned


@given(EVENTS, st.sampled_from([Witness.TRANSFER, Witness.PAGE, Witness.CONNECTION]))
def test_a_fresh_success_never_leaves_a_network_dead(events, witness):
    without_boxes = [each for each in events if each[0] != "box"]
    liveness, now_s = happened(without_boxes)
    liveness.on_heard(witness, now_s)
    assert not liveness.verdict(now_s).condemned
    liveness, now_s = happened(events)
    liveness.on_bytes(now_s)
    assert not liveness.verdict(now_s).condemned


@given(EVENTS)
def test_nothing_is_condemned_for_ever(events):
    liveness, now_s = happened(events)
    assert not liveness.verdict(now_s + BELIEVED_S + 5.1).condemned
    liveness.forget()
    assert liveness.verdict(now_s).life is UNKNOWN


@given(EVENTS)
def test_a_network_lives_again_with_the_first_ping_after_an_outage(events):
    """The host hears nothing in an outage, so that the outage explains each miss."""
    missed = [each for each in events if each[0] in ("missed", "silent")]
    liveness, now_s = happened([("carried", Witness.PING, 0.0, 0.0), *missed])
    liveness.silent(0.5, now_s + 1.0, Witness.PING)
    liveness.on_heard(Witness.PING, now_s + 1.1)
    assert liveness.verdict(now_s + 1.1).life is ALIVE
