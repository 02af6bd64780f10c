"""Events on their way to one consumer."""

import pytest

from cedos.host.monitor.events import Mailbox

pytestmark = pytest.mark.anyio


async def test_a_mailbox_nobody_empties_drops_the_oldest_and_counts() -> None:
    mailbox: Mailbox[int] = Mailbox(limit=3)
    for number in range(5):
        mailbox.put(number)
    mailbox.close()
    assert [number async for number in mailbox.iterate()] == [2, 3, 4]
    assert mailbox.dropped == 2
