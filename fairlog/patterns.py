"""Regular expressions that clients send, matched in time that grows with the text alone.

Kafka has patterns on the wire, for RE2/J: ListTransactions' filter of ids (KIP-1152) is one. Python's `re` goes back
and tries again: `(a+)+$` against thirty letters takes minutes, and no one else is served meanwhile. So a pattern is
made a finite automaton (Thompson's construction). Its sets of states are found when a text needs them, and kept:

    text ──▶ parser ──▶ syntax tree ──▶ instructions ──▶ sets of instructions, one step for each character

Everything has a bound: the pattern's length and depth, the number of instructions, and the work of finding sets. A
pattern beyond one of them is refused (`BadPattern`), be it before the first text or at some later one.

The syntax is RE2's without what would take more than this: literals and escapes, `.`, classes (also `\\d` and
`[:alpha:]`), groups, `|`, `*`, `+`, `?`, `{n,m}` and their lazy forms, `^`, `$`, `\\A`, `\\z`, `\\Q…\\E`, and the
flags `i` and `s`. Word boundaries, Unicode's classes (`\\pL`), octal escapes and the flags `m` and `U` are refused. A
text matches as a whole, as with Java's `matches`, so lazy or greedy is the same, and groups capture nothing.

Alternatives: `google-re2` is a native package more for every install; a time limit around `re` takes a process of its
own, since a thread in `re` can neither be stopped nor gives way to others.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

PATTERN_CHARACTERS_MAX = 1_000
DEPTH_MAX = 50
"""Of groups in groups."""
REPEAT_MAX = 1_000
"""The largest number in braces: RE2's."""
INSTRUCTIONS_MAX = 2_000
WORK_MAX = 200_000
"""Instructions looked at to find sets, for all texts together: some 100 ms. A set that was found costs nothing more."""

_ESCAPES = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_DIGITS, _SPACES, _WORDS = (
    [("0", "9")],
    [("\t", "\n"), ("\f", "\r"), (" ", " ")],
    [("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z")],
)
_PERL = {"d": _DIGITS, "s": _SPACES, "w": _WORDS}
_LOWER, _UPPER = ("a", "z"), ("A", "Z")
_POSIX = {
    "alnum": [("0", "9"), _UPPER, _LOWER],
    "alpha": [_UPPER, _LOWER],
    "ascii": [("\0", "\x7f")],
    "blank": [("\t", "\t"), (" ", " ")],
    "cntrl": [("\0", "\x1f"), ("\x7f", "\x7f")],
    "digit": _DIGITS,
    "graph": [("!", "~")],
    "lower": [_LOWER],
    "print": [(" ", "~")],
    "punct": [("!", "/"), (":", "@"), ("[", "`"), ("{", "~")],
    "space": [("\t", "\r"), (" ", " ")],
    "upper": [_UPPER],
    "word": _WORDS,
    "xdigit": [("0", "9"), ("A", "F"), ("a", "f")],
}
_LAST = "\U0010ffff"


class BadPattern(ValueError):
    """The pattern is no regular expression, has what is not served, or takes too much; the message says which."""


Range = tuple[str, str]
"""Two characters, both included."""


@dataclass(frozen=True, slots=True)
class _Characters:
    """One character of these ranges."""

    ranges: tuple[Range, ...]
    fold: bool
    """Also if it is in them in the other case."""

    def __contains__(self, character: str) -> bool:
        if any(low <= character <= high for low, high in self.ranges):
            return True
        if not self.fold:
            return False
        return any(low <= c <= high for c in _cases(character) for low, high in self.ranges)


def _cases(character: str) -> list[str]:
    """The character in lower and upper case, where that is one character (`ß` has none)."""
    return [other for other in (character.lower(), character.upper()) if len(other) == 1]


@dataclass(frozen=True, slots=True)
class _Assertion:
    """Nothing, at the beginning or at the end of the text."""

    at_end: bool


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repetition:
    part: _Node
    least: int
    most: int | None
    """None: without end."""


_Node = _Characters | _Assertion | _Sequence | _Choice | _Repetition


@dataclass(frozen=True, slots=True)
class _Flags:
    fold: bool = False
    dot_takes_newline: bool = False


class _Parser:
    """Reads a pattern. Every method may raise BadPattern and nothing else."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> _Node:
        node = self._choice(_Flags())
        if self._at < len(self._text):
            raise BadPattern(f"a ) without its ( at character {self._at}")
        return node

    def _peek(self, ahead: str) -> bool:
        return self._text.startswith(ahead, self._at)

    def _take(self, ahead: str) -> bool:
        if not self._peek(ahead):
            return False
        self._at += len(ahead)
        return True

    def _next(self) -> str:
        if self._at == len(self._text):
            raise BadPattern("the pattern ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _choice(self, flags: _Flags) -> _Node:
        parts: list[_Node] = []
        while True:
            sequence, flags = self._sequence(flags)
            parts.append(sequence)
            if not self._take("|"):
                return parts[0] if len(parts) == 1 else _Choice(tuple(parts))

    def _sequence(self, flags: _Flags) -> tuple[_Node, _Flags]:
        """Up to a | or ), or the end; with the flags that hold there."""
        parts: list[_Node] = []
        while self._at < len(self._text) and not self._peek("|") and not self._peek(")"):
            if self._take("\\Q"):
                end = self._text.find("\\E", self._at)
                quoted = self._text[self._at : end if end >= 0 else len(self._text)]
                self._at += len(quoted) + (2 if end >= 0 else 0)
                letters: list[_Node] = [_Characters(((c, c),), flags.fold) for c in quoted]
                if letters:
                    parts += [*letters[:-1], self._repeated(letters[-1])]
                continue
            if self._peek("(?") and not self._peek("(?P<") and not self._peek("(?<"):
                inner, is_group = self._flags(flags)
                if not is_group:
                    flags = inner
                    continue
                parts.append(self._repeated(self._group(inner)))
                continue
            parts.append(self._repeated(self._atom(flags)))
        return (parts[0] if len(parts) == 1 else _Sequence(tuple(parts))), flags

    def _flags(self, flags: _Flags) -> tuple[_Flags, bool]:
        """Behind `(?`: the flags, and whether a group follows that they are for."""
        self._at += 2
        fold, dot = flags.fold, flags.dot_takes_newline
        while (letter := self._next()) in "is":
            fold, dot = fold or letter == "i", dot or letter == "s"
        if letter not in ":)":
            raise BadPattern(f"(?{letter} is not served, at character {self._at}")
        return _Flags(fold, dot), letter == ":"

    def _group(self, flags: _Flags) -> _Node:
        """From behind its ( to behind its )."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise BadPattern(f"groups are nested more than {DEPTH_MAX} deep")
        node = self._choice(flags)
        self._depth -= 1
        if not self._take(")"):
            raise BadPattern("a ( without its )")
        return node

    def _atom(self, flags: _Flags) -> _Node:
        character = self._next()
        match character:
            case "(":
                if self._take("?P<") or self._take("?<"):
                    self._name()
                return self._group(flags)
            case "[":
                return self._class(flags)
            case ".":
                ranges = (("\0", _LAST),) if flags.dot_takes_newline else (("\0", "\t"), ("\x0b", _LAST))
                return _Characters(ranges, fold=False)
            case "^":
                return _Assertion(at_end=False)
            case "$":
                return _Assertion(at_end=True)
            case "*" | "+" | "?":
                raise BadPattern(f"nothing to repeat before character {self._at}")
            case "\\":
                if self._take("A"):
                    return _Assertion(at_end=False)
                if self._take("z"):
                    return _Assertion(at_end=True)
                return _Characters(tuple(self._escape()), flags.fold)
            case _:
                return _Characters(((character, character),), flags.fold)

    def _name(self) -> None:
        name, found, _ = self._text[self._at :].partition(">")
        if not found or not name.isascii() or not name.replace("_", "a").isalnum():
            raise BadPattern(f"a group's name is expected at character {self._at}")
        self._at += len(name) + 1

    def _repeated(self, node: _Node) -> _Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        self._take("?")  # lazy: of no consequence
        if self._bounds() is not None:
            raise BadPattern(f"a repetition is repeated before character {self._at}")
        return _Repetition(node, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if not self._peek("{"):
            return None
        inside, found, _ = self._text[self._at + 1 :].partition("}")
        least, comma, most = inside.partition(",")
        if not found or not _is_number(least) or (comma and most and not _is_number(most)):
            return None  # a brace like any other character
        self._at += len(inside) + 2
        low = int(least)
        high = int(most) if most else None if comma else low
        if max(low, high or 0) > REPEAT_MAX or (high is not None and high < low):
            raise BadPattern(f"{{{inside}}} is no repetition: 0 to {REPEAT_MAX} times, the smaller number first")
        return low, high

    def _class(self, flags: _Flags) -> _Node:
        negated, ranges = self._take("^"), list[Range]()
        first = True
        while first or not self._peek("]"):
            first = False
            if self._take("[:"):
                ranges += self._posix()
                continue
            low = self._class_item()
            if not (self._peek("-") and not self._peek("-]")):
                ranges += low
                continue
            self._at += 1
            high = self._class_item()
            if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1]:
                raise BadPattern(f"a range of more than characters ends at character {self._at}")
            if high[0][0] < low[0][0]:
                raise BadPattern(f"a range that goes backwards ends at character {self._at}")
            ranges.append((low[0][0], high[0][0]))
        self._at += 1
        if flags.fold:
            ranges += [(c, c) for low, high in ranges if ord(high) - ord(low) < 128 for c in _other_case(low, high)]
        return _Characters(tuple(_outside(ranges) if negated else ranges), flags.fold and not negated)

    def _class_item(self) -> list[Range]:
        character = self._next()
        return self._escape() if character == "\\" else [(character, character)]

    def _posix(self) -> list[Range]:
        name, found, _ = self._text[self._at :].partition(":]")
        ranges = _POSIX.get(name.removeprefix("^"))
        if not found or ranges is None:
            raise BadPattern(f"no class of this name at character {self._at}")
        self._at += len(name) + 2
        return list(_outside(ranges)) if name.startswith("^") else ranges

    def _escape(self) -> list[Range]:
        """Behind the backslash."""
        character = self._next()
        if (ranges := _PERL.get(character.lower())) is not None:
            return ranges if character.islower() else list(_outside(ranges))
        if character in _ESCAPES:
            literal = _ESCAPES[character]
        elif character == "x":
            literal = self._hexadecimal()
        elif character.isascii() and not character.isalnum():
            literal = character
        else:
            raise BadPattern(f"\\{character} is not served, at character {self._at}")
        return [(literal, literal)]

    def _hexadecimal(self) -> str:
        if self._take("{"):
            digits, found, _ = self._text[self._at :].partition("}")
            self._at += len(digits) + 1
        else:
            digits, found = self._text[self._at : self._at + 2], "two digits"
            self._at += 2
        if not found or len(digits) not in range(1 if found == "}" else 2, 7) or not _is_number(digits, base=16):
            raise BadPattern(f"a character's number is expected before character {self._at}")
        number = int(digits, 16)
        if number > ord(_LAST):
            raise BadPattern(f"there is no character {digits}")
        return chr(number)


def _is_number(text: str, *, base: int = 10) -> bool:
    digits = "0123456789abcdef"[:base]
    return 0 < len(text) <= 20 and all(character in digits for character in text.lower())


def _outside(ranges: Iterable[Range]) -> Iterator[Range]:
    """All characters that are in none of the ranges."""
    following = 0
    for low, high in sorted(ranges):
        if following < ord(low):
            yield chr(following), chr(ord(low) - 1)
        following = max(following, ord(high) + 1)
    if following <= ord(_LAST):
        yield chr(following), _LAST


def _other_case(low: str, high: str) -> Iterator[str]:
    for number in range(ord(low), ord(high) + 1):
        yield from _cases(chr(number))


@dataclass(slots=True)
class _Instruction:
    """Take a character, or look where the text stands, or nothing; then go on with one of `then`."""

    test: _Characters | _Assertion | None
    then: list[int]


_MATCHED = 0


class _Compiler:
    """Makes instructions, from the end of the pattern to its beginning."""

    def __init__(self) -> None:
        self.instructions = [_Instruction(None, [])]
        self._visits = 0

    def _add(self, test: _Characters | _Assertion | None, then: list[int]) -> int:
        if len(self.instructions) >= INSTRUCTIONS_MAX:
            raise BadPattern("the pattern is too large")
        self.instructions.append(_Instruction(test, then))
        return len(self.instructions) - 1

    def compile(self, node: _Node, then: int) -> int:
        """The number of the instruction with which `node` begins, if `then` is what follows it."""
        self._visits += 1  # nothing, repeated, makes no instructions
        if self._visits > 10 * INSTRUCTIONS_MAX:
            raise BadPattern("the pattern is too large")
        match node:
            case _Characters() | _Assertion():
                return self._add(node, [then])
            case _Sequence(parts):
                for part in reversed(parts):
                    then = self.compile(part, then)
                return then
            case _Choice(parts):
                return self._add(None, [self.compile(part, then) for part in parts])
            case _Repetition(part, least, most):
                if most is None:
                    loop = self._add(None, [then])
                    self.instructions[loop].then.append(self.compile(part, loop))
                    then = loop
                else:
                    end = then
                    for _ in range(most - least):
                        then = self._add(None, [end, self.compile(part, then)])
                for _ in range(least):
                    then = self.compile(part, then)
                return then


class Pattern:
    """A compiled pattern. It learns from the texts that it is asked about, so one is for one thread."""

    def __init__(self, text: str) -> None:
        """Raises BadPattern."""
        if len(text) > PATTERN_CHARACTERS_MAX:
            raise BadPattern(f"a pattern has at most {PATTERN_CHARACTERS_MAX} characters, this one has {len(text)}")
        compiler = _Compiler()
        begin = compiler.compile(_Parser(text).parse(), _MATCHED)
        self._instructions = compiler.instructions
        self.work = 0
        """Instructions looked at so far; `WORK_MAX` is for this."""
        self._numbers: dict[frozenset[int], int] = {}
        self._sets: list[frozenset[int]] = []
        self._steps: list[dict[str, int]] = []
        self._accepting: dict[int, bool] = {}
        self._begin = begin
        self._first = self._number(self._closure([begin], at_begin=True, at_end=False))

    def matches(self, text: str) -> bool:
        """Whether the whole of `text` is of the pattern. Raises BadPattern if that takes too much work."""
        if not text:
            return _MATCHED in self._closure([self._begin], at_begin=True, at_end=True)
        current = self._first
        for character in text:
            following = self._steps[current].get(character)
            if following is None:
                following = self._steps[current][character] = self._step(current, character)
            current = following
        accepting = self._accepting.get(current)
        if accepting is None:
            closure = self._closure(self._sets[current], at_begin=False, at_end=True)
            accepting = self._accepting[current] = _MATCHED in closure
        return accepting

    def _step(self, current: int, character: str) -> int:
        reached: set[int] = set()
        for number in self._sets[current]:
            instruction = self._instructions[number]
            if isinstance(instruction.test, _Characters) and character in instruction.test:
                reached.update(instruction.then)
        self._spend(len(self._sets[current]))
        return self._number(self._closure(reached, at_begin=False, at_end=False))

    def _closure(self, numbers: Iterable[int], *, at_begin: bool, at_end: bool) -> frozenset[int]:
        """All instructions that are reached from these without taking a character; those that take none are left out,
        but for what may still be true at the end."""
        found: set[int] = set()
        left = list(numbers)
        seen = set(left)
        while left:
            number = left.pop()
            instruction = self._instructions[number]
            match instruction.test:
                case _Characters():
                    found.add(number)
                    continue
                case _Assertion(of_end):
                    if of_end and not at_end:
                        found.add(number)
                    if not (at_end if of_end else at_begin):
                        continue
                case None:
                    if number == _MATCHED:
                        found.add(number)
            for following in instruction.then:
                if following not in seen:
                    seen.add(following)
                    left.append(following)
        self._spend(len(seen))
        return frozenset(found)

    def _number(self, reached: frozenset[int]) -> int:
        number = self._numbers.setdefault(reached, len(self._sets))
        if number == len(self._sets):
            self._sets.append(reached)
            self._steps.append({})
        return number

    def _spend(self, instructions: int) -> None:
        self.work += 1 + instructions
        if self.work > WORK_MAX:
            raise BadPattern("the pattern takes too much work")
