import socket

from hypothesis import given
from hypothesis import strategies as st

from cedos.kernel.tcp_info import active_opens, parse_active_opens

SNMP = """Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens
Tcp: 1 200 120000 -1 4711 12
Udp: InDatagrams
Udp: 1
"""


def test_the_value_under_its_name() -> None:
    assert parse_active_opens(SNMP) == 4711
    assert parse_active_opens(SNMP.replace("ActiveOpens", "Others")) is None
    assert parse_active_opens("Tcp: ActiveOpens\nTcp:\n") is None


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    parse_active_opens(text)
    parse_active_opens(f"Tcp: ActiveOpens\nTcp: {text}\n")


def test_a_connection_is_counted_by_this_kernel() -> None:
    before = active_opens()
    assert before is not None
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    after = active_opens()
    assert after is not None
    assert after > before
