"""What web servers do wrong, in plain words: refused where trying again cannot help."""

import re
import socket
from pathlib import Path

import pytest
from kit.odd_web_server import AUDIO, OddWebServer

from cedos.errors import TransferError, WebError
from cedos.files import web_getting
from cedos.files.partial import Partial

pytestmark = pytest.mark.anyio

REFUSED = [
    ("circle", "the server redirects in circles"),
    ("ftp", "the server redirects to what is no URL of a web server"),
    ("garbage", "what answers there is no web server"),
    ("status/410", "the server says 410 Reason"),
]
TRIED_AGAIN = [
    ("early", "the server broke off before the end"),
    ("silent", "the server does not answer"),
    ("shut", "the server closed the connection without an answer"),
    ("status/503", "the server says 503 Reason"),
    ("status/429", "the server says 429 Reason"),
]


async def failed(url: str, folder: Path) -> list[TransferError]:
    """As an episode and as a feed."""
    found = []
    partial = Partial(folder / "file", url)
    with pytest.raises(TransferError) as caught:
        await web_getting.fetch(url, partial, None)
    partial.close()
    found.append(caught.value)
    with pytest.raises(TransferError) as caught:
        await web_getting.read(url, 1_000_000, None)
    return [*found, caught.value]


@pytest.mark.parametrize(
    ("path", "why", "again"),
    [(*each, False) for each in REFUSED] + [(*each, True) for each in TRIED_AGAIN],
)
async def test_what_a_server_does_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, why: str, again: bool
) -> None:
    monkeypatch.setattr(web_getting, "_SILENCE_S", 0.3)
    async with OddWebServer().running() as server:
        for error in await failed(server.url(path), tmp_path):
            assert str(error) == why
            assert isinstance(error, WebError) is again


async def test_who_is_not_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    for error in await failed(f"http://127.0.0.1:{port}/x", tmp_path):
        assert isinstance(error, WebError)
        assert str(error) == "the server refused the connection"
    for error in await failed("http://nobody.invalid/x", tmp_path):
        assert isinstance(error, WebError)
        assert re.fullmatch(
            r"there is no server nobody\.invalid|the name nobody\.invalid cannot be looked up now",
            str(error),
        )
    partial = Partial(tmp_path / "file", "")
    with pytest.raises(WebError, match=r"^the proxy refused the connection$"):
        await web_getting.fetch("http://a.test/", partial, None, f"http://127.0.0.1:{port}")
    partial.close()


@pytest.mark.parametrize("url", [f"http://{'a' * 64}.test/x", "http://a.test:99999/", "http://"])
async def test_no_url_is_refused(tmp_path: Path, url: str) -> None:
    for error in await failed(url, tmp_path):
        assert not isinstance(error, WebError)
        assert str(error) == "its URL cannot be fetched"


async def test_what_is_small_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async with OddWebServer().running() as server:
        assert await web_getting.read(server.url("good"), len(AUDIO), None) == AUDIO
        with pytest.raises(TransferError, match="more than 100 bytes came"):
            await web_getting.read(server.url("good"), 100, None)
