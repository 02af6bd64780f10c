"""The path manager: facts in, commands out."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cedos.errors import SteeringError
from cedos.host.steer.mptcp.connection import (
    ConnectionClosed,
    ConnectionOpened,
    MptcpSubflow,
    SubflowDown,
    SubflowUp,
)
from cedos.host.steer.mptcp.path_manager import PathManager
from cedos.kernel.mptcp import (
    CreateSubflow,
    DestroySubflow,
    MptcpEvent,
    MptcpEventKind,
    RemoveAddress,
    SetBackup,
)
from cedos.model import FlowKey, Strategy, StrategyKind

TOKEN = 7


def single(name):
    return Strategy(StrategyKind.SINGLE, (name,))


TOGETHER = Strategy(StrategyKind.MPTCP, ("wlan0", "lte0"))


@pytest.fixture
def manager(world):
    made = PathManager()
    made.networks_changed([world.wlan0, world.lte0], 0.0)
    return made


@pytest.fixture
def joined(world, manager):
    """A connection that began on wlan0, with a spare over lte0; returns their keys."""
    manager.on_open(world.established(TOKEN), None, 0.0)
    (create,) = manager.due(1.0).commands
    manager.on_event(world.came_up(create), 1.1)
    first, spare = manager.connections[TOKEN].subflows
    return first.key, spare.key


def ended(key):
    return MptcpEvent(MptcpEventKind.SUBFLOW_DOWN, TOKEN, key)


@pytest.mark.parametrize("version", [4, 6])
def test_a_connection_that_lives_gets_a_backup_over_the_other_network(world, manager, version):
    step = manager.on_open(world.established(TOKEN, version=version), None, 0.0)
    assert step.commands == []
    assert isinstance(step.events[0], ConnectionOpened)
    assert not step.events[0].spare
    (create,) = manager.due(manager.next_at_s()).commands
    assert create.local == world.lte0.addresses[0 if version == 4 else 1].ip
    assert create.backup
    assert create.index == world.lte0.index
    assert 0 < create.local_id < 256
    step = manager.on_event(world.came_up(create), 1.0)
    assert step.commands == []
    (event,) = step.events
    assert isinstance(event, SubflowUp)
    assert event.spare
    assert manager.connections[TOKEN].subflow("lte0").backup
    assert manager.next_at_s() is None


def test_a_move_activates_first_and_then_demotes(joined, manager):
    first, spare = joined
    step = manager.steer(TOKEN, single("lte0"), 2.0)
    assert step.commands == [SetBackup(TOKEN, spare, False), SetBackup(TOKEN, first, True)]
    step = manager.steer(TOKEN, single("wlan0"), 3.0)
    assert step.commands == [SetBackup(TOKEN, first, False), SetBackup(TOKEN, spare, True)]
    step = manager.steer(TOKEN, TOGETHER, 4.0)
    assert {command.backup for command in step.commands} == {False}
    assert manager.connections[TOKEN].strategy == TOGETHER
    assert manager.flags(TOKEN) == step.commands


def test_a_move_before_the_spare_is_there_joins_at_once_and_ends_when_it_is_up(world, manager):
    event = world.established(TOKEN)
    manager.on_open(event, None, 0.0)
    (create,) = manager.steer(TOKEN, single("lte0"), 0.01).commands
    assert isinstance(create, CreateSubflow)
    assert not create.backup
    step = manager.on_event(world.came_up(create), 0.1)
    assert step.commands == [SetBackup(TOKEN, event.key, True)]


def test_a_network_whose_spares_are_not_worth_it_is_joined_when_a_move_needs_it(world, manager):
    manager.without_spares(["lte0"], 0.0)
    event = world.established(TOKEN)
    manager.on_open(event, None, 0.0)
    assert manager.next_at_s() is None
    (create,) = manager.steer(TOKEN, single("lte0"), 3.0).commands
    assert isinstance(create, CreateSubflow)
    assert not create.backup
    up = world.came_up(create)
    assert manager.on_event(up, 3.1).commands == [SetBackup(TOKEN, event.key, True)]
    # Back home, the spare stays while it lives, and is not made anew.
    manager.steer(TOKEN, single("wlan0"), 4.0)
    manager.on_event(ended(up.key), 5.0)
    assert manager.next_at_s() is None


def test_a_connection_whose_only_network_is_gone_is_carried_by_any_other(world, manager):
    manager.without_spares(["lte0"], 0.0)
    manager.on_open(world.established(TOKEN), None, 0.0)
    (create,) = manager.networks_changed([world.lte0], 1.0).commands
    assert isinstance(create, CreateSubflow)
    assert not create.backup


def test_spares_that_become_worth_it_are_joined(world, manager):
    manager.without_spares(["lte0"], 0.0)
    manager.on_open(world.established(TOKEN), None, 0.0)
    (create,) = manager.without_spares([], 1.0).commands
    assert create.backup
    assert manager.without_spares([], 1.1).commands == []


def test_what_cannot_be_moved_is_refused_in_words(world, joined, manager):
    with pytest.raises(SteeringError, match="no living MPTCP connection"):
        manager.steer(99, single("lte0"), 2.0)
    with pytest.raises(SteeringError, match="usb7 is not up"):
        manager.steer(TOKEN, single("usb7"), 2.0)
    with pytest.raises(SteeringError, match="nothing that a living connection"):
        manager.steer(TOKEN, Strategy(StrategyKind.REDUNDANT, ("wlan0", "lte0")), 2.0)
    manager.on_open(world.established(8), "because", 2.0)
    with pytest.raises(SteeringError, match="left alone: because"):
        manager.steer(8, single("lte0"), 2.0)
    assert manager.due(99.0).commands == []
    assert manager.connections[8].strategy is None


def test_a_path_that_holds_up_the_rest_is_given_up_and_joined_again_later(world, joined, manager):
    first, spare = joined
    manager.steer(TOKEN, single("lte0"), 2.0)
    step = manager.release(TOKEN, "wlan0", 2.0)
    # It is the connection's first address: number 0.
    assert step.commands == [RemoveAddress(TOKEN, first.local, 0), DestroySubflow(TOKEN, first)]
    assert isinstance(step.events[0], SubflowDown)
    assert [path.key for path in manager.connections[TOKEN].subflows] == [spare]
    assert manager.on_event(ended(first), 2.1).events == []
    (create,) = manager.due(3.0).commands
    assert (create.local, create.local_id, create.backup) == (first.local, 0, True)
    up = world.came_up(create, 60_001)
    assert manager.on_event(up, 3.1).notices == []
    # The other one's number is that with which it was joined.
    manager.steer(TOKEN, single("wlan0"), 4.0)
    step = manager.release(TOKEN, "lte0", 4.0)
    assert step.commands == [RemoveAddress(TOKEN, spare.local, 1), DestroySubflow(TOKEN, spare)]


def test_what_is_left_of_a_connection_carries_it(world, joined, manager):
    _, spare = joined
    step = manager.release(TOKEN, "wlan0", 2.0)
    assert step.commands[0] == SetBackup(TOKEN, spare, False)
    # Nothing else carries: the last path stays, and so does one that is not there.
    assert manager.release(TOKEN, "lte0", 2.1).commands == []
    assert manager.release(TOKEN, "wlan0", 2.1).commands == []
    with pytest.raises(SteeringError, match="no living MPTCP connection"):
        manager.release(99, "wlan0", 2.0)


def test_two_requests_for_one_network_that_both_come_up_are_ours(world, manager):
    manager.on_open(world.established(TOKEN), None, 0.0)
    (one,) = manager.due(0.2).commands
    (two,) = manager.due(60.0).commands
    assert one.local == two.local
    assert manager.on_event(world.came_up(one, 60_001), 60.1).notices == []
    assert manager.on_event(world.came_up(two, 60_002), 60.2).notices == []


def test_a_last_path_is_kept_until_there_is_another(world, manager):
    event = world.established(TOKEN)
    manager.on_open(event, None, 0.0)
    down = [world.down(world.wlan0), world.down(world.lte0)]
    assert manager.networks_changed(down, 1.0).commands == []
    (create,) = manager.networks_changed([down[0], world.lte0], 2.0).commands
    assert not create.backup
    up = world.came_up(create)
    assert manager.on_event(up, 2.1).commands == [DestroySubflow(TOKEN, event.key)]
    assert [path.key for path in manager.connections[TOKEN].subflows] == [up.key]


def test_a_join_that_fails_is_tried_again_ever_more_seldom(world, manager):
    manager.on_open(world.established(TOKEN), None, 0.0)
    now_s, waits = 0.0, []
    for _ in range(6):
        at_s = manager.next_at_s()
        waits.append(at_s - now_s)
        now_s = at_s
        (create,) = manager.due(now_s).commands
        manager.on_failure(create, now_s)
    assert waits == sorted(waits)
    assert waits[-1] == 60.0
    # A wish does not wait for that.
    assert len(manager.steer(TOKEN, single("lte0"), now_s).commands) == 1


def test_the_end_of_a_connection(joined, manager):
    step = manager.on_event(MptcpEvent(MptcpEventKind.CLOSED, TOKEN), 2.0)
    (event,) = step.events
    assert isinstance(event, ConnectionClosed)
    assert len(event.connection.subflows) == 2
    assert manager.connections == {}
    assert manager.on_event(MptcpEvent(MptcpEventKind.CLOSED, TOKEN), 2.0).events == []
    assert manager.due(99.0).commands == []


def test_subflows_that_nobody_asked_for_are_reported_once(world, joined, manager):
    stranger = FlowKey(ip_address("192.168.44.2"), 1234, ip_address("198.51.100.1"), 443)
    up = MptcpEvent(MptcpEventKind.SUBFLOW_UP, TOKEN, stranger)
    assert "another program" in manager.on_event(up, 2.0).notices[0]
    again = MptcpEvent(MptcpEventKind.SUBFLOW_UP, TOKEN, replace(stranger, local_port=1235))
    assert manager.on_event(again, 2.0).notices == []


def test_what_lives_already_is_taken_over_as_it_is(world, manager):
    event = world.established(TOKEN)
    spare = FlowKey(ip_address("192.168.44.2"), 7, event.key.remote, 443)
    paths = {TOKEN: [MptcpSubflow(event.key, None, True), MptcpSubflow(spare, None, False)]}
    step = manager.adopt(paths, {}, 1.0)
    assert step.commands == []
    connection = manager.connections[TOKEN]
    assert [path.network for path in connection.subflows] == ["wlan0", "lte0"]
    # What carried it carries it on: lte0.
    manager.networks_changed([world.wlan0, world.lte0], 2.0)
    assert [path.backup for path in manager.connections[TOKEN].subflows] == [True, False]
    # Events that were lost in between: it has ended, another one began.
    other = world.established(8)
    step = manager.adopt({8: [MptcpSubflow(other.key, None, False)]}, {8: "older"}, 3.0)
    assert [type(e) for e in step.events] == [ConnectionClosed, ConnectionOpened]
    assert manager.connections[8].unsteerable == "older"


def test_every_address_has_one_number_and_all_fit_in_a_byte(world, manager):
    for number in range(600):
        address = ip_interface(f"10.0.{number // 250}.{number % 250 + 1}/24")
        lte0 = replace(world.lte0, addresses=(address,))
        manager.networks_changed([world.wlan0, lte0], float(number))
        event = world.established(1000 + number)
        manager.on_open(event, None, float(number))
        (create,) = [c for c in manager.due(number + 0.5).commands if c.token == 1000 + number]
        assert 0 < create.local_id < 256
        manager.on_event(MptcpEvent(MptcpEventKind.CLOSED, 1000 + number), float(number))


ACTIONS = (
    "open,close,up,refuse,end,both,wlan0,lte0,wlan0 down,lte0 down,all down,all up,wait,"
    "without wlan0,without lte0"
)
actions = st.lists(st.sampled_from(ACTIONS.split(",")), max_size=40)


@example(actions=["open", "both", "wlan0", "up", "end", "wlan0 down"])
@example(actions=["open", "wait", "up", "end", "without wlan0"])
@example(
    actions=["open", "both", "wlan0", "lte0 down", "all up", "up", "lte0 down", "wlan0 down", "up"]
)
@given(actions=actions)
def test_a_connection_is_never_left_without_an_active_path_by_us(make_world, actions):
    """Whatever happens: as long as a path over a network that is up lives, one such is active."""
    world = make_world()
    manager = PathManager()
    networks = [world.wlan0, world.lte0]
    manager.networks_changed(networks, 0.0)
    kernel = {}  # subflow -> backup, as the kernel has it
    asked = []
    now_s, port = 0.0, 60_000

    def carry_out(step):
        for command in step.commands:
            if isinstance(command, CreateSubflow):
                asked.append(command)
            elif isinstance(command, DestroySubflow):
                assert command.key in kernel
                del kernel[command.key]
            elif isinstance(command, SetBackup):
                kernel[command.key] = command.backup

    for action in actions:
        now_s += 0.2
        living = TOKEN in manager.connections
        if action == "open" and not living:
            event = world.established(TOKEN)
            if manager.network_of(event.key.local) is None:
                continue
            kernel, asked = {event.key: False}, []
            carry_out(manager.on_open(event, None, now_s))
        elif action == "close" and living:
            carry_out(manager.on_event(MptcpEvent(MptcpEventKind.CLOSED, TOKEN), now_s))
        elif action == "up" and asked and living:
            create = asked.pop(0)
            port += 1
            event = world.came_up(create, port)
            kernel[event.key] = create.backup
            carry_out(manager.on_event(event, now_s))
        elif action == "refuse" and asked:
            manager.on_failure(asked.pop(0), now_s)
        elif action == "end" and living and len(kernel) > 1:
            key = next(iter(kernel))
            del kernel[key]
            carry_out(manager.on_event(ended(key), now_s))
        elif action in ("both", "wlan0", "lte0") and living:
            wish = TOGETHER if action == "both" else single(action)
            try:
                carry_out(manager.steer(TOKEN, wish, now_s))
            except SteeringError:
                continue
        elif action.startswith("without") and living:
            carry_out(manager.release(TOKEN, action.removeprefix("without "), now_s))
        elif "down" in action or action == "all up":
            networks = [
                world.down(one) if action in (f"{one.name} down", "all down") else one
                for one in (world.wlan0, world.lte0)
            ]
            carry_out(manager.networks_changed(networks, now_s))
        elif action == "wait":
            now_s += 10
            carry_out(manager.due(now_s))
        if TOKEN in manager.connections:
            shown = {path.key: path.backup for path in manager.connections[TOKEN].subflows}
            assert shown == kernel
            usable = [k for k in kernel if manager.network_of(k.local) is not None]
            if usable and (action in ("wlan0 down", "lte0 down") or action.startswith("without")):
                assert not all(kernel[key] for key in usable)


def test_a_late_answer_to_the_first_of_two_joins_is_told_what_it_shall_be(make_world):
    """Joined to be active, wanted as a backup by the time it comes up: the flag must be sent."""
    world = make_world()
    manager = PathManager()
    manager.networks_changed([world.wlan0, world.lte0], 0.0)
    manager.on_open(world.established(TOKEN), None, 0.0)
    (active,) = [
        c for c in manager.steer(TOKEN, TOGETHER, 0.2).commands if type(c) is CreateSubflow
    ]
    assert not active.backup
    manager.steer(TOKEN, single("wlan0"), 0.4)
    (again,) = manager.due(20.0).commands
    assert isinstance(again, CreateSubflow)
    assert again.backup
    came_up = world.came_up(active, 60_001)
    commands = manager.on_event(came_up, 20.1).commands
    assert [(c.key, c.backup) for c in commands if type(c) is SetBackup] == [(came_up.key, True)]


@pytest.mark.parametrize("why", ["spare", "gone", "move"])
def test_no_subflow_comes_over_a_network_that_a_connection_may_not_use(world, manager, why):
    manager.may_use = lambda key, name: key.remote_port != 443 or name != "lte0"
    manager.on_open(world.established(TOKEN), None, 0.0)
    match why:
        case "spare":
            commands = manager.due(1.0).commands
        case "gone":
            commands = manager.networks_changed([world.lte0], 1.0).commands
        case "move":
            commands = manager.steer(TOKEN, TOGETHER, 1.0).commands
    assert not [each for each in commands if isinstance(each, CreateSubflow)]
    assert manager.due(100.0).commands == []
    assert manager.next_at_s() is None


def test_a_lost_ip_version_is_left_and_joined_again(world, manager, joined):
    first, spare = joined
    six = replace(world.wlan0, next_hops=world.wlan0.next_hops[1:])
    step = manager.networks_changed([six, world.lte0], 2.0)
    assert SetBackup(TOKEN, spare, False) in step.commands
    assert DestroySubflow(TOKEN, first) in step.commands
    assert not any(isinstance(each, CreateSubflow) for each in manager.due(3.0).commands)
    again = manager.networks_changed([world.wlan0, world.lte0], 4.0).commands
    again += manager.due(10.0).commands
    assert any(isinstance(each, CreateSubflow) and each.local == first.local for each in again)
