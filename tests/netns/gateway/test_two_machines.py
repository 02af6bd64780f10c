"""One gateway on two machines: what becomes of a laptop's connections when one of them dies."""

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from kit.redis_server import RedisServer
from kit.waiting import wait_until

from emu.testbed.netns import Namespace
from tests.netns.gateway.conftest import CEDOS, ORIGIN
from tests.netns.gateway.test_fetched_objects import GET, NGINX
from tests.netns.session.conftest import World

NODES = ("10.99.0.1", "10.99.0.2")
SIZE = 6_000_000
PROXY = ("-x", "http://127.0.0.1:1080")


class TwoMachines:
    """Two gateways with one key in `far`, each at an address of its own; the laptop is `near`.

    `places`: where they reach each other; `processes`: of how many each is.
    """

    def __init__(
        self,
        world: World,
        redis: RedisServer,
        folder: Path,
        places: tuple[str, str] = NODES,
        processes: tuple[int, int] = (1, 1),
    ) -> None:
        self.world, self.redis, self.folder = world, redis, folder
        self.places, self.processes = places, processes
        self.near, self.far = world.near, world.far
        self._started: list[subprocess.Popen[bytes]] = []
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.data = os.urandom(SIZE)

    def begin(self) -> None:
        for address in (ORIGIN, NODES[1]):
            self.far.ip("address", "add", f"{address}/32", "dev", "lo")
        for number in (1, 2):
            self.far.ip("address", "add", f"fd00::{number}/128", "dev", "lo", "nodad")
        self._serve()
        self.nodes.append(self._start_node(0))
        keys = self.folder / "node-0" / "cedos"
        shutil.copytree(keys, self.folder / "node-1" / "cedos")  # as its owner would
        self.nodes.append(self._start_node(1))
        line = (self.folder / "line-0").read_text()
        assert line.count(":7009") == 2
        assert (self.folder / "line-1").read_text() == ""
        joining = self.near.popen(
            *(CEDOS, "join", line.split()[-1]),
            stdout=subprocess.DEVNULL,
            env=self.environment("laptop"),
        )
        self._started.append(joining)
        assert joining.wait(20) == 0

    def environment(self, whose: str) -> dict[str, str]:
        folder = self.folder / whose
        return os.environ | {
            "XDG_CONFIG_HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "SSL_CERT_FILE": str(self.folder / "nginx" / "cert.pem"),
        }

    def _start_node(self, number: int) -> "subprocess.Popen[bytes]":
        log = self.folder / f"node-{number}.log"
        words = (
            *("--listen", f"{NODES[number]}:7009", "--address", NODES[1 - number]),
            *("--shared", self.redis.target, "--allow-local", "--log-level", "debug"),
            *("--node", self.places[number], "--processes", str(self.processes[number])),
        )
        processes = self.processes[number]
        with (self.folder / f"line-{number}").open("wb") as out, log.open("ab") as err:
            process = self.far.popen(
                *(CEDOS, "gateway", *words),
                stdout=out,
                stderr=err,
                env=self.environment(f"node-{number}"),
            )
        self._started.append(process)
        ready = f"processes={processes}" if processes > 1 else "ready"
        wait_until(lambda: ready in log.read_text())
        return process

    def log(self, number: int) -> str:
        return (self.folder / f"node-{number}.log").read_text()

    def forward(self, *options: str) -> None:
        log = self.folder / "forward.log"
        with log.open("wb") as out:
            process = self.near.popen(
                *(
                    CEDOS,
                    "forward",
                    "-D",
                    "1080",
                    "--fail",
                    "closed",
                    "--log-level",
                    "debug",
                    *options,
                ),
                stderr=out,
                env=self.environment("laptop"),
            )
        self._started.append(process)
        wait_until(lambda: "listens" in log.read_text())

    def _serve(self) -> None:
        folder = self.folder / "nginx"
        (folder / "www").mkdir(parents=True)
        (folder / "www" / "file").write_bytes(self.data)
        (folder / "www" / "large").write_bytes(bytes(8 * SIZE))
        (folder / "www" / "small").write_bytes(b"small")
        for name in ("file", "large", "small"):
            os.utime(folder / "www" / name, (1e9, 1e9))
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-days", "2",
             "-subj", f"/CN={ORIGIN}", "-addext", f"subjectAltName=IP:{ORIGIN}"],
            check=True, capture_output=True,
        )  # fmt: skip
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, origin=ORIGIN))
        process = self.far.popen("/usr/sbin/nginx", "-c", str(folder / "nginx.conf"))
        self._started.append(process)
        wait_until(lambda: self.far.run("ss", "-Hltn", "sport", "=", ":443").stdout != "")

    def curl(self, url: str, *words: str) -> "subprocess.Popen[bytes]":
        process = self.near.popen(
            *("curl", "-sS", "-k", *PROXY, *words, url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._started.append(process)
        return process

    def small_file_s(self) -> float:
        """How long a new connection and its answer take."""
        began_s = time.monotonic()
        got, err = self.curl(f"https://{ORIGIN}/small").communicate(timeout=30)
        assert got == b"small", err
        return time.monotonic() - began_s

    def cut(self, number: int, *networks: str) -> None:
        """The laptop does not reach that node over these networks any more; the other node does."""
        for name in networks:
            rule = ("-i", name, "-d", NODES[number], "-j", "DROP")
            self.far.run("iptables", "-I", "INPUT", *rule)

    def kill(self, number: int) -> None:
        self.nodes[number].kill()
        self.nodes[number].wait()

    def close(self) -> None:
        for process in reversed(self._started):
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def read_some(curl: Any, count: int) -> bytearray:
    got = bytearray()
    while len(got) < count:
        chunk = curl.stdout.read1(1 << 16)
        assert chunk, curl.stderr.read()
        got += chunk
    return got


@contextmanager
def two_machines(
    make_namespace: Callable[[str], Namespace],
    tmp_path: Path,
    places: tuple[str, str] = NODES,
    processes: tuple[int, int] = (1, 1),
) -> Iterator[TwoMachines]:
    redis = RedisServer(tmp_path)
    redis.start()
    world = World(make_namespace)
    made = TwoMachines(world, redis, tmp_path, places, processes)
    try:
        made.begin()
        yield made
    finally:
        made.close()
        world.close()
        redis.close()


@pytest.fixture
def machines(make_namespace: Callable[[str], Namespace], tmp_path: Path) -> Iterator[TwoMachines]:
    with two_machines(make_namespace, tmp_path) as made:
        yield made


def test_a_fetched_download_goes_on_over_the_other_machine(machines: TwoMachines) -> None:
    """A program's GET that the gateway fetches for it; a tunnel breaks at once."""
    machines.world.shape("8mbit")
    machines.forward()
    curl = machines.curl(f"http://{ORIGIN}/file")
    tunnel = machines.curl(f"https://{ORIGIN}/large", "-o", "/dev/null")
    got = read_some(curl, SIZE // 6)
    assert tunnel.poll() is None
    machines.kill(0)
    killed_s = time.monotonic()
    while time.monotonic() - killed_s < 0.1:  # what was on its way
        got += curl.stdout.read1(1 << 16)
    print(f"the download: {1e3 * (time.monotonic() - killed_s):.0f} ms until more of it came")
    took_s = machines.small_file_s()
    print(f"a new connection: {1e3 * took_s:.0f} ms")
    assert took_s < 3.0
    assert tunnel.wait(5) != 0
    rest, err = curl.communicate(timeout=60)
    assert curl.returncode == 0, err
    assert hashlib.sha256(got + rest).digest() == hashlib.sha256(machines.data).digest()
    log = (machines.folder / "nginx" / "access.log").read_text().splitlines()
    assert [each.split()[0] for each in log].count("206") == 1, log


def test_cedos_get_goes_on_over_the_other_machine(machines: TwoMachines, tmp_path: Path) -> None:
    machines.world.shape("8mbit")
    target, part = tmp_path / "got", tmp_path / "got.part"
    getting = machines.near.popen(
        *(GET, "--via", "gateway", "-o", str(target), f"https://{ORIGIN}/file"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=machines.environment("laptop"),
    )
    machines._started.append(getting)
    wait_until(lambda: part.exists() and part.stat().st_size > SIZE // 6)
    machines.kill(0)
    had, killed_s = part.stat().st_size, time.monotonic()
    wait_until(lambda: not part.exists() or part.stat().st_size > had + 200_000)
    print(f"cedos-get: {1e3 * (time.monotonic() - killed_s):.0f} ms until more of it came")
    _, err = getting.communicate(timeout=60)
    assert getting.returncode == 0, err
    assert target.read_bytes() == machines.data


def test_an_idle_laptop_goes_on_with_its_session(machines: TwoMachines) -> None:
    machines.forward()
    machines.small_file_s()
    time.sleep(1.0)
    machines.kill(0)
    killed_s = time.monotonic()
    wait_until(lambda: "a client of another node goes on here" in machines.log(1))
    print(f"taken over {1e3 * (time.monotonic() - killed_s):.0f} ms after the kill")
    took_s = machines.small_file_s()
    print(f"a new connection: {1e3 * took_s:.0f} ms")
    assert took_s < 1.0
    assert "session over" not in (machines.folder / "forward.log").read_text()


def test_a_machine_that_falls_silent_is_left(machines: TwoMachines) -> None:
    machines.forward()
    machines.small_file_s()
    time.sleep(1.0)
    machines.far.run("iptables", "-I", "INPUT", "-d", NODES[0], "-j", "DROP")
    machines.far.run("iptables", "-I", "OUTPUT", "-s", NODES[0], "-j", "DROP")
    took_s = machines.small_file_s()
    print(f"a new connection: {1e3 * took_s:.0f} ms")
    assert took_s < 4.0
    wait_until(lambda: "a client of another node goes on here" in machines.log(1))
    assert machines.small_file_s() < 1.0


def test_a_network_that_carries_nothing_moves_nobody(machines: TwoMachines) -> None:
    machines.world.shape("8mbit")
    machines.forward()
    curl = machines.curl(f"https://{ORIGIN}/file")
    got = read_some(curl, SIZE // 6)
    for name in ("wlan0", "lte0"):
        machines.near.run("iptables", "-I", "INPUT", "-i", name, "-j", "DROP")
    time.sleep(5.0)
    for name in ("wlan0", "lte0"):
        machines.near.run("iptables", "-D", "INPUT", "-i", name, "-j", "DROP")
    rest, err = curl.communicate(timeout=60)
    assert curl.returncode == 0, err
    assert got + rest == machines.data
    assert "client came" not in machines.log(1)


def test_redis_may_die_and_come_back(machines: TwoMachines) -> None:
    machines.world.shape("8mbit")
    machines.forward()
    curl = machines.curl(f"https://{ORIGIN}/file")
    got = read_some(curl, SIZE // 6)
    machines.redis.kill()
    assert machines.small_file_s() < 1.0
    got += read_some(curl, SIZE // 6)
    machines.redis.start()
    rest, err = curl.communicate(timeout=60)
    assert curl.returncode == 0, err
    assert got + rest == machines.data
    assert machines.log(0).count("Redis does not answer") <= 1
    machines.small_file_s()
    time.sleep(6.0)  # by now it has looked
    machines.kill(0)
    wait_until(lambda: "a client of another node goes on here" in machines.log(1))


def test_garbage_in_redis_is_refused(machines: TwoMachines) -> None:
    machines.forward()
    machines.small_file_s()
    time.sleep(1.0)

    def redis(*words: str) -> str:
        asked = ["redis-cli", "-s", machines.redis.path, *words]
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout

    names = redis("KEYS", "*:flow:*").split()
    assert len(names) == 1
    redis("HSET", names[0], "v", "\x01" + "x" * 237)
    machines.kill(0)
    assert machines.small_file_s() < 3.0
    wait_until(lambda: "what lies in Redis is not a node's" in machines.log(1))
    assert "a client of another node" not in machines.log(1)
    # What is no hash at all hurts nobody either.
    for name in redis("KEYS", "*").split():
        redis("SET", name, "nonsense")
    assert machines.small_file_s() < 1.0
