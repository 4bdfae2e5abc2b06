"""TLS towards the bus: the files that it takes, and the reason where no secure connection comes about.

A connection for which anything of this is said, or whose URL begins with `tls://`, is secure or is none:
it is never made in clear text because a server offers nothing else.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mesh.errors import TlsUnusable

VARIABLES = ("MESH_TLS_CA", "MESH_TLS_CERT", "MESH_TLS_KEY")
"""Environment variables that name the files."""


class TlsFiles(NamedTuple):
    """Files in PEM form."""

    ca: Path | None = None
    """Whose signature the bus's certificate has; None: of those whom this machine trusts."""
    cert: Path | None = None
    """The client's own certificate, for a bus that wants one."""
    key: Path | None = None
    """Its key; None: it lies in `cert`."""

    @property
    def said(self) -> bool:
        """Return True if any file is named: then the connection has to be secure."""
        return any(self)

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a connection. Raises TlsUnusable."""
        if self.key is not None and self.cert is None:
            raise TlsUnusable("TLS: a key without a certificate; name both, cert and key")
        context = self._trusting()
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key, password=_no_password)
            except (OSError, ValueError) as wrong:
                named = self.cert if self.key is None else f"{self.cert}, {self.key}"
                raise TlsUnusable(f"TLS certificate and key ({named}): {_reason(wrong)}") from wrong
        return context

    def _trusting(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.ca)
        except (OSError, ValueError) as wrong:
            raise TlsUnusable(f"TLS CA ({self.ca}): {_reason(wrong)}") from wrong


NO_FILES = TlsFiles()


class NotSecured(ssl.SSLError):
    """The server's greeting does not match the TLS settings of this side."""

    def __init__(self, reason: str) -> None:
        super().__init__(1, reason)
        self.text = reason


def agree(files: TlsFiles, scheme: str, greeting: Mapping[str, Any]) -> bool:
    """Return True if TLS follows the server's greeting. Raises NotSecured if it would have to and cannot."""
    wanted = files.said or scheme == "tls"
    offered = bool(greeting.get("tls_required") or greeting.get("tls_available"))
    if wanted and not offered:
        raise NotSecured("TLS is asked for, and the bus offers none: it would be clear text")
    if greeting.get("tls_required") and greeting.get("tls_verify") and files.cert is None:
        raise NotSecured(
            "the bus wants a client's certificate: "
            "name one and its key (MESH_TLS_CERT, MESH_TLS_KEY, or [bus.tls])"
        )
    return bool(greeting.get("tls_required")) or wanted


def in_words(failed: ssl.SSLError, files: TlsFiles) -> str:
    """Return why a connection could not be secured, and what to look at."""
    if isinstance(failed, NotSecured):
        return failed.text
    if isinstance(failed, ssl.SSLCertVerificationError):
        trusted = "the CAs of this machine" if files.ca is None else str(files.ca)
        return (
            f"the bus's certificate is not accepted: {failed.verify_message} (trusted: {trusted}; "
            "name another CA by MESH_TLS_CA, or in [bus.tls])"
        )
    shown = "without a client's certificate" if files.cert is None else f"with the certificate {files.cert}"
    return f"the bus and this side do not agree on TLS, {shown}: {_reason(failed)}"


def not_accepted(files: TlsFiles) -> str:
    """Return the explanation for a bus that hangs up after it has seen our certificate."""
    return (
        f"the bus hangs up after the TLS handshake: it does not accept the certificate {files.cert} "
        "(is it of an authority that the bus trusts, and still valid?)"
    )


def _reason(wrong: Exception) -> str:
    if isinstance(wrong, ssl.SSLError):
        return (wrong.reason or str(wrong)).replace("_", " ").lower()
    return getattr(wrong, "strerror", None) or str(wrong)


def _no_password() -> str:
    """Take the place of OpenSSL's question at the terminal. Raises ValueError."""
    raise ValueError("the key is encrypted; a service cannot be asked for its password")
