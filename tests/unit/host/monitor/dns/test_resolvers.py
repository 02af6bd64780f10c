import asyncio
from ipaddress import ip_address, ip_interface

from cedos.host.monitor.resolvers import (
    FileWatch,
    Resolvers,
    parse_hosts,
    parse_resolv_conf,
    parse_resolved,
)

GOOGLE, HOME, V6 = ip_address("8.8.8.8"), ip_address("10.0.1.1"), ip_address("fe80::1")


def test_resolv_conf():
    content = (
        "# nameserver 1.2.3.4\nsearch lan\nnameserver 127.0.0.53\nnameserver 8.8.8.8 # public\n"
        "nameserver 8.8.8.8\nnameserver\nnameserver nonsense\nnameserver fe80::1%wlan0\n"
    )
    assert parse_resolv_conf(content) == (GOOGLE, V6)


def test_resolved():
    dns = [
        [2, 2, b"\x0a\x00\x01\x01"],
        [2, 10, bytes(V6.packed)],
        [0, 2, b"\x09\x09\x09\x09"],
        [3, 2, b"\x08\x08"],
        [3, 2],
        "nonsense",
        [3, 2, list(b"\x08\x08\x08\x08")],
    ]
    assert parse_resolved(dns) == {2: (HOME, V6), 3: (GOOGLE,)}
    assert parse_resolved(None) == {}


def test_which_servers_are_a_networks_own():
    own = [ip_interface("10.0.1.2/24"), ip_interface("fe80::5/64")]
    known = Resolvers({2: (GOOGLE,)}, (HOME, V6, ip_address("10.0.2.1")))
    assert known.of(2, own, genuine=True) == (GOOGLE,)
    # In another namespace than the host's, its interface numbers mean nothing.
    assert known.of(2, own, genuine=False) == (HOME, V6)
    assert known.of(4, own, genuine=True) == (HOME, V6)
    assert known.of(4, [], genuine=True) == ()


async def test_a_file_that_is_replaced_behind_a_link_is_noticed(tmp_path):
    real, link = tmp_path / "run" / "real.conf", tmp_path / "etc" / "resolv.conf"
    for file in (real, link):
        file.parent.mkdir()
    real.write_text("")
    link.symlink_to(real)
    changed = asyncio.Event()
    watch = FileWatch(link, changed.set)
    try:
        (real.parent / "other").write_text("not this one")
        await asyncio.sleep(0.05)
        assert not changed.is_set()
        (real.parent / "new").write_text("nameserver 10.0.0.1")
        (real.parent / "new").rename(real)
        await asyncio.wait_for(changed.wait(), 5)
    finally:
        watch.close()
    watch.close()


def test_the_hosts_file_is_read():
    found = parse_hosts(
        "127.0.0.1 localhost\n10.0.0.7\tUpdates.Example. dl.updates.example # here\n"
        "fe80::1%eth0 link.example\nnonsense name\n\n10.0.0.8 updates.example\n"
    )
    assert [str(each) for each in found["updates.example"]] == ["10.0.0.7", "10.0.0.8"]
    assert str(found["link.example"][0]) == "fe80::1"
    assert "name" not in found
