"""A video through helpers: what the server sends when, the player, and one run of both.

The server is YouTube's of those years (Ameigeiras et al., the paper's [36]): chunks of 64 kB whose period
gives 1.25 times the bit rate of the video. The player starts, and goes on after a pause, when 316 kB are
there in order (the paper's LowWaterThreshold).
"""

from dataclasses import dataclass, field
from math import ceil
from random import Random
from typing import Final

from cedos.model import NetworkKind
from cedos.session.protocol.schedulers.interface import Scheduler
from cedos.session.protocol.schedulers.plain import RoundRobin
from cedos.session.protocol.schedulers.swtc import PACKET_BYTES, Swtc
from emu.places.traces import Trace
from emu.simulator.bandwidth import DeliveryRate, Westwood
from emu.simulator.link import Clock, Network
from emu.simulator.stream import Counts, Stream
from emu.simulator.tcp import PAYLOAD_BYTES, TcpSettings
from emu.testbed.access import Access

SWTC, LOWEST_RTT = "swtc", "lowest-rtt"
_TRACE_S, _UP_BPS = 12.0, 2e6

NS2: Final = TcpSettings(first_window=2.0, restarts=True)
"""The paper's simulator begins with two packets (ns-2's default), and again after idle times."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A run's setting; the defaults are the paper's, where it says them.

    Attributes:
        delta_kbps: the second helper has so much less than the first one, the third twice as much.
        loss: share of packets that the third helper loses.
        off_s: the period of chunks, None: what gives 1.25 times the video's rate.
    """

    delta_kbps: float = 0.0
    video_bps: float = 1_271e3
    video_s: float = 120.0
    burst_s: float = 0.0
    throttle: float = 1.25
    chunk_bytes: int = 64_000
    off_s: float | None = None
    loss: float = 0.0
    window_bytes: float = 500e3
    first_kbps: float = 700.0
    rtt_s: float = 0.098
    queue_packets: int = 50
    threshold_bytes: float = 316e3
    tcp: TcpSettings = NS2
    westwood: bool = True

    @property
    def period_s(self) -> float:
        if self.off_s is not None:
            return self.off_s
        return 8 * self.chunk_bytes / (self.throttle * self.video_bps)

    def rates_bps(self) -> list[float]:
        return [1e3 * (self.first_kbps - number * self.delta_kbps) for number in range(3)]


@dataclass(slots=True)
class Player:
    """A player with its buffer.

    Attributes:
        started_s: when the video began to play; None: not yet.
        paused_s: the sum of its pauses since.
    """

    bitrate_bps: float
    size_bytes: float
    threshold_bytes: float
    started_s: float | None = None
    paused_s: float = 0.0
    ended_s: float | None = None
    _got_bytes: float = 0.0
    _played_bytes: float = 0.0
    _playing: bool = False
    _at_s: float = 0.0

    def advance(self, now_s: float) -> None:
        """Play what can be played until now."""
        since_s, self._at_s = now_s - self._at_s, now_s
        if self.started_s is None or self.ended_s is not None:
            return
        if not self._playing:
            self.paused_s += since_s
            return
        able_s = 8 * (self._got_bytes - self._played_bytes) / self.bitrate_bps
        played_s = min(since_s, able_s)
        self._played_bytes += self.bitrate_bps / 8 * played_s
        if self._played_bytes >= self.size_bytes - 1.0:
            self.ended_s = now_s - (since_s - played_s)
        elif played_s < since_s:
            self._playing = False
            self.paused_s += since_s - played_s

    def on_bytes(self, got_bytes: float, now_s: float) -> None:
        """Note that so many bytes are there in order."""
        self.advance(now_s)
        self._got_bytes = min(got_bytes, self.size_bytes)
        buffered = self._got_bytes - self._played_bytes
        if not self._playing and (
            buffered >= self.threshold_bytes or self._got_bytes >= self.size_bytes
        ):
            self._playing = True
            if self.started_s is None:
                self.started_s = now_s

    @property
    def pci(self) -> float:
        """The playout continuity index: 1 - pauses / time of playing."""
        playout_s = 8 * self._played_bytes / self.bitrate_bps
        return 1.0 - self.paused_s / playout_s if playout_s else 0.0


@dataclass(slots=True)
class Watched:
    """What came of a run.

    Attributes:
        use: by instant, every 100 ms, the share of helpers to which a packet was given since.
        windows: by instant, every 20 ms, the congestion window of each helper in packets.
    """

    pci: float
    startup_s: float
    counts: Counts
    restarts: list[int]
    packets: list[int]
    ended_s: float
    use: list[float] = field(default_factory=list)
    windows: list[list[float]] = field(default_factory=list)


def scheduler(name: str) -> Scheduler | None:
    match name:
        case "swtc":
            return Swtc(PACKET_BYTES)
        case "round-robin":
            return RoundRobin()
        case _:
            return None


def access(rate_bps: float, setting: Setting, draw: Random, loss: float = 0.0) -> Access:
    """Return a helper's link, whose opportunities begin anywhere between two packets."""
    down = Trace.constant(rate_bps, _TRACE_S).rotated(draw.random())
    up = Trace.constant(_UP_BPS, _TRACE_S)
    return Access(NetworkKind.CELLULAR, up, down, setting.rtt_s, setting.queue_packets, loss)


def watch(setting: Setting, name: str, seed: int = 1, *, details: bool = False) -> Watched:
    """Play a video once."""
    clock = Clock()
    rates = setting.rates_bps()
    draw = Random(seed)
    networks = [
        Network(
            clock,
            access(rate, setting, draw, setting.loss if number == len(rates) - 1 else 0.0),
            draw,
        )
        for number, rate in enumerate(rates)
    ]
    size = setting.video_bps / 8 * setting.video_s
    player = Player(setting.video_bps, size, setting.threshold_bytes)
    stream = Stream(
        clock,
        networks,
        scheduler(name),
        window_bytes=setting.window_bytes,
        on_data=lambda front: player.on_bytes(front * PAYLOAD_BYTES, clock.now_s),
        settings=setting.tcp,
        bandwidth=Westwood if setting.westwood else DeliveryRate,
    )
    total = ceil(size / PAYLOAD_BYTES)
    burst = ceil(setting.burst_s * setting.video_bps / 8 / PAYLOAD_BYTES)
    chunk = ceil(setting.chunk_bytes / PAYLOAD_BYTES)
    begin_s = draw.random()

    def serve() -> None:
        count = min(chunk, total - stream.written)
        if count > 0:
            stream.write(count)
            clock.after(setting.period_s, serve)

    clock.run(begin_s)
    player.advance(begin_s)
    if burst:
        stream.write(min(burst, total))
    serve()
    paths = list(stream.paths)
    watched = Watched(0.0, 0.0, stream.counts, [], [], 0.0)
    limit_s = begin_s + 6 * setting.video_s + 60
    taken = [0] * len(paths)
    tick = 0
    while player.ended_s is None and clock.now_s < limit_s:
        tick += 1
        clock.run(begin_s + 0.02 * tick)
        player.advance(clock.now_s)
        if details:
            watched.windows.append([path.sender.cwnd for path in paths])
            if tick % 5 == 0:
                now = [path.taken for path in paths]
                watched.use.append(sum(a > b for a, b in zip(now, taken, strict=True)) / len(now))
                taken = now
    player.advance(clock.now_s)
    watched.pci = player.pci
    watched.startup_s = (player.started_s or clock.now_s) - begin_s
    watched.restarts = [path.sender.restarts for path in paths]
    watched.packets = [path.taken for path in paths]
    watched.ended_s = (player.ended_s or clock.now_s) - begin_s
    return watched
