"""A real nginx as the web server of a test, with all its files in one folder, and its certificate."""

import shutil
import subprocess
from pathlib import Path

from kit.waiting import wait_until

from emu.testbed.netns import Namespace

_PROGRAM = shutil.which("nginx") or "/usr/sbin/nginx"
# As one process, which runs as the test's user.
_CONFIGURATION = """
user root; daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
  log_format short '{log}'; access_log {folder}/access.log short;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5; client_max_body_size 20m;
  {servers}
}}
"""


def nginx(
    folder: Path,
    servers: str,
    *,
    log: str = "$status $body_bytes_sent",
    where: Namespace | None = None,
) -> "subprocess.Popen[bytes]":
    """Start nginx, return it once it listens.

    Args:
        folder: for its files; its log is access.log.
        servers: the `server` blocks of its configuration.
        log: a line of its log.
        where: a namespace; None: this host.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config, pid = folder / "nginx.conf", folder / "nginx.pid"
    config.write_text(_CONFIGURATION.format(folder=folder, log=log, servers=servers))
    pid.unlink(missing_ok=True)
    command = [_PROGRAM, "-p", str(folder), "-c", str(config)]
    process: subprocess.Popen[bytes] = subprocess.Popen(
        command if where is None else where.command(*command), stderr=subprocess.DEVNULL
    )
    # It writes its number once it listens.
    wait_until(lambda: pid.exists() or process.poll() is not None)
    assert process.poll() is None, (folder / "error.log").read_text()
    return process


def certificate(folder: Path, address: str) -> Path:
    """Make cert.pem and key.pem for an address, which a client trusts by the first; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
         "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-days", "2",
         "-subj", f"/CN={address}", "-addext", f"subjectAltName=IP:{address}"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder / "cert.pem"
