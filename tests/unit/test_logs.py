"""Logs in each form, from our own loggers and from libraries'."""

import io
import json
import logging
import os
import re
import subprocess
import sys
import time
from ipaddress import IPv4Address

import pytest
import structlog

from cedos import logs


@pytest.fixture(autouse=True)
def _restored():
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()


def test_people_read_units_and_few_digits():
    stream = io.StringIO()
    logs.configure("info", "console", stream)
    structlog.get_logger().info(
        "woken",
        slept_s=31.284712,
        late_s=0.0123456,
        old_s=93_784.2,
        carried_bytes=1_328_111,
        share=0.123456,
        count=1234567,
        networks=["wlan0", "lte0"],
        names=[],
        dry=True,
    )
    line = stream.getvalue()
    for word in (
        "slept='31 s'",
        "late='12.3 ms'",
        "old='26 h'",
        "carried='1.33 MB'",
        "share=0.123",
        "count=1234567",
        "networks='wlan0, lte0'",
        "names=none",
        "dry=True",
    ):
        assert word in line, (word, line)


@pytest.mark.parametrize("form", ["console", "json"])
def test_strangers_cannot_fill_the_log(form, monkeypatch):
    """One client's refused requests wrote 26 MB a second: 5,300 lines with names of 4,000 letters."""
    now_s = 0.0
    monkeypatch.setattr(logs.time, "monotonic", lambda: now_s)
    stream = io.StringIO()
    logs.configure("debug", form, stream)
    log, other = structlog.get_logger("server"), logging.getLogger("library")
    for _ in range(60):
        for _ in range(1_000):
            log.info("refused", path="a/" * 2_000)
            other.warning("bad %s", "request")
        now_s += 1.0
    log.info("served", path="a")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2 * (500 + 59) + 1
    assert max(map(len, lines)) < 1_200
    assert "served" in lines[-1]
    assert sum("999" in line and "left_out" in line for line in lines) == 2 * 58
    now_s += 600.0
    for _ in range(500):
        log.info("refused", path="b")
        log.debug("all of these")
    assert len(stream.getvalue().splitlines()) == len(lines) + 1_000


def test_json():
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    log = structlog.get_logger()
    log.info("default changed", network="wlan0", gateway=IPv4Address("10.0.0.1"), cost=float("inf"))
    log.debug("unseen")
    logging.getLogger("aiohttp.server").error("bad %s", "request", extra={"peer": 7})
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("failed")
    first, second, third = (json.loads(line) for line in stream.getvalue().splitlines())
    time = first.pop("time")
    assert time.endswith("Z")
    assert first == {
        "event": "default changed",
        "level": "info",
        "network": "wlan0",
        "gateway": "10.0.0.1",
        "cost": None,
    }
    assert (second["event"], second["level"], second["peer"]) == ("bad request", "error", 7)
    assert "ValueError: broken" in third["exception"]


@pytest.mark.parametrize(("terminal", "form"), [(True, "%H:%M:%S"), (False, "%Y-%m-%d %H:%M:%S")])
def test_a_file_tells_the_day_and_a_terminal_does_not(terminal, form, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    logs.configure(stream=stream)
    structlog.get_logger().info("said")
    line = re.sub(r"\x1b\[[0-9]*m", "", stream.getvalue())
    time.strptime(line.split(" [")[0].strip(), form)


def test_what_others_gave_moves_no_cursor():
    stream = io.StringIO()
    logs.configure("warning", "console", stream)
    structlog.get_logger().warning("refused: \x1b[2Jby\nWARNING nobody", peer="a\x07\u202eb")
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()


def test_journal(tmp_path, monkeypatch):
    with (tmp_path / "journal").open("w+") as stream:
        status = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        logs.configure("debug", "console", stream)
        log = structlog.get_logger()
        log.debug("a")
        log.info("b")
        log.warning("c\nd")
        log.error("e")
        log.critical("f", exc_info=ValueError("broken"))
        stream.seek(0)
        lines = stream.read().splitlines()
    assert [line[:3] for line in lines] == ["<7>", "<6>", "<4>", "<3>", "<2>", "<2>"]
    assert "ValueError: broken" in lines[-1]
    assert "b" in lines[1]
    assert ":" not in lines[1]  # the journal has the time


def test_libraries_keep_quiet():
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    logging.getLogger("aiohttp.access").info("GET /v1/status")
    logging.getLogger("asyncio").debug("slow callback")
    assert stream.getvalue() == ""
    logs.configure("debug", "json", stream)
    logging.getLogger("aiohttp.access").info("GET /v1/status")
    assert "GET" in stream.getvalue()


@pytest.mark.parametrize("command", ["up", "rule", "gateway.forward"])
def test_nothing_for_terminals_is_loaded(command):
    """structlog takes rich where it is installed, and it is, for `cedos top`: 3 MB."""
    loaded = f"import cedos.commands.{command}, cedos.api.lock, sys; print('rich' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_value_of_others_makes_a_long_line(form):
    """A list of names, an error and what is nested in a value count as much as plain text."""
    stream = io.StringIO()
    logs.configure("info", form, stream)
    log = structlog.get_logger()
    name = "n" * 20_000
    log.info("asked", names=[name, name], error=ValueError(name), fields={name: {"value": name}})
    log.info("many", numbers=list(range(50_000)))
    try:
        raise ValueError(name)
    except ValueError:
        log.info("failed", exc_info=True)
    assert max(map(len, stream.getvalue().splitlines())) < 6_000
    assert "ValueError" in stream.getvalue()
