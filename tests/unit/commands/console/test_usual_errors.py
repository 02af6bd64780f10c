"""Errors that come from outside, wherever they come."""

import errno
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cedos.commands.console.program import Program


def failing(error: OSError) -> click.Command:
    @click.command(cls=Program)
    def program() -> None:
        raise error

    return program


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EROFS])
def test_a_line_and_a_status(number: int) -> None:
    error = OSError(number, "too bad", "/a/file")
    result = CliRunner().invoke(failing(error), prog_name="program")
    assert (result.exit_code, result.stderr) == (1, "program: /a/file: too bad\n")


def test_others_are_faults_of_ours() -> None:
    result = CliRunner().invoke(failing(OSError(errno.EBADF, "bad")), prog_name="program")
    assert isinstance(result.exception, OSError)


def test_a_full_disk_behind_a_command() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cedos", "example", "config"],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert done.returncode == 1
    assert done.stderr.decode() == "cedos: No space left on device\n"
