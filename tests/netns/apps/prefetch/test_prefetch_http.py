"""HTTP ahead of time from a real nginx: ranges go on over another network, versions are told apart."""

import os

import pytest
from kit.waiting import until

from cedos.apps.prefetch.http import Body, HttpFetcher
from cedos.apps.prefetch.prefetcher import Prefetcher
from cedos.apps.prefetch.surroundings import FetchError, NotThereError

SERVER = "198.18.0.2"
CONTENT = os.urandom(2_000_000)


@pytest.fixture
async def prefetcher(wires, www):
    (www / "file").write_bytes(CONTENT)
    os.utime(www / "file", (1e9, 1e9))
    with wires.client.entered():
        async with Prefetcher(wires, every_s=0.05, silence_s=1.0) as mine:
            yield mine


def statuses(wires):
    return [line.split()[0] for line in (wires.directory / "access.log").read_text().splitlines()]


async def test_it_comes_over_the_network_that_was_chosen(prefetcher, wires):
    wires.up["wlan0"] = False  # of which only the prefetcher knows: the host would still use it
    future = prefetcher.prefetch(HttpFetcher(f"http://{SERVER}/file"), size=len(CONTENT))
    await until(lambda: future.ready)
    assert wires.counted("lte0") > len(CONTENT)
    assert wires.counted("wlan0") < 10_000
    body = await future.get()
    assert body == Body(f"http://{SERVER}/file", "application/octet-stream", CONTENT)


async def test_a_lost_network_costs_only_what_was_on_its_way(prefetcher, wires):
    fetcher = HttpFetcher(f"http://{SERVER}/slow/file")
    future = prefetcher.prefetch(fetcher, size=len(CONTENT))
    await until(lambda: fetcher._part.size > 300_000)
    wires.lose("wlan0")
    await until(lambda: future.ready)
    assert (await future.get()).content == CONTENT
    assert len(CONTENT) - 200_000 > wires.counted("lte0") > 500_000
    assert statuses(wires)[-1] == "206"


async def test_another_version_is_not_glued_to_the_first(prefetcher, wires, www):
    fetcher = HttpFetcher(f"http://{SERVER}/slow/file")
    future = prefetcher.prefetch(fetcher, size=len(CONTENT))
    await until(lambda: fetcher._part.size > 300_000)
    new = os.urandom(1_500_000)
    (www / "new").write_bytes(new)
    (www / "new").replace(www / "file")
    wires.lose("wlan0")
    await until(lambda: future.ready)
    assert (await future.get()).content == new
    assert statuses(wires)[-1] == "200"


@pytest.mark.parametrize("where", ["weak", "plain"])
async def test_servers_without_validators_or_ranges_send_it_anew(prefetcher, wires, where):
    fetcher = HttpFetcher(f"http://{SERVER}/{where}/file")
    future = prefetcher.prefetch(fetcher, size=len(CONTENT))
    await until(lambda: fetcher._part.size > 300_000)
    wires.lose("wlan0")
    await until(lambda: future.ready)
    assert (await future.get()).content == CONTENT


async def test_somebody_who_waits_gets_it_though_the_network_went(prefetcher, wires):
    fetcher = HttpFetcher(f"http://{SERVER}/slow/file")
    future = prefetcher.prefetch(fetcher, size=len(CONTENT))
    await until(lambda: fetcher._part.size > 300_000)
    wires.client.ip("link", "set", "wlan0", "down")
    wires.up["wlan0"] = False
    assert (await future.get(timeout_s=20)).content == CONTENT


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [("none", NotThereError, "404"), ("denied", NotThereError, "403"), ("busy", FetchError, "503")],
)
async def test_refusals_are_told(prefetcher, path, error, message):
    with pytest.raises(error, match=message):
        (await prefetcher.prefetch(HttpFetcher(f"http://{SERVER}/{path}")).get(timeout_s=10))
