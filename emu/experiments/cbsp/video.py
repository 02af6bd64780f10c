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
from cedos.session.protocol.schedulers.swtc import Swtc
from emu.places.traces import Trace
from emu.simulator.link import Clock, Network
from emu.simulator.stream import Counts, Stream
from emu.simulator.tcp import PAYLOAD_BYTES, TcpSettings
from emu.testbed.access import Access

SWTC, LOWEST_RTT = "swtc", "lowest-rtt"
SCHEDULERS: Final = (SWTC, LOWEST_RTT)

# TCP of the paper's simulator: an initial window of two packets (ns-2's default), also after idle
# times.
NS2: Final = TcpSettings(first_window=2.0, idle_leaves=0.0)
_TRACE_S, _UP_BPS = 12.0, 2e6
_TICK_S: Final = 0.02
# The ticks between two samples of idle helpers: 100 ms, as in the paper.
_SAMPLE_TICKS: Final = 5


@dataclass(frozen=True, slots=True)
class Setting:
    """A run's setting; the defaults are the paper's, where it says them."""

    # The second helper has so much less than the first one, the third twice as much.
    delta_kbps: float = 0.0
    video_bps: float = 1_271e3
    video_s: float = 40.0
    throttle: float = 1.25  # the server's rate over the video's
    chunk_bytes: int = 64_000
    period_s: float | None = None  # of chunks, None: what gives that rate
    loss: float = 0.0  # share of packets that the third helper loses
    window_bytes: float = 500e3
    first_kbps: float = 700.0
    # The base round trip of all helpers: the mean over 3G that the paper cites.
    rtt_s: float = 0.098
    queue_packets: int = 50
    threshold_bytes: float = 316e3

    def chunk_period_s(self) -> float:
        if self.period_s is not None:
            return self.period_s
        return 8 * self.chunk_bytes / (self.throttle * self.video_bps)

    def rates_bps(self) -> list[float]:
        return [1e3 * (self.first_kbps - number * self.delta_kbps) for number in range(3)]


@dataclass(slots=True)
class Player:
    """A player with its buffer."""

    bitrate_bps: float
    size_bytes: float
    threshold_bytes: float
    started_s: float | None = None  # when the video began to play; None: not yet
    paused_s: float = 0.0  # the sum of its pauses since
    ended_s: float | None = None  # when the last of it was played
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
        whole = self._got_bytes >= self.size_bytes
        if not self._playing and (whole or buffered >= self.threshold_bytes):
            self._playing = True
            if self.started_s is None:
                self.started_s = now_s

    @property
    def pci(self) -> float:
        """The playout continuity index: 1 - time of pauses / time of playing."""
        playout_s = 8 * self._played_bytes / self.bitrate_bps
        return 1.0 - self.paused_s / playout_s if playout_s else 0.0


@dataclass(slots=True)
class Watched:
    """The outcome of a run."""

    pci: float  # the playout continuity index
    startup_s: float  # from the server's first packet to the player's start
    ended_s: float  # from there to the end of the video
    counts: Counts
    restarts: list[int]  # of the helpers' windows after idle times
    # By 100 ms, the share of helpers with a packet on its way, while the server sends.
    busy: list[float] = field(default_factory=list)
    # By 20 ms, each helper's congestion window in packets.
    windows: list[list[float]] = field(default_factory=list)

    @property
    def order_wait_s(self) -> float:
        """Mean time that a packet waits at the client for those before it."""
        return self.counts.order_wait_s / max(self.counts.packets, 1)

    @property
    def out_of_order_share(self) -> float:
        return self.counts.out_of_order / max(self.counts.packets, 1)


class Showing:
    """A video that is about to begin: its clock, its stream, which has no helper yet, and its player."""

    def __init__(self, setting: Setting, scheduler: str, draw: Random) -> None:
        self.clock = Clock()
        self._setting = setting
        self._draw = draw
        size = setting.video_bps / 8 * setting.video_s
        self._player = Player(setting.video_bps, size, setting.threshold_bytes)
        self.stream = Stream(
            self.clock,
            [],
            # Lowest round trip first is what the stream does by itself.
            Swtc(PAYLOAD_BYTES) if scheduler == SWTC else None,
            window_bytes=setting.window_bytes,
            on_data=lambda front: self._player.on_bytes(front * PAYLOAD_BYTES, self.clock.now_s),
            settings=NS2,
        )

    def network(self, rate_bps: float, loss: float = 0.0) -> Network:
        """Return a helper's network, whose opportunities begin anywhere between two packets."""
        down = Trace.constant(rate_bps, _TRACE_S).rotated(self._draw.random())
        up = Trace.constant(_UP_BPS, _TRACE_S)
        setting = self._setting
        access = Access(NetworkKind.CELLULAR, up, down, setting.rtt_s, setting.queue_packets, loss)
        return Network(self.clock, access, self._draw)

    def play(self) -> Watched:
        """Play the video to its end, or until six times as long has passed."""
        setting, stream, clock, player = self._setting, self.stream, self.clock, self._player
        total = ceil(player.size_bytes / PAYLOAD_BYTES)
        chunk = ceil(setting.chunk_bytes / PAYLOAD_BYTES)

        def serve() -> None:
            count = min(chunk, total - stream.written)
            if count > 0:
                stream.write(count)
                clock.after(setting.chunk_period_s(), serve)

        serve()
        paths = list(stream.paths)
        busy, windows = [], []
        tick = 0
        while player.ended_s is None and clock.now_s < 6 * setting.video_s:
            tick += 1
            clock.run(_TICK_S * tick)
            player.advance(clock.now_s)
            windows.append([round(path.sender.cwnd, 1) for path in paths])
            if tick % _SAMPLE_TICKS == 0 and paths and stream.counts.packets < total:
                busy.append(sum(path.sender.inflight > 0 for path in paths) / len(paths))
        return Watched(
            player.pci,
            clock.now_s if player.started_s is None else player.started_s,
            clock.now_s if player.ended_s is None else player.ended_s,
            stream.counts,
            [path.sender.restarts for path in paths],
            busy,
            windows,
        )


def watch(setting: Setting, scheduler: str, seed: int) -> Watched:
    """Play a video once over three helpers that stay."""
    showing = Showing(setting, scheduler, Random(seed))
    rates = setting.rates_bps()
    for number, rate_bps in enumerate(rates):
        last = number == len(rates) - 1
        showing.stream.join(showing.network(rate_bps, setting.loss if last else 0.0))
    return showing.play()
