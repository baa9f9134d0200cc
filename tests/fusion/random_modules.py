"""Random modules without loops around them, as HLO text: what fusion strategies are tried on.

    ENTRY main { p0 = f32[3,4] parameter(0) v1 = f32[4,3] transpose(p0), dimensions={1,0} ... }

However they are fused, their results are the same. Floats are small whole numbers, on which sums
and products are exact in any order; what rounds is *near*: never compared, sorted or made a whole
number, so that small differences stay small.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase
from typing import Any, Final, final

import numpy as np

Array = np.ndarray[Any, Any]
Dims = tuple[int, ...]

_LIMITS: Final = {"f16": 2**10, "bf16": 2**7, "f32": 2**20, "f64": 2**20}
"""Up to where whole numbers are exact, with some room."""
_SIGNED: Final = ("s8", "s16", "s32", "s64")
_UNSIGNED: Final = ("u8", "u32", "u64")
_INTEGERS: Final = (*_SIGNED, *_UNSIGNED)
_WIDE: Final = ("f32", "f64")
"""Types of floats that round little enough to be compared."""
_DTYPES: Final = (
    "f32",
    "f32",
    "f32",
    "s32",
    "s32",
    "pred",
    "u8",
    "u32",
    "s8",
    "s16",
    "s64",
    "u64",
    "f16",
    "bf16",
    "f64",
)
_SIZES: Final = (1, 2, 3, 4, 5, 8)
_MAX_SIZE: Final = 400
_EXACT_BOUND: Final = 8
_NEAR_BOUND: Final = 1

_NUMPY: Final = {"f32": np.float32, "s32": np.int32, "u8": np.uint8, "pred": np.bool_}
"""Types of the arguments."""


@final
@dataclass(frozen=True, slots=True)
class Value:
    """An array in a module.

    Attributes:
        name: Of the instruction that makes it.
        dtype: As HLO calls it.
        dims: Its dimensions.
        bound: What no float in it is larger than; 0 for what is no float.
        near: Whether it may be rounded otherwise.
    """

    name: str
    dtype: str
    dims: Dims
    bound: int = 0
    near: bool = False

    @property
    def type(self) -> str:
        """Its type in HLO text."""
        return shape_text(self.dtype, self.dims)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.dims)


@final
@dataclass(frozen=True, slots=True)
class RandomModule:
    """A module and what it is called with.

    Attributes:
        text: HLO.
        inputs: Its arguments.
        near: For each result, whether it may be rounded otherwise.
    """

    text: str
    inputs: tuple[Array, ...]
    near: tuple[bool, ...]


def draw_module(seed: int, num_steps: int | None = None) -> RandomModule:
    """Returns the module of a seed.

    Args:
        seed: Any whole number.
        num_steps: Operations at its top; 4 to 40 if it is None.
    """
    rng = random.Random(seed)
    texts: list[str] = []
    main = _Writer(rng, texts, "main")
    for _ in range(rng.randint(1, 4)):
        dtype = rng.choice(tuple(_NUMPY))
        bound = _EXACT_BOUND if dtype in _LIMITS else 0
        is_near = dtype == "f32" and rng.random() < 0.3
        main.parameter(dtype, main.draw_dims(), _NEAR_BOUND if is_near else bound, near=is_near)
    parameters = list(main.values)
    main.write_steps(rng.randint(4, 40) if num_steps is None else num_steps)
    results = main.results()
    main.lines.append(f"ROOT root = ({_types(results)}) tuple({_names(results)})")
    inputs = tuple(_draw_input(rng.randrange(2**32), parameter) for parameter in parameters)
    head = f"HloModule random{_draw_aliases(rng, parameters, results)}"
    text = "\n\n".join([head, *texts, main.text("ENTRY ")])
    return RandomModule(text, inputs, tuple(result.near for result in results))


def _draw_aliases(rng: random.Random, parameters: Sequence[Value], results: Sequence[Value]) -> str:
    """Returns which results may lie where arguments were, as a module's head has it."""
    free = list(range(len(results)))
    aliases = []
    for number, parameter in enumerate(parameters):
        fitting = [at for at in free if results[at].type == parameter.type]
        if fitting and rng.random() < 0.5:
            at = rng.choice(fitting)
            free.remove(at)
            aliases.append(f"{{{at}}}: ({number}, {{}}, may-alias)")
    return f", input_output_alias={{ {', '.join(aliases)} }}" if aliases else ""


def _draw_input(seed: int, parameter: Value) -> Array:
    rng = np.random.default_rng(seed)
    dtype = _NUMPY[parameter.dtype]
    if parameter.near:
        return rng.uniform(-1, 1, parameter.dims).astype(dtype)
    low, high = {"f32": (-8, 9), "s32": (-(2**31), 2**31), "u8": (0, 256), "pred": (0, 2)}[
        parameter.dtype
    ]
    if rng.random() < 0.5:
        low, high = max(low, -9), min(high, 10)
    return rng.integers(low, high, parameter.dims).astype(dtype)


def shape_text(dtype: str, dims: Sequence[int]) -> str:
    """Returns a shape as in HLO text."""
    return f"{dtype}[{','.join(map(str, dims))}]"


def _names(values: Sequence[Value]) -> str:
    return ", ".join(value.name for value in values)


def _types(values: Sequence[Value]) -> str:
    return ", ".join(value.type for value in values)


def _listed(numbers: Sequence[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"


@final
class _Writer:
    """Writes one computation."""

    def __init__(self, rng: random.Random, texts: list[str], name: str, depth: int = 0) -> None:
        self.rng = rng
        self.texts = texts
        """Of the computations that are called, in front of their callers."""
        self.name = name
        self.depth = depth
        self.values: list[Value] = []
        self.lines: list[str] = []
        self.used: set[str] = set()

    def text(self, keyword: str = "") -> str:
        lines = "\n".join(f"  {line}" for line in self.lines)
        return f"{keyword}{self.name} {{\n{lines}\n}}"

    def emit(
        self,
        operation: str,
        operands: Sequence[Value],
        dtype: str,
        dims: Dims,
        attributes: str = "",
        *,
        bound: int | None = None,
    ) -> Value:
        """Writes an instruction; its bound is that of its operands unless it is given."""
        if bound is None:
            bound = max((operand.bound for operand in operands), default=0)
        is_float = dtype in _LIMITS
        near = is_float and any(operand.near for operand in operands)
        name = f"{self.name}.{len(self.lines)}"
        value = Value(name, dtype, dims, bound if is_float else 0, near)
        tail = f", {attributes}" if attributes else ""
        self.lines.append(f"{name} = {value.type} {operation}({_names(operands)}){tail}")
        self.used.update(operand.name for operand in operands)
        return value

    def parameter(self, dtype: str, dims: Dims, bound: int, *, near: bool = False) -> Value:
        name = f"{self.name}.p{len(self.values)}"
        value = Value(name, dtype, dims, bound, near)
        self.lines.append(f"{name} = {value.type} parameter({len(self.values)})")
        self.values.append(value)
        return value

    def write_steps(self, count: int) -> None:
        """Draws operations."""
        names = list(_OPERATIONS)
        weights = [_WEIGHTS.get(name, 2) for name in names]
        for _ in range(count):
            operation = _OPERATIONS[self.rng.choices(names, weights)[0]]
            made = operation(self)
            self.values += [made] if isinstance(made, Value) else made

    def results(self) -> list[Value]:
        """Returns what nothing uses, and some more."""
        unused = [value for value in self.values if value.name not in self.used]
        results = self.rng.sample(unused, min(len(unused), 12))
        results += self.rng.choices(self.values, k=self.rng.randint(not results, 2))
        self.rng.shuffle(results)
        return results

    # What operations are made of.

    def draw_dims(self) -> Dims:
        if self.values and self.rng.random() < 0.6:
            return self.rng.choice(self.values).dims
        while True:
            rank = self.rng.choices(range(5), [1, 3, 5, 3, 1])[0]
            sizes = [*_SIZES, 37, 130] if rank < 3 else _SIZES
            dims = tuple(self.rng.choices(sizes, k=rank))
            if math.prod(dims) <= _MAX_SIZE:
                return dims

    def pick(self, accept: Callable[[Value], bool] = lambda _: True) -> Value:
        """Returns a value that is accepted, a newer one more likely than an older; a new one if
        there is none."""
        found = [value for value in self.values if accept(value)]
        if not found:
            return self.iota("s32", self.draw_dims())
        return self.rng.choices(found, [at + 3 for at in range(len(found))])[0]

    def array(self, min_rank: int = 1) -> Value:
        """Returns a value of at least that rank."""
        found = self.pick(lambda value: len(value.dims) >= min_rank)
        if len(found.dims) >= min_rank:
            return found
        return self.fit(found, found.dtype, (3, 4, 2)[:min_rank])

    def exact(self) -> Value:
        return self.pick(lambda value: not value.near)

    def constant(self, dtype: str, number: int) -> Value:
        text = ("false", "true")[number % 2] if dtype == "pred" else str(number)
        name = f"{self.name}.{len(self.lines)}"
        bound = abs(number) if dtype in _LIMITS else 0
        value = Value(name, dtype, (), bound)
        self.lines.append(f"{name} = {value.type} constant({text})")
        return value

    def iota(self, dtype: str, dims: Dims) -> Value:
        wanted = dtype if dtype in (*_LIMITS, "u32") else "s32"
        if not dims:
            return self.cast(self.constant("s32", self.rng.randint(-3, 9)), dtype)
        axis = self.rng.randrange(len(dims))
        made = self.emit("iota", (), wanted, dims, f"iota_dimension={axis}", bound=dims[axis])
        return self.cast(self.bounded(made, _LIMITS.get(wanted, 0)), dtype)

    def full(self, dtype: str, number: int, dims: Dims) -> Value:
        scalar = self.constant(dtype, number)
        return self.emit("broadcast", (scalar,), dtype, dims, "dimensions={}") if dims else scalar

    def bounded(self, value: Value, limit: int) -> Value:
        """Returns a value no float of which is larger than `limit`."""
        if value.bound <= limit or value.dtype not in _LIMITS:
            return value
        limit = max(1, min(limit, _EXACT_BOUND))
        if not value.near and self.rng.random() < 0.3:
            divisor = self.full(value.dtype, limit + 1, value.dims)
            return self.emit("remainder", (value, divisor), value.dtype, value.dims, bound=limit)
        low, high = self.constant(value.dtype, -limit), self.constant(value.dtype, limit)
        return self.emit("clamp", (low, value, high), value.dtype, value.dims, bound=limit)

    def cast(self, value: Value, dtype: str) -> Value:
        """Returns a value as another type; what is near has to become a wide float."""
        if value.dtype == dtype:
            return value
        if dtype in _LIMITS:
            if value.dtype in _INTEGERS and value.dtype not in ("s8", "u8"):
                low, high = (self.constant(value.dtype, n) for n in (0, _EXACT_BOUND))
                value = self.emit("clamp", (low, value, high), value.dtype, value.dims)
            bound = {"pred": 1, "s8": 128, "u8": 255}.get(value.dtype, _EXACT_BOUND)
            value = self.bounded(value, _LIMITS[dtype])
            bound = value.bound or bound
            made = self.emit("convert", (value,), dtype, value.dims, bound=bound)
            return self.bounded(made, _LIMITS[dtype])
        if value.dtype in _LIMITS:
            value = self.bounded(value, 100)
            if dtype in _UNSIGNED:
                value = self.emit("abs", (value,), value.dtype, value.dims)
        return self.emit("convert", (value,), dtype, value.dims)

    def fit(self, value: Value, dtype: str, dims: Dims) -> Value:
        """Returns a value of that type and those dimensions, made of another."""
        value = self.cast(value, dtype)
        if value.dims == dims:
            return value
        if value.size == math.prod(dims):
            return self.emit("reshape", (value,), dtype, dims)
        if not value.dims:
            return self.emit("broadcast", (value,), dtype, dims, "dimensions={}")
        if value.dims == dims[len(dims) - len(value.dims) :]:
            kept = range(len(dims) - len(value.dims), len(dims))
            return self.emit("broadcast", (value,), dtype, dims, f"dimensions={_listed(kept)}")
        wanted = math.prod(dims)
        if value.size < wanted:
            count = -(-wanted // value.size)
            dim = self.rng.randint(0, 1)
            repeated = (count, value.size) if dim else (value.size, count)
            value = self.emit("reshape", (value,), dtype, (value.size,))
            value = self.emit("broadcast", (value,), dtype, repeated, f"dimensions={{{dim}}}")
        value = self.emit("reshape", (value,), dtype, (value.size,))
        if value.size > wanted:
            at = self.rng.randint(0, value.size - wanted)
            attributes = f"slice={{[{at}:{at + wanted}]}}"
            value = self.emit("slice", (value,), dtype, (wanted,), attributes)
        return value if dims == (wanted,) else self.emit("reshape", (value,), dtype, dims)

    def like(self, value: Value) -> Value:
        """Returns another value of the same type and dimensions."""
        same = [v for v in self.values if v.type == value.type and v.near <= value.near]
        if same and self.rng.random() < 0.7:
            return self.rng.choice(same)
        other = self.pick() if value.near else self.exact()
        return self.fit(other, value.dtype, value.dims)

    def scalar_index(self) -> Value:
        """Returns a number, often out of range."""
        if self.rng.random() < 0.4:
            return self.constant("s32", self.rng.randint(-1, 6))
        return self.fit(self.exact(), "s32", ())

    def combiner(self, operation: str, dtype: str) -> str:
        """Returns the name of a computation of two scalars."""
        name = f"{operation}_{dtype}"
        return self._scalars(name, (dtype, dtype), f"{dtype}[] {operation}({name}.a, {name}.b)")

    def comparison(self, name: str, direction: str, *beside: str) -> str:
        """Returns the name of a computation that compares two s32 scalars, and has others beside
        them."""
        result = f"pred[] compare({name}.a, {name}.b), direction={direction}"
        return self._scalars(name, ("s32", "s32", *beside), result)

    def _scalars(self, name: str, dtypes: Sequence[str], result: str) -> str:
        """Adds a computation of scalars, `a` and so on, unless it is there; returns its name."""
        parameters = "".join(
            f"  {name}.{letter} = {dtype}[] parameter({number})\n"
            for number, (letter, dtype) in enumerate(zip(ascii_lowercase, dtypes, strict=False))
        )
        text = f"{name} {{\n{parameters}  ROOT {name}.r = {result}\n}}"
        if text not in self.texts:
            self.texts.append(text)
        return name

    def draw_combiner(self, value: Value, count: int) -> tuple[Value, str, Value, int]:
        """Returns a value, such that `count` of it can be combined, by what, from what, and the
        bound of the result."""
        if value.dtype == "pred":
            operation = self.rng.choice(("and", "or"))
            return value, operation, self.constant("pred", operation == "and"), 0
        operation = self.rng.choice(("add", "add", "maximum", "minimum"))
        if operation == "add":
            if value.dtype in ("f16", "bf16"):
                value = self.cast(value, "f32")
            if value.dtype in _LIMITS:
                value = self.bounded(value, max(1, _LIMITS[value.dtype] // (count + 1)))
            return value, operation, self.constant(value.dtype, 0), value.bound * count
        return value, operation, self.constant(value.dtype, 0), value.bound

    def nested(self, kind: str, operands: Sequence[Value]) -> _Writer:
        """Returns the writer of a computation that takes values as they are."""
        name = f"{kind}{len(self.texts)}_{self.name}"
        inner = _Writer(self.rng, self.texts, name, self.depth + 1)
        for operand in operands:
            inner.parameter(operand.dtype, operand.dims, operand.bound, near=operand.near)
        return inner

    def finish(self, results: Sequence[Value]) -> None:
        """Ends a computation that returns a tuple."""
        self.lines.append(f"ROOT {self.name}.t = ({_types(results)}) tuple({_names(results)})")
        self.texts.append(self.text())

    def settled(self, value: Value, like: Value) -> Value:
        """Returns a value that can stand wherever another does, in each step of a loop too."""
        if value.near and not like.near:
            value = self.exact()
        limit = _NEAR_BOUND if like.near else _EXACT_BOUND
        return self.bounded(self.fit(value, like.dtype, like.dims), limit)

    def elements(
        self, operation: str, operands: str, types: Sequence[Value], tail: str
    ) -> list[Value]:
        """Writes an instruction that returns a tuple, and takes it apart."""
        name = f"{self.name}.{len(self.lines)}"
        self.lines.append(f"{name} = ({_types(types)}) {operation}({operands}){tail}")
        made = []
        for at, like in enumerate(types):
            element = Value(
                f"{self.name}.{len(self.lines)}", like.dtype, like.dims, like.bound, like.near
            )
            self.lines.append(
                f"{element.name} = {element.type} get-tuple-element({name}), index={at}"
            )
            made.append(element)
        return made


_OF_INTEGERS: Final = (
    *("add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum"),
    *("and", "or", "xor", "shift-left", "shift-right-logical", "shift-right-arithmetic"),
)
_SMOOTH: Final = (
    *("sine", "cosine", "tanh", "logistic", "exponential", "sqrt", "log-plus-one", "divide"),
)


def _binary(w: _Writer) -> Value:
    x = w.pick()
    y = w.like(x)
    if x.dtype == "pred":
        operation = w.rng.choice(("and", "or", "xor"))
    elif x.dtype in _INTEGERS:
        operation = w.rng.choice(
            [
                "add",
                "subtract",
                "multiply",
                "maximum",
                "minimum",
                "and",
                "or",
                "xor",
                "divide",
                "remainder",
                "shift-left",
                "shift-right-logical",
                "shift-right-arithmetic",
            ]
        )
    else:
        operation = w.rng.choice(["add", "subtract", "multiply", "maximum", "minimum"])
        limit = _LIMITS[x.dtype]
        near = x.near or y.near
        if operation == "multiply":
            limit = 2 if near else math.isqrt(limit)
            x, y = w.bounded(x, limit), w.bounded(y, limit)
            return w.emit(operation, (x, y), x.dtype, x.dims, bound=x.bound * y.bound)
        x, y = (w.bounded(v, _EXACT_BOUND if near else limit // 2) for v in (x, y))
        return w.emit(operation, (x, y), x.dtype, x.dims, bound=x.bound + y.bound)
    return w.emit(operation, (x, y), x.dtype, x.dims)


def _unary(w: _Writer) -> Value:
    x = w.pick()
    if x.dtype == "pred":
        return w.emit("not", (x,), x.dtype, x.dims)
    operations = ["negate", "copy"]
    if x.dtype in _INTEGERS:
        operations += ["not", "popcnt", "count-leading-zeros"]
    if x.dtype not in _UNSIGNED:
        operations += ["abs"] + ([] if x.near else ["sign"])
    if x.dtype in _LIMITS and not x.near:
        operations += ["floor", "ceil", "round-nearest-even"]
    return w.emit(w.rng.choice(operations), (x,), x.dtype, x.dims)


def _smooth(w: _Writer) -> Value:
    """What rounds."""
    x = w.pick()
    x = w.bounded(x if x.dtype in _WIDE else w.cast(x, "f32"), _EXACT_BOUND)
    operation = w.rng.choice(
        ["sine", "cosine", "tanh", "logistic", "exponential", "sqrt", "log-plus-one", "divide"]
    )
    if operation == "exponential":
        x = w.bounded(x, 1)
    if operation in ("sqrt", "log-plus-one"):
        x = w.emit("abs", (x,), x.dtype, x.dims)
        one = w.full(x.dtype, 1, x.dims)
        x = w.emit("add", (x, one), x.dtype, x.dims, bound=x.bound + 1)
    operands = [x]
    if operation == "divide":
        operands.append(w.full(x.dtype, w.rng.choice((3, 7)), x.dims))
    return replace(w.emit(operation, operands, x.dtype, x.dims, bound=9), near=True)


def _compare(w: _Writer) -> Value:
    x = w.exact()
    direction = w.rng.choice(("EQ", "NE", "LT", "GE", "GT", "LE"))
    y = w.like(x)
    return w.emit("compare", (x, y), "pred", x.dims, f"direction={direction}")


def _select(w: _Writer) -> Value:
    x = w.pick()
    flags = w.fit(w.exact(), "pred", () if w.rng.random() < 0.1 else x.dims)
    y = w.like(x)
    if not flags.dims and x.dims:
        flags = w.emit("broadcast", (flags,), "pred", x.dims, "dimensions={}")
    return w.emit("select", (flags, x, y), x.dtype, x.dims)


def _clamp(w: _Writer) -> Value:
    x = w.exact()
    if x.dtype == "pred":
        x = w.cast(x, "s32")
    low = w.constant(x.dtype, w.rng.randint(0, 3))
    high = w.constant(x.dtype, w.rng.randint(3, 9))
    return w.emit("clamp", (low, x, high), x.dtype, x.dims, bound=max(x.bound, 9))


def _convert(w: _Writer) -> Value:
    x = w.pick()
    return w.cast(x, w.rng.choice(_WIDE if x.near else _DTYPES))


def _bitcast_convert(w: _Writer) -> Value:
    x = w.exact()
    pairs = {"s32": "u32", "u32": "s32", "s8": "u8", "u8": "s8"}
    x = x if x.dtype in pairs else w.cast(x, "s32")
    return w.emit("bitcast-convert", (x,), pairs[x.dtype], x.dims)


def _complex(w: _Writer) -> Value:
    x = w.bounded(w.cast(w.pick(lambda v: v.dtype != "f64"), "f32"), _EXACT_BOUND)
    y = w.bounded(w.fit(w.pick(), "f32", x.dims), _EXACT_BOUND)
    z = w.emit("complex", (x, y), "c64", x.dims)
    near = x.near or y.near
    product = w.emit("multiply", (z, z), "c64", x.dims)
    part = w.emit(w.rng.choice(("real", "imag")), (product,), "f32", x.dims, bound=128)
    return Value(part.name, "f32", x.dims, 128, near)


def _broadcast(w: _Writer) -> Value:
    x = w.pick(lambda v: len(v.dims) < 4)
    rank = len(x.dims)
    if rank > 3:
        return x
    kept = sorted(w.rng.sample(range(rank + 1), rank))
    dims = [w.rng.choice(_SIZES)] * (rank + 1)
    for at, size in zip(kept, x.dims, strict=True):
        dims[at] = size
    if math.prod(dims) > _MAX_SIZE:
        return _transpose(w)
    return w.emit("broadcast", (x,), x.dtype, tuple(dims), f"dimensions={_listed(kept)}")


def _transpose(w: _Writer) -> Value:
    x = w.array(2)
    order = w.rng.sample(range(len(x.dims)), len(x.dims))
    dims = tuple(x.dims[at] for at in order)
    return w.emit("transpose", (x,), x.dtype, dims, f"dimensions={_listed(order)}")


def _reshape(w: _Writer) -> Value:
    x = w.array()
    left = x.size
    dims: list[int] = []
    for size in w.rng.sample(_SIZES, len(_SIZES)):
        if left % size == 0 and len(dims) < 3:
            dims.append(size)
            left //= size
    dims.insert(w.rng.randint(0, len(dims)), left)
    return w.emit("reshape", (x,), x.dtype, tuple(dims))


def _reverse(w: _Writer) -> Value:
    x = w.array()
    axes = w.rng.sample(range(len(x.dims)), w.rng.randint(1, len(x.dims)))
    return w.emit("reverse", (x,), x.dtype, x.dims, f"dimensions={_listed(sorted(axes))}")


def _slice(w: _Writer) -> Value:
    x = w.array()
    parts, dims = [], []
    for size in x.dims:
        start = w.rng.randint(0, size - 1)
        end = w.rng.randint(start + 1, size)
        step = w.rng.choice((1, 1, 1, 2, 3))
        parts.append(f"[{start}:{end}:{step}]")
        dims.append(-(-(end - start) // step))
    return w.emit("slice", (x,), x.dtype, tuple(dims), f"slice={{{', '.join(parts)}}}")


def _concatenate(w: _Writer) -> Value:
    x = w.array()
    axis = w.rng.randrange(len(x.dims))
    operands = [x]
    for _ in range(w.rng.randint(1, 3)):
        dims = list(x.dims)
        dims[axis] = w.rng.choice((1, 2, x.dims[axis]))
        y = w.pick() if x.near else w.exact()
        y = y if y.dims == tuple(dims) and y.dtype == x.dtype else w.fit(y, x.dtype, tuple(dims))
        operands.append(y)
    w.rng.shuffle(operands)
    dims = list(x.dims)
    dims[axis] = sum(operand.dims[axis] for operand in operands)
    if math.prod(dims) > 2 * _MAX_SIZE:
        return _slice(w)
    return w.emit("concatenate", operands, x.dtype, tuple(dims), f"dimensions={{{axis}}}")


def _pad(w: _Writer) -> Value:
    x = w.array()
    parts, dims = [], []
    for size in x.dims:
        low, high, inner = w.rng.randint(-1, 2), w.rng.randint(-1, 2), w.rng.choice((0, 0, 1))
        padded = low + size + (size - 1) * inner + high
        if padded < 1:
            low = high = inner = 0
            padded = size
        parts.append(f"{low}_{high}_{inner}")
        dims.append(padded)
    if math.prod(dims) > 2 * _MAX_SIZE:
        return _slice(w)
    fill = w.constant(x.dtype, w.rng.randint(0, 3))
    return w.emit("pad", (x, fill), x.dtype, tuple(dims), f"padding={'x'.join(parts)}")


def _reduce(w: _Writer) -> Value:
    x = w.array()
    axes = sorted(w.rng.sample(range(len(x.dims)), w.rng.randint(1, len(x.dims))))
    count = math.prod(x.dims[axis] for axis in axes)
    dims = tuple(size for at, size in enumerate(x.dims) if at not in axes)
    x, operation, start, bound = w.draw_combiner(x, count)
    tail = f"dimensions={_listed(axes)}, to_apply={w.combiner(operation, x.dtype)}"
    return w.emit("reduce", (x, start), x.dtype, dims, tail, bound=bound)


_LARGEST: Final = """largest {
  la = s32[] parameter(0) lb = s32[] parameter(1) lc = s32[] parameter(2) ld = s32[] parameter(3)
  lgt = pred[] compare(la, lc), direction=GT leq = pred[] compare(la, lc), direction=EQ
  llt = pred[] compare(lb, ld), direction=LT land = pred[] and(leq, llt)
  lor = pred[] or(lgt, land) lx = s32[] select(lor, la, lc) ly = s32[] select(lor, lb, ld)
  ROOT lt = (s32[], s32[]) tuple(lx, ly)
}"""


def _arg_max(w: _Writer) -> list[Value]:
    x = w.exact()
    x = w.fit(x, "s32", x.dims or (5,))
    axis = w.rng.randrange(len(x.dims))
    places = w.emit("iota", (), "s32", x.dims, f"iota_dimension={axis}")
    low, zero = w.constant("s32", -(2**31)), w.constant("s32", 0)
    if _LARGEST not in w.texts:
        w.texts.append(_LARGEST)
    dims = tuple(size for at, size in enumerate(x.dims) if at != axis)
    like = Value("", "s32", dims)
    w.used.update((x.name, places.name))
    tail = f", dimensions={{{axis}}}, to_apply=largest"
    return w.elements("reduce", _names((x, places, low, zero)), (like, like), tail)


def _reduce_window(w: _Writer) -> Value:
    x = w.array()
    window = [w.rng.randint(1, min(3, size)) for size in x.dims]
    strides = [w.rng.choice((1, 1, 2)) for _ in x.dims]
    x, operation, start, bound = w.draw_combiner(x, math.prod(window))
    dims = tuple(
        (size - wide) // stride + 1
        for size, wide, stride in zip(x.dims, window, strides, strict=True)
    )
    sizes, steps = ("x".join(map(str, numbers)) for numbers in (window, strides))
    tail = f"window={{size={sizes} stride={steps}}}, to_apply={w.combiner(operation, x.dtype)}"
    return w.emit("reduce-window", (x, start), x.dtype, dims, tail, bound=bound)


def _dot(w: _Writer) -> Value:
    x = w.array(w.rng.randint(1, 2))
    dtype = x.dtype if x.dtype in ("s32", "f32", "f64") else "f32"
    has_batch = len(x.dims) > 1 and w.rng.random() < 0.3
    axis = w.rng.randrange(int(has_batch), len(x.dims))
    depth = x.dims[axis]
    batch = x.dims[:1] if has_batch else ()
    free = [w.rng.choice(_SIZES) for _ in range(w.rng.randint(0, 1))]
    other = [*batch, depth, *free]
    y = w.pick() if dtype in _WIDE else w.exact()
    y = w.fit(y, dtype, tuple(other))
    x = w.cast(x, dtype)
    if dtype in _LIMITS:
        limit = 1 if x.near or y.near else max(1, math.isqrt(_LIMITS[dtype] // depth))
        x, y = w.bounded(x, limit), w.bounded(y, limit)
    left = [size for at, size in enumerate(x.dims) if at != axis and not (has_batch and at == 0)]
    dims = (*batch, *left, *free)
    if math.prod(dims) > 2 * _MAX_SIZE:
        return _slice(w)
    tail = f"lhs_contracting_dims={{{axis}}}, rhs_contracting_dims={{{len(batch)}}}"
    if has_batch:
        tail = f"lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, {tail}"
    return w.emit("dot", (x, y), dtype, dims, tail, bound=x.bound * y.bound * depth)


def _convolution(w: _Writer) -> Value:
    """Of a row or a picture with a few channels; strides, borders and holes in either operand."""
    rank = w.rng.randint(1, 2)
    dtype = w.rng.choice(("f32", "f32", "f64"))
    num_in, num_out = w.rng.randint(1, 3), w.rng.randint(1, 3)
    space = [w.rng.randint(3, 8 if rank == 1 else 5) for _ in range(rank)]
    wide = [w.rng.randint(1, 3) for _ in range(rank)]
    x = w.fit(w.pick(), dtype, (w.rng.randint(1, 2), *space, num_in))
    y = w.fit(w.pick(), dtype, (*wide, num_in, num_out))
    depth = num_in * math.prod(wide)
    limit = 1 if x.near or y.near else _EXACT_BOUND
    x, y = w.bounded(x, limit), w.bounded(y, limit)
    strides = [w.rng.choice((1, 1, 2)) for _ in range(rank)]
    holes = [w.rng.choice((1, 1, 2)) for _ in range(rank)]
    pads = [(w.rng.randint(0, 2), w.rng.randint(0, 2)) for _ in range(rank)]
    dims = []
    for size, width, stride, hole, (low, high) in zip(
        space, wide, strides, holes, pads, strict=True
    ):
        room = (size - 1) * hole + 1 + low + high - width
        dims.append(max(room, 0) // stride + 1 if room >= 0 else 0)
    if 0 in dims:
        return _slice(w)
    sizes, steps, gaps = ("x".join(map(str, numbers)) for numbers in (wide, strides, holes))
    borders = "x".join(f"{low}_{high}" for low, high in pads)
    names = "01"[:rank]
    tail = (
        f"window={{size={sizes} stride={steps} pad={borders} lhs_dilate={gaps}}}, "
        f"dim_labels=b{names}f_{names}io->b{names}f"
    )
    shape = (x.dims[0], *dims, num_out)
    return w.emit("convolution", (x, y), dtype, shape, tail, bound=x.bound * y.bound * depth)


def _gather(w: _Writer) -> Value:
    """Rows, or windows, of any dimension."""
    x = w.array()
    axis = w.rng.randrange(len(x.dims))
    count = w.rng.choice((1, 3, 7))
    indices = w.fit(w.exact(), "s32", (count, 1))
    sizes = list(x.dims)
    sizes[axis] = 1
    is_kept = w.rng.random() < 0.3
    if is_kept:
        sizes[axis] = w.rng.randint(1, x.dims[axis])
    shown = [size for at, size in enumerate(sizes) if is_kept or at != axis]
    if count * math.prod(shown) > 2 * _MAX_SIZE:
        return _slice(w)
    tail = (
        f"offset_dims={_listed(range(1, 1 + len(shown)))}, "
        f"collapsed_slice_dims={{{'' if is_kept else axis}}}, start_index_map={{{axis}}}, "
        f"index_vector_dim=1, slice_sizes={_listed(sizes)}"
    )
    return w.emit("gather", (x, indices), x.dtype, (count, *shown), tail, bound=x.bound)


def _scatter(w: _Writer) -> Value:
    """Rows of any dimension, combined with what is there; some out of range, some twice."""
    x = w.array()
    axis = w.rng.randrange(len(x.dims))
    count = w.rng.choice((1, 3, 5))
    x, operation, _, _ = w.draw_combiner(x, count)
    indices = w.fit(w.exact(), "s32", (count, 1))
    rows = (count, *(size for at, size in enumerate(x.dims) if at != axis))
    updates = w.fit(w.pick() if x.near else w.exact(), x.dtype, rows)
    bound = max(x.bound, updates.bound)
    if operation == "add" and x.dtype in _LIMITS:
        updates = w.bounded(updates, max(1, _LIMITS[x.dtype] // (count + 1)))
        bound = x.bound + count * updates.bound
    tail = (
        f"update_window_dims={_listed(range(1, len(rows)))}, inserted_window_dims={{{axis}}}, "
        f"scatter_dims_to_operand_dims={{{axis}}}, index_vector_dim=1, "
        f"to_apply={w.combiner(operation, x.dtype)}"
    )
    return w.emit("scatter", (x, indices, updates), x.dtype, x.dims, tail, bound=bound)


def _dynamic_slice(w: _Writer) -> Value:
    x = w.array()
    sizes = tuple(w.rng.randint(1, size) for size in x.dims)
    starts = [w.scalar_index() for _ in x.dims]
    tail = f"dynamic_slice_sizes={_listed(sizes)}"
    return w.emit("dynamic-slice", (x, *starts), x.dtype, sizes, tail, bound=x.bound)


def _dynamic_update_slice(w: _Writer) -> Value:
    x = w.array()
    sizes = tuple(w.rng.randint(1, size) for size in x.dims)
    y = w.fit(w.pick() if x.near else w.exact(), x.dtype, sizes)
    starts = [w.scalar_index() for _ in x.dims]
    bound = max(x.bound, y.bound)
    return w.emit("dynamic-update-slice", (x, y, *starts), x.dtype, x.dims, bound=bound)


def _sort(w: _Writer) -> Value:
    x = w.exact()
    x = w.fit(x, "s32", x.dims or (5,))
    axis = w.rng.randrange(len(x.dims))
    name = w.comparison("less_s32", "LT")
    return w.emit("sort", (x,), "s32", x.dims, f"dimensions={{{axis}}}, to_apply={name}")


def _sort_with(w: _Writer) -> list[Value]:
    """Keys, and what goes with them."""
    keys = w.exact()
    keys = w.fit(keys, "s32", keys.dims or (5,))
    taken = w.fit(w.pick(), w.rng.choice(("f32", "f64")), keys.dims)
    axis = w.rng.randrange(len(keys.dims))
    name = w.comparison(f"less_s32_{taken.dtype}", "LT", taken.dtype, taken.dtype)
    w.used.update((keys.name, taken.name))
    tail = f", dimensions={{{axis}}}, is_stable=true, to_apply={name}"
    return w.elements("sort", _names((keys, taken)), (keys, taken), tail)


def _select_and_scatter(w: _Writer) -> Value:
    """What the gradient of a maximum over windows does: each goes where its window's largest is."""
    x = w.exact()
    x = w.fit(x, "s32", x.dims or (5,))
    window = [w.rng.randint(1, min(3, size)) for size in x.dims]
    strides = [w.rng.choice((1, 2)) for _ in x.dims]
    dims = tuple(
        (size - wide) // stride + 1
        for size, wide, stride in zip(x.dims, window, strides, strict=True)
    )
    source = w.fit(w.exact(), "s32", dims)
    name = w.comparison("at_least", "GE")
    sizes, steps = ("x".join(map(str, numbers)) for numbers in (window, strides))
    tail = (
        f"window={{size={sizes} stride={steps}}}, select={name}, scatter={w.combiner('add', 's32')}"
    )
    zero = w.constant("s32", 0)
    return w.emit("select-and-scatter", (x, source, zero), "s32", x.dims, tail)


def _reduce_precision(w: _Writer) -> Value:
    """To that of `bfloat16`; near values may end up on two sides of a step."""
    x = w.exact()
    x = x if x.dtype == "f32" else w.cast(x, "f32")
    return w.emit("reduce-precision", (x,), "f32", x.dims, "exponent_bits=8, mantissa_bits=7")


def _iota(w: _Writer) -> Value:
    return w.iota(w.rng.choice(_DTYPES), w.draw_dims())


def _constant(w: _Writer) -> Value:
    return w.full(w.rng.choice(_DTYPES), w.rng.randint(0, 5), w.draw_dims())


def _barrier(w: _Writer) -> list[Value]:
    values = [w.pick() for _ in range(w.rng.randint(1, 3))]
    name = f"{w.name}.{len(w.lines)}"
    w.lines.append(f"{name} = ({_types(values)}) tuple({_names(values)})")
    w.used.update(value.name for value in values)
    return w.elements("opt-barrier", name, values, "")


def _operands(w: _Writer) -> list[Value]:
    """Returns a few values, bounded so that they can be carried."""
    values = [w.pick() for _ in range(w.rng.randint(1, 4))]
    return [w.bounded(v, _NEAR_BOUND if v.near else _EXACT_BOUND) for v in values]


def _call(w: _Writer) -> list[Value]:
    operands = _operands(w)
    inner = w.nested("call", operands)
    inner.write_steps(w.rng.randint(1, 5))
    results = inner.results()
    inner.finish(results)
    w.used.update(operand.name for operand in operands)
    return w.elements("call", _names(operands), results, f", to_apply={inner.name}")


def _conditional(w: _Writer) -> list[Value]:
    operands = _operands(w)
    likes = [w.rng.choice(operands) for _ in range(w.rng.randint(1, 3))]
    likes = [_carried(like) for like in likes]
    branches = []
    for _ in range(2):
        given = [operand for operand in operands if w.rng.random() < 0.8] or operands[:1]
        inner = _taking_tuple(w, "branch", given)
        inner.write_steps(w.rng.randint(0, 4))
        inner.finish([inner.settled(inner.pick(), like) for like in likes])
        branches.append((inner.name, given))
    flag = w.fit(w.exact(), "pred", ())
    tuples = []
    for _, given in branches:
        name = f"{w.name}.{len(w.lines)}"
        w.lines.append(f"{name} = ({_types(given)}) tuple({_names(given)})")
        w.used.update(value.name for value in given)
        tuples.append(name)
    (true, _), (false, _) = branches
    tail = f", true_computation={true}, false_computation={false}"
    return w.elements("conditional", ", ".join([flag.name, *tuples]), likes, tail)


def _carried(value: Value) -> Value:
    bound = _NEAR_BOUND if value.near else _EXACT_BOUND
    is_float = value.dtype in _LIMITS
    return Value("", value.dtype, value.dims, bound if is_float else 0, value.near)


def _taking_tuple(w: _Writer, kind: str, operands: Sequence[Value]) -> _Writer:
    """Returns the writer of a computation that takes values as one tuple."""
    inner = w.nested(kind, ())
    name = f"{inner.name}.tuple"
    inner.lines.append(f"{name} = ({_types(operands)}) parameter(0)")
    for at, operand in enumerate(operands):
        element = Value(
            f"{inner.name}.e{at}", operand.dtype, operand.dims, operand.bound, operand.near
        )
        line = f"{element.name} = {element.type} get-tuple-element({name}), index={at}"
        inner.lines.append(line)
        inner.values.append(element)
    return inner


def _while(w: _Writer) -> list[Value]:
    """A loop of a few steps that carries a few values, and may read others."""
    operands = _operands(w)
    likes = [_carried(operand) for operand in operands]
    count = w.constant("s32", w.rng.randint(0, 3))
    if w.rng.random() < 0.3:
        low, high = w.constant("s32", 0), w.constant("s32", 3)
        count = w.emit("clamp", (low, w.fit(w.exact(), "s32", ()), high), "s32", ())
    counters = [Value("", "s32", ()), Value("", "s32", ())]
    body = _taking_tuple(w, "body", [*counters, *likes])
    number, end, *_ = body.values
    body.write_steps(w.rng.randint(1, 5))
    following = body.emit("add", (number, body.constant("s32", 1)), "s32", ())
    carried = [
        body.values[2 + at] if w.rng.random() < 0.2 else body.settled(body.pick(), like)
        for at, like in enumerate(likes)
    ]
    body.finish([following, end, *carried])
    test = _taking_tuple(w, "test", [*counters, *likes])
    number, end, *_ = test.values
    line = f"ROOT {test.name}.r = pred[] compare({number.name}, {end.name}), direction=LT"
    test.lines.append(line)
    w.texts.append(test.text())
    start = [w.constant("s32", 0), count, *operands]
    name = f"{w.name}.{len(w.lines)}"
    w.lines.append(f"{name} = ({_types(start)}) tuple({_names(start)})")
    w.used.update(operand.name for operand in start)
    tail = f", condition={test.name}, body={body.name}"
    return w.elements("while", name, [*counters, *likes], tail)[2:]


def _with_computation(operation: Callable[[_Writer], list[Value]]) -> Callable[[_Writer], Any]:
    """Only so deep."""
    return lambda w: operation(w) if w.depth < 2 else _binary(w)


_OPERATIONS: Final[dict[str, Callable[[_Writer], Value | list[Value]]]] = {
    "binary": _binary,
    "unary": _unary,
    "smooth": _smooth,
    "compare": _compare,
    "select": _select,
    "clamp": _clamp,
    "convert": _convert,
    "bitcast-convert": _bitcast_convert,
    "complex": _complex,
    "broadcast": _broadcast,
    "transpose": _transpose,
    "reshape": _reshape,
    "reverse": _reverse,
    "slice": _slice,
    "concatenate": _concatenate,
    "pad": _pad,
    "reduce": _reduce,
    "arg-max": _arg_max,
    "reduce-window": _reduce_window,
    "dot": _dot,
    "convolution": _convolution,
    "gather": _gather,
    "scatter": _scatter,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "sort": _sort,
    "sort-with": _sort_with,
    "select-and-scatter": _select_and_scatter,
    "reduce-precision": _reduce_precision,
    "iota": _iota,
    "constant": _constant,
    "barrier": _barrier,
    "call": _with_computation(_call),
    "conditional": _with_computation(_conditional),
    "while": _with_computation(_while),
}

_WEIGHTS: Final = {
    "binary": 8,
    "unary": 4,
    "smooth": 4,
    "select": 4,
    "reduce": 5,
    "sort": 1,
    "sort-with": 1,
    "select-and-scatter": 1,
    "reduce-precision": 1,
    "convolution": 1,
    "complex": 1,
    "barrier": 1,
    "call": 1,
    "conditional": 1,
    "while": 1,
}
"""How often an operation is drawn; 2 times for what is not here."""
