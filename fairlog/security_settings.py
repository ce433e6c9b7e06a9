"""The part of the node's settings that says who may connect, sign in and do what, and where that is noted.

The keys of `fairlog.config` under `authorizer`, `security`, `tls`, `sasl`, `oauth` and `trail`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fairlog.config_key import key
from fairlog.config_values import (
    read_client_auth,
    read_file_or_none,
    read_listener_name_or_empty,
    read_mechanisms,
    read_principal_rules,
    read_principals,
    read_protocols,
    read_switch,
    read_text_or_empty,
    whole,
)
from fairlog.security.client_auth import ClientAuthByListener
from fairlog.security.listeners import Listener
from fairlog.security.principal_rules import PrincipalRules


@dataclass(frozen=True, slots=True)
class AuthorizerSettings:
    """Who may do what. docs/authorization.md describes it."""

    enable: bool = key(
        False,
        read_switch,
        "Let each client do only what the cluster's ACLs allow it. Without it everyone may do everything, and there "
        "are no ACLs. Kafka's authorizer.class.name. All nodes of a cluster have the same values here.",
    )
    super_users: tuple[str, ...] = key(
        (),
        read_principals,
        "Principals that may do everything, such as User:admin, separated by semicolons. Kafka's super.users.",
        default_text="none",
    )
    allow_everyone_if_no_acl_found: bool = key(
        False,
        read_switch,
        "Whether everyone may do everything with a resource that no ACL is about. Kafka's "
        "allow.everyone.if.no.acl.found.",
    )


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """How the listeners are spoken to. docs/security.md describes it."""

    protocols: tuple[Listener, ...] = key(
        (),
        read_protocols,
        "NAME:PROTOCOL for each listener whose name is no protocol, with commas between them. Protocols are PLAINTEXT, "
        "SSL, SASL_PLAINTEXT and SASL_SSL. Kafka's listener.security.protocol.map.",
        default_text="none",
    )
    inner_listener: str = key(
        "",
        read_listener_name_or_empty,
        "The name of the listener, among those of listen, by which the nodes of a cluster reach each other: its port "
        "is that of the first shard, and those of the others follow. Clients are not served there. Its protocol is "
        "PLAINTEXT, or SSL: then each node shows the other its certificate. Without it nodes reach each other without "
        "TLS, at ports after those of the first listener. Kafka's inter.broker.listener.name.",
        default_text="none",
    )
    inner_plaintext: bool = key(
        False,
        read_switch,
        "With an inner listener with TLS: also speak without it to nodes that do not have it yet. For the time in "
        "which a cluster moves to TLS, node by node.",
    )


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Certificates, for listeners with TLS (SSL, SASL_SSL). All files are PEM, and are read again when they change."""

    certificate: Path | None = key(
        None,
        read_file_or_none,
        "The file with the node's certificate, and with those between it and the CA. Kafka's ssl.keystore.location.",
        default_text="none",
    )
    client_ca: Path | None = key(
        None,
        read_file_or_none,
        "A file with the certificates of the CAs that clients' certificates have to come from. Kafka's "
        "ssl.truststore.location.",
        default_text="none",
    )
    client_auth: ClientAuthByListener = key(
        ClientAuthByListener(),
        read_client_auth,
        "Whether clients have to show a certificate. none: they are not asked. requested: one that is shown must be "
        "good. required: without one there is no connection. For single listeners NAME:WORD, with commas between "
        "them; the others do not ask. Kafka's ssl.client.auth.",
    )
    inner_ca: Path | None = key(
        None,
        read_file_or_none,
        "A file with the certificates of the CAs that the certificates of other nodes have to come from, where the "
        "inner listener has TLS (security.inner_listener).",
        default_text="tls.client_ca",
    )
    revoked: Path | None = key(
        None,
        read_file_or_none,
        "A file with the revocation lists (CRLs) of these CAs, one of each that certificates of clients and other "
        "nodes come from directly. A certificate that is in one is refused, and all are when the list has expired.",
        default_text="none",
    )
    principal_rules: PrincipalRules = key(
        PrincipalRules(),
        read_principal_rules,
        "How a certificate's subject becomes the name of a user: DEFAULT, the whole subject, or "
        "RULE:pattern/replacement/ with L or U after it, with commas between several; the first one that matches. "
        "Patterns are RE2's. Kafka's ssl.principal.mapping.rules.",
    )
    # Last: below it the name is not that of the function any more.
    key: Path | None = key(
        None,
        read_file_or_none,
        "The file with the certificate's private key, without a password. Nobody but its owner may read it (of a file "
        "that is root's, also its group).",
        default_text="none",
    )


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """How clients sign in at listeners that ask (SASL_PLAINTEXT, SASL_SSL). docs/security.md describes it."""

    mechanisms: tuple[str, ...] = key(
        ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"),
        read_mechanisms,
        "The SASL mechanisms, with commas between them: SCRAM-SHA-256, SCRAM-SHA-512 and PLAIN by users' passwords, "
        "OAUTHBEARER by tokens. Kafka's sasl.enabled.mechanisms.",
        default_text="`SCRAM-SHA-256,SCRAM-SHA-512,PLAIN`",
    )
    secrets_without_tls: bool = key(
        False,
        read_switch,
        "Also offer PLAIN and OAUTHBEARER on listeners without TLS, where everybody on the line can read the password "
        "or the token.",
    )
    max_reauth_ms: int = key(
        0,
        whole(0, 2**31 - 1),
        "Milliseconds after which a client has to sign in again, on the same connection (KIP-368); else it is closed "
        "with the next request. 0: never. Kafka's connections.max.reauth.ms.",
    )


@dataclass(frozen=True, slots=True)
class OauthSettings:
    """Tokens that clients sign in with, with OAUTHBEARER in sasl.mechanisms (KIP-768)."""

    jwks: str = key(
        "",
        read_text_or_empty,
        "The issuer's public keys, a JSON Web Key Set: an https URL, or a file. Kafka's "
        "sasl.oauthbearer.jwks.endpoint.url.",
        default_text="none",
    )
    issuer: str = key(
        "",
        read_text_or_empty,
        "Who tokens have to be from (iss). Kafka's sasl.oauthbearer.expected.issuer.",
        default_text="none",
    )
    audience: str = key(
        "",
        read_text_or_empty,
        "Whom tokens have to be for (aud); of several, with commas between them, one. Kafka's "
        "sasl.oauthbearer.expected.audience.",
        default_text="none",
    )
    principal_claim: str = key(
        "sub",
        read_text_or_empty,
        "The claim that has the user's name. Kafka's sasl.oauthbearer.sub.claim.name.",
    )
    clock_skew_s: int = key(
        30,
        whole(0, 3600),
        "Seconds by which the issuer's clock and the node's may differ. Kafka's sasl.oauthbearer.clock.skew.seconds.",
    )


@dataclass(frozen=True, slots=True)
class TrailSettings:
    """The audit trail: a line for whatever a client has created, deleted, changed or ended. docs/audit-trail.md
    describes it.
    """

    file: Path | None = key(
        None,
        read_file_or_none,
        "The file to which the audit trail is appended, a JSON object a line; it may be moved away while the node "
        "runs. All processes of a node write to one.",
        default_text="none: lines of the node's log, of the event `trail`",
    )
