"""A CA, and certificates for a broker on loopback and for a client, made by openssl for one run of the benchmark."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PRINCIPAL = "User:CN=bench"
"""Who the client is to a broker that takes its certificate."""

_DAYS = "30"


class NoOpenssl(Exception):
    """There is no openssl on the path, or one that is too old. The message is a sentence for the report."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files in a directory."""

    directory: Path

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def node(self) -> Path:
        return self.directory / "node.pem"

    @property
    def node_key(self) -> Path:
        return self.directory / "node-key.pem"

    @property
    def node_with_key(self) -> Path:
        """Both in one file, as Kafka has them."""
        return self.directory / "node-with-key.pem"

    @property
    def client(self) -> Mapping[str, str]:
        """A client's settings, by librdkafka's names."""
        return {
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.ca),
            "ssl.certificate.location": str(self.directory / "client.pem"),
            "ssl.key.location": str(self.directory / "client-key.pem"),
        }


def make(directory: Path) -> Certificates:
    """Make them all in `directory`, which is created. Raises NoOpenssl."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise NoOpenssl("there is no `openssl` on the path to make certificates with")
    directory.mkdir(parents=True)
    made = Certificates(directory)
    signed = ("-CA", "ca.pem", "-CAkey", "ca-key.pem", "-addext", "basicConstraints=critical,CA:FALSE")
    loopback = ("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    for name, common_name, more in (
        ("ca", "bench CA", ()),
        ("node", "node", (*signed, *loopback)),
        ("client", PRINCIPAL.rpartition("=")[2], signed),
    ):
        done = subprocess.run(
            [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc",
             "-days", _DAYS, "-subj", f"/CN={common_name}", "-keyout", f"{name}-key.pem", "-out", f"{name}.pem", *more],
            cwd=directory, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise NoOpenssl(f"openssl makes no certificate (it has to be 3.0 or newer): {done.stderr.strip()[-200:]}")
        (directory / f"{name}-key.pem").chmod(0o600)
    made.node_with_key.touch(0o600)
    made.node_with_key.write_text(made.node_key.read_text() + made.node.read_text())
    return made
