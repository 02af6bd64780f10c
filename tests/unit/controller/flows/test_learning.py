"""Outcomes of predictions are learnt, kept, and told."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from kit.controller import LTE, WLAN
from structlog.testing import capture_logs

from cedos.controller.events import FlowClosed, FlowOpened, SizeLearned
from cedos.controller.flows.finished_transfer import finished_transfer
from cedos.controller.flows.learning import TRANSFERS, Learning, Reliability
from cedos.controller.flows.living_flows import LivingFlows
from cedos.daemon import state_file
from cedos.daemon.startup import POSTERIOR, POSTERIOR_FILE, learned
from cedos.model import (
    Context,
    Direction,
    FlowKey,
    FlowRecord,
    FlowSample,
    Indicator,
    NextHop,
    Prediction,
    SizeEstimate,
    Transfer,
)
from cedos.selector.decision.case import assign
from cedos.selector.decision.features import features
from cedos.storage import model_files
from predictors.posterior import Posterior

HOME = replace(WLAN, next_hops=(NextHop(4, ip_address("10.0.0.1")),))
BOTH = (HOME, LTE)
FIRST = FlowKey(ip_address("10.0.0.2"), 4000, ip_address("198.51.100.1"), 80)
SECOND = FlowKey(ip_address("10.1.0.2"), 4001, ip_address("198.51.100.1"), 80)
SIZE = 1_000_000
KNOWN = Context(
    0.0,
    {
        name: {"rtt_s": Indicator(0.03, 0.0), "past1_bps": Indicator(1e7, 0.0)}
        for name in ("wlan0", "lte0")
    },
)


@pytest.fixture(scope="module")
def model():
    return model_files.load()


def finish(
    learning,
    took_s,
    *,
    carried=SIZE,
    second=0,
    requests=1,
    exact=True,
    unread=False,
    lingered_s=3.0,
    began_unix_s=100.0,
):
    """A download of a megabyte that began at 0; its connection stayed open for a while after it."""
    flows = LivingFlows()
    flows.networks_changed(BOTH)
    flow = flows.on_open(FlowOpened(FIRST, 0.0, 100.0))
    flow.context = KNOWN
    size = SizeEstimate(SIZE, SIZE, SIZE, "content-length")
    for _ in range(requests):
        flows.on_size(SizeLearned(FIRST, Direction.DOWN, size))
    end_s = took_s + lingered_s
    for look_s in (1.0, 1.2) if unread else ():
        sample = FlowSample(
            FIRST, look_s, 1, None, 0.03, 0.03, 1e6, 1000, 0, 0, 0.0, 0, unread=True
        )
        flows.on_samples([sample], look_s)
    if second:
        flows.on_open(FlowOpened(SECOND, 0.1, 100.1))
        for key in (FIRST, SECOND):
            flows.joined(7, key, 0.1)
        sample = FlowSample(SECOND, 1.0, 1, 7, 0.03, 0.03, 1e6, second, 0, 0, 0.0, 0)
        flows.on_samples([sample], 1.0)
        flows.on_close(FlowClosed(SECOND, 100.0 + end_s, second, 0, at_s=end_s, exact=exact))
    closed = FlowClosed(
        FIRST, began_unix_s + end_s, carried - second, 100, at_s=end_s, exact=exact,
        idle_down_s=lingered_s, idle_ack_s=lingered_s,
    )  # fmt: skip
    record = flows.on_close(closed)
    assert record is not None
    transfer = finished_transfer(flow, record, closed, BOTH)
    if transfer is not None:
        learning.on_transfer(transfer, KNOWN)


def test_it_learns_what_came_of_predictions(model):
    learning = Learning(model, Posterior())
    transfer = Transfer(SizeEstimate(SIZE, SIZE, SIZE, "hint"))
    # As they will be asked for again: what predictions favour is part of what is learnt.
    columns = features(KNOWN, transfer, assign(BOTH), learning.features)
    before_s = learning.predict(columns)["wifi"].mean
    for _ in range(20):
        finish(learning, 3.0 * before_s)
    assert learning.predict(columns)["wifi"].mean > 1.1 * before_s
    assert learning.note == "Predictions are corrected by 20 earlier transfers"


def test_what_came_of_predictions_is_kept_over_a_restart(model, tmp_path):
    transfer = Transfer(SizeEstimate(SIZE, SIZE, SIZE, "hint"))
    columns = features(KNOWN, transfer, assign(BOTH), model.features)
    learning = learned(model, tmp_path)
    before_s = learning.predict(columns)["wifi"].mean
    for _ in range(20):
        finish(learning, 3.0 * before_s)
    state_file.write(tmp_path / POSTERIOR_FILE, learning.kept(), POSTERIOR)
    again = learned(model, tmp_path)
    assert again.predict(columns) == learning.predict(columns)
    assert again.note == "Predictions are corrected by 20 earlier transfers"
    finish(again, 3.0 * before_s)
    assert again.note == "Predictions are corrected by 21 earlier transfers"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"{",
        b"[]",
        b"\xff",
        b'{"model": "other", "seen": 0, "favoured": {}}',
        b'{"model": 3, "seen": 5, "favoured": 6}',
        b'{"seen": 1, "favoured": {"wifi": {"99999": {"wifi": 1.0}}}}',
        b'{"seen": 1, "favoured": {"wifi": {"1": {"wifi": -1.0}}}}',
        b'{"seen": 1, "favoured": {"wifi": {"1": {}}}}',
    ],
)
def test_a_file_that_cannot_be_used_is_put_aside_and_not_written_over(model, tmp_path, nonsense):
    (tmp_path / POSTERIOR_FILE).write_bytes(nonsense)
    for number in (1, 2):
        with capture_logs() as said:
            learning = learned(model, tmp_path)
        assert learning.note == ""
        aside = tmp_path / f"{POSTERIOR_FILE}.aside-{number}"
        assert [each["kept_as"] for each in said] == [str(aside)]
        state_file.write(tmp_path / POSTERIOR_FILE, learning.kept(), POSTERIOR)
        assert aside.read_bytes() == nonsense
        (tmp_path / POSTERIOR_FILE).write_bytes(nonsense)


@pytest.mark.parametrize(
    "spoiled",
    [
        {"requests": 2}, {"carried": SIZE // 2}, {"exact": False}, {"second": SIZE},
        {"took_s": -1.0}, {"unread": True},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_known_well_teaches_nothing(model, spoiled):
    learning = Learning(model, Posterior())
    finish(learning, **({"took_s": 3.0} | spoiled))
    assert learning.note == ""


EXPECTED = {"wifi": (0.5, 1.0, 2.0, 1.2), "mptcp_wifi": (0.5, 1.0, 2.0, 1.2)}
ONE = Prediction("wifi", "wlan0", Direction.DOWN, 3000, 1.0, 0.0, EXPECTED)


def record(prediction):
    return FlowRecord((), None, 1.0, 2.0, prediction=prediction)


def test_a_network_is_judged_by_the_last_transfers_over_it_alone():
    reliability = Reliability([record(replace(ONE, took_s=9.0))] * TRANSFERS)
    held = reliability.of("wlan0")
    assert (held.n, held.coverage90) == (TRANSFERS, 0.0)
    for _ in range(TRANSFERS):
        reliability.add(record(ONE))
    reliability.add(record(replace(ONE, strategy="mptcp_wifi", took_s=9.0)))
    reliability.add(record(None))
    held = reliability.of("wlan0")
    assert (held.n, held.coverage90) == (TRANSFERS, 1.0)
    assert reliability.of("lte0") is None


def test_a_damaged_record_of_the_history_tells_nothing():
    """The daemon did not start any more after one letter on the disk had changed."""
    damaged = (replace(ONE, strategy="wigi"), replace(ONE, took_s=0.0), replace(ONE, took_s=-1.0))
    assert Reliability(map(record, damaged)).of("wlan0") is None


def test_so_many_networks_are_remembered_and_no_more():
    reliability = Reliability(record(replace(ONE, network=f"usb{k}")) for k in range(40))
    assert reliability.of("usb39") is not None
    assert reliability.of("usb0") is None
