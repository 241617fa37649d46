"""A pod as processes of this machine: in namespaces of its own, as the pod's user, with its environment and volumes."""

from __future__ import annotations

import os
import re
import shlex
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import mslaunch


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class PodProcess:
    """One pod that runs, or has run."""

    namespace: str
    """Its network namespace."""
    address: str
    node: str
    process: subprocess.Popen[bytes]
    log: Path
    started: str
    reason: str = ""
    """Why it was ended, where not by its own program."""
    is_reported: bool = False
    asked_to_end: float | None = None

    def signal_first(self, number: int) -> None:
        with suppress(OSError):
            self.process.send_signal(number)

    def signal_all(self, number: int) -> None:
        """Signal all processes of its network namespace."""
        found = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True).stdout
        for pid in map(int, found.split()):
            with suppress(OSError):
                os.kill(pid, number)


def start_process(namespace: str, script: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            ["ip", "netns", "exec", namespace, "unshare", "--mount", "--uts", "sh", str(script)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """A word of a command, or the value of a variable, as a kubelet passes it on: $(NAME) replaced, $$ one $."""
    return re.sub(r"\$(?:\$|\(([^)]*)\))", lambda found: environment.get(found[1], found[0]) if found[1] else "$", text)


def pod_script(pod: dict[str, Any], mounts: dict[str, Path], hosts: Path, environment: Mapping[str, str]) -> str:
    """What a container runtime does, as a script: mounts, host name, user, environment, command."""
    user = str(pod["spec"]["securityContext"]["runAsUser"])
    lines = ["set -e", "mount --make-rprivate /", f"hostname {shlex.quote(pod['metadata']['name'])}"]
    lines += _own_folders(hosts.parent)
    for path in sorted(mounts):
        place = shlex.quote(path)
        lines += [f"mkdir -p {place}", f"mount --bind {shlex.quote(str(mounts[path]))} {place}"]
    lines += [f"mount --bind {hosts} /etc/hosts", "cd /"]
    words = pod["spec"]["containers"][0]["command"]
    given = [f"{name}={value}" for name, value in environment.items()]
    command = ["env", "-i", *given, *(expanded(word, environment) for word in words)]
    as_user = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
    lines.append(f"exec {shlex.join([*as_user, *command])}")
    return "\n".join(lines) + "\n"


def _own_folders(spare: Path) -> list[str]:
    """Give a pod its own /tmp, /run and home; the interpreter and mslaunch, its image, stay where they are."""
    folders = {"/root": "755", "/tmp": "1777", "/run": "1777"}
    image = {Path(os.path.realpath(sys.executable)).parents[1], Path(sys.prefix), Path(mslaunch.__file__).parents[1]}
    hidden = [path for path in sorted(image) if any(path.is_relative_to(folder) for folder in folders)]
    before, after = [], []
    for number, path in enumerate(hidden):
        kept = spare / f"image-{number}"
        kept.mkdir(exist_ok=True)
        place = shlex.quote(str(path))
        before.append(f"mount --bind {place} {kept}")
        after += [f"mkdir -p {place}", f"mount --bind {kept} {place}"]
    return [*before, *(f"mount -t tmpfs -o mode={mode} none {name}" for name, mode in folders.items()), *after]


def serve_logs(folder: Path, find: Callable[[str], PodProcess | None]) -> ThreadingHTTPServer:
    """Answer the API server's requests for the logs of pods, which are found by name."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            pod = find(path.split("/")[3])
            self.send_response(200 if pod else 404)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with suppress(OSError):
                if pod is not None:
                    self._send_log(pod, "follow=true" in query)
                self.wfile.write(b"0\r\n\r\n")

        def _send_log(self, pod: PodProcess, follow: bool) -> None:
            with pod.log.open("rb") as file:
                while True:
                    ended = not follow or pod.process.poll() is not None
                    while data := file.read(1 << 16):
                        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                        self.wfile.flush()
                    if ended:
                        return
                    time.sleep(0.05)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kubelet"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
