"""Headless Chromium as a person's browser in the emulated laptop: unmodified, driven over DevTools.

Chromium runs as the user nobody in namespaces of its own for processes and mounts, so that ending one
process ends all of it, and its profile, a tmpfs, goes with it. What it does by itself (updates, field
trials, proxies, QUIC, safe browsing) is switched off: everything on the networks is the pages'. The
protocol is JSON over a pair of pipes, each message ended by a zero byte (`--remote-debugging-pipe`): no
port is opened, and nothing of it crosses the emulated networks.
"""

import base64
import hashlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cedos.errors import EmulationError
from emu.testbed.neighbours import Neighbourhood
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.services import Started

# The time within which a living browser answers any command.
ANSWER_S = 20.0


class DevTools:
    """DevTools of one browser, over unbuffered pipes; commands may come from several threads."""

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
        """Return a command's `result`; EmulationError: the browser refused, was late, or has ended."""
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
        """Send a command without waiting; its answer goes into `answers`, if anywhere."""
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
        """Return the session's next event, or None where none came in time. EmulationError at its end."""
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
            pass  # the same as an end: waiting callers are told below
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


# Debian's /usr/bin/chromium is a script that adds a desktop's options.
PROGRAM = Path("/usr/lib/chromium/chromium")

_NOBODY = 65534
_START_TIMEOUT_S = 30.0
_WINDOW = "640,480"

_OFF = (
    "AutofillServerCommunication",
    "CertificateTransparencyComponentUpdater",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "Translate",
)
_OPTIONS = (
    *("--headless", "--no-startup-window", f"--window-size={_WINDOW}"),
    *("--no-sandbox", "--no-zygote", "--in-process-gpu"),
    *("--disable-gpu", "--disable-software-rasterizer", "--mute-audio"),
    *("--no-first-run", "--no-default-browser-check", "--password-store=basic"),
    *("--disable-quic", "--disable-field-trial-config"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-default-apps", "--disable-extensions", "--disable-domain-reliability"),
    *("--disable-client-side-phishing-detection", "--disable-breakpad"),
    # A hidden tab does all its work at once, as a visible one.
    *("--disable-background-timer-throttling", "--disable-renderer-backgrounding"),
    *("--disable-backgrounding-occluded-windows", "--autoplay-policy=no-user-gesture-required"),
    # Whom else it would like to ask (its maker's sign-in service, for one) has no address.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE *.example, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
    f"--disable-features={','.join(_OFF)}",
)

# DevTools uses pipes 3 and 4. The emulated server answers look-ups.
_START = """set -e
mount --bind "$1" "$(readlink -f /etc/resolv.conf)"
mount -t tmpfs -o mode=700,uid={nobody},gid={nobody} browser "$2"
cd "$2"
export HOME="$2"
shift 2
exec setpriv --reuid={nobody} --regid={nobody} --clear-groups "$@" 3<&0 4>&1 0</dev/null 1>&2
"""


class Browser(Started):
    """Chromium in the client of a laptop, or on a requestor, as a `with` block inside that one's."""

    def __init__(
        self,
        laptop: Laptop | Neighbourhood,
        log: Path,  # where Chromium's own words go
        *,
        certificate: Path | None = None,  # in PEM: its key is trusted, by whatever name
        mptcp: bool = True,  # run under `mptcpize`: its TCP connections ask for MPTCP
        # Added to this process' own; below zero it is served before what else the machine does.
        nice: int = 0,
        proxy: str = "",  # such as socks5://127.0.0.1:1080, which looks names up, too; "": none
    ) -> None:
        self._laptop = laptop
        self._proxy = proxy
        self.directory = laptop.directory / f"browser-{id(self):x}"
        self._log = log
        self._certificate = certificate
        self._mptcp = mptcp
        self._nice = nice
        self._process: subprocess.Popen[bytes] | None = None
        self._devtools: DevTools | None = None

    @property
    def devtools(self) -> DevTools:
        """The browser's protocol; EmulationError outside the `with` block."""
        if self._devtools is None:
            raise EmulationError("the browser does not run: use it in a `with` block")
        return self._devtools

    def open_tab(self) -> "Tab":
        """Return a tab with empty caches and no connections. EmulationError if the browser has ended."""
        context = self.devtools.call("Target.createBrowserContext")["browserContextId"]
        blank = {"url": "about:blank", "browserContextId": context}
        target = self.devtools.call("Target.createTarget", blank)["targetId"]
        attached = {"targetId": target, "flatten": True}
        session = self.devtools.call("Target.attachToTarget", attached)["sessionId"]
        return Tab(self.devtools, context, session)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # The group holds the first process of its own process namespace: all others end with that one.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        devtools, self._devtools = self._devtools, None
        if devtools is not None:
            devtools.close()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _start(self) -> None:
        directory = self.directory
        directory.mkdir()
        resolver = self._laptop.directory / "resolv.conf"
        resolver.write_text(f"nameserver {SERVER}\n")
        # A process namespace of its own: with its first process all of Chromium ends.
        command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"]
        command += ["sh", "-c", _START.format(nobody=_NOBODY), "browser"]
        command += [str(resolver), str(directory)]
        command += ["mptcpize", "run"] if self._mptcp else []
        command += [str(PROGRAM), *_OPTIONS, f"--user-data-dir={directory}/profile"]
        command.append(f"--proxy-server={self._proxy}" if self._proxy else "--no-proxy-server")
        # Trust the testbed's certificate by its key alone.
        if self._certificate is not None:
            command.append(f"--ignore-certificate-errors-spki-list={_pin(self._certificate)}")
        there = self._laptop
        host = there.requestor if isinstance(there, Neighbourhood) else there.client
        with self._log.open("wb") as log:
            self._process = process = subprocess.Popen(
                ["nice", "-n", str(self._nice), *host.command(*command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        self._devtools = DevTools(process.stdin, process.stdout)
        try:
            self._devtools.call("Browser.getVersion", timeout_s=_START_TIMEOUT_S)
        except EmulationError as error:
            log_end = self._log.read_text(errors="replace").strip()[-500:]
            raise EmulationError(f"Chromium did not start: {error}: {log_end}") from error


class Tab:
    """A tab, with storage and connections of its own; its events are on from the start."""

    def __init__(self, devtools: DevTools, context: str, session: str) -> None:
        self._devtools = devtools
        self._context = context
        self._session = session
        # No program asks for the bodies again: the browser need not keep them.
        self.call("Network.enable", {"maxTotalBufferSize": 0, "maxResourceBufferSize": 0})
        for domain in ("Page", "Inspector"):
            self.call(f"{domain}.enable")

    def call(self, method: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._devtools.call(method, parameters, session=self._session)

    def go(self, url: str) -> None:
        # The answer comes with the document's first bytes: not at all while the network is dead.
        self._devtools.send("Page.navigate", {"url": url}, session=self._session)

    def event(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next event, or None; EmulationError where the tab or the browser has crashed."""
        event = self._devtools.event(self._session, timeout_s)
        if event is not None and event["method"] == "Inspector.targetCrashed":
            raise EmulationError("a page's process crashed")
        return event

    def close(self) -> None:
        # A browser that has crashed has closed its tabs; the waiting caller reports it.
        with suppress(EmulationError):
            self._devtools.call("Target.disposeBrowserContext", {"browserContextId": self._context})


def _pin(certificate: Path) -> str:
    key = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
    encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(encoded).digest()).decode()
