"""A certificate's subject reads as Java shows it, in whose words Kafka's ACLs are."""

from __future__ import annotations

import contextlib

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from fairlog.security.subject import BadCertificate, subject_of_untrusted
from tests.security.certificates import Authority, name_of


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> bytes:
    pair = authority.issue("other", name_of((NameOID.COMMON_NAME, "x"), (NameOID.EMAIL_ADDRESS, "a@b")))
    return pair.x509.public_bytes(Encoding.DER)


def subject_of(authority: Authority, name: x509.Name) -> str:
    return subject_of_untrusted(authority.issue("subject", name).x509.public_bytes(Encoding.DER))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            name_of(
                (NameOID.COUNTRY_NAME, "AT"),
                (NameOID.STATE_OR_PROVINCE_NAME, "Wien"),
                (NameOID.LOCALITY_NAME, "Wien"),
                (NameOID.STREET_ADDRESS, "Ring 1"),
                (NameOID.ORGANIZATION_NAME, "Example"),
                (NameOID.ORGANIZATIONAL_UNIT_NAME, "Sales"),
                (NameOID.DOMAIN_COMPONENT, "example"),
                (NameOID.USER_ID, "a1"),
                (NameOID.COMMON_NAME, "Jörg"),
            ),
            "CN=Jörg,UID=a1,DC=example,OU=Sales,O=Example,STREET=Ring 1,L=Wien,ST=Wien,C=AT",
        ),
        (name_of((NameOID.COMMON_NAME, ' a,=+<>#;"\\ ')), r"CN=\ a\,\=\+\<\>\#\;\"\\\ "),
        (name_of((NameOID.COMMON_NAME, "a b\0")), r"CN=a b\00"),
        (
            name_of((NameOID.EMAIL_ADDRESS, "a@b"), (NameOID.COMMON_NAME, "x")),
            "CN=x,1.2.840.113549.1.9.1=#1603614062",
        ),
        (
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ü", _ASN1Type.BMPString)]),
            "CN=ü",
        ),
        (
            x509.Name(
                [
                    x509.RelativeDistinguishedName(
                        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "o"), x509.NameAttribute(NameOID.USER_ID, "u")]
                    ),
                    x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.COMMON_NAME, "c")]),
                ]
            ),
            "CN=c,O=o+UID=u",
        ),
        (x509.Name([]), ""),
    ],
)
def test_subject_is_in_the_form_of_java(authority: Authority, name: x509.Name, text: str) -> None:
    """Keywords and escapes of RFC 2253, last name first; anything else in hex."""
    assert subject_of(authority, name) == text


@given(st.binary(max_size=200))
def test_bytes_that_are_no_certificate_are_refused(data: bytes) -> None:
    """With one error, whatever they are."""
    with pytest.raises(BadCertificate):
        subject_of_untrusted(data)


def test_identifier_of_thousands_of_digits_is_refused(certificate: bytes) -> None:
    """OpenSSL takes such a certificate, and Python makes no text of such a number."""

    def element(tag: int, content: bytes) -> bytes:
        return bytes([tag, 0x82]) + len(content).to_bytes(2, "big") + content

    identifier = element(0x06, b"\x2a" + b"\xff" * 3000 + b"\x7f")
    name = element(0x30, element(0x31, element(0x30, identifier + element(0x0C, b"alice"))))
    before = element(0x02, b"\1") + 3 * element(0x30, b"")
    with pytest.raises(BadCertificate, match="an object identifier has 3002 bytes; at most 64 are taken"):
        subject_of_untrusted(element(0x30, element(0x30, before + name)))


@given(data=st.data())
def test_certificate_with_another_byte_is_read_or_refused(certificate: bytes, data: st.DataObject) -> None:
    """There is no third."""
    other = bytearray(certificate)
    other[data.draw(st.integers(0, len(other) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadCertificate):
        subject_of_untrusted(bytes(other[: data.draw(st.integers(0, len(other)))]))
    with contextlib.suppress(BadCertificate):
        subject_of_untrusted(bytes(other))
