"""The helper's machine: whom it answers, for whom it forwards, and when it stops."""

import pytest
from kit.neighbours import REACHES, START_S, Link, helper, identity, key_of, requestor, uplink

from cedos.apps.sharing.protocol.commands import SendDatagram, StartForwarding, StopForwarding
from cedos.apps.sharing.protocol.helper import ServingState
from cedos.apps.sharing.protocol.messages import (
    ConfirmMessage,
    HelloAckMessage,
    HelloMessage,
    InviteMessage,
    LeaveMessage,
    LeaveReason,
    pack,
    unpack,
)

ANN = key_of("ann").public
WHERE = ("10.0.0.100", 7, 1)
ADDRESSES = {"cyd": ("10.0.0.101", 7, 1)}


def told(machine):
    """Return the commands, of datagrams the messages in them."""
    commands = machine.commands()
    return [unpack(it.data).message if isinstance(it, SendDatagram) else it for it in commands]


def say(machine, message, name="ann", now_s=START_S):
    machine.receive_datagram(pack(identity(name), message), ADDRESSES.get(name, WHERE), now_s)
    return told(machine)


def invite(number, now_s=START_S):
    return InviteMessage(int(now_s * 1e6) + number, bytes([number]) * 16, 8_000_000)


def joined(machine, now_s=START_S):
    machine.receive_datagram(pack(identity("ann"), invite(1, now_s)), WHERE, now_s)
    (command,) = machine.commands()
    return unpack(command.data).message, unpack(command.data).digest


def confirm(join, digest, number=2, host=100):
    source = bytes([10, 0, 0, host])
    sent_us = int(START_S * 1e6) + number
    return ConfirmMessage(
        sent_us, bytes([number]) * 16, key_of("bob").public, join.nonce, digest, source
    )


def forwarding(machine):
    (start,) = say(machine, confirm(*joined(machine)))
    machine.on_forwarding(ANN, START_S)
    machine.commands()
    return start


def test_the_conversation():
    bob = helper("bob", 1)
    join, digest = joined(bob)
    assert (join.to, join.answers) == (ANN, invite(1).nonce)
    assert (join.price, join.currency, join.limit_bytes) == (500_000, "EUR", 500_000_000)
    assert (join.via, join.reaches, join.rate_bps) == (bytes([10, 0, 0, 1]), REACHES, 4_000_000)
    (start,) = say(bob, confirm(join, digest))
    assert isinstance(start, StartForwarding)
    assert (start.name, start.source, start.reaches) == ("ann", bytes([10, 0, 0, 100]), REACHES)
    assert start.contract.number == digest
    assert bob.requestors()[0].state is ServingState.STARTING
    bob.on_forwarding(ANN, START_S)
    (ack,) = told(bob)
    assert (ack.answers, ack.left_bytes) == (bytes([2]) * 16, 500_000_000)
    # The same Confirm, said again, is answered; nothing is started again.
    (again,) = say(bob, confirm(join, digest, 3))
    assert isinstance(again, HelloAckMessage)
    (hello,) = say(bob, HelloMessage(int(START_S * 1e6) + 4, b"h" * 16, key_of("bob").public))
    assert hello.answers == b"h" * 16


def test_it_forwards_where_it_knows_the_gateway_itself_to_be():
    """No message names an address of the gateway to a helper."""
    assert not {"reaches", "gateway"} & set(InviteMessage.__struct_fields__)
    assert not {"reaches", "gateway"} & set(ConfirmMessage.__struct_fields__)
    assert forwarding(helper("bob", 1)).reaches == REACHES


def test_it_helps_only_with_an_uplink_data_and_battery():
    for state in (None, uplink(1, battery=0.19)):
        bob = helper("bob", 1)
        bob.on_uplink(state, START_S)
        assert say(bob, invite(1)) == []
    assert say(helper("bob", 1, limit_bytes=0), invite(1)) == []
    bob = helper("bob", 1)
    bob.on_uplink(uplink(1, battery=0.2), START_S)
    assert len(say(bob, invite(1))) == 1


def test_what_ends_the_service():
    ends = {
        LeaveReason.LIMIT: lambda bob: bob.on_counted(ANN, 500_000_000, START_S),
        LeaveReason.UPLINK: lambda bob: bob.on_uplink(None, START_S),
        LeaveReason.UNPAID: lambda bob: bob.on_unpaid(ANN, START_S),
        LeaveReason.SILENT: lambda bob: bob.handle_timer(START_S + 10.1),
    }
    for reason, end in ends.items():
        bob = helper("bob", 1)
        forwarding(bob)
        end(bob)
        leave, stop = told(bob)
        assert isinstance(leave, LeaveMessage)
        assert (leave.to, leave.reason) == (ANN, reason)
        carried = 500_000_000 if reason is LeaveReason.LIMIT else 0
        assert stop == StopForwarding(ANN, reason, by_requestor=False, carried_bytes=carried)
        assert bob.requestors() == []


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        (LeaveReason.DONE, lambda bob: bob.stop(START_S)),
        (LeaveReason.BATTERY, lambda bob: bob.on_uplink(uplink(1, battery=0.1), START_S)),
    ],
)
def test_what_is_on_its_way_is_forwarded_after_a_leave_with_notice(reason, end):
    bob = helper("bob", 1)
    forwarding(bob)
    end(bob)
    (leave,) = told(bob)
    assert (leave.to, leave.reason) == (ANN, reason)
    assert bob.requestors()[0].state is ServingState.LEAVING
    # One that has not heard the Leave is told again, and gets no new time by it.
    sent_us = int(START_S * 1e6) + 9
    (again,) = say(bob, HelloMessage(sent_us, bytes(16), key_of("bob").public), "ann", START_S + 1)
    assert (again.to, again.reason) == (ANN, reason)
    assert say(bob, invite(1), "cyd") == []
    bob.on_counted(ANN, 4000, START_S + 1.5)
    bob.handle_timer(START_S + 1.9)
    assert told(bob) == []
    assert bob.next_timer() == START_S + 2
    bob.handle_timer(START_S + 2)
    assert told(bob) == [StopForwarding(ANN, reason, by_requestor=False, carried_bytes=4000)]
    assert bob.left_bytes == 500_000_000 - 4000


def test_notice_ends_with_the_limit_or_when_the_requestor_needs_no_more():
    for end in (
        lambda bob: bob.on_counted(ANN, 500_000_000, START_S + 1),
        say_leave,
    ):
        bob = helper("bob", 1)
        forwarding(bob)
        bob.stop(START_S)
        told(bob)
        found = [*(end(bob) or []), *told(bob)]
        assert isinstance(found[-1], StopForwarding)
        assert bob.requestors() == []


def say_leave(bob):
    sent_us = int(START_S * 1e6) + 9
    return say(bob, LeaveMessage(sent_us, bytes(16), key_of("bob").public, LeaveReason.DONE))


def test_what_was_carried_after_the_last_count_is_counted_too():
    bob = helper("bob", 1)
    forwarding(bob)
    bob.on_counted(ANN, 300_000_000, START_S)
    (stop,) = say_leave(bob)
    assert stop.carried_bytes == 300_000_000
    bob.on_stopped(301_000_000 - stop.carried_bytes)
    assert bob.left_bytes == 199_000_000


def test_bytes_or_hellos_keep_it_going():
    bob = helper("bob", 1)
    forwarding(bob)
    bob.on_counted(ANN, 1000, START_S + 9)
    bob.handle_timer(START_S + 18)
    assert bob.requestors()[0].earned == 0
    bob.on_counted(ANN, 2_000_000, START_S + 18)
    assert bob.requestors()[0].earned == 1_000, "millionths: 2 MB at 0.50 a GB"
    bob.handle_timer(START_S + 27)
    assert told(bob) == []
    assert bob.next_timer() == START_S + 28


def test_the_limit_is_for_all_requestors_and_what_was_carried_stays_counted():
    bob = helper("bob", 1)
    forwarding(bob)
    bob.on_counted(ANN, 300_000_000, START_S)
    say(
        bob, LeaveMessage(int(START_S * 1e6) + 9, bytes(16), key_of("bob").public, LeaveReason.DONE)
    )
    assert bob.left_bytes == 200_000_000
    (join,) = say(bob, invite(1), "cyd", START_S)
    assert join.limit_bytes == 200_000_000


def test_a_confirm_that_it_cannot_serve_is_refused():
    bob = helper("bob", 1)
    join, digest = joined(bob)
    for wrong in (
        replace_source(confirm(join, digest), bytes([10, 0, 0, 1])),  # its own address
    ):
        (leave,) = say(bob, wrong)
        assert leave.reason is LeaveReason.REFUSED
    (unknown,) = say(bob, confirm(join, bytes(32), 4))
    assert unknown.reason is LeaveReason.UNKNOWN
    assert bob.requestors() == []


def replace_source(message, source):
    return ConfirmMessage(
        message.sent_us, message.nonce, message.to, message.answers, message.join, source
    )


def test_two_requestors_cannot_have_one_address():
    bob = helper("bob", 1)
    forwarding(bob)
    (join,) = [
        command for command in send(bob, "cyd", invite(1)) if isinstance(command, SendDatagram)
    ]
    theirs = unpack(join.data)
    (leave,) = say(bob, confirm(theirs.message, theirs.digest), "cyd")
    assert leave.reason is LeaveReason.REFUSED
    other = replace_source(confirm(theirs.message, theirs.digest, 3), bytes([10, 0, 0, 101]))
    (start,) = say(bob, other, "cyd")
    assert isinstance(start, StartForwarding)


def send(machine, name, message):
    machine.receive_datagram(pack(identity(name), message), ADDRESSES.get(name, WHERE), START_S)
    return machine.commands()


def test_it_serves_no_more_than_it_said():
    bob = helper("bob", 1, most_requestors=1)
    forwarding(bob)
    assert say(bob, invite(1), "cyd") == []


def test_a_requestor_that_restarted_is_served_afresh():
    bob = helper("bob", 1)
    forwarding(bob)
    later = START_S + 5
    join, digest = joined(bob, later)
    stop, start = say(bob, later_confirm(join, digest, later), now_s=later)
    assert isinstance(stop, StopForwarding)
    assert isinstance(start, StartForwarding)
    assert start.source == bytes([10, 0, 0, 120])


def later_confirm(join, digest, now_s):
    return ConfirmMessage(
        int(now_s * 1e6) + 9, b"c" * 16, key_of("bob").public, join.nonce, digest,
        bytes([10, 0, 0, 120]),
    )  # fmt: skip


def test_a_driver_that_cannot_forward_or_takes_too_long():
    for end in (
        lambda bob: bob.on_not_forwarding(ANN, START_S),
        lambda bob: bob.handle_timer(START_S + 5.1),
    ):
        bob = helper("bob", 1)
        say(bob, confirm(*joined(bob)))
        end(bob)
        leave, stop = told(bob)
        assert leave.reason is LeaveReason.REFUSED
        assert isinstance(stop, StopForwarding)
        bob.on_forwarding(ANN, START_S)
        assert told(bob) == [], "too late"


def test_a_hello_to_a_helper_that_was_restarted_is_answered_with_leave():
    link = Link(requestor(), {"bob": helper("bob", 1)})
    link.asker.start(link.now)
    link.run(1)
    link.helpers["bob"] = helper("bob", 1)
    link.run(3)
    assert link.paths() == ["bob", "bob"], "it is found again at once"


def test_an_old_join_is_forgotten():
    bob = helper("bob", 1)
    join, digest = joined(bob)
    bob.handle_timer(START_S + 12)
    (leave,) = say(bob, confirm(join, digest))
    assert leave.reason is LeaveReason.UNKNOWN
    assert bob.next_timer() is None
