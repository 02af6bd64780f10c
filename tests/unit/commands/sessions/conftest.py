"""Programs of sessions as processes, which run in one folder and end with their test."""

import os
import socket
import subprocess
import sys
from contextlib import chdir
from importlib import import_module
from pathlib import Path

from click.testing import CliRunner

from cedos.session import keys


class Programs:
    """A server's port and key, and all programs; they keep what they keep in `folder`."""

    def __init__(self, folder):
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.environment = os.environ | {
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_STATE_HOME": str(folder / "state"),
            "CEDOS_RUNTIME_DIR": str(folder),
        }
        self.key = keys.to_text(keys.own_key(folder / "server.key").public)
        self.running = []

    def start(self, program, *arguments, files=None):
        """Start a program; `files`: the most that it may have open."""
        limited = [] if files is None else ["prlimit", f"--nofile={files}"]
        process = subprocess.Popen(
            [*limited, str(Path(sys.executable).with_name(program)), *arguments],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        return process

    def run(self, program, *arguments):
        """Run a program to its end within this process, as a start takes longer than most of them."""
        module = import_module(f"cedos.commands.sessions.{program.removeprefix('cedos-')}")
        with chdir(self.folder):
            done = CliRunner(env=self.environment).invoke(
                module.command, arguments, prog_name=program
            )
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    def serving(self, *arguments):
        """Start `cedos-serve`, return it once it is ready."""
        process = self.start(
            "cedos-serve", "-l", f"127.0.0.1:{self.port}", "--own-key", "server.key",
            "--log-format", "json", *arguments,
        )  # fmt: skip
        line = process.stderr.readline()
        assert '"ready"' in line, line + process.stderr.read()
        return process

    def end(self):
        for process in self.running:
            process.kill()
            process.communicate()
