"""The Traffic Profiler: estimates the size of a transfer near its start (Delphi, section 4). Pure.

Delphi names three moments: an application gives a hint (`hint`), a connection begins (`opened`), an
HTTP message appears (`observe`). Two are added: a TLS or QUIC handshake gives the server's name
(`observe`), and a transfer outgrows its estimate (`on_progress`).
"""

from collections import OrderedDict
from dataclasses import replace

from cedos.controller.events import SizeLearned
from cedos.controller.hint import HintRequest
from cedos.host.profiler import http
from cedos.host.profiler.flow import (
    PendingRequest,
    ProfiledFlow,
    RunningTransfer,
    TransferHints,
    fits,
    ways,
)
from cedos.host.profiler.frame import CapturedPacket
from cedos.host.profiler.handshakes import Handshakes
from cedos.host.profiler.sizes import (
    CHUNKED,
    UNKNOWN,
    WHOLE,
    EstimateBasis,
    Prior,
    SizeHistory,
    in_chunks,
    of_chunks,
    resource_name,
)
from cedos.host.profiler.tls import ClientHello
from cedos.model import Direction, FlowKey, SizeEstimate

# A connection's opening may be reported this long after its first packet was captured.
_OPENING_LATE_S = 2.0


class Profiler:
    """Follows flows and answers with `SizeLearned` events.

    The history's unit is one transfer: an HTTP message's body, or a whole connection where its
    content is hidden. Beyond `max_flows` the longest silent flow is forgotten.
    """

    def __init__(
        self,
        history: SizeHistory | None = None,
        *,
        max_flows: int = 8192,
    ) -> None:
        self.history = history if history is not None else SizeHistory()
        self._max_flows = max_flows
        self._flows: OrderedDict[FlowKey, ProfiledFlow] = OrderedDict()
        self._hints = TransferHints()
        self._hellos = Handshakes()

    def __len__(self) -> int:
        return len(self._flows)

    def has_seen(self, key: FlowKey) -> bool:
        """Return whether a message of this host on the flow was seen."""
        return key in self._flows

    def on_open(
        self, key: FlowKey, now_s: float, *, incoming: bool = False, mark: int | None = None
    ) -> list[SizeLearned]:
        """Record that a connection begins: only its other end is known yet."""
        flow = self._flows.get(key)
        if flow and flow.observed_at_s is not None and now_s < flow.observed_at_s + _OPENING_LATE_S:
            flow.mark = mark
            return [] if mark is None else self._reannounce(flow)
        self._flows.pop(key, None)
        flow = self._flow(key, client=not incoming)
        flow.mark = mark
        return [self._whole_connection(flow)]

    def observe(self, captured: CapturedPacket, now_s: float) -> list[SizeLearned]:
        """Read a captured packet that begins a message; return the new estimates.

        Messages on any subflow of an MPTCP connection belong together: replace the packet's key by
        the first subflow's.
        """
        if captured.key.protocol == "udp":
            return self._initial(captured, now_s)
        if (hello := self._hellos.proceed(captured)) is not None:
            return self._on_hello(self._flow(captured.key), hello)
        payload = captured.payload
        if payload.startswith(b"\x16"):
            return self._client_hello(captured, now_s)
        response = http.parse_response(payload)
        if response is not None:
            return self._response(captured, response, now_s)
        request = http.parse_request(payload)
        return [] if request is None else self._request(captured, request, now_s)

    def on_progress(self, key: FlowKey, bytes_down: int, bytes_up: int) -> list[SizeLearned]:
        """Record the bytes of a flow so far; return a new estimate if the last one is exceeded."""
        flow = self._flow(key)
        carried = {Direction.DOWN: bytes_down, Direction.UP: bytes_up}
        for way, stream in flow.streams.items():
            stream.carried_bytes = carried[way]
        running = flow.running
        if running is None or running.basis is None:
            return []
        direction = running.direction
        if flow.opaque and bytes_up != bytes_down:
            direction = Direction.UP if bytes_up > bytes_down else Direction.DOWN
        so_far = carried[direction] - running.base_bytes
        if so_far <= running.size.median_bytes:
            return []
        basis = running.basis
        if direction is not running.direction:
            basis = EstimateBasis(flow.hosts, self._prior(flow, direction))
        size = basis.estimate_above(self.history, flow.port, direction, so_far)
        flow.running = replace(running, direction=direction, size=size, basis=basis)
        return [self._event(flow, self._hints.find(key, flow.server_name, flow.mark))]

    def on_close(self, key: FlowKey, bytes_down: int | None, bytes_up: int | None) -> None:
        """From a flow's final figures (None: not known) the history learns.

        Of MPTCP, give the first subflow's key and the sums over all subflows, as for `on_progress`.
        """
        flow = self._flows.pop(key, None) or ProfiledFlow(key)
        self._hellos.forget(key)
        if bytes_down is None or bytes_up is None:
            return
        finals = {Direction.DOWN: bytes_down, Direction.UP: bytes_up}
        if flow.opaque:
            # A refused connection is no transfer; the kernel may count the handshake as a byte.
            # Nor is a question to a name server, or whatever else goes in datagrams.
            if max(bytes_down, bytes_up) > 1 and (key.protocol == "tcp" or flow.server_name):
                for direction, total in finals.items():
                    self._learn(flow, direction, total)
            return
        for direction, stream in flow.streams.items():
            if flow.numbered:
                self._on_end(flow, direction, stream.end_body(finals[direction]))

    def forget(self, key: FlowKey) -> None:
        """Ignore a flow from now on: a further subflow of a connection that has ended, say."""
        self._flows.pop(key, None)
        self._hellos.forget(key)

    def hint(self, number: int, hint: HintRequest, mark: int | None) -> list[SizeLearned]:
        """Take a program's hint by its number; return the changed estimates of present flows."""
        self._hints.add(number, hint, mark)
        return [
            event
            for flow in self._flows.values()
            if mark in (None, flow.mark) and fits(hint, flow.key, flow.server_name)
            for event in self._reannounce(flow)
        ]

    def unhint(self, number: int) -> None:
        self._hints.remove(number)

    @property
    def wants_marks(self) -> bool:
        """True if a hint depends on a socket's mark, which `opened` then needs."""
        return self._hints.by_mark

    def server_name(self, key: FlowKey) -> str | None:
        flow = self._flows.get(key)
        return flow.server_name if flow else None

    def _client_hello(self, captured: CapturedPacket, now_s: float) -> list[SizeLearned]:
        flow = self._flow(captured.key, client=captured.outgoing)
        if self._message_position(flow, captured, now_s) is None:
            return []
        if not flow.opaque:
            flow.opaque, flow.running = True, None
        flow.tls = True
        return self._on_hello(flow, self._hellos.begin(captured))

    def _initial(self, captured: CapturedPacket, now_s: float) -> list[SizeLearned]:
        hello = self._hellos.initial(captured)
        if hello is None:
            return []  # not an Initial: no flow is stored for it
        flow = self._flow(captured.key, client=captured.outgoing)
        flow.observed_at_s = flow.observed_at_s or now_s
        return self._on_hello(flow, hello)

    def _on_hello(self, flow: ProfiledFlow, hello: ClientHello | None) -> list[SizeLearned]:
        """Return the estimates that a hello allows, which may be incomplete yet."""
        if hello is not None and hello.ech:
            flow.ech = True
        name = hello.name if hello else None
        if flow.running is not None and name in (None, flow.server_name):
            return []
        flow.server_name = name or flow.server_name
        return [self._whole_connection(flow)]

    def _request(
        self, captured: CapturedPacket, request: http.HttpRequest, now_s: float
    ) -> list[SizeLearned]:
        flow = self._flow(captured.key, client=captured.outgoing)
        position = self._message_position(flow, captured, now_s)
        if position is None:
            return []
        flow.server_name = request.host or flow.server_name
        resource = None
        if request.method in {"GET", "HEAD"} and request.target is not None:
            resource = resource_name(flow.hosts[0], flow.port, request.target)
        flow.pending.append(PendingRequest(request.method, resource))
        flow.opaque = request.method == "CONNECT"
        if flow.opaque:
            return [self._whole_connection(flow)]
        there, back = ways(captured.outgoing)
        if request.chunked:
            flow.streams[there].body_at = position + (request.head_bytes or len(captured.payload))
            basis = EstimateBasis(in_chunks(flow.hosts), CHUNKED)
            return [self._estimate(flow, there, position, basis)]
        body = request.content_length or 0
        self._learn(flow, there, body)
        if body:
            return [self._begin_transfer(flow, there, _exact(body), position, None)]
        if request.method == "HEAD":
            flow.running = None
            return []
        base = max(flow.streams[back].position, flow.streams[back].carried_bytes)
        before = self.history.resource(resource)
        evidence = () if before is None else (before,)
        return [self._estimate(flow, back, base, EstimateBasis(flow.hosts, UNKNOWN, evidence))]

    def _response(
        self, captured: CapturedPacket, response: http.HttpResponse, now_s: float
    ) -> list[SizeLearned]:
        flow = self._flow(captured.key, client=not captured.outgoing)
        position = self._message_position(flow, captured, now_s)
        if position is None:
            return []
        status = response.status
        if status < 200 and status != 101:
            return []  # the final response is still to come
        method, resource = flow.pending.popleft() if flow.pending else (None, None)
        if status == 101 or (method == "CONNECT" and status < 300):
            flow.opaque = True  # another protocol from here on
            return []
        flow.opaque = False
        way, _ = ways(captured.outgoing)
        if method == "HEAD":
            # It tells what a GET would bring.
            if status == 200 and resource is not None and response.content_length:
                self.history.learn_resource(resource, response.content_length)
            return []
        length = 0 if status in (204, 304) else response.content_length
        if length is not None:
            self._learn(flow, way, length)
            if length == 0:
                flow.running = None
                return []
            if status == 200 and resource is not None:
                self.history.learn_resource(resource, length)
            return [self._begin_transfer(flow, way, _exact(length), position, None)]
        flow.streams[way].body_at = position + (response.head_bytes or len(captured.payload))
        flow.body_of = resource if status == 200 else None
        flow.body_chunked = response.chunked
        basis = EstimateBasis(flow.hosts, UNKNOWN)
        if response.chunked:
            before = self.history.resource(flow.body_of)
            basis = of_chunks(flow.hosts, CHUNKED, response, before)
        return [self._estimate(flow, way, position, basis)]

    def _flow(self, key: FlowKey, *, client: bool | None = None) -> ProfiledFlow:
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = ProfiledFlow(key)
            if len(self._flows) > self._max_flows:
                self._flows.popitem(last=False)
        else:
            self._flows.move_to_end(key)
        if client is not None:
            flow.client = client
        return flow

    def _message_position(
        self, flow: ProfiledFlow, captured: CapturedPacket, now_s: float
    ) -> int | None:
        """Return the position of a message in its stream; None for a repeated one."""
        if flow.observed_at_s is None:
            flow.observed_at_s = now_s
        flow.mptcp |= captured.mptcp
        # An MPTCP connection may fall back to TCP, whose numbers do not go on where it was.
        comparable = captured.mptcp is flow.mptcp
        sequence = captured.sequence if comparable else None
        acknowledgement = captured.acknowledgement if comparable else None
        way, other = ways(captured.outgoing)
        stream = flow.streams[way]
        if acknowledgement is not None:
            flow.streams[other].expect(acknowledgement)
        if sequence is None:
            flow.numbered = False
            return stream.carried_bytes
        position = stream.begin(sequence)
        if position is not None and flow.numbered:
            self._on_end(flow, way, stream.end_body(position))
        return position

    def _on_end(self, flow: ProfiledFlow, direction: Direction, size_bytes: int | None) -> None:
        if size_bytes is None:
            return
        self._learn(flow, direction, size_bytes)
        if direction is not flow.answers or flow.body_chunked:
            for host in in_chunks(flow.hosts):
                self.history.learn(host, flow.port, direction, size_bytes)
        if direction is flow.answers:
            if flow.body_of is not None:
                self.history.learn_resource(flow.body_of, size_bytes)
            flow.body_of, flow.body_chunked = None, False

    def _learn(self, flow: ProfiledFlow, direction: Direction, size_bytes: int) -> None:
        for host in flow.hosts:
            self.history.learn(host, flow.port, direction, size_bytes)

    def _whole_connection(self, flow: ProfiledFlow) -> SizeLearned:
        """Return an estimate for the whole flow, in the direction that is likely to carry more."""
        known = {}
        for direction in ways(flow.client):
            basis = EstimateBasis(flow.hosts, self._prior(flow, direction))
            known[direction] = basis, basis.estimate(self.history, flow.port, direction)
        there, back = ways(flow.client)
        sent, received = known[there][1], known[back][1]
        more = sent.source == "history" and sent.median_bytes > received.median_bytes
        direction = there if more else back
        basis, size = known[direction]
        return self._begin_transfer(flow, direction, size, 0, basis)

    def _prior(self, flow: ProfiledFlow, direction: Direction) -> Prior:
        whole = WHOLE.get((flow.port, direction)) if flow.opaque and flow.client else None
        return whole or UNKNOWN

    def _reannounce(self, flow: ProfiledFlow) -> list[SizeLearned]:
        """Return the present transfer's estimate again, as hints may have changed it."""
        running = flow.running
        if running is None:
            return []
        size, base = running.size, running.base_bytes
        return [self._begin_transfer(flow, running.direction, size, base, running.basis)]

    def _estimate(
        self,
        flow: ProfiledFlow,
        direction: Direction,
        base: int,
        basis: EstimateBasis,
    ) -> SizeLearned:
        size = basis.estimate(self.history, flow.port, direction)
        return self._begin_transfer(flow, direction, size, base, basis)

    def _begin_transfer(
        self,
        flow: ProfiledFlow,
        direction: Direction,
        size: SizeEstimate,
        base: int,
        basis: EstimateBasis | None,
    ) -> SizeLearned:
        """Begin a transfer of the flow; a hint's size replaces all but the message's own."""
        hint = self._hints.find(flow.key, flow.server_name, flow.mark)
        if hint is not None and hint.size_bytes is not None and basis is not None:
            if flow.opaque:
                direction = hint.direction
            if hint.direction is direction:
                size = _exact(hint.size_bytes, "hint")
        flow.running = RunningTransfer(direction, size, base, basis)
        return self._event(flow, hint)

    @staticmethod
    def _event(flow: ProfiledFlow, hint: HintRequest | None) -> SizeLearned:
        running = flow.running
        assert running is not None
        return SizeLearned(
            flow.key,
            running.direction,
            running.size,
            flow.server_name,
            hint.label if hint else None,
            hint.deadline_s if hint else None,
            flow.tls,
        )


def _exact(size_bytes: int, source: str = "content-length") -> SizeEstimate:
    return SizeEstimate(size_bytes, size_bytes, size_bytes, source)
