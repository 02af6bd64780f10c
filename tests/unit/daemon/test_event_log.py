"""The event log: names of hosts are replaced, and a replay still gives the same commands."""

import copy
import gzip
import math
import re
import tracemalloc
from dataclasses import replace
from ipaddress import ip_address

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.controller import KEY, LTE, WLAN, size_of, spent

from cedos.budget_kinds import Resource
from cedos.controller import events as on
from cedos.controller.config import Choices, ControllerConfig
from cedos.controller.controller import Controller
from cedos.controller.hint import HintRequest, PrefetchReport, TakingMessage
from cedos.controller.rule import RuleRequest
from cedos.daemon import event_log
from cedos.daemon.event_log import EventLog
from cedos.errors import CedosError, HistoryError
from cedos.model import Budget, Direction, PhoneUse, Strategy, StrategyKind, Transfer
from cedos.selector.budgets.keeper import Period
from cedos.selector.deadlines.transfer_table import TableTransfer
from cedos.selector.objective import MaxS
from cedos.storage import model_files
from emu.replay import began, controller_of, open_log, records, replay
from predictors.completion import CompletionModel

CONFIG = ControllerConfig(Choices(MaxS(), model_files.load(), 3000))
KEPT = {"1": {"host": "secret.example.org", "never": ["lte0"], "only": [], "addresses": []}}
ASKED = replace(KEY, remote=ip_address("10.0.0.1"), remote_port=53, protocol="udp")
MOVED = TableTransfer(
    "7" * 32, 1000, "my file.txt", "files.secret.example", Direction.DOWN, 10**6, 0, 1.7e9 + 3600.0
)
KEPT_TRANSFERS = {"rows": [[msgspec.to_builtins(MOVED), {"wlan0": 5}]], "networks": []}
# The name of a budget stays, though it looks like a host's.
PLAN = Budget("lte.plan", Resource.DATA, 1e9, "2026-12-01T00:00:00", networks=("lte0",))
PERIOD = Period(1.69e9, 1.71e9)
KEPT_BUDGETS = {"lte.plan": {"period": list(PERIOD), "learned": {}, "bought_s": 3.0}}
WAYS = [TakingMessage(9.0, 1.0, [0.0, 1e5]), TakingMessage(0.0, 2.0, [0.0, 1e6])]
PREFETCHED = PrefetchReport(
    program="mail.secret.example", pid=7, networks=["wlan0", "lte0"], waiting=[WAYS], used_j=2.0
)
EVENTS = (
    on.ClockRead(1.7e9),
    on.NetworksChanged((WLAN, replace(LTE, resolvers=(ip_address("10.1.0.1"),)))),
    on.RuleSet(2, RuleRequest(host="other.example.net", only=("lte0",))),
    on.AnswersRead(
        9, (on.DnsReply(7, 0, False, "www.secret.example.org", 1, (ip_address("203.0.113.5"),)),)
    ),
    on.FlowOpened(KEY, 3.0, 1003.0),
    on.LookupAsked(ASKED, 7, "hidden.example.org", "wlan0", public=False),
    on.TimerFired(),
    on.BatteryRead(0.9, True),
    on.TransferReported(MOVED, 4.0, {"wlan0": 1000}, 1.0),
    on.Witnessed("lte0", True, on.Witness.PAGE, 11.0),
    on.PageChecked(
        *("lte0", 1),
        on.PortalFinding(
            *(
                on.PortalVerdict.CAPTIVE,
                "answered by portal.example",
                "http://login.portal.example/",
            ),
            hosts={"login.portal.example": (ip_address("203.0.113.9"),)},
        ),
    ),
    on.HandshakeEnded("lte0", 1, on.TlsAnswer.SILENT),
    on.BudgetSet(1.7e9, PLAN, PERIOD),
    on.PhoneUseChanged(PhoneUse.FREELY),
    on.BudgetsCounted(1.7e9, (on.BudgetUse("lte.plan", 1e6, PERIOD, "2026-12-01 00:00"),)),
    on.PrefetchingChanged(PREFETCHED),
    on.FlowClosed(KEY, 1015.0, 10**6, 300, at_s=15.0),
    on.BudgetsCounted(1.7e9 + 1.0, (on.BudgetUse("lte.plan", 2e6, PERIOD, "2026-12-01 00:00"),)),
    on.DecisionMade(
        Transfer(size_of(10**6)), Strategy(StrategyKind.SINGLE, ("lte0",)), "as it had to go"
    ),
    on.BudgetRemoved("lte.plan"),
    *spent("lte0"),
    on.TimerFired(),
    on.HintGiven(HintRequest(server_name="Mail.MixedCase.Example", size_bytes=5), 1000),
    on.HintGiven(HintRequest(server_name="bücher.привет.рф", size_bytes=5), 1000),
    on.ResolverReplied(ASKED, 7, 1, refused=False),
)


def record(path, *, names, begins=0):
    """Record the events from the one of a number on, and return the commands that they gave."""
    controller, given = Controller(CONFIG, KEPT, KEPT_TRANSFERS, KEPT_BUDGETS), []
    log = None
    for number, event in enumerate(EVENTS):
        if number == begins:
            log = EventLog(path, controller, names=names)
        controller.handle(event, float(number + 1))
        commands = controller.commands()
        if log is not None:
            log.add(event, float(number + 1), commands)
            given += commands
    log.close()
    return given


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """Have all replays share the shipped predictors: to read and fingerprint them takes a second."""
    shipped = CONFIG.choices.model
    fingerprint = shipped.fingerprint()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(model_files, "load", lambda _path: shipped)
        patched.setattr(CompletionModel, "fingerprint", lambda _model: fingerprint)
        yield


def replayed(path):
    header, events = open_log(path)
    return replay(controller_of(header, None), events)


SECRETS = ("secret", "my file", "hidden", "other.example", "portal.example", "MixedCase", "bücher")


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("begins", range(len(EVENTS)))
def test_a_log_replays_to_the_same_commands_wherever_it_begins(tmp_path, begins, *, names):
    given = record(tmp_path / "log", names=names, begins=begins)
    found = replayed(tmp_path / "log")
    assert (found.events, found.different) == (len(EVENTS) - begins, [])
    assert sum(found.commands.values()) == len(given)
    told = ("SetRuled", "AnswerLookup", "BarNetworks", "WatchNetworks", "TurnsChanged")
    for each in (*told, "KeepTransfers") if not begins else ():
        assert found.commands[each] >= 1, each
    written = str(list(records(tmp_path / "log")))
    assert all(text in written for text in SECRETS if not begins) or not names
    assert any(text in written for text in SECRETS) is names
    assert "lte.plan" in written or begins > EVENTS.index(on.BudgetRemoved("lte.plan"))


def test_a_long_log_goes_on_in_further_files_of_which_each_can_be_replayed(tmp_path, monkeypatch):
    monkeypatch.setattr(event_log, "FILE_BYTES", 1)
    monkeypatch.setattr(event_log, "MOST_BYTES", 30_000)
    (tmp_path / "log.3").write_text("of somebody else")
    controller = Controller(CONFIG, KEPT)
    log = EventLog(tmp_path / "log", controller)
    counted = []
    for number in range(40):  # (a file is written every 2 s)
        for event in EVENTS:
            controller.handle(event, float(number + 1))
            log.add(event, float(number + 1), controller.commands())
        counted.append(len(log.files))
    assert log.problem == ""
    assert log.files[0].name != "log"  # the oldest are gone
    assert not (tmp_path / "log").exists()
    assert counted[-1] == counted[-10]
    assert log.size_bytes <= 30_000
    log.close()
    assert sum(path.stat().st_size for path in log.files) == log.size_bytes
    events = [replayed(path) for path in log.files]
    assert all(not each.different for each in events)
    assert (tmp_path / "log.3").read_text() == "of somebody else"


def test_a_state_that_no_replay_would_read_is_not_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(event_log, "LARGEST_BYTES", 1000)
    with pytest.raises(HistoryError, match="too many flows"):
        EventLog(tmp_path / "log", Controller(CONFIG))
    assert not (tmp_path / "log").exists()


def test_an_event_that_no_log_can_hold_ends_the_log_and_nothing_else(tmp_path):
    """A member's report with a huge number had the commands that came of it left undone."""
    log = EventLog(tmp_path / "log", Controller(CONFIG))
    log.add(on.PrefetchingChanged(PrefetchReport(program="x", pid=10**30)), 9.0, [])
    assert "cannot be recorded" in log.problem
    log.add(on.TimerFired(), 9.0, [])
    log.close()


def test_a_damaged_log_is_refused_and_one_that_breaks_off_is_read_so_far(tmp_path):
    record(tmp_path / "log", names=False)
    whole = (tmp_path / "log").read_bytes()
    (tmp_path / "cut").write_bytes(whole + whole[:20])
    _, events = open_log(tmp_path / "cut")
    assert len(list(events)) == len(EVENTS)
    (tmp_path / "none").write_bytes(b"no log at all")
    with pytest.raises(HistoryError, match="is no event log"):
        open_log(tmp_path / "none")
    with pytest.raises(HistoryError, match="is there already"):
        EventLog(tmp_path / "log", Controller(CONFIG))


@pytest.mark.parametrize(
    ("size", "content", "why"),
    [
        (None, b"\x91" * 100_000, "damaged"),
        (None, b"\xdd\x7f\xff\xff\xff", "damaged"),
        (60_000_000, bytes(60_000_000), "no event log"),
    ],
    ids=["deep", "long", "huge"],
)
def test_a_hostile_record_is_refused(tmp_path, size, content, why):
    file = tmp_path / "log"
    file.write_bytes(gzip.compress((size or len(content)).to_bytes(4, "big") + content))
    with pytest.raises(HistoryError, match=why):
        open_log(file)


@pytest.mark.parametrize("value", [b"\x90", b"\x80", b"\x91\x00", b"\xdc\x00\x00"])
def test_a_small_record_does_not_become_large(tmp_path, value):
    """8 MB of empty lists took 630 MB."""
    path = tmp_path / "log"
    count = 7_900_000 // len(value)
    content = b"\xdd" + count.to_bytes(4, "big") + value * count
    path.write_bytes(gzip.compress(len(content).to_bytes(4, "big") + content, 1))
    tracemalloc.start()
    with pytest.raises(HistoryError, match="more lists than a daemon writes"):
        list(records(path))
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


# Values of which some place or other makes no sense.
ODD = (
    *(None, True, 0, -1, 2**63 - 1, 2**64 - 1, 1e308, -1e308, math.nan, math.inf, -math.inf),
    *("", "x", "10.0.0.1", "::1", "0.0.0.0/0", "wlan0", "\x1b[2J", [], [[]], {}, b"x"),
)
changes = st.lists(
    st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=7), st.sampled_from(ODD)),
    min_size=1,
    max_size=3,
)


def changed(record, at, value):
    """Put a value where these numbers lead: into the record, its event, a field, and so on."""
    for number in at[:-1]:
        keys = list(record) if isinstance(record, dict) else range(len(record))
        inner = record[keys[number % len(keys)]]
        if not isinstance(inner, dict | list) or not inner:
            break
        record = inner
    keys = list(record) if isinstance(record, dict) else range(len(record))
    record[keys[at[-1] % len(keys)]] = copy.deepcopy(value)


def write(path, listed):
    content = [msgspec.msgpack.encode(each) for each in listed]
    path.write_bytes(gzip.compress(b"".join(len(c).to_bytes(4, "big") + c for c in content)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A log as the daemon writes it, with names."""
    log = tmp_path_factory.mktemp("whole") / "log"
    record(log, names=True, begins=6)
    return log


@given(st.integers(0, len(EVENTS)), changes)
def test_whatever_a_record_holds_it_is_replayed_or_refused_by_its_number(whole, number, odd):
    listed = list(records(whole))
    for at, value in odd:
        changed(listed[number % len(listed)], at, value)
    write(whole.with_name("odd"), listed)
    problem = "event 0: none"
    try:
        header, events = open_log(whole.with_name("odd"))
        replay(controller_of(header, None), events)
        began(header)
    except CedosError as error:
        problem = str(error)
    # What is odd in the header may show at the first event that meets it.
    assert re.search(r"event \d+: |header|is no event log|format|predictors", problem)


@pytest.mark.parametrize("at_s", [-1.0, math.nan, math.inf])
def test_an_event_before_the_one_before_it_is_refused(whole, tmp_path, at_s):
    listed = list(records(whole))
    listed[5][0] = at_s
    write(tmp_path / "odd", listed)
    with pytest.raises(HistoryError, match=r"odd, event 5: its time"):
        list(open_log(tmp_path / "odd")[1])
