"""Random programs as functions that JAX can compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, final

import jax
import numpy as np
from jax import lax

from fuselane.fuzz.builder import COMPUTED, Builder
from fuselane.fuzz.inputs import lane_axes
from fuselane.fuzz.kinds import (
    NEAR_ULP,
    Kind,
    Value,
    cast,
    epsilon,
    fit,
    fits,
    full,
    is_complex,
    is_floating,
    number,
    on_grid,
    without_nan,
)
from fuselane.fuzz.meeting import Shared, change_table, start_table
from fuselane.fuzz.operations import OPERATIONS
from fuselane.fuzz.program import (
    FIRST_CARRY,
    FIRST_STREAM,
    MAX_PERIOD,
    NUMBER,
    UNIFORM,
    Program,
    Slot,
)

MAX_WHILE_STEPS: Final = 5

SLOPE_FACTOR: Final = 30.0
"""How much farther apart gradients, of at most one, may be than the results they come from."""


@final
class Judgement(NamedTuple):
    """How a result is judged: its kind, and by how much compilers may disagree."""

    kind: Kind
    error: float = 0.0


@final
class Built:
    """A program that JAX can trace.

    Attributes:
        judgements: How each result is judged; known once the program is traced.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._slots = (*program.carries, *program.streams)
        self._axes = [lane_axes(slot, program.lanes) for slot in self._slots]
        self._made: list[Value] = []
        self._names = tuple(f"lanes{level}" for level in range(len(program.lanes)))
        self._num_carries = len(program.carries)
        self._start_error = 0.0
        self._is_chained = False
        self.judgements: tuple[Judgement, ...] = ()

    def __call__(
        self, carries: list[jax.Array], streams: list[jax.Array], left: Sequence[Value] = ()
    ) -> list[jax.Array]:
        """Returns the results: last carries, what was accumulated, what was stacked, gradients.

        Args:
            carries: The first values of the carries.
            streams: The streams.
            left: What the program in front has left, which may take the place of the inputs.
        """
        program = self._program
        self._is_chained = program.chained and bool(left)
        if self._is_chained:
            carries = [
                self._link(*pair, left) for pair in zip(program.carries, carries, strict=True)
            ]
            streams = [
                self._link(*pair, left) for pair in zip(program.streams, streams, strict=True)
            ]
        if program.outer == "while":
            results = self._run_lanes(carries, streams)
            kinds = [*self._judge_carries(MAX_WHILE_STEPS), Judgement(Kind.EXACT)]
        elif program.outer == "gradient":
            results, kinds = self._run_with_gradient(carries, streams)
        else:
            results, kinds = self._run_steps(carries, streams)
        self.judgements = tuple(kinds)
        return results

    def values(self, results: Sequence[jax.Array]) -> list[Value]:
        """Returns the results as values on which others can go on."""
        pairs = zip(results, self.judgements, strict=True)
        return [
            Value(array, judgement.kind, judgement.error)
            for array, judgement in pairs
            if judgement.kind in COMPUTED and array.size
        ]

    def _link(self, slot: Slot, array: jax.Array, left: Sequence[Value]) -> jax.Array:
        """Returns what a slot starts from: something of its kind that was left, or its input."""
        kind = Kind(slot.kind)
        found = [value for value in left if fits(value, kind, slot.dtype)]
        if kind not in COMPUTED or not found:
            return array
        value = found[slot.place % len(found)]
        self._start_error = max(self._start_error, value.error)
        return fit(value, kind, slot.dtype, array.shape).array

    def _one_lane(self, number: jax.Array, shared: Shared, *inputs: jax.Array) -> list[jax.Array]:
        """One step of one lane: what the carries become, results, and what is reduced."""
        program = self._program
        values = {NUMBER: Value(number), UNIFORM: Value(shared.uniform)}
        for i, (slot, array) in enumerate(zip(self._slots, inputs, strict=True)):
            is_carry = i < self._num_carries
            place = FIRST_CARRY + i if is_carry else FIRST_STREAM + i - self._num_carries
            values[place] = Value(array, Kind(slot.kind))
        builder = Builder(
            OPERATIONS,
            values,
            smooth=program.outer == "gradient",
            axes=self._names if program.outer != "while" else (),
            table=None if isinstance(shared.table, tuple) else shared.table,
        )
        builder.run(program.body)
        made = []
        for wanted, slot in zip(program.updates, program.carries, strict=False):
            kind = Kind(slot.kind)

            def accept(value: Value, kind: Kind = kind, dtype: str = slot.dtype) -> bool:
                return fits(value, kind, dtype)

            made.append(fit(builder.pick(wanted, accept), kind, slot.dtype, slot.shape))
        made += [builder.pick(wanted) for wanted in program.results]
        made += [
            builder.pick(wanted, lambda value: value.kind is Kind.EXACT)
            for wanted, _ in program.reductions
        ]
        self._made = made
        return [value.array for value in made]

    def _all_lanes(self, number: jax.Array, shared: Shared, *inputs: jax.Array) -> list[jax.Array]:
        """One step of all lanes."""
        lanes = self._program.lanes
        num_others = len(self._program.results) + len(self._program.reductions)
        function: Callable[..., Any] = self._one_lane
        for level in range(len(lanes) - 1, -1, -1):
            carried = [axes[level] for axes in self._axes[: self._num_carries]]
            function = jax.vmap(
                function,
                in_axes=(None, None, *(axes[level] for axes in self._axes)),
                out_axes=[*carried, *[0] * num_others],
                axis_size=lanes[level],
                axis_name=self._names[level],
            )
        results: list[jax.Array] = function(number, shared, *inputs)
        return results

    def _step(
        self, state: Any, number: jax.Array, rows: Sequence[jax.Array], first: jax.Array
    ) -> Any:
        program = self._program
        carries, shared, totals = state
        if program.aside:
            told = number if program.aside % 2 else self._low_bits(carries[0], first)
            aside = _step_aside(program.aside, told, number, carries[0])
            carries = [aside, *carries[1:]]
        values = self._all_lanes(number, shared, *carries, *rows)
        num_kept = self._num_carries + len(program.results)
        stacked = values[self._num_carries : num_kept]
        combined, met = [], []
        for (_, form), value, total in zip(
            program.reductions, values[num_kept:], totals, strict=True
        ):
            over_lanes = _reduce_lanes(value, form // 2, len(program.lanes))
            met.append(over_lanes)
            combined.append(on_grid(total + over_lanes) if form % 2 else total)
            stacked = stacked if form % 2 else [*stacked, over_lanes]
        uniform, table = shared
        if not isinstance(table, tuple):
            table = change_table(table, program.table_form, number, uniform, met)
        uniform = lax.add(lax.mul(uniform, np.int32(1103515245)), np.int32(12345))
        return (values[: self._num_carries], Shared(uniform, table), combined), stacked

    def _start(self, first: jax.Array) -> Shared:
        """Returns what all lanes have together in front of the loop.

        Args:
            first: A carry's first value.
        """
        slot = self._program.table
        uniform = lax.full((), self._program.seed % 1000, np.int32)
        return Shared(uniform, start_table(slot, self._low_bits(first, first)) if slot else ())

    def _low_bits(self, now: jax.Array, first: jax.Array) -> jax.Array:
        """Returns an int32 that may decide what happens.

        Args:
            now: What the first carry is.
            first: What it was in front of the loop. Numbers that have been rounded decide nothing:
                where the carry is rounded, it is asked in its place, and if that is rounded too,
                as another loop has left it, nothing is.
        """
        if Kind(self._program.carries[0].kind) is Kind.EXACT:
            return _low_bits(now)
        return lax.full((), 1, np.int32) if self._is_chained else _low_bits(first)

    def _run_steps(self, carries: list[jax.Array], streams: list[jax.Array]) -> Any:
        program = self._program
        reduced = self._reduced_shapes(carries, streams)
        rank = len(program.lanes)
        totals = [
            np.zeros(shape.shape[rank:], np.int32 if shape.dtype == bool else shape.dtype)
            for shape in reduced
        ]
        state = (carries, self._start(carries[0]), totals)
        if program.outer != "counted":
            numbers = lax.iota(np.int32, program.steps)

            def onward(state: Any, row: Any) -> Any:
                return self._step(state, row[0], row[1], carries[0])

            (last, shared, totals), stacked = lax.scan(
                jax.checkpoint(onward) if program.remat else onward,
                state,
                (numbers, streams),
                reverse=program.reverse,
                unroll=program.unroll,
            )
        else:

            def counted(number: jax.Array, state: Any) -> Any:
                rows = [lax.dynamic_index_in_dim(s, number, keepdims=False) for s in streams]
                return self._step(state, number, rows, carries[0])[0]

            count = _at_most(program.steps, self._low_bits(carries[0], carries[0]))
            last, shared, totals = lax.fori_loop(np.int32(0), count, counted, state)
            stacked = []
        growth = self._growth(program.steps)
        others = self._made[self._num_carries : self._num_carries + len(program.results)]
        kinds = [
            *self._judge_carries(program.steps),
            *[Judgement(Kind.EXACT)] * len(jax.tree.leaves((shared, totals))),
            *(_judge(value, growth) for value in others),
            *[Judgement(Kind.EXACT)] * len(reduced),
        ]
        results = [*last, *jax.tree.leaves((shared, totals)), *stacked]
        return results, kinds[: len(results)]

    def _run_with_gradient(self, carries: list[jax.Array], streams: list[jax.Array]) -> Any:
        """A scan, and the gradient of a sum of all its near results, scaled to at most one."""
        inputs = [*carries, *streams]
        places = [
            i
            for i, slot in enumerate(self._slots)
            if slot.kind == Kind.NEAR.value and slot.dtype in ("float32", "float64")
        ]
        kinds: list[Judgement] = []

        def loss(chosen: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
            changed = dict(zip(places, chosen, strict=True))
            arrays = [changed.get(i, array) for i, array in enumerate(inputs)]
            results, found = self._run_steps(
                arrays[: self._num_carries], arrays[self._num_carries :]
            )
            kinds[:] = found
            total = lax.full((), 0.0, np.float32)
            for array, judgement in zip(results, found, strict=True):
                if judgement.kind is Kind.NEAR:
                    flat = lax.convert_element_type(lax.reshape(array, (array.size,)), np.float32)
                    weights = np.float32(0.25) * (np.arange(array.size, dtype=np.float32) % 5 - 2)
                    total = total + lax.reduce_sum(lax.mul(flat, weights), (0,))
            return total, results

        slopes, results = jax.grad(loss, has_aux=True)([inputs[i] for i in places])
        error = max((k.error for k in kinds if k.kind is Kind.NEAR), default=0.0)
        judgement = Judgement(Kind.NEAR, SLOPE_FACTOR * (error + NEAR_ULP * epsilon("float32")))
        scaled = [
            slope / (np.float32(1) + lax.reduce_max(lax.abs(slope), range(slope.ndim)))
            for slope in slopes
        ]
        return [*results, *scaled], [*kinds, *[judgement] * len(scaled)]

    def _reduced_shapes(
        self, carries: list[jax.Array], streams: list[jax.Array]
    ) -> list[jax.ShapeDtypeStruct]:
        """Returns what is reduced over the lanes."""
        count = len(self._program.reductions)
        if not count:
            return []
        number = jax.ShapeDtypeStruct((), np.int32)
        rows = [jax.ShapeDtypeStruct(stream.shape[1:], stream.dtype) for stream in streams]

        def one_step(number: jax.Array, *inputs: jax.Array) -> list[jax.Array]:
            return self._all_lanes(number, self._start(inputs[0]), *inputs)

        shapes: list[jax.ShapeDtypeStruct] = jax.eval_shape(one_step, number, *carries, *rows)
        return shapes[-count:]

    def _run_lanes(self, carries: list[jax.Array], streams: list[jax.Array]) -> list[jax.Array]:
        """The whole loop per lane, as many steps as the lane says."""

        def one_run(carries: list[jax.Array], streams: list[jax.Array]) -> Any:
            def goes_on(state: Any) -> jax.Array:
                number, current = state
                told = self._low_bits(current[0], carries[0])
                most = _at_most(self._program.steps + 1, told)
                return lax.lt(number, lax.min(most, np.int32(MAX_WHILE_STEPS)))

            def onward(state: Any) -> Any:
                number, current = state
                last = np.int32(self._program.steps - 1)
                place = lax.min(number, last)
                rows = [lax.dynamic_index_in_dim(s, place, keepdims=False) for s in streams]
                shared = Shared(lax.mul(number, np.int32(77)))
                values = self._one_lane(number, shared, *current, *rows)
                return lax.add(number, np.int32(1)), values[: len(carries)]

            number, last = lax.while_loop(goes_on, onward, (np.int32(0), carries))
            return [*last, number]

        function: Callable[..., Any] = one_run
        carried, streamed = self._axes[: self._num_carries], self._axes[self._num_carries :]
        for level in range(len(self._program.lanes) - 1, -1, -1):
            rows = [None if (axis := axes[level]) is None else axis + 1 for axes in streamed]
            function = jax.vmap(
                function,
                in_axes=([axes[level] for axes in carried], rows),
                out_axes=[*(axes[level] for axes in carried), 0],
                axis_size=self._program.lanes[level],
            )
        results: list[jax.Array] = function(carries, streams)
        return results

    def _growth(self, num_steps: int) -> float:
        """Returns how far off near carries are in the end."""
        carried = [v.error for v in self._made[: self._num_carries] if v.kind is Kind.NEAR]
        return self._start_error + num_steps * max(carried, default=0.0)

    def _judge_carries(self, num_steps: int) -> list[Judgement]:
        growth = self._growth(num_steps)
        return [
            Judgement(value.kind, growth if value.kind is Kind.NEAR else value.error)
            for value in self._made[: self._num_carries]
        ]


def _step_aside(aside: int, told: jax.Array, number: jax.Array, carry: jax.Array) -> jax.Array:
    """Calls the host, which does nothing, or turns a carry round in some steps, as a number tells,
    and returns it; see `Program.aside`."""
    calls_back = aside <= MAX_PERIOD
    period = aside if calls_back else aside - MAX_PERIOD + 1
    is_time = lax.eq(lax.rem(told, np.int32(period)), np.int32(1))
    if calls_back:
        lax.cond(is_time, lambda: jax.debug.callback(_ignore, number, carry), lambda: None)
        return carry
    return lax.cond(is_time, lambda x: lax.rev(x, range(x.ndim)), lambda x: x, carry)


def _ignore(*_: Any) -> None:
    """What the host does."""


def _judge(value: Value, growth: float) -> Judgement:
    return Judgement(value.kind, value.error + (growth if value.kind is Kind.NEAR else 0.0))


def _at_most(count: int, told: jax.Array) -> jax.Array:
    """Returns a count, or one less, as a number's last bit will have it."""
    return lax.sub(np.int32(count), lax.bitwise_and(told, np.int32(1)))


def _low_bits(array: jax.Array) -> jax.Array:
    """Returns an int32 of an array's first element, whatever its type."""
    first = lax.squeeze(lax.slice_in_dim(lax.reshape(array, (array.size,)), 0, 1), (0,))
    if is_floating(str(first.dtype)):
        return lax.convert_element_type(lax.gt(first, number(0, str(first.dtype))), np.int32)
    return cast(first, "int32")


def _reduce_lanes(value: jax.Array, form: int, rank: int) -> jax.Array:
    """Reduces exact values over the lanes, of which there are so few that no sum is rounded."""
    axes = tuple(range(rank))
    dtype = str(value.dtype)
    if dtype == "bool":
        value = cast(value, "int32")
    if is_complex(dtype) or form % 3 == 0:
        small = lax.clamp(full(-1, value), value, full(1, value)) if is_floating(dtype) else value
        return on_grid(lax.reduce_sum(small, axes))
    if is_floating(dtype):
        value = without_nan(value)  # which XLA:CPU loses in some reductions
    return (lax.reduce_max, lax.reduce_min)[form % 2](value, axes)
