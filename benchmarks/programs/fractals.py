"""Fractals and root finding: loops that run until each lane has enough."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import EXACT, Built, Program, Rule, Size

CATEGORY: Final = "fractals and roots"


def make_plane(size: Size) -> tuple[jax.Array, jax.Array]:
    """Returns the real and imaginary axes of an image of about `lanes` pixels."""
    width = max(2, int(size.lanes**0.5))
    return jnp.linspace(-2.0, 0.6, width), jnp.linspace(-1.2, 1.2, width)


def build_mandelbrot_complex(size: Size) -> Built:
    """Complex numbers, a `while_loop` per pixel, mapped twice."""

    def escape(real: jax.Array, imaginary: jax.Array) -> Any:
        c = jax.lax.complex(real, imaginary)

        def is_inside(carry: Any) -> Any:
            i, z = carry
            return (i < size.steps) & (jnp.abs(z) <= 2.0)

        def advance(carry: Any) -> Any:
            i, z = carry
            return i + 1, z * z + c

        return jax.lax.while_loop(is_inside, advance, (0, jnp.zeros_like(c)))[0]

    return jax.vmap(jax.vmap(escape, (0, None)), (None, 0)), make_plane(size)


def build_mandelbrot_real(size: Size) -> Built:
    """Pairs of real numbers, a `while_loop` per pixel."""

    def escape(c_real: jax.Array, c_imaginary: jax.Array) -> jax.Array:
        def is_inside(carry: Any) -> Any:
            i, x, y = carry
            return (x * x + y * y <= 4.0) & (i < size.steps)

        def advance(carry: Any) -> Any:
            i, x, y = carry
            return i + 1, x * x - y * y + c_real, 2.0 * x * y + c_imaginary

        start = jnp.int32(0), jnp.float32(0.0), jnp.float32(0.0)
        return jax.lax.while_loop(is_inside, advance, start)[0]

    return jax.vmap(jax.vmap(escape, (0, None)), (None, 0)), make_plane(size)


def build_julia(size: Size) -> Built:
    """A Julia set on a whole image of complex numbers, with a fixed number of steps."""

    def paint(x: jax.Array, y: jax.Array) -> Any:
        start = x[None, :] + 1j * y[:, None]

        def step(_: Any, carry: Any) -> Any:
            z, count = carry
            is_inside = z.real**2 + z.imag**2 < 4.0
            z = jnp.where(is_inside, z * z + (-0.4 + 0.6j), z)
            return z, count + is_inside

        return jax.lax.fori_loop(0, size.steps, step, (start, jnp.zeros(start.shape, jnp.int32)))

    return paint, make_plane(size)


def build_newton_fractal(size: Size) -> Built:
    """Newton's method for the cube roots of one, complex, from every pixel."""

    def converge(real: jax.Array, imaginary: jax.Array) -> jax.Array:
        def step(_: Any, z: jax.Array) -> jax.Array:
            return z - (z * z * z - 1.0) / (3.0 * z * z)

        start = jax.lax.complex(real, imaginary)
        return jax.lax.fori_loop(0, size.steps, step, start)

    return jax.vmap(jax.vmap(converge, (0, None)), (None, 0)), make_plane(size)


def build_kepler(size: Size) -> Built:
    """Kepler's equation by Newton's method, until the step is small, per orbit."""

    def solve(anomaly: jax.Array, eccentricity: jax.Array) -> Any:
        def is_unsolved(carry: Any) -> Any:
            _, change, i = carry
            return (jnp.abs(change) > 1e-5) & (i < size.steps)

        def improve(carry: Any) -> Any:
            e, _, i = carry
            change = (e - eccentricity * jnp.sin(e) - anomaly) / (1 - eccentricity * jnp.cos(e))
            return e - change, change, i + 1

        start = anomaly + 0.85 * eccentricity, jnp.float32(1.0), 0
        return jax.lax.while_loop(is_unsolved, improve, start)[0]

    anomalies = jnp.linspace(0.1, 3.0, size.lanes)
    eccentricities = jax.random.uniform(jax.random.key(0), (size.lanes,), maxval=0.9)
    return jax.vmap(solve), (anomalies, eccentricities)


def build_implied_volatility(size: Size) -> Built:
    """Implied volatilities by bisection of the Black-Scholes formula."""

    def call_price(volatility: jax.Array, strike: jax.Array, years: jax.Array) -> jax.Array:
        root = volatility * jnp.sqrt(years)
        first = (jnp.log(100.0 / strike) + 0.5 * root**2) / root
        cdf = jax.scipy.stats.norm.cdf
        return 100.0 * cdf(first) - strike * cdf(first - root)

    def solve(price: jax.Array, strike: jax.Array, years: jax.Array) -> jax.Array:
        def halve(_: Any, bounds: Any) -> Any:
            low, high = bounds
            middle = 0.5 * (low + high)
            is_low = call_price(middle, strike, years) < price
            return jnp.where(is_low, middle, low), jnp.where(is_low, high, middle)

        low, high = jax.lax.fori_loop(0, size.steps, halve, (jnp.float32(0.01), jnp.float32(2.0)))
        return 0.5 * (low + high)

    volatilities = jax.random.uniform(jax.random.key(1), (size.lanes,), minval=0.2, maxval=0.6)
    strikes = jax.random.uniform(jax.random.key(2), (size.lanes,), minval=80.0, maxval=120.0)
    years = jnp.linspace(0.5, 2.0, size.lanes)
    return jax.vmap(solve), (call_price(volatilities, strikes, years), strikes, years)


def build_collatz(size: Size) -> Built:
    """Lengths of Collatz sequences: integers only, lanes of very different lengths."""

    def count(start: jax.Array) -> jax.Array:
        def advance(carry: Any) -> Any:
            n, i = carry
            return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), i + 1

        def goes_on(carry: Any) -> Any:
            return (carry[0] != 1) & (carry[1] < size.steps)

        return jax.lax.while_loop(goes_on, advance, (start, jnp.int32(0)))[1]

    return jax.vmap(count), (jnp.arange(1, size.lanes + 1, dtype=jnp.uint32),)


_QUICK: Final = Size(lanes=144, steps=10)
# Whether a pixel at the border escapes one step earlier is decided by rounding.
_BORDER: Final = Rule(share_apart=0.005)


def _make(name: str, **settings: Any) -> Program:
    settings = {"target": 4.0, "quick": _QUICK, **settings}
    return Program(name=f"roots/{name}", category=CATEGORY, **settings)


PROGRAMS: Final = (
    _make(
        "mandelbrot-complex",
        build=build_mandelbrot_complex,
        full=Size(lanes=512**2, steps=100),
        rule=_BORDER,
    ),
    _make(
        "mandelbrot-real",
        build=build_mandelbrot_real,
        full=Size(lanes=512**2, steps=100),
        rule=_BORDER,
    ),
    _make("julia", build=build_julia, full=Size(lanes=800**2, steps=60), rule=_BORDER),
    _make(
        "newton-fractal",
        build=build_newton_fractal,
        full=Size(lanes=600**2, steps=40),
        rule=Rule(relative=1e-4, share_apart=0.005),
    ),
    _make(
        "kepler",
        build=build_kepler,
        full=Size(lanes=500_000, steps=50),
        rule=Rule(relative=1e-4),
    ),
    _make(
        "implied-volatility",
        build=build_implied_volatility,
        full=Size(lanes=100_000, steps=40),
        # The price of an option is flat where little time is left.
        rule=Rule(relative=1e-4, share_apart=0.005),
    ),
    _make("collatz", build=build_collatz, full=Size(lanes=100_000, steps=400), rule=EXACT),
)
