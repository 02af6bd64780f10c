"""A fuzz target: records that strangers might write, for the parser and for a living session.

usage: fuzz_session_records.py FOLDER_OF_SEEDS [libFuzzer's options]

Whatever comes, there is either a `ProtocolError` or a session that still works within its limits.
"""

import contextlib
import sys

import atheris

with atheris.instrument_imports(include=["cedos.session"]):
    from cedos.errors import ProtocolError
    from cedos.session.protocol.life import SessionLimits
    from cedos.session.protocol.schedulers.interface import PathFacts
    from cedos.session.protocol.schedulers.plain import LowestRtt
    from cedos.session.protocol.session import Session
    from cedos.session.protocol.unpacking import unpack

LIMITS = SessionLimits(
    send_bytes=100_000, stream_window=262_144, irob_window=700_000, irob_bytes=262_144
)


def session():
    """Return a session that has something of each kind on its way."""
    core = Session(LowestRtt(), 0.0, limits=LIMITS, keep_alive_s=100)
    core.path_up(1, PathFacts(), 0.0)
    core.write(b"stream" * 100)
    for _ in range(10):
        core.send(b"small", 0)
    core.send(b"large" * 2_000, 3, after=())
    core.next_record(1, 20_000, 0.0)
    return core


def one(data):
    """Takes one input: records, each behind two bytes of its length."""
    with contextlib.suppress(ProtocolError):
        unpack(data)
    core = session()
    at = 0
    with contextlib.suppress(ProtocolError):
        while at + 2 < len(data):
            length = int.from_bytes(data[at : at + 2], "big")
            record = data[at + 2 : at + 2 + length]
            at += 2 + length
            if record:
                core.receive(1, record, float(at))
            while core.next_record(1, 70_000, float(at)):
                pass
            core.read(100)
            core.receive_run(3)
            core.tick(float(at))
            core.events()
    assert 0 <= core.sender.replay.held_bytes <= LIMITS.send_bytes
    assert all(queue.waiting_bytes >= 0 for queue in core.sender.send_queues)
    assert all(path.in_flight_bytes >= 0 for path in core.paths)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
