"""The certificate by which a node knows itself: the first one in the file of `tls.certificate`."""

from __future__ import annotations

import ssl
from pathlib import Path


def first_certificate(file: Path) -> bytes:
    """The node's own, in DER. Blocks. Raises OSError, ValueError."""
    text = file.read_text(encoding="ascii", errors="replace")
    begin, end = ssl.PEM_HEADER, ssl.PEM_FOOTER
    return ssl.PEM_cert_to_DER_cert(text[text.index(begin) : text.index(end) + len(end)])
