"""Questions of hosts to the gateway, and its answers: every message comes back, no other bytes pass."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.apps.sharing import questions
from cedos.apps.sharing.questions import (
    AskCertificate,
    AskFacts,
    AskReceipts,
    AskWaiting,
    DeclarePath,
    GatewayFacts,
    GivenCertificate,
    GivenRates,
    GivenReceipts,
    GivenWaiting,
    PathDeclared,
    SharingRefused,
)

ASKED = st.one_of(
    st.just(AskFacts()),
    st.builds(AskCertificate, st.binary(max_size=512)),
    st.builds(AskReceipts, st.integers(0, 2**53)),
    st.builds(AskWaiting, st.tuples(st.binary(min_size=4, max_size=4))),
    st.builds(
        DeclarePath,
        st.binary(min_size=4, max_size=4),
        st.binary(max_size=1200),
        st.binary(max_size=9),
    ),
)
ANSWERED = st.one_of(
    st.builds(GatewayFacts, st.binary(min_size=32, max_size=32), st.binary(max_size=99)),
    st.builds(GivenCertificate, st.binary(max_size=512)),
    st.just(PathDeclared()),
    st.builds(GivenReceipts, st.tuples(st.binary(max_size=384), st.binary(max_size=384))),
    st.builds(GivenWaiting, st.tuples(st.integers(0, 2**40), st.integers(0, 2**40))),
    st.builds(SharingRefused, st.text(max_size=99)),
)


@given(ASKED)
def test_questions_come_back(message):
    assert questions.read_question(questions.pack_question(message)) == message


@given(ANSWERED)
def test_answers_come_back(message):
    assert questions.read_answer(questions.pack_answer(message)) == message


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_are_a_message(data):
    for read, kinds in (
        (questions.read_question, questions.Asked.__args__),
        (questions.read_answer, questions.Answered.__args__),
    ):
        with contextlib.suppress(ValueError):
            assert isinstance(read(data), kinds)


@pytest.mark.parametrize(
    "data",
    [
        questions.pack_answer(PathDeclared()),
        questions.pack_question(DeclarePath(b"abcde", b"", b"")),
        questions.pack_question(DeclarePath(b"abcd", bytes(1201), b"")),
        questions.pack_question(AskReceipts(-1)),
        questions.pack_question(AskFacts()) + b"\0",
        bytes(questions.MOST_BYTES + 1),
    ],
)
def test_what_is_no_question(data):
    with pytest.raises(ValueError, match=r"."):
        questions.read_question(data)


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0, 1e18])
def test_a_rate_that_no_path_has_is_no_answer(rate):
    """Refuse such rates: the rate that is still wanted would be no number, and no Invite can name it."""
    with pytest.raises(ValueError, match="float"):
        questions.read_answer(questions.pack_answer(GivenRates((1.0, rate))))
    assert questions.read_answer(questions.pack_answer(GivenRates((1.0, None))))
