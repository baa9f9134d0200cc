"""Programs of the sorts that people write, with random steps in between.

Steps drawn one by one rarely make what takes several of them together: states that are reset as a
whole, fits that reduce the same data in each step, lanes that meet twice before they go on. A scene
draws the carries of such a program and the steps that matter; what is drawn otherwise comes in
front of them, among them and behind.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, final

from fuselane.fuzz.kinds import COMPLEX, Kind, is_floating
from fuselane.fuzz.program import FIRST_CARRY, NUMBER, Slot

BOARDS: Final = ((40,), (5, 13), (65,), (33,), (16, 4), (7, 9), (2, 3, 7), (36,), (50,))
"""Shapes of more elements than stay in registers."""
FEW_LANES: Final = ((33,), (5,), (17,), (8,), (64,), (7, 5), (27,), (2, 11), (3,), (100,))
MANY_POINTS: Final = (37, 16, 64, 100, 50, 23, 130)
CROWDS: Final = ((5,), (8,), (17,), (33,), (64,), (16, 3), (9, 2), (40, 3), (12, 5))
GRIDS: Final = ((40,), (1000,), (70,), (9, 13), (33, 34), (20, 30), (5, 6, 7), (12, 11, 10))
"""Shapes of grids, which are never lanes."""
TABLES: Final = (100, 1000, 17, 4097, 300)
ANY_OUTER: Final = ("scan", "scan", "scan", "counted", "while", "gradient")
TOGETHER: Final = ("scan", "scan", "scan", "counted")

MOVES: Final = ("concatenate", "reverse", "stencil", "dynamic-update-slice", "scatter", "gather")
"""Steps that move a board's elements."""
JOINS: Final = ("add", "subtract", "select", "maximum", "add", "subtract")
"""Steps that make one board of two."""
OTHERS: Final = ("stencil", "concatenate", "sort", "reduce-window", "gather", "reverse")
"""Steps by which what lies along the first dimension sees others there."""
CURVES: Final = ("exponential", "tanh", "logistic", "sine", "sqrt", "log-plus-one", "cosine")
ALONG_FIRST: Final = 2
"""The operand by which `reduce` reduces a matrix's first dimension."""


class Pen(Protocol):
    """What draws the steps of a program, one behind the other.

    Attributes:
        random: Where chance comes from.
        dtypes: Types that may be drawn.
    """

    random: random.Random
    dtypes: tuple[str, ...]

    def add(self, operation: str, *operands: int, variant: int | None = None) -> int:
        """Adds a step, with random operands in the place of those left out; returns its number."""
        ...

    def wander(self, counts: Sequence[int]) -> None:
        """Adds random steps, as many as one of the counts."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is drawn of a program beside its steps.

    Attributes:
        lanes: Sizes of the dimensions of lanes.
        carries: What the loop carries.
        streams: What it reads a row of in each step.
        updates: Numbers of the values that these become.
        results: Numbers of values that are stacked.
        table: What all lanes read and the loop changes.
        reductions: Numbers of values that are reduced over the lanes.
    """

    lanes: tuple[int, ...]
    carries: tuple[Slot, ...]
    updates: tuple[int, ...]
    results: tuple[int, ...]
    streams: tuple[Slot, ...] = ()
    table: Slot | None = None
    reductions: tuple[tuple[int, int], ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Sketch:
    """A sort of programs.

    Attributes:
        draw: Draws the steps of one with a pen, and returns the rest.
        share: The share of all programs that it has.
        outers: Its loops, each as often as it stands here.
        is_spread: Whether its lanes may be spread over devices.
    """

    draw: Callable[[Pen], Scene]
    share: float
    outers: tuple[str, ...]
    is_spread: bool = True


def reset_states(pen: Pen) -> Scene:
    """A state of several arrays, most of one shape and type, that is reset as a whole."""
    draw = pen.random
    board = _slot(pen, draw.choice(BOARDS))
    boards = [board] * draw.choice((2, 3, 3, 4))
    if draw.random() < 0.4:
        boards.append(_slot(pen, draw.choice((*BOARDS, board.shape))))
    others = [_slot(pen, draw.choice(((), (3,), (2,)))) for _ in range(draw.choice((0, 1, 2)))]
    age = Slot("int32", (), Kind.EXACT.value, draw.randrange(64))
    carries = [*boards, *others, age]
    draw.shuffle(carries)
    places = [FIRST_CARRY + i for i in range(len(carries))]
    large = [p for p, slot in zip(places, carries, strict=True) if math.prod(slot.shape) > 1]
    pen.wander((0, 0, 1, 2))
    share_moved = draw.choice((0.0, 0.5, 0.5))
    moved = {}
    for place, slot in zip(places, carries, strict=True):
        moved[place] = place
        for _ in range(draw.choice((1, 1, 2)) if place in large else 0):
            if draw.random() < share_moved:
                variant = draw.randrange(1 << 16) | 1  # odd rotates
                moved[place] = pen.add(draw.choice(MOVES), moved[place], variant=variant)
            else:
                other = draw.choice([*large, *moved.values()])
                moved[place] = pen.add(draw.choice(JOINS), moved[place], other)
        if slot is age:
            moved[place] = older = pen.add("add", place, pen.add("constant", NUMBER, 1, variant=1))
    pen.wander((0, 0, 1))
    asked = draw.choice((older, older, places[0]))
    is_alike, variant = draw.random() < 0.6, draw.randrange(1 << 16)
    merged = {
        place: pen.add(
            "reset",
            value,
            draw.choice((older, *large)),
            asked,
            variant=variant if is_alike else None,
        )
        if draw.random() < 0.9
        else value
        for place, value in moved.items()
    }
    return Scene(
        lanes=draw.choice(FEW_LANES),
        carries=tuple(carries),
        streams=_streams(pen),
        updates=tuple(merged.values()),
        results=(pen.add("reduce", draw.choice(list(merged.values()))),),
    )


def fit_to_data(pen: Pen) -> Scene:
    """A few parameters that each step moves by what it reduces the same data to; no lanes."""
    draw = pen.random
    count, width = draw.choice(MANY_POINTS), draw.choice((1, 2, 3, 4))
    dtype, kind = _numbers(pen)
    data = Slot(dtype, (count,) if width == 1 else (count, width), kind)
    parameters = Slot(dtype, (draw.choice((1, 2, 3, 4)),) if width == 1 else (width,), kind)
    carries = (parameters, data, replace(data, shape=(count,)))
    mine, points, labels = (FIRST_CARRY + i for i in range(3))
    value = mine
    for _ in range(draw.choice((1, 1, 2))):
        if width == 1:
            scores = pen.add("outer", points, value)
        else:
            scores = pen.add("contract", points, value, variant=1 + draw.randrange(2))
        for _ in range(draw.choice((0, 1, 1, 2))):
            scores = pen.add(draw.choice(CURVES), scores)
        if draw.random() < 0.4:
            scores = pen.add(draw.choice(("subtract", "multiply", "select")), scores, labels)
        pen.wander((0, 0, 0, 1))
        if width == 1 and draw.random() < 0.5:
            total = pen.add("reduce", scores, ALONG_FIRST)
        else:
            total = pen.add("contract", scores, points, variant=draw.choice((0, 3)))
        value = pen.add(draw.choice(("subtract", "add")), value, total)
    return Scene(
        lanes=(),
        carries=carries,
        updates=(value, points, labels),
        results=(total, pen.add("reduce", scores)),
    )


def mix_without_lanes(pen: Pen) -> Scene:
    """Products of matrices and vectors that the loop changes, no lanes: filters, networks."""
    draw = pen.random
    size, other = draw.choice((5, 8, 12, 16, 17, 3)), draw.choice((4, 8, 9, 16, 1))
    dtype, kind = _numbers(pen)
    matrix = Slot(dtype, (size, size), kind)
    carries = (matrix, Slot(dtype, (size,), kind), Slot(dtype, (size, other), kind))
    square, vector, rows = (FIRST_CARRY + i for i in range(3))
    first = pen.add("contract", square, rows)
    pen.wander((0, 0, 1))
    second = pen.add("contract", draw.choice((square, first)), draw.choice((vector, rows)))
    state = pen.add(draw.choice((*CURVES, "negate")), second)
    third = pen.add("contract", draw.choice((first, rows)), draw.choice((rows, state)))
    new = [pen.add("add", square, draw.choice((third, first))) if draw.random() < 0.5 else square]
    new.append(pen.add("subtract", vector, draw.choice((state, second))))
    new.append(pen.add("add", rows, first) if draw.random() < 0.5 else rows)
    return Scene(
        lanes=(),
        carries=carries,
        updates=tuple(new),
        results=(state, third),
    )


def meet_in_stages(pen: Pen) -> Scene:
    """Lanes that go on with what all of them make together, several times a step."""
    draw = pen.random
    dtype, kind = _numbers(pen)
    slots = [Slot(dtype, draw.choice(((), (), (3,), (4,))), kind, draw.randrange(64))]
    if draw.random() < 0.5:
        slots.append(_slot(pen, draw.choice(((), (2,), (40,)))))
    value = FIRST_CARRY
    for _ in range(draw.choice((1, 2, 2, 3))):
        met = pen.add("meet", value)
        value = pen.add(draw.choice(JOINS), value, met)
        if draw.random() < 0.5:
            value = pen.add(draw.choice(CURVES), value)
        pen.wander((0, 0, 1))
    return Scene(
        lanes=draw.choice((*FEW_LANES, (1000,), (131,), (30, 41))),
        carries=tuple(slots),
        streams=_streams(pen),
        updates=(value, *(draw.choice((value, met)) for _ in slots[1:])),
        results=(met, value),
    )


def change_tables(pen: Pen) -> Scene:
    """A table that the loop changes in a few places and all lanes read."""
    draw = pen.random
    exact = [d for d in pen.dtypes if d not in COMPLEX]
    table = Slot(draw.choice(exact), (draw.choice(TABLES),), Kind.EXACT.value, 0, False)
    slots = [_slot(pen, draw.choice(((), (3,), (5,)))) for _ in range(draw.choice((1, 2)))]
    pen.wander((0, 1))
    found = pen.add("look-up", draw.choice((FIRST_CARRY, NUMBER)))
    value = pen.add(draw.choice((*JOINS, "multiply")), FIRST_CARRY, found)
    pen.wander((0, 1, 2))
    return Scene(
        lanes=draw.choice((*FEW_LANES, (131,), (30, 41))),
        carries=tuple(slots),
        streams=_streams(pen),
        updates=(value, *(draw.choice((value, found)) for _ in slots[1:])),
        results=(found, value),
        table=table,
        reductions=((value, draw.randrange(8)),) if draw.random() < 0.4 else (),
    )


def see_each_other(pen: Pen) -> Scene:
    """Numbers or rows each of which needs others in every step: all pairs, neighbours, ranks."""
    draw = pen.random
    dtype, kind = _numbers(pen)
    crowd = Slot(dtype, draw.choice(CROWDS), kind, draw.randrange(64))
    carries = (crowd, replace(crowd, shape=draw.choice((crowd.shape, crowd.shape[:1]))))
    value, other = FIRST_CARRY, FIRST_CARRY + 1
    for _ in range(draw.choice((1, 2, 2, 3))):
        if draw.random() < 0.5:
            seen = pen.add("outer", value, draw.choice((value, value, other)))
            if draw.random() < 0.6:
                seen = pen.add(draw.choice(CURVES), seen)
            seen = pen.add("reduce", seen, draw.choice((1, ALONG_FIRST)))
        else:
            seen = pen.add(draw.choice(OTHERS), value, 0)
        pen.wander((0, 0, 1))
        value = pen.add(draw.choice(JOINS), value, seen)
    return Scene(
        lanes=(),
        carries=carries,
        updates=(value, draw.choice((other, value, seen))),
        results=(seen, value),
    )


def change_grids(pen: Pen) -> Scene:
    """A grid or several, whose points see their neighbours; the border is changed by other rules,
    or stays as it is."""
    draw = pen.random
    dtype, kind = _numbers(pen)
    grid = Slot(dtype, draw.choice(GRIDS), kind, draw.randrange(64))
    carries = (grid,) * draw.choice((1, 2, 2, 3))
    places = [FIRST_CARRY + i for i in range(len(carries))]
    values = list(places)
    for _ in range(draw.choice((1, 2, 3, 4))):
        at = draw.randrange(len(values))
        seen = pen.add(
            draw.choice(("stencil", "stencil", "concatenate", "pad")), draw.choice(values)
        )
        if draw.random() < 0.4:
            seen = pen.add(draw.choice((*JOINS, "multiply")), seen, draw.choice(values))
        for _ in range(draw.choice((0, 1, 1, 2))):
            target = draw.choice((values[at], values[at], seen))
            seen = pen.add("update-inside", target, NUMBER, seen)
        values[at] = seen if draw.random() < 0.6 else pen.add(draw.choice(JOINS), values[at], seen)
    pen.wander((0, 0, 1))
    return Scene(
        lanes=(),
        carries=carries,
        updates=tuple(values),
        results=(pen.add("reduce", draw.choice(values)),),
    )


SCENES: Final = (
    Sketch(reset_states, 0.07, ANY_OUTER),
    Sketch(fit_to_data, 0.06, TOGETHER),
    Sketch(mix_without_lanes, 0.05, (*TOGETHER, "gradient")),
    Sketch(meet_in_stages, 0.07, (*TOGETHER, "gradient"), is_spread=False),
    Sketch(change_tables, 0.05, TOGETHER),
    Sketch(see_each_other, 0.07, TOGETHER),
    Sketch(change_grids, 0.06, (*TOGETHER, "gradient")),
)


def _slot(pen: Pen, shape: tuple[int, ...]) -> Slot:
    draw = pen.random
    dtype = draw.choice(pen.dtypes if draw.random() < 0.5 else _usual(pen))
    kind = Kind.EXACT
    if is_floating(dtype):
        kind = draw.choice((Kind.EXACT, Kind.NEAR, Kind.NEAR, Kind.SPECIAL))
    return Slot(dtype, shape, kind.value, draw.randrange(64))


def _numbers(pen: Pen) -> tuple[str, str]:
    """Returns a type of numbers and a kind, most often those that are fitted and learnt."""
    draw = pen.random
    dtype = draw.choice(_usual(pen))
    if not is_floating(dtype):
        return dtype, Kind.EXACT.value
    return dtype, draw.choice((Kind.NEAR, Kind.NEAR, Kind.NEAR, Kind.EXACT)).value


def _usual(pen: Pen) -> list[str]:
    return [d for d in ("float32", "float32", "int32", "float64") if d in pen.dtypes]


def _streams(pen: Pen) -> tuple[Slot, ...]:
    draw = pen.random
    shapes = [draw.choice(((), (), (3,), (7,))) for _ in range(draw.choice((0, 0, 1)))]
    return tuple(replace(_slot(pen, shape), has_lanes=draw.random() < 0.7) for shape in shapes)
