"""The written protocol: its test vectors and its numbers are those of the program."""

import json
import re

import pytest

from cedos.errors import ProtocolError
from cedos.session.io import flow, idle_sessions
from cedos.session.protocol import (
    datagrams,
    delivery,
    frames,
    in_flight,
    life,
    packing,
    path_watch,
    receiver,
    room,
    sender,
)
from cedos.session.protocol.unpacking import unpack
from emu import ROOT

DOCUMENT = (ROOT / "docs" / "session-protocol.md").read_text()
GOOD = re.findall(r"^\| ([^|]+) \| `([0-9a-f]+)` \| `(\{.*\})` \|$", DOCUMENT, re.M)
BAD = re.findall(r"^\| ([^|]+) \| `([0-9a-f]+)` \|$", DOCUMENT, re.M)


def plain(value):
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


@pytest.mark.parametrize(
    ("record", "means"), [row[1:] for row in GOOD], ids=[row[0] for row in GOOD]
)
def test_a_vector_means_what_the_document_says(record, means):
    (frame,) = unpack(bytes.fromhex(record))
    fields = {name: plain(getattr(frame, name)) for name in frame.__struct_fields__}
    assert {"frame": type(frame).__name__} | fields == json.loads(means)


@pytest.mark.parametrize("record", [row[1] for row in BAD], ids=[row[0] for row in BAD])
def test_a_vector_that_is_refused(record):
    with pytest.raises(ProtocolError):
        unpack(bytes.fromhex(record))


def test_every_frame_has_a_vector_and_a_row():
    names = {frame.__name__ for frame in frames.Frame.__args__}
    assert {json.loads(means)["frame"] for _, _, means in GOOD} == names
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", DOCUMENT, re.M)
    assert {name for _, name in rows} == names
    assert [int(kind) for kind, _ in rows] == [1, 2, 3, *range(5, 10), *range(11, 18)]
    for _, record, means in GOOD:
        kinds = {name: int(kind) for kind, name in rows}
        assert bytes.fromhex(record)[0] == kinds[json.loads(means)["frame"]]
    assert len(BAD) >= 9


@pytest.mark.parametrize(
    ("sentence", "value"),
    [
        ("1 to {:,} bytes: **frames", packing.RECORD_BYTES),
        ("**frames**, {:,} at most", packing.MAX_FRAMES),
        ("(and at most {:,}, and one", packing.FIRST_FRAMES),
        ("one for each {:,} bytes", packing.LEAST_FRAME_BYTES),
        ("there 1 to {:,}", packing.MAX_DEPENDENCIES),
        ("count 1 to {:,}", packing.MAX_MESSAGES),
        ("at most {:,} ranges", packing.MAX_RANGES),
        ("at most {:,} bytes; code 1", packing.MAX_REASON_BYTES),
        ("at most {:,} of padding", packing.MAX_PAD_BYTES),
        ("at most {:,} days", packing.MAX_KEEP_ALIVE_S // 86_400),
        ("Those up to {:,} bytes travel", sender.SMALL_BYTES),
        ("stream up to {:,}", room.INITIAL_STREAM_BYTES),
        ("credit of {:,}", room.INITIAL_IROB_CREDIT),
        ("IROBs up to {:,} bytes", room.INITIAL_IROB_BYTES),
        ("plus {:,} for each", room.IROB_COST),
        ("At most {:,} pieces", in_flight.MAX_IN_FLIGHT),
        ("gives up at {:,} gaps", min(delivery.MAX_GAPS, receiver.MAX_ID_GAPS)),
        ("A sender notes {:,} of a session", sender.MOST_GAPS),
        ("acknowledges after {:,} KB", life.SessionLimits().acknowledge_bytes // 1024),
        ("{:,} ms after the first", round(life.SessionLimits().acknowledge_delay_s * 1000)),
        ("answering for {:,} s", round(flow.DRAIN_S)),
        ("a record of {:,} bytes", idle_sessions.RECORD_BYTES),
        ("second with {:,} bytes of padding", path_watch.PAD_BYTES),
        ("more than {:,} bytes came over the path", path_watch.FIRST_SEGMENT_BYTES),
        ("either way for {:,} s", round(path_watch.REST_S)),
        ("known is {:,} s old", round(path_watch.OLD_S)),
        ("{:,} times as old as a probe takes", path_watch.LEAST_TIME_SHARE),
        ("has sent {:,} times the padding", path_watch.LEAST_BYTES_SHARE),
        ("at most {:,} ms; the payload", packing.MAX_LIFETIME_MS),
        ("last {:,} numbers", datagrams.WINDOW),
        ("at most {:,} of them or", datagrams.MOST_UNREAD),
        ("at most {:,} wait to be sent", datagrams.MOST_WAITING),
    ],
)
def test_a_number_in_the_document(sentence, value):
    text = sentence.format(value)
    assert text in " ".join(DOCUMENT.split())
