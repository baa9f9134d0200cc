"""Boolean functions: equal ones are one node, whatever they are built from."""

from __future__ import annotations

import itertools
import random

import pytest

from fuselane.analysis.booleans import FALSE, TRUE, Booleans, Node, TooManyNodesError


def test_laws() -> None:
    b = Booleans()
    x, y, z = map(b.unknown, "xyz")
    assert b.unknown("x") == x
    assert b.negate(b.negate(x)) == x
    assert b.negate(b.both(x, y)) == b.either(b.negate(x), b.negate(y))
    assert b.either(b.both(x, y), b.both(x, b.negate(y))) == x
    assert b.both(x, b.negate(x)) == FALSE
    assert b.either(x, b.negate(x)) == TRUE
    assert b.differ(x, x) == FALSE
    assert b.differ(b.differ(x, y), y) == x
    assert b.choose(x, y, z) == b.either(b.both(x, y), b.both(b.negate(x), z))
    assert len({x, y, z, b.both(x, y), b.either(x, y), TRUE, FALSE}) == 7


@pytest.mark.parametrize("seed", range(20))
def test_equal_exactly_if_their_tables_are(seed: int) -> None:
    draw = random.Random(seed)
    b = Booleans()
    assignments = list(itertools.product((False, True), repeat=4))
    functions: list[tuple[Node, tuple[bool, ...]]] = [
        (b.unknown(n), tuple(a[n] for a in assignments)) for n in range(4)
    ]
    for _ in range(60):
        (p, s), (q, t), (r, u) = (draw.choice(functions) for _ in range(3))
        functions.append((b.both(p, q), tuple(x and y for x, y in zip(s, t, strict=True))))
        functions.append((b.negate(p), tuple(not x for x in s)))
        chosen = tuple(y if x else z for x, y, z in zip(s, t, u, strict=True))
        functions.append((b.choose(p, q, r), chosen))
        functions.append((b.differ(p, q), tuple(x != y for x, y in zip(s, t, strict=True))))
    for (p, s), (q, t) in itertools.combinations(functions, 2):
        assert (p == q) == (s == t)


def test_functions_too_large_are_given_up() -> None:
    b = Booleans()
    pairs = [(b.unknown(("left", n)), n) for n in range(30)]
    with pytest.raises(TooManyNodesError):
        total = FALSE
        for left, n in pairs:
            total = b.either(total, b.both(left, b.unknown(("right", n))))
