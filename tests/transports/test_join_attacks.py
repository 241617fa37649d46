"""Nobody else gets in: what strangers send to the launcher's port is refused and told once, and the job goes on."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from mslaunch import __version__
from mslaunch.shared import wire
from mslaunch.transports.join.credentials import client_context, server_context
from mslaunch.transports.join.listener import Refused, read_hello
from mslaunch.transports.join.tls_stream import AGENT, END, TlsStream, frame, record_frame
from tests.beds.join_bed import SECRET, Node, start_here
from tests.beds.ssh_bed import HELLO, free_port
from tests.conftest import Bench, wait_for

WAITS = HELLO + "import pathlib, time\nwhile not pathlib.Path(os.environ['GO']).exists(): time.sleep(0.05)\n"
HELLO_RECORD = {
    "is": "hello",
    "rank": 1,
    "host": "x",
    "slots": None,
    "version": __version__,
    "python": "/usr/bin/python3",
}


class Target:
    """A launcher on the loopback that waits for one node."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.port = free_port()
        bench.write("train.py", WAITS)
        bench.write("secret", SECRET)
        self.go = bench.folder.parent / "go"
        self.launcher = self.start(0)
        wait_for(lambda: "waiting at" in self.launcher.text, "the launcher")

    def start(self, rank: int, port: int | None = None) -> Node:
        named = ("--nnodes", "2", "--node-rank", str(rank), "--master", f"127.0.0.1:{port or self.port}")
        return start_here(self.bench, "train", *named, "--secret-file", "secret", "--env", "GO", GO=str(self.go))

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), 10)
        sock.settimeout(20)
        return sock

    def is_closed(self, sock: socket.socket) -> bool:
        """Wait until the launcher has closed a connection."""
        with suppress(OSError), sock:
            while sock.recv(1 << 16):
                pass
        return True

    def tls(self, secret: str = SECRET) -> TlsStream:
        """A connection that has proved that it knows a secret."""
        stream = TlsStream(self.connect(), client_context(secret.encode()), server_side=False)
        done = stream.shake_hands(b"")
        while not done:
            done = stream.shake_hands(stream.sock.recv(1 << 16))
        return stream

    def finish(self) -> None:
        """Let the job end; it has succeeded on both nodes."""
        self.go.touch()
        assert self.launcher.wait() == 0, self.launcher.text


@pytest.fixture
def target(bench: Bench) -> Iterator[Target]:
    made = Target(bench)
    yield made
    made.go.touch()


def send_garbage(target: Target) -> None:
    sock = target.connect()
    with suppress(OSError):
        sock.sendall(secrets.token_bytes(1 << 20))
    target.is_closed(sock)


def speak_http(target: Target) -> None:
    sock = target.connect()
    sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    target.is_closed(sock)


def scan_tls(target: Target) -> None:
    """A TLS client as scanners have them: it trusts anybody and has no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with suppress(OSError), context.wrap_socket(target.connect()) as sock:
        sock.sendall(b"hello")
        sock.recv(1)
        raise AssertionError("the launcher answered a client without a certificate")


def guess_secret(target: Target) -> None:
    """A client that knows another secret, and does not mind who the launcher is."""
    context = client_context(b"another-secret-0123456789")
    context.verify_mode = ssl.CERT_NONE
    stream = TlsStream(target.connect(), context, server_side=False)
    done = stream.shake_hands(b"")
    while not done:
        done = stream.shake_hands(stream.sock.recv(1 << 16))
    stream.send(record_frame(HELLO_RECORD))
    with pytest.raises(ssl.SSLError):
        stream.decrypt(stream.sock.recv(1 << 16))
    stream.close()


def send_no_frame(target: Target) -> None:
    stream = target.tls()
    stream.send(b"\xff" * 1000)
    target.is_closed(stream.sock)


def send_long_frame(target: Target) -> None:
    stream = target.tls()
    with suppress(OSError):
        stream.send(frame(AGENT, bytes(1 << 21)))
    target.is_closed(stream.sock)


def send_wrong_hello(target: Target) -> None:
    stream = target.tls()
    stream.send(record_frame({**HELLO_RECORD, "host": "../x"}))
    target.is_closed(stream.sock)


ATTACKS: dict[Callable[[Target], None], str] = {
    send_garbage: "it does not speak our TLS",
    speak_http: "it speaks HTTP",
    scan_tls: "it does not show that it knows the secret",
    guess_secret: "it has another secret",
    send_no_frame: "it sent bytes that are no frame",
    send_long_frame: "it sent bytes that are no frame",
    send_wrong_hello: "its hello has a wrong host",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_stranger_is_refused_and_told_once(target: Target, attack: Callable[[Target], None]) -> None:
    """Before the start and while the job runs, three times each; the job is unharmed."""
    for _ in range(3):
        attack(target)
    node = target.start(1)
    wait_for(lambda: target.bench.runs.exists() and "rank 1" in target.bench.log(1), "the ranks")
    for _ in range(3):
        attack(target)
    target.finish()
    assert node.wait() == 0
    assert target.launcher.text.count(f"a connection from 127.0.0.1 was refused: {ATTACKS[attack]}") == 1


def test_slow_connections_keep_nobody_out(target: Target) -> None:
    """More connections than are waited for at once, each with a byte now and then: a node joins all the same."""
    with ExitStack() as held:
        for _ in range(300):
            held.enter_context(target.connect()).sendall(b"\x16")
        node = target.start(1)
        wait_for(lambda: target.bench.runs.exists() and "rank 1" in target.bench.log(1), "the ranks")
    target.finish()
    assert node.wait() == 0
    assert target.launcher.text.count("more connections at once than are waited for") == 1


def test_ten_thousand_connections_do_no_harm(target: Target) -> None:
    """Opened and dropped while the job runs; what is told does not grow with them."""
    node = target.start(1)
    wait_for(lambda: target.bench.runs.exists() and "rank 1" in target.bench.log(1), "the ranks")
    for _ in range(10_000):
        with suppress(OSError):
            target.connect().close()
    target.finish()
    assert node.wait() == 0
    assert target.launcher.text.count("was refused") <= 2


def test_what_a_node_once_sent_is_worth_nothing(target: Target) -> None:
    """Everything that a node sent to the launcher, recorded on the way and sent again, is refused."""
    recorded = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:
        forward = threading.Thread(target=_forward, args=(server, target, recorded))
        forward.start()
        node = target.start(1, server.getsockname()[1])
        wait_for(lambda: target.bench.runs.exists() and "rank 1" in target.bench.log(1), "the ranks")
        sock = target.connect()
        with suppress(OSError):
            sock.sendall(bytes(recorded))
        target.is_closed(sock)
        target.finish()
        assert node.wait() == 0
        forward.join()
    assert len(recorded) > 1000
    assert target.launcher.text.count("was refused") == 1


def _forward(server: socket.socket, target: Target, recorded: bytearray) -> None:
    """Pass one connection on to the launcher, and keep what goes there."""
    inner, _ = server.accept()
    outer = target.connect()
    outer.settimeout(None)

    def back() -> None:
        with suppress(OSError):
            while data := outer.recv(1 << 16):
                inner.sendall(data)
            inner.shutdown(socket.SHUT_WR)

    other = threading.Thread(target=back)
    other.start()
    with suppress(OSError):
        while data := inner.recv(1 << 16):
            recorded += data
            outer.sendall(data)
        outer.shutdown(socket.SHUT_WR)
    other.join()
    inner.close()
    outer.close()


def test_a_second_node_with_the_same_rank_is_refused(target: Target) -> None:
    """It is told why and exits; the first one is not disturbed."""
    first = target.start(1)
    wait_for(lambda: target.bench.runs.exists() and "rank 1" in target.bench.log(1), "the ranks")
    second = target.start(1)
    assert second.wait() == 3
    name = f"{os.uname().nodename}-1"
    assert f"refused: node rank 1 has joined already, as {name}" in second.text
    target.finish()
    assert first.wait() == 0
    assert target.launcher.text.count("node rank 1 has joined already") == 1


def test_a_node_does_not_join_a_launcher_that_has_another_secret(bench: Bench) -> None:
    """It would run what that launcher wants: it says where its own secret is from, and exits."""
    bench.write("secret", SECRET)
    with socket.create_server(("127.0.0.1", 0)) as server:
        node = start_here(bench, "agent", "--join", f"127.0.0.1:{server.getsockname()[1]}", "--secret-file", "secret")
        sock, _ = server.accept()
        stream = TlsStream(sock, server_context(b"another-secret-0123456789"), server_side=True)
        stream.shake_hands(sock.recv(1 << 16))
        with pytest.raises(ssl.SSLError):
            stream.shake_hands(sock.recv(1 << 16))
        assert node.wait() == 3
        stream.close()
    assert "the launcher there has another secret than secret (--secret-file). Give both the same." in node.text


def test_orders_right_behind_the_answer_are_not_lost(bench: Bench) -> None:
    """A node that is slow reads the answer and the first orders in one piece."""
    bench.write("secret", SECRET)
    accepted = {"is": "accepted", "name": "n7", "rank": 7, "run": "r", "python": None, "lost_after": 10.0}
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        node = start_here(bench, "agent", "--join", address, "--secret-file", "secret")
        sock, _ = server.accept()
        stream = TlsStream(sock, server_context(SECRET.encode()), server_side=True)
        while not stream.shake_hands(sock.recv(1 << 16)):
            pass
        frames = stream.decrypt(b"") or []
        while not frames:
            frames = stream.decrypt(sock.recv(1 << 16)) or []
        probe = wire.encode({"to": "n7", "do": "reach", "address": "127.0.0.1", "port": 1, "seconds": 1})
        stream.send(record_frame(accepted) + frame(AGENT, wire.MAGIC + probe) + frame(END))
        received = b""
        while END not in [kind for kind, _ in frames]:
            frames = stream.decrypt(sock.recv(1 << 16)) or []
            received += b"".join(payload for kind, payload in frames if kind == AGENT)
        stream.send(record_frame({"is": "end", "exit_code": 7, "text": "so it ended"}))
        assert node.wait() == 7
        stream.close()
    assert [event["ev"] for event in wire.Decoder().feed(received)] == ["hello", "reached", "idle"]
    assert "so it ended" in node.text


def test_a_nodes_certificate_does_not_make_a_launcher(bench: Bench) -> None:
    """What a node shows, sent back to it, proves nothing: certificates say for which side they are."""
    node = client_context(SECRET.encode())
    as_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    as_server.verify_mode = ssl.CERT_NONE
    _copy_certificate(as_server, bench.folder / "node.pem")
    one, other = socket.socketpair()
    with one, other:
        server, client = TlsStream(one, as_server, True), TlsStream(other, node, False)
        client.shake_hands(b"")
        server.shake_hands(one.recv(1 << 16))
        with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
            client.shake_hands(other.recv(1 << 16))


def _copy_certificate(context: ssl.SSLContext, path: Path) -> None:
    from mslaunch.transports.join.credentials import _certificates

    path.write_bytes(_certificates(SECRET.encode(), is_server=False)[1])
    context.load_cert_chain(path)


@pytest.mark.parametrize("where", ["file", "variable"])
def test_the_secret_is_nowhere(bench: Bench, where: str) -> None:
    """Not in the run's folder, in what is printed, in a command line, nor in the environment of agents and ranks."""
    secret = secrets.token_hex(16)  # this test's own: other tests may run beside it
    bench.write("train.py", WAITS)
    go, port = bench.folder.parent / "go", free_port()
    path = bench.folder.parent / "kept"
    path.write_text(secret)
    given = ("--secret-file", str(path)) if where == "file" else ()
    env = {"GO": str(go)} | ({} if where == "file" else {"MSLAUNCH_SECRET": secret})
    command = ("train", "--nnodes", "2", "--master", f"127.0.0.1:{port}", *given, "--env", "GO")
    started = [start_here(bench, *command, "--node-rank", str(rank), **env) for rank in (0, 1)]
    wait_for(lambda: bench.runs.exists() and "rank 1" in bench.log(1), "the ranks")
    own = {str(node.process.pid) for node in started} | {str(os.getpid())}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                assert secret.encode() not in (folder / "cmdline").read_bytes()
                assert folder.name in own or secret.encode() not in (folder / "environ").read_bytes()
    go.touch()
    assert [node.wait() for node in started] == [0, 0]
    for path in bench.folder.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    assert all(secret not in node.text for node in started)


@pytest.mark.parametrize(
    "change",
    [{"is": "x"}, {"rank": -1}, {"rank": "1"}, {"rank": True}, {"host": ""}, {"host": "a" * 300}, {"host": "a\x1b[2J"},
     {"slots": 0}, {"slots": 1e9}, {"version": None}, {"python": 3}],
)  # fmt: skip
def test_every_field_of_a_hello_is_checked(change: dict[str, object]) -> None:
    """A node that knows the secret may still be an older one, or a broken one."""
    with pytest.raises(Refused):
        read_hello({**HELLO_RECORD, **change})
