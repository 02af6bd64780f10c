"""Event logs of today's format, as `record.py` here has written them, replay to the same commands.

A version of cedos reads no log of another format, and says so. These tests fail when the format changes
by the way: when an event, or what the controller keeps, gets other fields. Then raise
`cedos.controller.codec.LOG_FORMAT` and run `record.py`. Where only a decision has changed, as was meant,
run `record.py`.
"""

import gzip
import json

import msgspec
import pytest
from click.testing import CliRunner
from recorded.controller.record import HERE, layout

from cedos.controller.codec import LOG_FORMAT
from emu.commands.replay import command
from emu.replay import controller_of, open_log, records, replay

RECORDED = ["walk.log", "middle.log"]
AGAIN = "the format has changed: raise LOG_FORMAT and run tests/recorded/controller/record.py"


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_log_replays_to_the_same_commands(name):
    header, events = open_log(HERE / name)
    found = replay(controller_of(header, None), events)
    assert found.different == [], "a decision has changed: if it was meant, run record.py here"
    for each in ("SetDefault", "MoveConnection", "RescueFlow", "RecordDecision", "RecordFlow"):
        assert found.commands[each] >= 1, each


def test_a_replay_explains_a_server_by_the_decisions_that_its_connections_followed():
    header, events = open_log(HERE / "walk.log")
    found = replay(controller_of(header, None), events)
    server, numbers = "198.51.100.2", {each.number for _, each in found.about("198.51.100.2")}
    assert not any(str(each.transfer.flow).count(server) for _, each in found.decisions)
    assert numbers == {number for key, _, number in found.followed if str(key.remote) == server}
    assert len(numbers) == 3


def test_a_replay_tells_the_time_of_an_event():
    header, events = open_log(HERE / "walk.log")
    found = replay(controller_of(header, None), events)
    assert len(found.took_us) == found.events
    assert 0.0 < found.event_us(0.5) <= found.event_us(0.99) <= max(found.took_us)


def test_events_have_the_fields_of_this_format():
    kept = json.loads((HERE / "layout.json").read_text())
    assert kept == {"format": LOG_FORMAT, "fields": layout()}, AGAIN


@pytest.mark.parametrize("number", [LOG_FORMAT - 1, LOG_FORMAT + 1])
def test_a_log_of_another_format_is_refused_by_its_number(tmp_path, number):
    header, *rest = records(HERE / "walk.log")
    written = map(msgspec.msgpack.encode, [{**header, "format": number}, *rest])
    file = tmp_path / "log"
    file.write_bytes(gzip.compress(b"".join(len(w).to_bytes(4, "big") + w for w in written)))
    told = CliRunner().invoke(command, [str(file)])
    assert told.exit_code != 0
    assert f"has format {number}, of cedos" in str(told.exception)
    assert f"this version reads format {LOG_FORMAT} alone" in str(told.exception)
