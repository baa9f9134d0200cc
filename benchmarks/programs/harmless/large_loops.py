"""Loops whose steps are large library calls or mix all they carry: little for a kernel to win."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import Built, Program, Rule, Size

CATEGORY: Final = "large loops"


def build_conjugate_gradient(size: Size) -> Built:
    """Conjugate gradients on a dense positive definite matrix."""

    def solve(matrix: jax.Array, right: jax.Array) -> jax.Array:
        def step(_: Any, carry: Any) -> Any:
            x, r, p, rr = carry
            ap = matrix @ p
            alpha = rr / (p @ ap)
            x, r = x + alpha * p, r - alpha * ap
            rr_next = r @ r
            return x, r, r + rr_next / rr * p, rr_next

        start = (jnp.zeros_like(right), right, right, right @ right)
        return jax.lax.fori_loop(0, size.steps, step, start)[0]

    factor = jax.random.normal(jax.random.key(0), (size.lanes, size.lanes)) / size.lanes**0.5
    matrix = factor @ factor.T + jnp.eye(size.lanes)
    return solve, (matrix, jax.random.normal(jax.random.key(1), (size.lanes,)))


def build_wave(size: Size) -> Built:
    """The wave equation in Fourier space: a transform there and back in each step."""

    def run(start: jax.Array) -> jax.Array:
        n = start.shape[0]
        k = jnp.fft.fftfreq(n) * 2 * jnp.pi
        symbol = -(k[:, None] ** 2 + k[None, :] ** 2)

        def step(_: Any, carry: Any) -> Any:
            now, before = carry
            bend = jnp.fft.ifft2(symbol * jnp.fft.fft2(now)).real
            return 2 * now - before + 0.1 * bend, now

        result: jax.Array = jax.lax.fori_loop(0, size.steps, step, (start, start))[0]
        return result

    return run, (jax.random.normal(jax.random.key(2), (size.lanes, size.lanes)),)


def build_kmeans(size: Size) -> Built:
    """Lloyd's algorithm: distances by a matrix product, means by segment sums."""
    num_clusters, dimensions = 32, 16

    def fit(points: jax.Array) -> jax.Array:
        def step(_: Any, centres: jax.Array) -> jax.Array:
            distances = (centres**2).sum(-1) - 2 * points @ centres.T
            label = jnp.argmin(distances, axis=-1)
            sums = jax.ops.segment_sum(points, label, num_clusters)
            counts = jax.ops.segment_sum(jnp.ones(points.shape[0]), label, num_clusters)
            return sums / jnp.maximum(counts, 1.0)[:, None]

        return jax.lax.fori_loop(0, size.steps, step, points[:num_clusters])

    return fit, (jax.random.normal(jax.random.key(3), (size.lanes, dimensions)),)


def build_sinkhorn(size: Size) -> Built:
    """Sinkhorn's algorithm: rows and columns of a large matrix scaled in turns."""

    def run(kernel: jax.Array) -> Any:
        def step(_: Any, carry: Any) -> Any:
            _, v = carry
            u = 1.0 / (kernel @ v)
            return u, 1.0 / (kernel.T @ u)

        ones = jnp.ones(size.lanes)
        return jax.lax.fori_loop(0, size.steps, step, (ones, ones))

    cost = jax.random.uniform(jax.random.key(4), (size.lanes, size.lanes))
    return run, (jnp.exp(-cost * 5.0) / size.lanes,)


def build_shortest_paths(size: Size) -> Built:
    """Floyd and Warshall: one row and one column against the whole matrix in each step."""

    def run(distances: jax.Array) -> jax.Array:
        def step(k: Any, d: jax.Array) -> jax.Array:
            row = jax.lax.dynamic_slice_in_dim(d, k, 1, 0)
            column = jax.lax.dynamic_slice_in_dim(d, k, 1, 1)
            return jnp.minimum(d, row + column)

        return jax.lax.fori_loop(0, size.lanes, step, distances)

    return run, (jax.random.uniform(jax.random.key(5), (size.lanes, size.lanes)),)


def build_life(size: Size) -> Built:
    """Conway's game: a stencil over integers that wraps around."""

    def run(board: jax.Array) -> jax.Array:
        def step(_: Any, board: jax.Array) -> jax.Array:
            moves = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
            count = sum(jnp.roll(board, move, (0, 1)) for move in moves)
            return ((count == 3) | ((board == 1) & (count == 2))).astype(board.dtype)

        return jax.lax.fori_loop(0, size.steps, step, board)

    board = jax.random.bernoulli(jax.random.key(6), 0.3, (size.lanes, size.lanes))
    return run, (board.astype(jnp.int32),)


def build_page_rank(size: Size) -> Built:
    """PageRank on a random sparse graph: a gather and a scatter-add per step."""

    def run(source: jax.Array, target: jax.Array) -> jax.Array:
        degree = jnp.zeros(size.lanes).at[source].add(1.0)

        def step(_: Any, rank: jax.Array) -> jax.Array:
            share = rank / jnp.maximum(degree, 1.0)
            return 0.15 / size.lanes + 0.85 * jnp.zeros_like(rank).at[target].add(share[source])

        return jax.lax.fori_loop(0, size.steps, step, jnp.full(size.lanes, 1.0 / size.lanes))

    edges = jax.random.randint(jax.random.key(7), (2, 8 * size.lanes), 0, size.lanes)
    return run, (edges[0], edges[1])


def build_orthogonal_iteration(size: Size) -> Built:
    """Subspace iteration with a QR decomposition in each step."""

    def run(matrix: jax.Array) -> jax.Array:
        def step(_: Any, q: jax.Array) -> jax.Array:
            return jnp.linalg.qr(matrix @ q)[0]

        return jnp.abs(jax.lax.fori_loop(0, size.steps, step, jnp.eye(size.lanes, 16)))

    a = jax.random.normal(jax.random.key(8), (size.lanes, size.lanes))
    spectrum = jnp.diag(0.8 ** jnp.arange(size.lanes))
    q = jnp.linalg.qr(a)[0]
    return run, (q @ spectrum @ q.T,)


def build_newton_schulz(size: Size) -> Built:
    """The orthogonal factor of a matrix, by matrix products alone."""

    def run(matrix: jax.Array) -> jax.Array:
        def step(_: Any, x: jax.Array) -> jax.Array:
            return 1.5 * x - 0.5 * x @ (x.T @ x)

        return jax.lax.fori_loop(0, size.steps, step, matrix / jnp.linalg.norm(matrix))

    return run, (jnp.eye(size.lanes) + 0.01 * jnp.ones((size.lanes, size.lanes)),)


def build_viterbi(size: Size) -> Built:
    """The best path through a hidden Markov model of many states: a maximum over all pairs."""

    def run(transition: jax.Array, scores: jax.Array) -> Any:
        def step(best: jax.Array, score: jax.Array) -> Any:
            candidates = best[:, None] + transition
            return candidates.max(0) + score, candidates.argmax(0)

        return jax.lax.scan(step, jnp.zeros(size.lanes), scores)

    keys = jax.random.split(jax.random.key(9))
    transition = jax.random.normal(keys[0], (size.lanes, size.lanes))
    return run, (transition, jax.random.normal(keys[1], (size.steps, size.lanes)))


def build_cumulative(size: Size) -> Built:
    """Cumulative sums along the long axis, over and over."""

    def run(x: jax.Array) -> jax.Array:
        def step(_: Any, x: jax.Array) -> jax.Array:
            x = jnp.cumsum(x - x.mean())
            return x / (1.0 + jnp.abs(x).max())

        return jax.lax.fori_loop(0, size.steps, step, x)

    return run, (jax.random.normal(jax.random.key(10), (size.lanes,)),)


def build_fixed_point(size: Size) -> Built:
    """A `while_loop` to convergence whose test reads everything."""

    def run(matrix: jax.Array, b: jax.Array) -> jax.Array:
        def goes_on(carry: Any) -> jax.Array:
            x, before, i = carry
            return (jnp.linalg.norm(x - before) > 1e-6) & (i < size.steps)

        def step(carry: Any) -> Any:
            x, _, i = carry
            return jnp.tanh(matrix @ x + b), x, i + 1

        start = (jnp.zeros_like(b), jnp.ones_like(b), 0)
        result: jax.Array = jax.lax.while_loop(goes_on, step, start)[0]
        return result

    keys = jax.random.split(jax.random.key(11))
    matrix = jax.random.normal(keys[0], (size.lanes, size.lanes)) * 0.7 / size.lanes**0.5
    return run, (matrix, jax.random.normal(keys[1], (size.lanes,)))


def _make(name: str, lanes: int, steps: int, relative: float = 1e-3, **settings: Any) -> Program:
    return Program(
        name=f"large/{name}",
        category=CATEGORY,
        full=Size(lanes=lanes, steps=steps),
        quick=Size(lanes=32, steps=2),
        rule=Rule(relative=relative),
        **settings,
    )


PROGRAMS: Final = (
    _make("conjugate-gradient", 768, 60, build=build_conjugate_gradient),
    _make("wave", 256, 20, build=build_wave),
    _make("kmeans", 20_000, 10, build=build_kmeans),
    _make("sinkhorn", 512, 60, build=build_sinkhorn),
    _make("shortest-paths", 256, 256, build=build_shortest_paths),
    _make("life", 512, 20, build=build_life),
    _make("page-rank", 20_000, 10, build=build_page_rank),
    _make("orthogonal-iteration", 256, 10, build=build_orthogonal_iteration, relative=1e-2),
    _make("newton-schulz", 256, 15, build=build_newton_schulz),
    _make("viterbi", 256, 60, build=build_viterbi),
    _make("cumulative", 200_000, 20, build=build_cumulative, relative=1e-2),
    _make("fixed-point", 768, 60, build=build_fixed_point),
)
