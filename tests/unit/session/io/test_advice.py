"""A daemon's advice to a session."""

import asyncio
from dataclasses import replace

import pytest
from kit.waiting import until

from cedos.model import Bulk, Direction, Label, Strategy, StrategyKind, Urgency
from cedos.session.io import advice as advice_module
from cedos.session.io.advice import (
    MOST_TOLD_BYTES,
    Advice,
    Adviser,
    Question,
    Readers,
    ToldSizes,
    TransferProgress,
)
from cedos.session.protocol.schedulers.interface import PathFacts
from cedos.session.protocol.schedulers.plain import DecidedScheduler, LabelMapping
from cedos.session.protocol.session import Session

pytestmark = pytest.mark.jumping

BULK, URGENT = 3, 0
WIFI = Strategy(StrategyKind.SINGLE, ("wlan0",))


class Desk:
    """A chooser that answers as it is told, and writes down what it was asked."""

    def __init__(self):
        self.asked = []
        self.answer = None
        self.open = asyncio.Event()
        self.open.set()
        self.known = {}
        self.forgotten = 0

    async def learn(self): ...

    def network(self, interface):
        return self.known.get(interface)

    def forget(self):
        self.forgotten += 1

    async def choose(self, question):
        self.asked.append(question)
        await self.open.wait()
        return self.answer

    def last_decision(self, label):
        return None


class Case:
    """A session's core over two networks, whose choice is asked for."""

    def __init__(self):
        self.desk = Desk()
        scheduler = DecidedScheduler(LabelMapping())
        self.core = Session(scheduler, 0.0)
        self.core.path_up(1, PathFacts("wlan0"), 0.0)
        self.core.path_up(2, PathFacts("lte0"), 0.0)
        self.progress = TransferProgress(0, 0, None, BULK)
        self.changes = 0
        self.scheduler = scheduler
        self.advice = Advice(
            self.core, Adviser(scheduler, self.desk), lambda: self.progress, self._changed
        )

    def _changed(self):
        self.changes += 1

    def pump(self):
        """Bytes that each path would carry now."""
        return {
            number: sum(map(len, self.core.next_record(number, 10_000, 0.0))) for number in (1, 2)
        }

    def masks(self):
        return tuple(path.allowed for path in self.core.paths)

    async def settle(self):
        for _ in range(6):
            await asyncio.sleep(0)

    async def send(self, data, rank):
        """Send it over paths that are there already, and let the answer come."""
        self.pump()
        self.core.send(data, rank)
        self.pump()
        await self.settle()

    def receive(self, peer):
        """Take what the peer has to send."""
        while any(record := peer.next_record(1, 70_000, 0.0)):
            self.core.receive(1, b"".join(record), 0.0)
        self.advice.note_use()


def peer_of():
    """The other end, over its one path."""
    peer = Session(LabelMapping(), 0.0)
    peer.path_up(1, PathFacts("eth0"), 0.0)
    return peer


@pytest.fixture
async def case():
    made = Case()
    yield made
    made.advice.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(advice_module, "ASK_S", 0.01)
    monkeypatch.setattr(advice_module, "VALID_S", 0.1)


@pytest.fixture
def only_looks(monkeypatch):
    """No regular question in a test's time, and a look every 5 ms."""
    monkeypatch.setattr(advice_module, "ASK_S", 600.0)
    monkeypatch.setattr(advice_module, "VALID_S", 600.0)
    monkeypatch.setattr(advice_module, "_LOOK_S", 0.005)


async def test_the_first_data_asks_and_does_not_wait(case):
    case.desk.open.clear()
    case.pump()
    case.core.send(bytes(50_000), BULK)
    sent = case.pump()
    assert sent[1] > 9_000
    assert sent[2] > 9_000
    await case.settle()
    label = Label(Urgency.BACKGROUND, Bulk.LARGE)
    assert case.desk.asked == [Question(label, 64_000, Direction.UP)]
    assert case.masks() == (15, 15)


async def test_an_answer_holds_for_its_label_in_both_directions(case):
    case.desk.answer = WIFI
    await case.send(bytes(500_000), BULK)
    assert case.changes == 1
    assert case.masks() == (0b1111, 0b0111)
    said = case.pump()
    assert said[1] > 9_000
    assert 0 < said[2] < 100  # PathSays: the other end holds to it, too
    assert case.pump()[2] == 0
    case.core.send(b"urgent", URGENT)
    assert sum(case.pump().values()) > 0


async def test_twice_where_redundancy_was_chosen(case):
    case.desk.answer = Strategy(StrategyKind.REDUNDANT, ("wlan0", "lte0"))
    case.pump()
    case.core.send(bytes(3_000), URGENT)
    assert case.core.next_record(1, 10_000, 0.0)
    assert not case.core.next_record(2, 10_000, 0.0)
    await case.settle()
    assert case.scheduler.copies
    assert sum(map(len, case.core.next_record(2, 10_000, 0.0))) > 3_000


async def test_what_is_waited_for_on_a_path_that_pauses_may_go_twice(case):
    case.desk.answer = WIFI
    case.pump()
    case.core.send(bytes(3_000), URGENT)
    assert case.core.next_record(1, 10_000, 0.0)
    await case.settle()
    case.advice.path_pauses(1, 0.16)
    await case.settle()
    label = Label(Urgency.FOREGROUND, Bulk.SMALL)
    assert case.desk.asked[-1] == Question(label, 4_000, sent_over="wlan0", waited_s=0.1)
    while record := case.core.next_record(2, 10_000, 0.0):
        assert sum(map(len, record)) < 100, "the daemon would wait"
    for answer in (StrategyKind.SINGLE, ("lte0",)), (StrategyKind.REDUNDANT, ("lte0", "wlan0")):
        case.desk.answer = Strategy(*answer)
        case.advice.path_pauses(1, 0.16)
        await case.settle()
    assert sum(map(len, case.core.next_record(2, 10_000, 0.0))) > 3_000
    assert case.changes


async def test_nobody_is_asked_about_a_path_that_pauses_with_nothing_urgent(case):
    case.pump()
    case.core.send(bytes(30_000), BULK)
    case.pump()
    await case.settle()
    case.desk.asked.clear()
    case.advice.path_pauses(1, 0.16)
    await case.settle()
    assert case.desk.asked == []


async def test_what_is_put_off_stays_put_off_until_it_is_chosen_otherwise(case):
    case.desk.answer = Strategy(StrategyKind.DEFER, ())
    await case.send(bytes(500_000), BULK)
    case.pump()
    for _ in range(6):
        await asyncio.sleep(0.05)  # nobody pumps: the check itself sees what waits
        assert case.masks() == (0b0111, 0b0111)
        assert sum(case.pump().values()) == 0
    case.desk.answer = WIFI
    await until(lambda: case.masks() == (0b1111, 0b0111))


async def test_a_path_that_comes_is_asked_about_at_once(case):
    case.desk.answer = WIFI
    await case.send(bytes(500_000), BULK)
    assert len(case.desk.asked) == 1
    case.core.path_up(3, PathFacts("wlan0/169.254.1.5"), 0.0)
    case.desk.answer = Strategy(StrategyKind.MPTCP, ("wlan0", "wlan0/169.254.1.5"))
    case.advice.paths_changed()
    assert case.masks() == (0b1111, 0b0111, 0b0111)
    await until(lambda: case.masks() == (0b1111, 0b0111, 0b1111))
    assert len(case.desk.asked) == 2


async def test_a_download_asks_for_what_is_still_to_come(case):
    case.pump()
    case.progress = TransferProgress(100_000, 5_000_000, asyncio.get_running_loop().time() + 60, 1)
    case.core.send(b"give me", URGENT)
    case.pump()
    await case.settle()
    assert [(each.label.bulk, each.size_bytes) for each in case.desk.asked] == [
        (Bulk.SMALL, 16_384_000),
        (Bulk.LARGE, 16_384_000),
    ]
    assert {each.direction for each in case.desk.asked} == {Direction.DOWN}
    assert all(50 < (each.deadline_s or 0) <= 60 for each in case.desk.asked)


async def test_a_session_that_only_receives_irobs_asks_for_their_labels_and_sizes(case):
    """Nothing of the stream comes: the labels are those that the peer gave."""
    case.pump()
    peer = peer_of()
    irobs = {BULK: bytes(50_000), URGENT: b"urgent"}  # in extents, and whole
    for rank, data in irobs.items():
        peer.send(data, rank)
    case.receive(peer)  # by what came
    await case.settle()
    assert case.desk.asked == [
        Question(Label(Urgency.FOREGROUND, Bulk.SMALL), 1_000, Direction.DOWN),
        Question(Label(Urgency.BACKGROUND, Bulk.LARGE), 64_000, Direction.DOWN),
    ]
    await until(lambda: case.advice._timer is None)  # nothing more comes: nobody is asked
    assert len(case.desk.asked) == 2


async def test_nobody_is_asked_while_there_is_nothing_to_choose_or_nothing_to_send(case):
    case.pump()
    await asyncio.sleep(0.05)
    assert case.desk.asked == []
    case.core.path_lost(2, 0.0)
    case.core.send(bytes(50_000), BULK)
    case.pump()
    await asyncio.sleep(0.05)
    assert case.desk.asked == []


@pytest.mark.usefixtures("only_looks")
async def test_once_networks_have_changed_the_daemon_is_asked_anew(case):
    """They asked every two seconds, and kept to an answer about other networks until then."""
    case.desk.answer = WIFI
    case.pump()
    peer = peer_of()

    async def asked_after(size):
        peer.send(bytes(size), BULK)
        case.receive(peer)
        await asyncio.sleep(0.05)
        return len(case.desk.asked)

    assert await asked_after(50_000) == 1
    assert await asked_after(1_000) == 1
    case.advice.networks_changed()
    assert await asked_after(1_000) == 2
    assert case.desk.forgotten == 1


async def test_what_is_told_to_come_is_asked_about_before_it_comes(case, monkeypatch):
    monkeypatch.setattr(advice_module, "ASK_S", 600.0)
    monkeypatch.setattr(advice_module, "_LOOK_S", 600.0)
    case.desk.answer = WIFI
    await case.send(b"give me", URGENT)
    case.desk.asked.clear()
    case.advice.announce(1, 12_000_000, Direction.DOWN)
    await case.settle()
    (question,) = case.desk.asked
    assert question.label == Label(Urgency.FOREGROUND, Bulk.LARGE)
    assert question.direction is Direction.DOWN
    assert 7 / 8 * 12_000_000 < question.size_bytes <= 12_000_000
    case.advice.announce(1, 28_000_000, Direction.DOWN)  # beside it
    await case.settle()
    assert 7 / 8 * 40_000_000 < case.desk.asked[-1].size_bytes <= 40_000_000


async def test_the_question_tells_how_many_programs_wait(case):
    waiting = {(1, Direction.DOWN): 3, (1, Direction.UP): 1}
    case.progress = TransferProgress(0, 0, None, BULK, Readers(waiting=waiting))
    case.pump()
    case.advice.announce(1, 12_000_000, Direction.DOWN)
    case.advice.announce(URGENT, 12_000, Direction.DOWN)
    await case.settle()
    found = {each.label.bulk: each.programs for each in case.desk.asked}
    assert found == {Bulk.LARGE: 3, Bulk.SMALL: 1}


async def test_what_was_told_is_forgotten_when_it_should_have_shown(case):
    """An origin may promise a gigabyte, and send a kilobyte a second."""
    case.pump()
    case.advice.announce(1, 1_000_000_000, Direction.DOWN)
    await case.settle()
    assert len(case.desk.asked) == 1
    await until(lambda: case.advice._timer is None)
    case.core.send(b"more", 1)
    case.pump()
    await case.settle()
    assert case.desk.asked[-1].size_bytes == 1_000


async def test_what_others_announce_does_not_put_off_the_regular_question(case, monkeypatch):
    """Programs begin transfers all the time, and each of them makes the session check."""
    monkeypatch.setattr(advice_module, "ASK_S", 2.0)
    monkeypatch.setattr(advice_module, "VALID_S", 6.0)
    case.desk.answer = WIFI
    await case.send(bytes(100_000), BULK)
    for _ in range(50):
        case.advice.announce(URGENT, 900, Direction.UP)
        await case.send(bytes(10_000), BULK)
        await asyncio.sleep(0.1)
    sizes = [each.size_bytes for each in case.desk.asked if each.label.bulk is Bulk.LARGE]
    assert len(sizes) >= 3
    # Each one is about the data of two seconds, and not about that since the last check.
    assert min(sizes) >= 200_000


@pytest.mark.parametrize(
    ("lasts_s", "wanted_s"),
    [({}, None), ({BULK: 0.9}, None), ({BULK: 1.5}, 60.0), ({URGENT: 9.0}, None)],
)
async def test_what_is_read_slowly_is_wanted_no_sooner_than_what_came_is_read(
    case, monkeypatch, lasts_s, wanted_s
):
    monkeypatch.setattr(advice_module, "ASK_S", 2.0)
    case.pump()
    case.progress = TransferProgress(0, 0, None, BULK, Readers(lasts_s))
    peer = peer_of()
    peer.send(bytes(50_000), BULK)
    case.receive(peer)
    await case.settle()
    label = Label(Urgency.BACKGROUND, Bulk.LARGE)
    size = 64_000 if wanted_s is None else 49_152  # it goes on no faster than it came
    assert case.desk.asked == [Question(label, size, Direction.DOWN, wanted_s)]


@pytest.mark.usefixtures("only_looks")
async def test_who_has_little_left_to_read_hurries_at_once(case):
    case.desk.answer = WIFI
    case.pump()
    case.progress = TransferProgress(0, 0, None, BULK, Readers({BULK: 1.5}))
    peer = peer_of()

    async def hears(size):
        peer.send(bytes(size), BULK)
        case.receive(peer)
        await asyncio.sleep(0.05)
        return [each.deadline_s for each in case.desk.asked]

    assert await hears(50_000) == [60.0]
    case.progress = replace(case.progress, readers=Readers({BULK: 0.7}))
    assert await hears(1_000) == [60.0], "it is enough still"
    case.progress = replace(case.progress, readers=Readers({BULK: 0.4}))
    assert await hears(1_000) == [60.0, None]
    case.progress = replace(case.progress, readers=Readers({BULK: 0.7}))
    assert await hears(1_000) == [60.0, None], "not enough yet"


UP, DOWN = Direction.UP, Direction.DOWN


def test_endless_promises_come_to_a_bound():
    told = ToldSizes(2.0)
    for number in range(10_000):
        told.add(number / 10_000, 1, 10**17, UP)
    assert told.bytes_by_rank(1.0)[UP][1] == MOST_TOLD_BYTES
    assert len(told._parts) <= 8
    for second in range(1_000):  # though nobody asks
        told.add(float(second), 1, 1, UP)
    assert len(told._parts) <= 8
