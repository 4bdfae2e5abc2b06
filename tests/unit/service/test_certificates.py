"""When a certificate expires, read from its file."""

from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from mesh.bus.credentials import TlsFiles, expires_at
from tests.certain import known
from tests.certificates import Authority


def until(path: Path) -> float:
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()


def test_a_certificate_and_its_authority_expire_when_cryptography_says(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for files in (authority.sign("one"), authority.sign("old", expired=True)):
        cert, ca = known(files.cert), known(files.ca)
        assert files.expire() == {"own": until(cert), "authority": until(ca)}
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(known(files.ca).read_bytes() + known(files.cert).read_bytes())
    assert expires_at(bundle.read_bytes()) == until(known(files.cert)), "the earliest"


def test_a_date_after_2049_is_read(tmp_path: Path) -> None:
    cert = known(Authority(tmp_path).sign("late", days=9_000).cert)
    assert expires_at(cert.read_bytes()) == until(cert) > 2_524_608_000


def test_files_that_say_nothing_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n")
    assert TlsFiles(tmp_path / "none.pem", tmp_path / "empty.pem").expire() == {}


@given(st.binary(max_size=200))
def test_bytes_that_are_no_certificate_are_a_value_error(data: bytes) -> None:
    import base64

    body = b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(data) + b"\n-----END CERTIFICATE-----\n"
    with pytest.raises(ValueError):  # noqa: PT011  # one of several
        expires_at(body)
