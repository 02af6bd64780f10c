"""After kill -9, with a journal damaged in any way: the host is exact, or what is left is named."""

import asyncio
import os
import random
import signal

import pytest
from kit.steered import steering_of

from cedos.host.steer.journal import FILE_NAME
from cedos.host.steer.steering import restore

HOSTILE = b'{"undo":"sysctl","key":"%s","before":"owned","after":"%s"}\n'


def killed(host):
    """A process that steers, and is killed with -9 while it does."""

    async def steer():
        async with steering_of(host, default="lte0", rescue=True) as steering:
            steering.set_destination("198.51.100.7", 443, "wlan0", protocol="tcp")
            steering.paths_measured({"wlan0": (20e6, 0.02), "lte0": (10e6, 0.06)})
            await steering.barring.bar(["lte0"])
            os.write(ready, b".")
            await asyncio.sleep(60)

    steers, ready = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            host.run(steer)
        finally:
            os._exit(1)
    os.close(ready)
    try:
        assert os.read(steers, 1) == b".", "it did not begin to steer"
    finally:
        os.close(steers)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def place(parts, chance):
    """Return the index of a part; how many there are changes hardly which one, and no later draw."""
    return int(chance.random() * len(parts))


def cut(path, data, chance):
    path.write_bytes(data[: place(data, chance)])


def cut_between_lines(path, data, chance):
    lines = data.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: place(lines, chance)]))


def beginning_lost(path, data, chance):
    path.write_bytes(data[place(data, chance) :])


def zeros(path, data, chance):
    begin = place(data, chance)
    path.write_bytes(data[:begin] + bytes(len(data) - begin))


def bits(path, data, chance):
    flipped = bytearray(data)
    for _ in range(30):
        flipped[place(data, chance)] ^= 1 << chance.randrange(8)
    path.write_bytes(flipped)


def noise(path, data, chance):
    path.write_bytes(chance.randbytes(len(data)))


def noise_within(path, data, chance):
    lines = data.splitlines(keepends=True)
    lines[place(lines, chance)] = chance.randbytes(99) + b"\n"
    path.write_bytes(b"".join(lines))


def shuffled(path, data, chance):
    lines = data.splitlines(keepends=True)
    chance.shuffle(lines)
    path.write_bytes(b"".join(lines[1:]))


def nested(path, data, _):
    path.write_bytes(data[:100] + b"\n" + b'{"undo":' * 100_000)


def endless(path, data, _):
    with path.open("r+b") as file:
        file.truncate(1 << 40)


def gone(path, data, _):
    path.unlink()


def fifo(path, data, _):
    path.unlink()
    os.mkfifo(path)


def link(path, data, _):
    path.unlink()
    path.symlink_to(path.with_name("elsewhere"))


def folder(path, data, _):
    path.unlink()
    path.mkdir()


def foreign(path, data, _):
    os.chown(path, 65534, 65534)


def hostile(path, data, _):
    elsewhere = path.with_name("elsewhere")
    attack = HOSTILE % (str(elsewhere).encode(), elsewhere.read_bytes().strip())
    path.write_bytes(attack + data + attack + HOSTILE % (b"net.ipv4.ip_forward", b"0"))


EACH = (gone, fifo, link, folder, foreign, hostile, nested, endless)
SEEDED = (cut, cut_between_lines, beginning_lost, zeros, bits, noise, noise_within, shuffled)


def sysctls(host):
    listed = host.client.run("sysctl", "-a", "-r", "^(net|kernel.core)", check=False).stdout
    return dict(line.split(" = ", 1) for line in listed.splitlines() if " = " in line)


@pytest.mark.parametrize(
    ("damages", "seed", "least_exact"),
    [(EACH, 0, 1), (SEEDED, 16, 4), pytest.param(SEEDED, 17, 3, marks=pytest.mark.long)],
)
def test_damaged_journals(host, damages, seed, least_exact):
    before, own, rules = host.state(), sysctls(host), host.client.ip("rule")
    path, elsewhere = host.directory / FILE_NAME, host.directory / "elsewhere"
    elsewhere.write_text("as it was\n")
    exact = 0
    for damage in damages:
        killed(host)
        assert host.client.ip("rule") != rules
        damage(path, path.read_bytes(), random.Random(f"{seed} {damage.__name__}"))
        with host.client.entered():
            undone = restore(host.directory)
        why = (damage.__name__, undone)
        now = sysctls(host)
        changed = {key for key in own if own[key] != now[key] and "conntrack_count" not in key}
        # A kernel that has both names of the path manager keeps them in step.
        changed -= {"net.mptcp.pm_type"} if "net.mptcp.path_manager" in changed else set()
        assert all(any(key in line for line in undone.left) for key in changed), why
        # What is named is set right by hand; all else is as it was.
        for key in changed:
            host.client.sysctl(key, own[key])
        assert host.state() == before, why
        exact += not changed
        assert elsewhere.read_text() == "as it was\n"
        # What was not understood is kept, and a start goes on with it.
        if undone.left and damage is not gone:
            assert os.path.lexists(path), why
        host.run(lambda: begin_and_end(host))
        assert host.state() == before, why
        assert not os.path.lexists(path), why
    # The other journals have lost what the sysctls were, and `restore` named them.
    assert exact >= least_exact


async def begin_and_end(host):
    async with steering_of(host):
        pass
