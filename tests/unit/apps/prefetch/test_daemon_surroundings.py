"""The exchange between the prefetcher and a daemon."""

from kit.waiting import until

from cedos.api.programs import PriceMessage
from cedos.apps.prefetch.prefetcher import Prefetcher
from cedos.apps.prefetch.surroundings import (
    DaemonSurroundings,
    News,
    prices_of,
)
from cedos.controller.hint import MOST_ITEMS
from cedos.model import NetworkKind
from cedos.selector.budgets.controller import PROHIBITIVE
from cedos.selector.prefetch.queue import Taking


async def test_networks_with_their_radios_come_from_the_daemon(control):
    view = await DaemonSurroundings(control).view()
    (one,) = view.networks
    assert (one.name, one.kind, one.up, one.rtt_s) == ("wlan0", NetworkKind.WIFI, True, 0.02)
    # The radio that this host has, in the state that all its traffic left it in.
    assert (one.idle_s, one.shares) == (3.0, {"on": 0.5})
    assert one.radio.added_tail_j(None) == 1.0 + 4.0
    assert one.radio.added_tail_j(one.idle_s) == 3.0
    assert view.prices.energy_rate() == 0.2
    assert view.prices.energy_rate(8.0) == 0.3
    assert view.prices.energy_rate(11.0) == PROHIBITIVE


def test_prices_are_those_of_the_amount_and_end_with_the_budget():
    steps = ((1e6, 1e-7), (5e6, 3e-7))
    asked = prices_of([PriceMessage(resource="data", s_per_unit=1e-7, steps=steps)], ["lte0"])
    assert asked.data_rate("lte0") == 1e-7
    assert asked.data_rate("lte0", 1e6) == 1e-7
    assert asked.data_rate("lte0", 2e6) == 3e-7
    assert asked.data_rate("lte0", 6e6) == PROHIBITIVE
    assert asked.data_rate("wlan0", 6e6) == 0.0


async def test_it_tells_what_waits_and_what_was_used(control, fake_daemon, app):
    world = DaemonSurroundings(control, "reader")
    async with Prefetcher(world, every_s=0.02) as prefetcher:
        received = app.item(lambda turn: begins_and_waits(app, turn))
        one = prefetcher.prefetch(received, size=50_000, cls="news")
        two = prefetcher.prefetch(app.item(), size=9_000, cls="news")
        await until(
            lambda: any(asked.used_bytes == [30_000.0] for asked in fake_daemon.prefetching_said)
        )
        began = next(asked for asked in fake_daemon.prefetching_said if asked.started)
        last = next(
            asked for asked in fake_daemon.prefetching_said if asked.used_bytes == [30_000.0]
        )
        assert not one.ready
        assert not two.ready
    assert (began.program, began.networks) == ("reader", ["wlan0"])
    (started,) = began.started
    assert started.ways[started.chosen].sent == [50_000.0]
    assert [way.sent[0] for way in began.waiting[0]][1:] == [9_000.0]
    # 30 kB of the first one came in the second look: nothing is told twice.
    assert last.used_j > 0.0
    told = [asked for asked in fake_daemon.prefetching_said if sum(asked.used_bytes)]
    assert len(told) == 1
    assert sum(len(asked.started) for asked in fake_daemon.prefetching_said) == 1


async def begins_and_waits(app, turn):
    turn.on_received(0)
    turn.on_received(30_000)
    await app.for_ever(turn)


async def test_names_that_are_no_text_do_not_keep_it_from_asking(control, fake_daemon):
    world = DaemonSurroundings(control, program="m\udce9l")
    await world.view()
    (asked,) = fake_daemon.prefetching_said
    assert asked.program == "m?l"


async def test_a_thousand_items_still_fit_into_a_question(control, fake_daemon):
    world = DaemonSurroundings(control)
    names = tuple(f"network{number}" for number in range(8))
    options = [Taking(None, 1.234567, 2.345678, (123456.7,) * 8)] * 9
    world.report(News(networks=names, waiting=[options] * 1000))
    await world.view()
    (asked,) = fake_daemon.prefetching_said
    assert 20 <= len(asked.waiting) <= MOST_ITEMS
    assert asked.waiting[0][0].sent == [123000.0] * 8
