"""Requests that are no HTTP leave a line in the log, not a trace for each."""

import asyncio
import logging
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from cedos.api.server import MALFORMED_PAUSE_S, http_log, short_lines


def _record(error: BaseException) -> logging.LogRecord:
    return logging.LogRecord("a", logging.ERROR, "", 0, "x", (), (type(error), error, None))


def test_one_line_for_many() -> None:
    now_s = 0.0
    malformed = short_lines(lambda: now_s)
    first = _record(BadHttpMessage("bad"))
    assert malformed(first)
    assert first.exc_info is None
    assert not any(malformed(_record(BadHttpMessage("bad"))) for _ in range(1000))
    now_s = MALFORMED_PAUSE_S
    later = _record(BadHttpMessage("bad"))
    assert malformed(later)
    assert "1000 more" in later.getMessage()


def test_other_errors_keep_their_trace() -> None:
    record = _record(KeyError("ours"))
    assert short_lines()(record)
    assert record.exc_info is not None


@pytest.mark.anyio
async def test_of_a_real_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_log(), "filters", [short_lines()])
    runner = web.AppRunner(web.Application(), access_log=None, logger=http_log())
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "s")).start()
    try:
        for _ in range(5):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            writer.write(b"GET / HTTP/1.1\r\nbad header\r\n\r\n")
            assert b"400" in await reader.readline()
            writer.close()
    finally:
        await runner.cleanup()
    said = [record for record in caplog.records if "no HTTP" in record.getMessage()]
    assert len(said) == 1
    assert said[0].exc_info is None
