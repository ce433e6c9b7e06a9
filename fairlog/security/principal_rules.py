r"""From a certificate's subject to a name that ACLs use: Kafka's `ssl.principal.mapping.rules` (KIP-371). Pure.

    DEFAULT                                  the subject as it is, "CN=alice,OU=Sales,O=Example"
    RULE:^CN=(.*?),OU=Sales.*$/$1/L, DEFAULT    alice, in lower case; whoever is not in Sales: the subject

Rules stand one after the other with commas between them, and the first one that matches the whole subject makes the
name. `$1` is what the first group has matched; L makes the name lower case, U upper case. A slash, or a dollar sign in
a replacement, is written with a backslash before it. If no rule matches, the client is refused, as in Kafka.

Unlike Kafka's, patterns are RE2's (`fairlog.patterns`): without lookaround and back references, in linear time, because
the subject is the client's.
"""

from __future__ import annotations

import re

from fairlog.patterns import BadPattern, Pattern
from fairlog.security.exchange import shown

DEFAULT_RULES = "DEFAULT"

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_REFERENCE = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)


class BadRules(ValueError):
    """The rules are not such; the message says where."""


class NoRuleMatches(Exception):
    """No rule makes a name of a subject. The message says of which."""


class _Rule:
    """A pattern, and the name that it makes."""

    def __init__(self, pattern: str, replacement: str, case: str) -> None:
        self._pattern = Pattern(pattern)
        self._replacement = replacement
        self._case = case

    def name_of(self, subject: str) -> str | None:
        groups = self._pattern.groups(subject)
        if groups is None:
            return None

        def put(reference: re.Match[str]) -> str:
            escaped, number = reference.groups()
            if escaped is not None:
                return escaped
            digits = number
            while len(digits) > 1 and int(digits) >= len(groups):  # $12 is $1 and a 2, if there are fewer groups
                digits = digits[:-1]
            if int(digits) >= len(groups):
                return reference.group()
            return (groups[int(digits)] or "") + number[len(digits) :]

        name = _REFERENCE.sub(put, self._replacement)
        return name.lower() if self._case == "L" else name.upper() if self._case == "U" else name


class PrincipalRules:
    """Rules that were accepted. Raises BadRules for others."""

    def __init__(self, text: str = DEFAULT_RULES) -> None:
        self._text = text
        self._rules: list[_Rule | None] = []
        """None for DEFAULT."""
        at = 0
        while at < len(text.rstrip()):
            found = _RULE.match(text, at)
            if found is None:
                raise BadRules(f"DEFAULT or RULE:pattern/replacement/ with L, U or nothing is needed at {text[at:]!r}")
            default, pattern, replacement, case = found.groups()
            try:
                self._rules.append(None if default else _Rule(pattern, replacement, case))
            except BadPattern as error:
                raise BadRules(f"the pattern {pattern!r}: {error}") from error
            at = found.end()
        if not self._rules:
            raise BadRules("at least one rule is needed: DEFAULT")

    def __str__(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrincipalRules) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def name_of(self, subject: str) -> str:
        """The name of who has this subject (RFC 2253). Raises NoRuleMatches."""
        for rule in self._rules:
            name = subject if rule is None else rule.name_of(subject)
            if name is not None:
                return name
        raise NoRuleMatches(f"no rule of tls.principal_rules matches the subject {shown(subject)!r}")
