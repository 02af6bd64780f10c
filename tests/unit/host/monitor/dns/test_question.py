import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.host.monitor import dns_message

LABEL = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=20)
NAMES = st.lists(LABEL, min_size=1, max_size=5).map(".".join)


def reply_to(question, code=0, records=b""):
    return question[:2] + bytes((0x81, 0x80 | code)) + question[4:] + records


@given(st.integers(0, 0xFFFF), NAMES, st.integers(0, 15), st.binary(max_size=50))
def test_an_answer_is_known_by_number_and_name(number, name, code, records):
    question = dns_message.question(number, name)
    reply = dns_message.parse(reply_to(question, code, records))
    assert (reply.number, reply.code, reply.name, reply.kind) == (number, code, name, 1)
    assert dns_message.fault(reply_to(question), number, name.upper() + ".") is None
    for wrong in ((number ^ 1, name), (number, name + "x")):
        assert dns_message.fault(reply_to(question), *wrong) is dns_message.DnsFault.FOREIGN
    # A question is no answer.
    assert dns_message.parse(question) is None


@given(st.integers(0, 0xFFFF), NAMES, st.binary(max_size=50))
def test_a_failure_answers_the_question_alone(number, name, more):
    question = dns_message.question(number, name)
    failed = dns_message.failure(question + more)  # (EDNS and the like)
    reply = dns_message.parse(failed)
    assert (reply.number, reply.code, reply.name, reply.kind) == (number, 2, name, 1)
    assert len(failed) == len(question)
    assert dns_message.fault(failed, number, name) is dns_message.DnsFault.REFUSED


@given(st.binary(max_size=80))
def test_whatever_asks_can_be_told_of_a_failure(tail):
    question = b"\0\7\1\0\0\1\0\0\0\0\0\0" + tail
    if (asked := dns_message.asked(question)) is not None:
        reply = dns_message.parse(dns_message.failure(question))
        assert (reply.name, reply.kind, reply.code) == (*asked, 2)


@pytest.mark.parametrize(
    "name", ["", ".", "a..b", "x" * 64 + ".org", ".".join(["abcdefg"] * 40), "bücher.de"]
)
def test_what_is_no_name_is_refused(name):
    with pytest.raises(ValueError, match=r"name|ASCII"):
        dns_message.question(1, name)
