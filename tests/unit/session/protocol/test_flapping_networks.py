"""Networks that fall again and again are left alone for longer each time, and forgiven in the end."""

from cedos.session.protocol.flapping_networks import FREE, MEMORY_S, FlappingNetworks


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


def test_it_is_forgiven_after_it_has_stood() -> None:
    flapping = FlappingNetworks()
    for _ in range(5):
        flapping.fell("wlan0", 0.0)
    assert flapping.hold_s("wlan0", MEMORY_S - 0.1) > 0.0
    assert flapping.hold_s("wlan0", MEMORY_S) == 0.0
    flapping.fell("wlan0", MEMORY_S)
    assert flapping.hold_s("wlan0", MEMORY_S) == 0.0


def test_only_the_last_few_networks_are_remembered() -> None:
    flapping = FlappingNetworks()
    for _ in range(4):
        flapping.fell("first", 0.0)
    for k in range(100):
        flapping.fell(f"wlan{k}", 1.0)
    assert flapping.hold_s("first", 1.0) == 0.0
