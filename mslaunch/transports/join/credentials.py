"""The secret that all nodes of a job know: where it is found, and which file holds it where none is needed."""

from __future__ import annotations

import os
import secrets
import ssl
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from mslaunch.errors import NotReadyError, RequestError

VARIABLE = "MSLAUNCH_SECRET"
FILE = "join.secret"
"""Its name in a folder of runs that all nodes share."""
LEAST = 16
"""Characters. Whoever connects can try guesses at leisure, so a secret must not be guessable."""
_LARGEST = 4096


@dataclass(frozen=True, slots=True)
class Secret:
    """What all nodes know, and where it was found; its value is never shown."""

    value: bytes = field(repr=False)
    source: str


def find_secret(file: str | None, asked_by: str, runs_dir: str, environment: Mapping[str, str]) -> Secret | None:
    """Return the secret that was given: by a file, by the variable, or in the folder of runs."""
    if file is not None:
        return _checked(_read(Path(file), asked_by), f"{file} ({asked_by})", runs_dir)
    if environment.get(VARIABLE):
        return _checked(os.fsencode(environment[VARIABLE]), VARIABLE, runs_dir)
    shared = Path(runs_dir) / FILE
    if shared.exists():
        _check_private(shared)
        return _checked(_read(shared, FILE), str(shared), runs_dir)
    return None


def how_to_give(runs_dir: str) -> str:
    """Say how a secret is made and given."""
    return (
        "Make one with `openssl rand -hex 32`, and give all nodes the same: --secret-file FILE, the variable "
        f"MSLAUNCH_SECRET, or the file {Path(runs_dir) / FILE} where they share that folder."
    )


def own_secret(environment: Mapping[str, str]) -> Secret:
    """The secret of this user on this machine, for jobs whose nodes are all on it; other users cannot read it."""
    home = Path(environment.get("HOME") or "/nonexistent")
    path = Path(environment.get("XDG_STATE_HOME") or home / ".local" / "state") / "mslaunch" / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            beside = path.with_suffix(f".{os.getpid()}")
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32) + "\n")
            with suppress(FileExistsError):  # another process does so at the same moment: then that one counts
                os.link(beside, path)
            beside.unlink()
    except OSError as error:
        raise NotReadyError(f"{path}: cannot keep a secret there: {error.strerror}. Give --secret-file FILE.") from None
    _check_private(path)
    return Secret(_read(path, "this user's secret"), str(path))


def _read(path: Path, asked_by: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST + 1)
    except OSError as error:
        raise RequestError(f"{path}: cannot read the secret ({asked_by}): {error.strerror}.") from None


def _checked(raw: bytes, source: str, runs_dir: str) -> Secret:
    value = raw.strip()
    if not LEAST <= len(value) <= _LARGEST:
        raise RequestError(
            f"{source}: a secret has {LEAST} to {_LARGEST} characters, got {len(value)}. {how_to_give(runs_dir)}"
        )
    return Secret(value, source)


def _check_private(path: Path) -> None:
    """Refuse a file that somebody else may have written or may read."""
    status = path.stat()
    if status.st_uid not in (os.getuid(), 0) or stat.S_IMODE(status.st_mode) & 0o077:
        raise NotReadyError(f"{path}: others can read or write this secret. Run chmod 600 on it, as its owner.")


_ALWAYS = (datetime(2000, 1, 1, tzinfo=timezone.utc), datetime(9999, 1, 1, tzinfo=timezone.utc))  # clocks may be off
_PURPOSE = b"mslaunch join: key of the certificate authority"


def server_context(secret: bytes) -> ssl.SSLContext:
    """TLS 1.3 for the launcher: it accepts only nodes that know the secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # every connection proves anew that it knows the secret
    return _prepared(context, secret, is_server=True)


def client_context(secret: bytes) -> ssl.SSLContext:
    """TLS 1.3 for a node: it accepts only a launcher that knows the secret, whatever its name is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return _prepared(context, secret, is_server=False)


def _prepared(context: ssl.SSLContext, secret: bytes, is_server: bool) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    authority, own = _certificates(secret, is_server)
    context.load_verify_locations(cadata=authority)
    memory = os.memfd_create("certificate")  # the ssl module takes files only, and a key belongs on no disk
    try:
        os.write(memory, own)
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)
    return context


def _certificates(secret: bytes, is_server: bool) -> tuple[str, bytes]:
    """The authority's certificate, and one of our own with its key, both as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from cryptography.x509.oid import ExtendedKeyUsageOID

    derived = HKDF(hashes.SHA256(), 32, salt=None, info=_PURPOSE).derive(secret)
    authority = Ed25519PrivateKey.from_private_bytes(derived)
    key = Ed25519PrivateKey.generate()

    def certificate(name: str, of: Ed25519PrivateKey, extension: x509.ExtensionType, critical: bool) -> bytes:
        issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mslaunch join")])
        builder = x509.CertificateBuilder().issuer_name(issuer).public_key(of.public_key())
        builder = builder.subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(_ALWAYS[0]).not_valid_after(_ALWAYS[1])
        signed = builder.add_extension(extension, critical).sign(authority, None)
        return signed.public_bytes(serialization.Encoding.PEM)

    usage = ExtendedKeyUsageOID.SERVER_AUTH if is_server else ExtendedKeyUsageOID.CLIENT_AUTH
    root = certificate("mslaunch join", authority, x509.BasicConstraints(ca=True, path_length=0), True)
    own = certificate("launcher" if is_server else "node", key, x509.ExtendedKeyUsage([usage]), False)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return root.decode(), own + private
