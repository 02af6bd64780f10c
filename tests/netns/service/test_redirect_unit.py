"""The unit that redirects users, as `cedos example redirect-unit` prints it, under a real systemd."""

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.netns.gateway.conftest import ORIGIN

USER = 65_534  # nobody: systemd knows the name
_CAPABILITIES = (1 << 12) | (1 << 39)  # NET_ADMIN, BPF
_ALONE = "[Unit]\nDefaultDependencies=no\nStartLimitIntervalSec=0\nAfter=\n[Service]\nRestart=no\n"
_TALK = f"""
import json, socket
with socket.create_connection(("{ORIGIN}", 8080), 5) as one:
    print(json.dumps([one.getsockname()[0], one.getpeername()]))
"""


def test_the_unit_redirects_with_little(laptop, machine, tmp_path):
    laptop.serve_file(b"x")
    printed = subprocess.run(
        [sys.executable, "-m", "cedos", "example", "redirect-unit"],
        check=False,  # 4 where the service could not read this installation
        capture_output=True,
        text=True,
    ).stdout.replace("--redirect 1000", f"--redirect {USER}")
    log = "StandardOutput=truncate:/run/seen/{0}\nStandardError=file:/run/seen/{0}.err\n"
    # Credentials need a tmpfs with access lists, which kernels of such machines may lack: here the
    # service finds its file in a folder of its own.
    before, _, after = printed.partition("LoadCredential=")
    printed = before + after.partition("\n")[2]
    printed = printed.replace("${CREDENTIALS_DIRECTORY}", "/run/redirect")
    files = Path("/run/systemd/system")  # where the machine finds what it is given
    units = {
        "talk.py": _TALK,
        "gateway.toml": (tmp_path / "laptop" / "cedos" / "gateway.toml").read_text(),
        "cedos-redirect.service": printed,
        "cedos-redirect.service.d/alone.conf": _ALONE
        + log.format("log")
        + "RuntimeDirectory=redirect\nExecStartPre=+/bin/sh -c 'install -m 600"
        f" -o $$(stat -c %%u /run/redirect/) {files}/gateway.toml /run/redirect/gateway'\n",
        "talk.service": f"{_ALONE}User={USER}\nType=oneshot\n{log.format('talk')}"
        f"ExecStart=/usr/bin/python3 {files}/talk.py\n",
    }
    made = machine(laptop.near, units)
    made.run("useradd", "--system", "--user-group", "cedos")
    made.systemctl("start", "cedos-redirect")

    def seen(name):
        return str(made.run("cat", f"/run/seen/{name}", check=False).stdout)

    def talk():
        made.systemctl("start", "talk")
        return json.loads(seen("talk"))

    pid = made.shown("cedos-redirect", "MainPID")
    assert pid != "0", (seen("log.err"), made.systemctl("status", "cedos-redirect", check=False))
    deadline_s = time.monotonic() + 20
    while (told := talk())[0] != "127.0.0.1":
        assert time.monotonic() < deadline_s, seen("log.err")
        time.sleep(0.1)
    lines = made.run("cat", f"/proc/{pid}/status").stdout.splitlines()
    facts = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    assert int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == _CAPABILITIES, seen("log.err")
    assert facts["Uid"].split()[0] != "0"
    # It may ask the daemon.
    assert made.run("getent", "group", "cedos").stdout.split(":")[2] in facts["Gid"].split()
    assert told[1] == [ORIGIN, 8080]
    made.systemctl("stop", "cedos-redirect")
    assert made.shown("cedos-redirect", "Result") == "success"
    assert talk()[0] != "127.0.0.1"
