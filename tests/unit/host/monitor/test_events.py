"""Events on their way to one consumer."""

import asyncio
import time

from cedos.host.monitor.events import Mailbox


async def test_a_mailbox_nobody_empties_drops_the_oldest_and_counts():
    mailbox = Mailbox(limit=3)
    for number in range(5):
        mailbox.put(number)
    mailbox.close()
    assert [number async for number in mailbox.iterate()] == [2, 3, 4]
    assert mailbox.dropped == 2


async def test_a_consumer_with_much_to_do_leaves_turns_to_others():
    """The daemon handled all waiting events in one turn, and nothing else for most of a minute."""
    mailbox = Mailbox()
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    for number in range(100):
        mailbox.put(number)
    mailbox.close()
    working = asyncio.create_task(others())
    async for _ in mailbox.iterate():
        time.sleep(0.002)
    working.cancel()
    assert turns >= 20
