"""`cedos record`: what is asked of the daemon, and what people are shown."""

import pytest
from click.testing import CliRunner

from cedos.api.messages import RecordingMessage, RecordingRequest
from cedos.commands import record

TOLD = RecordingMessage(
    on=True, files=("/var/lib/cedos/records/a.log",), since_unix_s=0.0, size_bytes=1234, events=5678
)


class Played:
    """The daemon's answers, and what it was asked."""

    def __init__(self):
        self.asked = []
        self.answer = TOLD

    def recording(self):
        return self.answer

    def record(self, request):
        self.asked.append(request)
        return self.answer


@pytest.fixture
def daemon(monkeypatch):
    played = Played()
    monkeypatch.setattr(record, "_client", lambda: played)
    return played


def run(*arguments):
    return CliRunner().invoke(record.command, list(arguments))


def test_a_log_is_begun_and_ended(daemon):
    done = run("start", "a.log", "--names")
    assert done.exit_code == 0, done.output
    assert "/var/lib/cedos/records/a.log" in done.output
    assert run("stop").exit_code == 0
    assert daemon.asked == [
        RecordingRequest(on=True, file="a.log", names=True),
        RecordingRequest(on=False),
    ]


def test_what_is_recorded_is_shown(daemon):
    shown = run().output
    assert "5,678 events, 1.23 kB, names of hosts replaced." in " ".join(shown.split())
    assert '"size_bytes":1234' in run("--json").output.replace(" ", "")
    daemon.answer = RecordingMessage(on=False, files=("x",), since_unix_s=0.0, problem="disk full")
    assert "Nothing is recorded any more: disk full." in run().output
    daemon.answer = RecordingMessage(on=False)
    assert "Nothing is recorded." in run().output


@pytest.mark.parametrize("name", ["../rules.json", "/etc/passwd", ".hidden", "a\n", "a b", ""])
def test_a_path_is_refused_before_the_daemon_is_asked(daemon, name):
    done = run("start", name)
    assert done.exit_code == 2
    assert "no plain name" in done.output
    assert daemon.asked == []
