"""Straight-line code, without any loop, as lane kernels: the pipeline `fuselane`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fuselane
from fuselane.config import Options
from fuselane.decisions import DecisionLog
from fuselane.fusion.pipelines import parse_pipeline
from fuselane.pipeline import transform
from tests.differential.comparison import Tolerance, assert_same_results
from tests.differential.harness import no_warnings
from tests.hlo.xla import parse

CLOSE: Final = Tolerance(ulp=16, relative=2e-5, absolute=1e-5)


def check(
    program: Callable[..., Any],
    *arguments: Any,
    kernels: int | None = 1,
    pipeline: str = "fuselane",
) -> None:
    """Checks a program's results under the pipeline, and how many kernels it became."""
    expected = jax.block_until_ready(jax.jit(program)(*arguments))
    num_before = len(fuselane.decisions().loops)
    with fuselane.enabled(fusion=pipeline, verify_hlo=True), no_warnings():
        actual = jax.block_until_ready(jax.jit(program)(*arguments))
    assert_same_results(expected, actual, CLOSE)
    loops = fuselane.decisions().loops[num_before:]
    assert all(loop.fused for loop in loops)
    assert kernels is None or len(loops) == kernels, [loop.decision.sentence for loop in loops]


def values(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(3 * x, axis=-1)


def normalised(x: jax.Array) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return centred * scale, scale[..., 0]


@pytest.mark.parametrize(
    ("rows", "width"),
    [
        *((29, width) for width in (2, 7, 8, 15, 16, 17, 40, 100)),
        *itertools.product((8, 64), (7, 16, 40)),
    ],
)
def test_rows(rows: int, width: int) -> None:
    """Rows shorter than a square, of whole squares, with a rest; lanes that fill no vector."""
    check(softmax, values(rows, width))


def test_inside_a_fixed_point() -> None:
    """A second round finds nothing more to do."""
    check(softmax, values(29, 40), pipeline="fixed-point(lane-kernels,shared-work)")


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int8, np.float16, np.bool_])
def test_types_of_rows(dtype: Any) -> None:
    """Elements of all sizes are transposed, or read one by one."""

    def program(x: jax.Array) -> Any:
        total = x.astype(jnp.float32).sum(-1, keepdims=True)
        return x, jnp.where(x, total, -x.astype(jnp.float32)), (total[:, 0] > 0)

    check(program, (values(24, 50) * 3).astype(dtype))


def test_wide_rows() -> None:
    """Squares of 64-bit elements are half as wide."""
    with jax.enable_x64(True):
        check(softmax, values(30, 21, dtype=np.float64))


def test_lanes_between_other_dimensions() -> None:
    """A lane has several runs: its dimension is not the outermost."""

    def program(x: jax.Array) -> Any:
        y = jnp.sort(x, axis=0)[::-1] if x.shape[0] < 3 else x[::-1]
        return (y * jnp.exp(y)).sum(-1), y - y.max(axis=(0, 2), keepdims=True)

    check(program, values(5, 64, 24), kernels=None)


def test_concatenated_results() -> None:
    """Results in parts are cut where their parts meet."""

    def program(x: jax.Array) -> Any:
        a, b = x[:, :11], x[:, 11:]
        norm = (x * x).sum(-1, keepdims=True)
        return jnp.concatenate([a * norm, jnp.tanh(b), a - b[:, :11]], axis=1)

    check(program, values(40, 33))


def test_several_results_and_shared_work() -> None:
    """What several results need is computed once."""

    def program(x: jax.Array, y: jax.Array) -> Any:
        s, c = jnp.sin(x), jnp.cos(x)
        return s * y, s + c, (s * c - y) ** 2, jnp.where(y > 0, s, c)

    check(program, values(1000), values(1000, seed=1))


def test_sums_that_leave() -> None:
    """Reductions over the lanes leave the kernel as parts, beside results with lanes."""

    def program(x: jax.Array, labels: jax.Array) -> Any:
        logs = jax.nn.log_softmax(x)
        hot = jax.nn.one_hot(labels, x.shape[1])
        hits = (jnp.argmax(x, -1) == labels).mean()
        return -(logs * hot).sum(-1).mean(), jnp.exp(logs) - hot, hits

    labels = np.arange(500, dtype=np.int32) % 10
    check(program, values(500, 10), labels, kernels=None)


def test_code_is_cut_behind_reductions_that_it_needs() -> None:
    """A mean over the lanes that all lanes need ends a region: the rest is another."""

    def program(x: jax.Array) -> Any:
        z = (x - x.mean()) / x.std()
        return jnp.sin(z) * jnp.exp(-z * z), jnp.cos(z)

    check(program, values(3000), kernels=None)


def test_code_is_cut_behind_the_place_of_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reduction of values and places at once makes a tuple, whose elements are read behind it."""
    monkeypatch.setenv("FUSELANE_MIN_GAIN", "1e9")  # so that parts are tried, too

    def program(x: jax.Array) -> Any:
        return x * jnp.argmax(x).astype(jnp.float32) + jnp.sin(x)

    check(program, values(512), kernels=0)


def test_slices_that_start_anywhere() -> None:
    """Steps of an unrolled loop, each of which reads rows of its own, moved into bounds."""

    def program(x: jax.Array, y: jax.Array, first: jax.Array) -> Any:
        for step in range(4):
            rows = jax.lax.dynamic_slice(x, (first + step, 0), (2, 3000))
            push = jax.lax.dynamic_index_in_dim(x, (first * step) % 8, keepdims=False)
            y = jnp.sin(y + rows[0]) * rows[1] + jnp.where(push > 0, push, y)
        return y, jnp.stack([y, y * y])

    for start, kernels in ((0, 1), (5, None), (7, None), (-1, None)):  # made once
        arguments = values(8, 3000), values(3000, seed=1), np.int32(start)
        check(program, *arguments, kernels=kernels)


def test_slices_along_the_lanes() -> None:
    """What is in front of them and what is behind have different lanes."""

    def program(x: jax.Array, first: jax.Array) -> Any:
        waves = jnp.sin(x) * jnp.cos(2 * x) + jnp.tanh(x)
        part = jax.lax.dynamic_slice(waves, (first,), (30_000,))
        return jnp.sin(part) * jnp.exp(-part * part), jnp.tanh(part)

    check(program, values(40_000), np.int32(1234))


def test_few_elements_read_in_loops() -> None:
    """Values of few elements per lane, which a loop over more elements reads."""

    def program(points: jax.Array, centres: jax.Array) -> Any:
        distances = ((points[:, None] - centres) ** 2).sum(-1)
        return jnp.argmin(distances, 1), distances.min(1)

    check(program, values(300, 9), values(20, 9, seed=1))


def test_layouts() -> None:
    """Transposes in and out change where lanes lie, not what is computed."""

    def program(x: jax.Array) -> Any:
        y = jnp.exp(x.T) / (1 + x.T**2)
        return y, y.T * 2, y.sum(0)

    check(program, values(70, 90), kernels=None)


def test_loops_and_straight_code_in_one_program() -> None:
    """A loop becomes its own kernel; what is in front of it and behind it another."""

    def program(x: jax.Array) -> Any:
        start = jnp.sin(x) * jnp.exp(-x)
        final = jax.lax.fori_loop(0, 20, lambda i, y: y * 0.9 + jnp.cos(y), start)
        return jnp.tanh(final), final * start

    check(program, values(2000), kernels=None)


def test_donated_arguments() -> None:
    """What is given away is not written to while it is still read."""

    def step(p: jax.Array, m: jax.Array, g: jax.Array) -> Any:
        m = 0.9 * m + jnp.tanh(g)
        return p - 0.1 * m / (1 + jnp.abs(m)), m

    arguments = [values(512, seed=seed) for seed in range(3)]
    expected = jax.jit(step)(*arguments)
    with fuselane.enabled(fusion="fuselane", verify_hlo=True), no_warnings():
        donated = jax.jit(step, donate_argnums=(0, 1))
        actual = donated(*map(jnp.array, arguments))
    assert_same_results(expected, actual, CLOSE)


@pytest.mark.parametrize("fusion", ["fuselane", "xla-2021"])
def test_no_result_lies_in_a_donated_argument_read_backwards(fusion: str) -> None:
    """Where XLA remembers donations, it would put the first result there, and has a copy for it."""

    def program(x: jax.Array) -> Any:
        return jnp.sin(x)[::-1] * x.mean(0) + jnp.cos(x) * x.max(0), jnp.cos(x[::-1]) * x.max(0)

    argument = values(64 * 4096).reshape(64, 4096)
    expected = jax.jit(program)(argument)
    with fuselane.enabled(fusion=fusion, verify_hlo=True, min_gain=0), no_warnings():
        actual = jax.jit(program, donate_argnums=0)(jnp.array(argument))
    assert_same_results(expected, actual, CLOSE)


def test_a_program_with_nothing_to_gain_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """By estimate XLA is done before a kernel would have started."""
    monkeypatch.setenv("FUSELANE_MIN_GAIN", "1.15")
    check(lambda x: jnp.exp(x) + 1, values(64), kernels=0)


ALIAS: Final = ", input_output_alias={ {}: (0, {}, may-alias) }"


@pytest.mark.parametrize(
    ("lanes", "alias", "is_changed"),
    [(64, "", False), (2**21, ALIAS, True), (2**25, "", True), (2**25, ALIAS, False)],
)
def test_modules_without_gain_go_back_as_they_came(
    lanes: int, alias: str, is_changed: bool
) -> None:
    """Byte for byte, as do those that would lose more than 64 MiB of donated arguments."""
    given = parse(f"""HloModule m{alias}
        two {{ p = f32[{lanes}] parameter(0) s = f32[{lanes}] sine(p) c = f32[{lanes}] cosine(p)
          ROOT r = f32[{lanes}] multiply(s, c) }}
        ENTRY main {{ x = f32[{lanes}] parameter(0)
          ROOT f = f32[{lanes}] fusion(x), kind=kLoop, calls=two }}""")
    options, log = Options(min_gain=1.15), DecisionLog()
    result = transform(given, options, log, strategy=parse_pipeline("fuselane"))
    assert (result is not None) == is_changed == bool(list(log))


@pytest.mark.parametrize(("is_donated", "lanes"), [(False, 512), (True, 512), (True, 2**17)])
def test_many_small_arguments_stay_donated(is_donated: bool, lanes: int) -> None:
    """Where kernels that share an argument gain less than memory for new results takes: 20 pairs
    with 40 results, each a microsecond."""
    pairs, results = [], []
    for pair in range(20):
        names = [f"a{pair}", f"b{pair}"]
        pairs += [f"{n} = f32[{lanes}] fusion(p{pair}, q{n}), kind=kLoop, calls=t" for n in names]
        pairs += [f"q{n} = f32[{lanes}] parameter({2 * pair + k})" for k, n in enumerate(names)]
        pairs.append(f"p{pair} = f32[{lanes}] parameter({40 + pair})")
        results += names
    alias = ", ".join(f"{{{n}}}: ({n}, {{}}, may-alias)" for n in range(40))
    given = parse(
        f"HloModule m{f', input_output_alias={{ {alias} }}' if is_donated else ''}\n"
        f"t {{ p = f32[{lanes}] parameter(0) q = f32[{lanes}] parameter(1)"
        f" ROOT r = f32[{lanes}] multiply(p, q) }}\n"
        "ENTRY main {\n"
        + "\n".join(sorted(pairs, key=lambda line: "fusion" in line))
        + f"\nROOT r = ({', '.join([f'f32[{lanes}]'] * 40)}) tuple({', '.join(results)}) }}"
    )
    result = transform(given, Options(), DecisionLog(), strategy=parse_pipeline("shared-work"))
    assert (result is None) == (is_donated and lanes == 512)


@pytest.mark.parametrize("points", [800, 2000])
def test_long_sums_round_little(points: int) -> None:
    """Sums of a matrix, without lanes (800) and over lanes that meet (2000): through sums of its
    rows. One by one, the last of 640,000 numbers were added to a total of 200,000, which left an
    error of 5e-5, and that of 4 million one of 1.3e-4."""
    x = values(points, 2)

    def mean(x: jax.Array) -> jax.Array:
        return jnp.exp(-((x[:, None] - x) ** 2).sum(-1)).mean()

    check(mean, x, kernels=None)
    with fuselane.enabled(fusion="fuselane"):
        actual = float(jax.jit(mean)(x))
    wide = x.astype(np.float64)
    expected = np.exp(-((wide[:, None] - wide) ** 2).sum(-1)).mean()
    assert actual == pytest.approx(expected, rel=2e-6)
