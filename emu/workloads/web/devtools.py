"""The DevTools protocol over a pair of pipes: commands with answers, and events by session.

JSON messages, each ended by a zero byte (Chromium's `--remote-debugging-pipe`): no port is opened, and
nothing of it crosses the emulated networks.
"""

import json
import queue
import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import IO, Any

from cedos.errors import EmulationError

ANSWER_S = 20.0
"""A browser that is alive answers any command of ours sooner."""


class DevTools:
    """One browser's protocol, over unbuffered pipes; commands may come from several threads."""

    def __init__(self, to_browser: IO[bytes], from_browser: IO[bytes]) -> None:
        self._to = to_browser
        self._from = from_browser
        self._lock = threading.Lock()
        self._last = 0
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {}
        self._events: defaultdict[str, queue.SimpleQueue[dict[str, Any] | None]] = defaultdict(
            queue.SimpleQueue
        )
        self._ended = False
        self._thread = threading.Thread(target=self._read, name="devtools", daemon=True)
        self._thread.start()

    def call(
        self,
        method: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        session: str | None = None,
        timeout_s: float = ANSWER_S,
    ) -> dict[str, Any]:
        """A command's `result`; EmulationError: the browser refused, was too late, or has ended."""
        answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        number = self.send(method, parameters, session=session, answers=answers)
        try:
            answer = answers.get(timeout=timeout_s)
        except queue.Empty:
            raise EmulationError(f"{method}: no answer within {timeout_s:g} s") from None
        finally:
            with self._lock:
                self._answers.pop(number, None)
        if answer is None:
            raise EmulationError(f"{method}: the browser has ended")
        if "error" in answer:
            raise EmulationError(f"{method}: {answer['error'].get('message', answer['error'])}")
        result: dict[str, Any] = answer["result"]
        return result

    def send(
        self,
        method: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        session: str | None = None,
        answers: "queue.SimpleQueue[dict[str, Any] | None] | None" = None,
    ) -> int:
        """Sends a command without waiting; its answer goes into `answers`, if anywhere."""
        message: dict[str, Any] = {"method": method, "params": dict(parameters or {})}
        if session is not None:
            message["sessionId"] = session
        with self._lock:
            if self._ended:
                raise EmulationError(f"{method}: the browser has ended")
            self._last += 1
            number = message["id"] = self._last
            if answers is not None:
                self._answers[number] = answers
            try:
                self._to.write(json.dumps(message).encode() + b"\0")
                self._to.flush()
            except OSError as error:
                raise EmulationError(f"{method}: the browser has ended: {error}") from error
        return number

    def event(self, session: str, timeout_s: float) -> dict[str, Any] | None:
        """The session's next event, or None where none came in time. EmulationError at its end."""
        try:
            event = self._queue(session).get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None
        if event is None:
            raise EmulationError("the browser has ended")
        return event

    def close(self) -> None:
        self._thread.join()

    def _queue(self, session: str) -> "queue.SimpleQueue[dict[str, Any] | None]":
        with self._lock:
            waiting = self._events[session]
            if self._ended:
                waiting.put(None)
            return waiting

    def _read(self) -> None:
        rest = b""
        try:
            while block := self._from.read1(1 << 16):  # type: ignore[attr-defined]
                *messages, rest = (rest + block).split(b"\0")
                for message in messages:
                    self._take(json.loads(message))
        except (OSError, ValueError):
            pass  # the same as an end: whoever waits is told below
        with self._lock:
            self._ended = True
            for answers in self._answers.values():
                answers.put(None)
            for waiting in self._events.values():
                waiting.put(None)

    def _take(self, message: dict[str, Any]) -> None:
        with self._lock:
            if "id" in message:
                if answers := self._answers.get(message["id"]):
                    answers.put(message)
                return
            session = message.get("sessionId") or message.get("params", {}).get("sessionId")
            if message["method"] == "Target.detachedFromTarget" and session in self._events:
                self._events[session].put(None)
            elif message.get("sessionId"):
                self._events[message["sessionId"]].put(message)
