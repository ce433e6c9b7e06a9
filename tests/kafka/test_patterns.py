"""Regular expressions from the wire: the language of RE2, whole texts, and no pattern that holds anybody up."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog import patterns
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
        "(", ")", "a)", "(a", "*", "a|*", "(+)", "a**", "a+{2}", "a{2}{3}", "a{2,1}", "a{1001}", "a{9999999}", "[a",
        "[z-a]", r"[a-\d]", "[[:nope:]]", "a\\", r"\1", r"\012", r"\b", r"\pL", r"\C", r"\x4", r"\x{110000}", r"\x{}",
        "(?=a)", "(?!a)", "(?<=a)", "(?m)a", "(?-i)a", "(?P<>a)", "(?P=a)", "(?", "(?<a-b>c)", r"\E",
    ],
)  # fmt: skip
def test_pattern_that_is_none_is_refused(pattern):
    """What RE2 refuses, and what of RE2 is not served."""
    with pytest.raises(BadPattern, match=r".+"):
        Pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(" * 51 + ")" * 51,
        "a" * 1001,
        "(a|b){1000}",
        "((a{100}){100}){100}",
        "((((){1000}){1000}){1000}){1000}",
        "(((a?){50}){50}){50}",
    ],
    ids=["deep", "long", "repeated", "repeated repetitions", "repeated nothing", "repeated options"],
)
def test_pattern_that_is_too_large_is_refused_at_once(pattern):
    """Before it takes memory, or time."""
    with pytest.raises(BadPattern):
        Pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|aa)*b", "(.*)*x", "a?" * 30 + "a" * 30, "(a|a|a)*", "^(([a-z])+.)+[A-Z]$"]
)
def test_pattern_on_which_others_work_for_ages_takes_a_step_for_each_character(pattern):
    """The work is that of a few sets of instructions; the text's length does not count."""
    compiled = Pattern(pattern)
    assert not compiled.matches("a" * 1024 + "!")
    assert compiled.work < 20_000


def test_pattern_of_too_many_sets_is_refused():
    """An automaton of 2^300 states is not built; the work for all texts together has a bound."""
    compiled = Pattern("(a|b)*a(a|b){300}")
    texts = [f"{number * 7919:0200b}".replace("0", "a").replace("1", "b") for number in range(1000)]
    with pytest.raises(BadPattern, match="too much work"):
        list(map(compiled.matches, texts))
    assert compiled.work < 2 * patterns.WORK_MAX


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
