"""Used-up file descriptors."""

import asyncio
import errno

from structlog.testing import capture_logs

from cedos.daemon.life import Complaints


async def test_that_they_are_used_up_is_told_once_a_minute():
    now_s = [0.0]
    complaints = Complaints(lambda: now_s[0])
    loop = asyncio.get_running_loop()
    with capture_logs() as told:
        for now_s[0] in (0.0, 1.0, 59.0, 61.0):
            complaints(loop, {"message": "accept", "exception": OSError(errno.EMFILE, "Too many")})
    assert [each["why"] for each in told] == ["Too many", "Too many"]


async def test_other_complaints_stay_the_loops(monkeypatch):
    loop = asyncio.get_running_loop()
    told = []
    monkeypatch.setattr(loop, "default_exception_handler", told.append)
    context = {"message": "m", "exception": OSError(errno.EIO, "x")}
    Complaints()(loop, context)
    assert told == [context]
