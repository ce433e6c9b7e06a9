r"""A certificate's subject as text, as Kafka has it in principals: RFC 2253, in the form that Java gives it. Pure.

    C=AT, O=Example, CN=alice   ──▶   "CN=alice,O=Example,C=AT"

The last name comes first. Names without a keyword in RFC 2253 (such as an e-mail address) are an object identifier,
with the value's bytes in hex: "1.2.840.113549.1.9.1=#1614…". `,=+<>#;"\` and spaces at the ends of a value have a
backslash.

A certificate is DER (X.690): tag, length, content. Only what lies before the subject is passed over here; that the
certificate is good, TLS has found out before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}

_VERSION, _SEQUENCE, _SET, _IDENTIFIER = 0xA0, 0x30, 0x31, 0x06
_ENCODINGS = {
    0x0C: "utf-8",
    0x13: "utf-8",
    0x14: "latin-1",
    0x16: "utf-8",
    0x1B: "utf-8",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
"""Of the types of texts, by tag: UTF8, Printable, T61, IA5, General, Universal, BMP."""
_ESCAPED = ',=+<>#;"\\'
_BEFORE_SUBJECT = 4
"""Serial number, algorithm, issuer, validity."""


_IDENTIFIER_BYTES_MAX = 64
"""Those that there are have some ten. Python makes no text of numbers of thousands of digits."""


class BadCertificate(Exception):
    """Bytes that are no certificate. The message says why."""


class _Element(NamedTuple):
    tag: int
    content: bytes
    whole: bytes
    """With tag and length."""


def subject_of_untrusted(certificate: bytes) -> str:
    """The subject of a certificate in DER; empty if it has none. Raises BadCertificate."""
    (signed, *_) = _elements(_one(certificate, _SEQUENCE))
    fields = _elements(signed.content)
    if fields and fields[0].tag == _VERSION:
        fields = fields[1:]
    if len(fields) <= _BEFORE_SUBJECT or fields[_BEFORE_SUBJECT].tag != _SEQUENCE:
        raise BadCertificate("there is no subject")
    return ",".join(
        "+".join(_attribute(each.content) for each in _elements(name.content))
        for name in reversed(list(_each(fields[_BEFORE_SUBJECT].content)))
    )


def _attribute(content: bytes) -> str:
    parts = _elements(content)
    if len(parts) != 2 or parts[0].tag != _IDENTIFIER:
        raise BadCertificate("a name of the subject is no identifier and value")
    identifier, value = _identifier(parts[0].content), parts[1]
    keyword, encoding = _KEYWORDS.get(identifier), _ENCODINGS.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or identifier}=#{value.whole.hex()}"
    return f"{keyword}={_escaped(value.content.decode(encoding, 'replace'))}"


def _escaped(text: str) -> str:
    first, last = len(text) - len(text.lstrip(" ")), len(text.rstrip(" "))
    return "".join(
        "\\00" if letter == "\0" else f"\\{letter}" if letter in _ESCAPED or not first <= at < last else letter
        for at, letter in enumerate(text)
    )


def _identifier(content: bytes) -> str:
    """An object identifier with dots."""
    if len(content) > _IDENTIFIER_BYTES_MAX:
        raise BadCertificate(
            f"an object identifier has {len(content)} bytes; at most {_IDENTIFIER_BYTES_MAX} are taken"
        )
    numbers: list[int] = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise BadCertificate("an object identifier is empty")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _one(data: bytes, tag: int) -> bytes:
    elements = _elements(data)
    if len(elements) != 1 or elements[0].tag != tag:
        raise BadCertificate("this is no certificate")
    return elements[0].content


def _elements(data: bytes) -> list[_Element]:
    found = list(_each(data))
    if not found:
        raise BadCertificate("an element is empty")
    return found


def _each(data: bytes) -> Iterator[_Element]:
    at = 0
    while at < len(data):
        start, header = at, data[at : at + 2]
        if len(header) < 2:
            raise BadCertificate("it ends within an element")
        tag, length = header
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise BadCertificate("it ends within an element")
        yield _Element(tag, data[at : at + length], data[start : at + length])
        at += length
