"""Regular expressions from the wire: the language of RE2, whole texts, and no pattern that holds anybody up."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog.patterns import BadPattern, Pattern


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders-.*", ["orders-", "orders-eu-1"], ["orders", "my-orders-1", ""]),
        ("^a$", ["a"], ["aa", ""]),
        ("", [""], ["a"]),
        ("a|b|", ["a", "b", ""], ["ab"]),
        ("(a|b)*c{2,3}", ["cc", "abccc"], ["abc", "cccc"]),
        ("a{2,}", ["aa", "aaaa"], ["a"]),
        ("a{,2}", ["a{,2}"], ["a", "aa"]),
        ("a{0}b", ["b"], ["ab"]),
        ("a+?b*?", ["a", "aab"], ["b"]),
        ("[a-c_-]+", ["abc", "a-_"], ["d", ""]),
        ("[]^]|[^]^]x", ["]", "^", "ax"], ["a", "]x"]),
        (r"\d+\.\w\s", ["12.a ", "0._\t"], ["1a ", "12.- "]),
        (r"\D\W\S", ["a-b"], ["1-b", "aab", "a- "]),
        ("[[:alpha:]][[:^digit:]]", ["aa", "z-"], ["a1", "1a"]),
        (r"\Qa.b*\E+", ["a.b*", "a.b**"], ["axb*", "a.bb"]),
        (r"\x41\x{1F600}\t", ["A\U0001f600\t"], ["A"]),
        ("(?i)abC[d-f]", ["ABcE", "abcd"], ["abcg"]),
        ("(?i)[^a]", ["b"], ["A", "a"]),
        ("a(?i:b)c", ["aBc"], ["aBC", "Abc"]),
        ("a.b", ["a-b"], ["a\nb"]),
        ("(?s)a.b", ["a\nb"], ["ab"]),
        ("(?P<first>a)(?<second>b)(?:c)", ["abc"], ["ab"]),
        (r"\Aa\z", ["a"], ["a\n"]),
        ("$^|(^$)*", [""], ["a"]),
        ("(a*)*b", ["b", "aab"], ["a"]),
        ("x^a|a$b", [], ["xa", "ab", "a"]),
        ("(?i)ß", ["ß"], ["SS"]),
    ],
)
def test_pattern_matches_whole_texts(pattern, matching, others):
    """What RE2 takes for a match of the whole text, asked in any order and again."""
    compiled = Pattern(pattern)
    for _ in range(2):
        assert [text for text in matching + others if compiled.matches(text)] == matching


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "(a", "*", "a**", "a{2,1}", "a{1001}", "[a", "[z-a]", "[[:nope:]]", "a\\", r"\1", "(?=a)",
        "(?P=a)",
    ],
)  # fmt: skip
def test_pattern_that_is_none_is_refused(pattern):
    """What RE2 refuses, with its reason."""
    with pytest.raises(BadPattern, match=r".+"):
        Pattern(pattern)


@pytest.mark.parametrize("pattern", ["a" * 16_385, "((a{100}){100}){100}", "(((a?){50}){50}){50}"])
def test_pattern_that_is_too_large_is_refused_at_once(pattern):
    """Before it takes memory, or time."""
    with pytest.raises(BadPattern):
        Pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(a|aa)*b", "(.*)*x", "a?" * 30 + "a" * 30, "(a|a|a)*", "^(([a-z])+.)+[A-Z]$", "(a|b)*a(a|b){300}"],
)
def test_pattern_on_which_others_work_for_ages_comes_to_an_end(pattern):
    """A backtracking engine would not return from the first of these texts."""
    compiled = Pattern(pattern)
    for length in (1024, 30_000):
        assert not compiled.matches("a" * length + "!")


LITERALS = st.sampled_from(["a", "b", r"\.", "[ab]", "[^a]", ".", "-", "(?:)"])


def grown(inner):
    pairs = st.tuples(inner, inner)
    suffix = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])
    return st.one_of(
        pairs.map("".join),
        pairs.map(lambda parts: f"(?:{parts[0]}|{parts[1]})"),
        st.tuples(inner, suffix).map(lambda parts: f"(?:{parts[0]}){parts[1]}"),
        inner.map(lambda part: f"^{part}"),
        inner.map(lambda part: rf"{part}\Z"),
    )


@given(st.recursive(LITERALS, grown, max_leaves=8), st.lists(st.text("ab.-", max_size=6), max_size=5))
def test_pattern_matches_what_pythons_does(pattern, texts):
    """Python's `re`, on patterns that both have, and texts so short that it does not matter how it searches."""
    compiled = Pattern(pattern.replace(r"\Z", "$"))
    for text in texts:
        assert compiled.matches(text) == (re.fullmatch(pattern, text) is not None)


@given(st.text(st.sampled_from("ab()[]{}|*+?.^$\\-,:0129QEidswxP<>=!\n"), max_size=12), st.text("ab01", max_size=5))
def test_any_text_is_a_pattern_or_refused(pattern, text):
    """Whatever comes from the wire ends as an answer or as BadPattern."""
    with contextlib.suppress(BadPattern):
        assert Pattern(pattern).matches(text) in (True, False)
