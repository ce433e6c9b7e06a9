"""Subjects become names as Kafka's `ssl.principal.mapping.rules` say."""

from __future__ import annotations

import pytest

from fairlog.security.principal_rules import BadRules, NoRuleMatches, PrincipalRules

ALICE = "CN=Alice,OU=Sales,O=Example,C=AT"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", ALICE, ALICE),
        ("RULE:^CN=(.*?),OU=Sales.*$/$1/", ALICE, "Alice"),
        ("RULE:^CN=(.*?),OU=Sales.*$/$1/L", ALICE, "alice"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U , DEFAULT", ALICE, "ALICE@SALES"),
        ("RULE:^CN=(.*?),OU=Other.*$/$1/,DEFAULT", ALICE, ALICE),
        ("RULE:CN=(.*?),OU=Other,.*/x/, RULE:CN=(.).*/$1/", ALICE, "A"),
        ("RULE:.*/everybody/", ALICE, "everybody"),
        (r"RULE:CN=(.*?),.*/\$1\/$1/", ALICE, "$1/Alice"),
        (r"RULE:CN=a\/b,(.*)/$1/", "CN=a/b,O=c", "O=c"),
        ("RULE:CN=([^,]*).*/$12 $2/", ALICE, "Alice2 $2"),
        ("RULE:CN=([^,]*)(,X=.*)?.*/$1$2/", ALICE, "Alice"),
        ("RULE:CN=([^,]*).*/$0/", "CN=x", "CN=x"),
    ],
)
def test_first_rule_that_matches_makes_the_name(rules: str, subject: str, name: str) -> None:
    """It has to match the whole subject."""
    assert PrincipalRules(rules).name_of(subject) == name


def test_subject_that_no_rule_matches_has_no_name() -> None:
    """As in Kafka its client is refused."""
    with pytest.raises(NoRuleMatches, match=r"no rule of tls.principal_rules matches the subject 'O=x'"):
        PrincipalRules("RULE:CN=(.*)/$1/").name_of("O=x")
    with pytest.raises(NoRuleMatches) as raised:
        PrincipalRules("RULE:CN=(.*)/$1/").name_of("O=" + "x" * 10_000)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ("", "at least one rule is needed"),
        ("  ", "at least one rule is needed"),
        ("default", "DEFAULT or RULE:pattern/replacement/ with L, U or nothing is needed at 'default'"),
        ("DEFAULT,RULE:a/b", "needed at 'RULE:a/b'"),
        ("RULE:a/b/X", "needed at 'RULE:a/b/X'"),
        ("RULE:a/b/LDEFAULT", "needed at 'RULE:a/b/LDEFAULT'"),
        ("RULE:(/b/", r"the pattern '\(': missing"),
        ("RULE:(?=a)/b/", "the pattern"),
    ],
)
def test_rules_that_are_none_are_refused(rules: str, words: str) -> None:
    """A rule that is ignored would let somebody in under another name."""
    with pytest.raises(BadRules, match=words):
        PrincipalRules(rules)


def test_rules_are_equal_if_their_text_is() -> None:
    """Settings are compared."""
    one, same, other = PrincipalRules("DEFAULT"), PrincipalRules(), PrincipalRules("RULE:.*/a/")
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert str(other) == "RULE:.*/a/"
