"""From a secret to TLS: both sides sign a certificate of their own with a key that the secret gives.

Whoever knows the secret can derive the key of the certificate authority, and nobody else can. So ordinary mutual TLS
proves to each side that the other knows the secret; OpenSSL does all of it, and nothing is sent that tells the secret.
"""

from __future__ import annotations

import os
import ssl
from datetime import datetime, timezone

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
