from emu.testbed.counters import taken_pages

SOCKSTAT = """sockets: used 44
TCP: inuse 2 orphan 0 tw 7 alloc 2 mem 131
UDP: inuse 25 mem 7
FRAG: inuse 0 memory 0
"""


def test_the_pages_of_tcp_are_taken_from_its_line() -> None:
    assert taken_pages(SOCKSTAT) == 131


def test_a_kernel_that_does_not_count_them_has_none() -> None:
    assert taken_pages("sockets: used 44\nTCP: inuse 2\n") == 0
