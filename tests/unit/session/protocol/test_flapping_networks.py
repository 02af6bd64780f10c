"""Networks that fall again and again are left alone for longer each time, and forgiven in the end."""

from cedos.session.protocol.path_watch import FORGIVEN_S, FREE, FlappingNetworks


def test_a_network_that_falls_seldom_is_believed_at_once() -> None:
    flapping = FlappingNetworks()
    for k in range(FREE):
        flapping.fell("wlan0", float(k))
        assert flapping.hold_s("wlan0", float(k)) == 0.0
    assert flapping.hold_s("lte0", 0.0) == 0.0


def test_each_further_fall_doubles_the_time_up_to_a_bound() -> None:
    flapping = FlappingNetworks()
    held = []
    for k in range(12):
        flapping.fell("wlan0", float(k))
        held.append(flapping.hold_s("wlan0", float(k)))
    assert held[FREE : FREE + 3] == [1.0, 2.0, 4.0]
    assert held[-1] == held[-2] == 32.0


def test_each_while_that_it_stands_makes_up_for_one_fall() -> None:
    flapping = FlappingNetworks()
    for _ in range(20):
        flapping.fell("wlan0", 0.0)
    held = [flapping.hold_s("wlan0", FORGIVEN_S * k) for k in range(7)]
    assert held == [32.0, 16.0, 8.0, 4.0, 2.0, 1.0, 0.0]
    assert flapping.hold_s("wlan0", FORGIVEN_S - 0.1) == 32.0
    flapping.fell("wlan0", 20 * FORGIVEN_S)
    assert flapping.hold_s("wlan0", 20 * FORGIVEN_S) == 0.0


def test_what_stands_for_a_while_between_its_falls_does_not_flap() -> None:
    """Contacts with Wi-Fi in a bus: it was left alone for half a minute after the eighth."""
    flapping = FlappingNetworks()
    for k in range(100):
        flapping.fell("wlan0", 1.2 * FORGIVEN_S * k)
        assert flapping.hold_s("wlan0", 1.2 * FORGIVEN_S * k) == 0.0


def test_only_the_last_few_networks_are_remembered() -> None:
    flapping = FlappingNetworks()
    for _ in range(4):
        flapping.fell("first", 0.0)
    for k in range(100):
        flapping.fell(f"wlan{k}", 1.0)
    assert flapping.hold_s("first", 1.0) == 0.0
