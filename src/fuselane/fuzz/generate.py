"""Draws random programs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from fuselane.fuzz.kinds import COMPLEX, FLOATS, INTEGERS, WIDE, Kind, is_complex, is_floating
from fuselane.fuzz.operations import OPERATIONS, WEIGHTS
from fuselane.fuzz.program import (
    COHORT,
    FIRST_STEP,
    MAX_ASIDE,
    MAX_DEVICES,
    UNIFORM,
    Program,
    Slot,
    Step,
    is_optimised,
    is_repeated,
)
from fuselane.fuzz.scenes import SCENES, Scene, Sketch

DTYPES: Final = ("bool", *INTEGERS, *FLOATS, *COMPLEX)
SHAPES: Final = (
    *((), (), (), (), (3,), (7,), (1,), (2, 3), (4,), (3, 1), (5, 13), (65,), (130,)),
    *((2, 3, 2), (16,), (67, 2)),
)
LANES: Final = (
    *((33,), (5,), (100,), (2,), (1,), (16,), (17,), (8,), (64,), (131,), (7,), (3,)),
    *((7, 5), (2, 33), (3, 2, 4), (1, 9), ()),
    *((1000,), (30, 41)),
)
MANY_LANES: Final = 500
"""So many lanes run few steps, and carry little each."""
FEW_STEPS: Final = 5
SOME_STEPS: Final = 9
"""So many steps has a scene with lanes at most."""
FEW_SHAPES: Final = 9
"""How many of the shapes are small."""
OUTER_LOOPS: Final = ("scan", "scan", "scan", "counted", "while", "gradient")
ASIDES: Final = 0.25
"""The share of programs that do something else now and then; see `Program.aside`."""

STEPS: Final = (3, 2, 4, 1, 5, 3, 2, 4, 9, 70)
OPTIONS: Final[Sequence[tuple[dict[str, Any], float]]] = (
    *(({}, 6), ({"vector_bits": 128}, 2), ({"vector_bits": 256}, 2), ({"vector_bits": 512}, 2)),
    *(({"unroll": 1}, 2), ({"unroll": 2}, 1), ({"tile_lanes": 1}, 2)),
    *(({"tile_lanes": 24}, 2), ({"tile_lanes": 64, "threads": 3}, 2), ({"threads": 1}, 1)),
    ({"vector_bits": 256, "unroll": 2, "tile_lanes": 1000}, 0.5),
)
"""Options of Fuselane, and how often each is drawn. LLVM takes long over blocks wider than what
Fuselane would choose."""

WITH_BODY: Final = frozenset({"while", "conditional"})
KINKED: Final = frozenset({"abs", "maximum", "minimum", "clamp", "sort"})
"""Operations whose derivatives jump."""
UNPARTITIONED: Final = frozenset({"mulhi", "meet"})
"""Operations that XLA does not compile for several devices, or by which they have to talk."""
NUM_STEPS: Final = (1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 8, 14)
NUM_INNER_STEPS: Final = (1, 1, 2, 3)


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """What programs may hold: names of operations and of types."""

    operations: tuple[str, ...] = tuple(OPERATIONS)
    dtypes: tuple[str, ...] = DTYPES


def draw_program(seed: int, choice: Choice | None = None) -> Program:
    """Returns the program of a seed."""
    return _Draw(seed, choice or Choice()).program()


@final
class _Draw:
    """One program while it is drawn: the `Pen` of its scene, if it has one.

    Attributes:
        random: Where chance comes from.
        dtypes: Types that may be drawn.
    """

    def __init__(self, seed: int, choice: Choice) -> None:
        self._seed = seed
        self.random = random.Random(seed)
        cohort = random.Random(f"cohort {seed // COHORT}")
        options, weights = zip(*OPTIONS, strict=True)
        (self._options,) = cohort.choices(options, weights)
        if not is_optimised(seed):
            self._options = {**self._options, "optimise": False}
        if is_repeated(seed):
            self._options = {**self._options, "repeat": True}
        narrow = tuple(dtype for dtype in choice.dtypes if dtype not in WIDE)
        self._x64 = not narrow or cohort.random() < 0.5
        self.dtypes = choice.dtypes if self._x64 else narrow
        self._operations = choice.operations
        self._donated = cohort.random() < 0.2
        self._devices = MAX_DEVICES if cohort.random() < 0.06 else 1
        if self._devices > 1:
            self._leave_out(UNPARTITIONED)
        self._depth = 3 if self.random.random() < 0.1 else 2
        self._sketch = self._draw_sketch() if choice == Choice() else None
        outers = self._sketch.outers if self._sketch else OUTER_LOOPS
        self._outer = self.random.choice(outers)
        if self._outer == "gradient":
            self._leave_out(KINKED)
        self._lanes = self.random.choice(LANES)
        self._weights = [WEIGHTS[name] for name in self._operations]
        self._next = FIRST_STEP
        self._steps: list[Step] = []

    def program(self) -> Program:
        """Returns all of it."""
        scene = self._sketch.draw(self) if self._sketch else self._free()
        draw = self.random
        steps = draw.choice(STEPS)
        if self._sketch and scene.lanes:
            steps = min(steps, SOME_STEPS)
        return Program(
            seed=self._seed,
            lanes=scene.lanes,
            outer=self._outer,
            steps=min(steps, FEW_STEPS) if math.prod(scene.lanes) > MANY_LANES else steps,
            reverse=draw.random() < 0.3,
            carries=scene.carries,
            streams=scene.streams,
            body=tuple(self._steps),
            updates=scene.updates,
            results=scene.results,
            reductions=scene.reductions,
            table=scene.table,
            table_form=draw.randrange(10),
            unroll=draw.choice((1, 1, 1, 1, 2, 3)),
            remat=draw.random() < 0.3,
            chained=draw.random() < 0.3,
            aside=draw.randint(2, MAX_ASIDE) if draw.random() < ASIDES else 0,
            donated=self._donated,
            devices=self._devices,
            x64=self._x64,
            options=self._options,
        )

    def add(self, operation: str, *operands: int, variant: int | None = None) -> int:
        """Adds a step, with random operands in the place of those left out; returns its number.

        A step that has no derivative everywhere becomes a sum where one is needed.
        """
        if self._outer == "gradient" and operation in KINKED:
            operation = "add"
        number = self._next
        first, second, third = (*operands, *(self._recent() for _ in range(3)))[:3]
        drawn = self.random.randrange(1 << 16)
        self._next += 1
        self._steps.append(
            Step(number, operation, (first, second, third), drawn if variant is None else variant)
        )
        return number

    def wander(self, counts: Sequence[int]) -> None:
        """Adds random steps, as many as one of the counts."""
        self._steps += self._body(self.random.choice(counts), depth=0)

    def _draw_sketch(self) -> Sketch | None:
        """Returns a scene, in the share that it is to have; often none."""
        sketches = tuple(s for s in SCENES if s.is_spread or self._devices == 1)
        share = 1 - sum(sketch.share for sketch in sketches)
        weights = [share, *(sketch.share for sketch in sketches)]
        (found,) = self.random.choices((None, *sketches), weights)
        return found

    def _free(self) -> Scene:
        """Returns what a program carries that has no scene, and draws its steps."""
        draw = self.random
        self.wander(NUM_STEPS)
        body = self._steps
        carries = tuple(self._slot() for _ in range(draw.choice((1, 1, 2, 3))))
        if self._outer == "gradient":
            dtype = "float64" if self._x64 and draw.random() < 0.5 else "float32"
            carries = (*carries, Slot(dtype, draw.choice(SHAPES[:FEW_SHAPES]), Kind.NEAR.value))
        return Scene(
            lanes=self._lanes,
            carries=carries,
            streams=tuple(
                self._slot(has_lanes=draw.random() < 0.7) for _ in range(draw.choice((0, 1, 1, 2)))
            ),
            updates=tuple(self._made(body) for _ in carries),
            results=tuple(self._made(body) for _ in range(draw.choice((1, 2, 3)))),
            reductions=tuple(
                (self._recent(), draw.randrange(8)) for _ in range(draw.choice((0, 0, 0, 1)))
            ),
        )

    def _leave_out(self, names: frozenset[str]) -> None:
        """Draws other operations than these, if there are any."""
        others = tuple(name for name in self._operations if name not in names)
        self._operations = others or self._operations

    def _body(self, count: int, depth: int) -> tuple[Step, ...]:
        return tuple(self._step(depth) for _ in range(count))

    def _step(self, depth: int) -> Step:
        draw = self.random
        (operation,) = draw.choices(self._operations, self._weights)
        number = self._next
        first, second, third = (self._recent() for _ in range(3))
        variant = draw.randrange(1 << 16)
        self._next += 1
        body: tuple[Step, ...] = ()
        if operation in WITH_BODY:
            self._next += 3
            count = draw.choice(NUM_INNER_STEPS)
            body = self._body(count, depth + 1) if depth < self._depth else ()
        return Step(number, operation, (first, second, third), variant, body)

    def _recent(self) -> int:
        """Returns the number of a value, more often of a late one."""
        draw = self.random
        if draw.random() < 0.6:
            return max(self._next - draw.randint(1, 6), UNIFORM)
        return draw.randrange(self._next)

    def _made(self, body: Sequence[Step]) -> int:
        """Returns the number of a value that a step made, more often of a late one."""
        return max(self.random.choice(body).number, self.random.choice(body).number)

    def _slot(self, *, has_lanes: bool = True) -> Slot:
        draw = self.random
        dtype = draw.choice(self.dtypes)
        if draw.random() < 0.3:
            usual = [d for d in ("int32", "float32") if d in self.dtypes]
            dtype = draw.choice(usual or self.dtypes)
        kind = Kind.EXACT
        if is_floating(dtype):
            kind = draw.choice((Kind.EXACT, Kind.EXACT, Kind.NEAR, Kind.SPECIAL))
        is_small = is_complex(dtype) or math.prod(self._lanes) > MANY_LANES
        shape = draw.choice(SHAPES[:FEW_SHAPES] if is_small else SHAPES)
        return Slot(dtype, shape, kind.value, draw.randrange(64), has_lanes)
