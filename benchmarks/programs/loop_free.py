"""Programs without any loop, as users write them: what the fusion pipeline `fuselane` is for."""

from __future__ import annotations

import math
from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import Built, Program, Rule, Size

CATEGORY: Final = "loop-free"


def _normal(number: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(number), shape)


def _uniform(number: int, shape: tuple[int, ...], low: float, high: float) -> jax.Array:
    return jax.random.uniform(jax.random.key(number), shape, minval=low, maxval=high)


def build_softmax(size: Size) -> Built:
    """Softmax of long rows."""
    return lambda x: jax.nn.softmax(x, axis=-1), (4.0 * _normal(0, size.lanes, size.steps),)


def build_layer_norm(size: Size) -> Built:
    """Layer normalisation with scale and bias."""

    def normalise(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        mean = x.mean(axis=-1, keepdims=True)
        variance = jnp.square(x - mean).mean(axis=-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + bias

    width = size.steps
    return normalise, (_normal(1, size.lanes, width), _normal(2, width), _normal(3, width))


def build_gelu_mlp(size: Size) -> Built:
    """Two dense layers with GELU in between."""

    def forward(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, b2: jax.Array) -> Any:
        return jax.nn.gelu(x @ w1 + b1) @ w2 + b2 + x

    width, hidden = size.steps, 4 * size.steps
    first = _normal(5, width, hidden) / math.sqrt(width)
    second = _normal(6, hidden, width) / math.sqrt(hidden)
    x = _normal(4, size.lanes, width)
    return forward, (x, first, _normal(7, hidden), second, _normal(8, width))


def build_attention(size: Size) -> Built:
    """Causal attention of several heads; queries are `lanes`, positions `steps`."""
    heads, features = size.lanes, 32

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("hqd,hkd->hqk", q, k) / math.sqrt(features)
        positions = jnp.arange(size.steps)
        scores = jnp.where(positions[:, None] >= positions[None, :], scores, -1e9)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)

    shape = heads, size.steps, features
    return attend, (_normal(9, *shape), _normal(10, *shape), _normal(11, *shape))


def build_adam(size: Size) -> Built:
    """One step of Adam over many tensors of a few shapes; the largest is `steps` square."""
    width = size.steps
    kinds = [(width, width), (width,), (width, 4 * width), (4 * width,), (4 * width, width)]
    shapes = [kinds[i % len(kinds)] for i in range(size.lanes)]

    def step(state: Any, grads: Any, count: jax.Array) -> Any:
        correct1, correct2 = 1 - 0.9**count, 1 - 0.999**count

        def update(p: jax.Array, m: jax.Array, v: jax.Array, g: jax.Array) -> Any:
            m = 0.9 * m + 0.1 * g
            v = 0.999 * v + 0.001 * g * g
            p = p - 1e-3 * (m / correct1) / (jnp.sqrt(v / correct2) + 1e-8)
            return p, m, v

        return [update(p, m, v, g) for (p, m, v), g in zip(state, grads, strict=True)]

    state = [
        (_normal(i, *s), _normal(i + 1, *s), _normal(i, *s) ** 2) for i, s in enumerate(shapes)
    ]
    grads = [_normal(i + 2, *s) for i, s in enumerate(shapes)]
    return step, (state, grads, jnp.float32(10.0))


def build_augmentation(size: Size) -> Built:
    """Images flipped, brightened, desaturated, gamma-corrected and normalised."""

    def augment(images: jax.Array, flip: jax.Array, gain: jax.Array, gamma: jax.Array) -> jax.Array:
        x = jnp.where(flip[:, None, None, None], images[:, :, ::-1], images) / 255.0
        x = jnp.clip(x * gain[:, None, None, None], 0.0, 1.0)
        grey = (x @ jnp.array([0.299, 0.587, 0.114]))[..., None]
        x = jnp.clip(grey + 0.7 * (x - grey), 1e-3, 1.0)
        x = x ** gamma[:, None, None, None]
        mean = x.mean(axis=(1, 2), keepdims=True)
        return (x - mean) / (x.std(axis=(1, 2), keepdims=True) + 1e-3)

    count = size.lanes
    images = _uniform(12, (count, size.steps, size.steps, 3), 0.0, 255.0)
    flip = jax.random.bernoulli(jax.random.key(13), shape=(count,))
    return augment, (
        images,
        flip,
        _uniform(14, (count,), 0.8, 1.2),
        _uniform(15, (count,), 0.7, 1.4),
    )


def build_black_scholes(size: Size) -> Built:
    """Prices of calls and puts, and how they depend on what they are made from."""

    def price(spot: jax.Array, strike: jax.Array, years: jax.Array, vol: jax.Array) -> Any:
        rate = 0.03
        root = vol * jnp.sqrt(years)
        d1 = (jnp.log(spot / strike) + (rate + 0.5 * vol * vol) * years) / root
        d2 = d1 - root
        cdf = jax.scipy.stats.norm.cdf
        density = jnp.exp(-0.5 * d1 * d1) / math.sqrt(2 * math.pi)
        discounted = strike * jnp.exp(-rate * years)
        call = spot * cdf(d1) - discounted * cdf(d2)
        put = discounted * cdf(-d2) - spot * cdf(-d1)
        gamma, vega = density / (spot * root), spot * density * jnp.sqrt(years)
        theta = -spot * density * vol / (2 * jnp.sqrt(years)) - rate * discounted * cdf(d2)
        return call, put, cdf(d1), gamma, vega, theta

    shape = (size.lanes,)
    spot, strike = _uniform(16, shape, 50.0, 150.0), _uniform(17, shape, 50.0, 150.0)
    return price, (spot, strike, _uniform(18, shape, 0.1, 2.0), _uniform(19, shape, 0.1, 0.6))


def build_k_means(size: Size) -> Built:
    """One step of k-means: the nearest centre of each point, and the new centres."""
    features = 8

    def step(points: jax.Array, centres: jax.Array) -> Any:
        distances = jnp.square(points[:, None, :] - centres[None, :, :]).sum(-1)
        nearest = jnp.argmin(distances, axis=1)
        member = jax.nn.one_hot(nearest, size.steps, dtype=points.dtype)
        counts = member.sum(axis=0)
        new = (member.T @ points) / jnp.maximum(counts, 1.0)[:, None]
        return new, nearest, distances.min(axis=1).mean()

    return step, (_normal(20, size.lanes, features), _normal(21, size.steps, features))


def build_batch_norm(size: Size) -> Built:
    """A residual block's batch norm at inference, with its shortcut and SiLU."""

    def block(
        x: jax.Array,
        shortcut: jax.Array,
        mean: jax.Array,
        var: jax.Array,
        scale: jax.Array,
        bias: jax.Array,
    ) -> jax.Array:
        return jax.nn.silu((x - mean) / jnp.sqrt(var + 1e-5) * scale + bias + shortcut)

    side, channels = size.steps, 64
    shape = size.lanes, side, side, channels
    channel = [_normal(i, channels) for i in (24, 25, 26)]
    return block, (
        _normal(22, *shape),
        _normal(23, *shape),
        channel[0],
        channel[1] ** 2 + 0.5,
        channel[2],
        channel[0],
    )


def build_loss(size: Size) -> Built:
    """Cross entropy with its gradient, and what is logged beside it."""

    def loss(logits: jax.Array, labels: jax.Array) -> Any:
        def mean_loss(x: jax.Array) -> Any:
            logs = jax.nn.log_softmax(x)
            picked = jnp.take_along_axis(logs, labels[:, None], axis=1)[:, 0]
            smooth = 0.9 * picked + 0.1 * logs.mean(axis=-1)
            return -smooth.mean(), logs

        (value, logs), gradient = jax.value_and_grad(mean_loss, has_aux=True)(logits)
        p = jnp.exp(logs)
        entropy = -(p * logs).sum(axis=-1)
        hits = jnp.argmax(logits, axis=-1) == labels
        return value, gradient, hits.mean(), entropy.mean(), p.max(axis=-1).mean()

    labels = jax.random.randint(jax.random.key(28), (size.lanes,), 0, size.steps)
    return loss, (3.0 * _normal(27, size.lanes, size.steps), labels)


def build_orbits(size: Size) -> Built:
    """Kepler's orbits: positions and velocities from their elements, by a series and two Newton
    steps."""

    def state(
        axis: jax.Array,
        e: jax.Array,
        tilt: jax.Array,
        node: jax.Array,
        peri: jax.Array,
        anomaly: jax.Array,
    ) -> Any:
        ecc = anomaly + e * jnp.sin(anomaly)
        for _ in range(2):
            ecc = ecc - (ecc - e * jnp.sin(ecc) - anomaly) / (1 - e * jnp.cos(ecc))
        flat = jnp.sqrt(1 - e * e)
        x, y = axis * (jnp.cos(ecc) - e), axis * flat * jnp.sin(ecc)
        speed = 1 / (jnp.sqrt(axis) * (1 - e * jnp.cos(ecc)))
        vx, vy = -speed * jnp.sin(ecc), speed * flat * jnp.cos(ecc)
        px = jnp.cos(node) * jnp.cos(peri) - jnp.sin(node) * jnp.sin(peri) * jnp.cos(tilt)
        py = jnp.sin(node) * jnp.cos(peri) + jnp.cos(node) * jnp.sin(peri) * jnp.cos(tilt)
        pz = jnp.sin(peri) * jnp.sin(tilt)
        qx = -jnp.cos(node) * jnp.sin(peri) - jnp.sin(node) * jnp.cos(peri) * jnp.cos(tilt)
        qy = -jnp.sin(node) * jnp.sin(peri) + jnp.cos(node) * jnp.cos(peri) * jnp.cos(tilt)
        qz = jnp.cos(peri) * jnp.sin(tilt)
        return (
            x * px + y * qx,
            x * py + y * qy,
            x * pz + y * qz,
            vx * px + vy * qx,
            vx * py + vy * qy,
            vx * pz + vy * qz,
        )

    shape = (size.lanes,)
    angles = [_uniform(i, shape, 0.0, 6.28) for i in (31, 32, 33)]
    return state, (
        _uniform(29, shape, 0.5, 3.0),
        _uniform(30, shape, 0.0, 0.6),
        _uniform(34, shape, 0.0, 3.1),
        *angles,
    )


def build_mixture(size: Size) -> Built:
    """The expectation step for a mixture of Gaussians, and the sums that the other step needs."""
    features = 4

    def expect(points: jax.Array, means: jax.Array, logs: jax.Array, weights: jax.Array) -> Any:
        scaled = (points[:, None, :] - means) * jnp.exp(-logs)
        joint = -0.5 * (scaled**2).sum(-1) - logs.sum(-1) + jax.nn.log_softmax(weights)
        total = jax.nn.logsumexp(joint, axis=1)
        share = jnp.exp(joint - total[:, None])
        return total.mean(), share, share.sum(axis=0), share.T @ points

    parts = size.steps
    return expect, (
        _normal(35, size.lanes, features),
        _normal(36, parts, features),
        0.1 * _normal(37, parts, features),
        _normal(38, parts),
    )


def build_rotary(size: Size) -> Built:
    """RMS norm of queries and keys, then rotary position embedding, angles computed in place."""
    heads, features = 8, 64

    def rotate(q: jax.Array, k: jax.Array, scale: jax.Array, positions: jax.Array) -> Any:
        rates = 1e4 ** (-jnp.arange(0, features, 2) / features)
        angles = positions[:, None, None] * rates
        sin, cos = jnp.sin(angles), jnp.cos(angles)

        def turn(x: jax.Array) -> jax.Array:
            x = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * scale
            a, b = jnp.split(x, 2, axis=-1)
            return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

        return turn(q), turn(k)

    shape = size.lanes, heads, features
    positions = jnp.arange(size.lanes, dtype=jnp.float32)
    return rotate, (_normal(39, *shape), _normal(40, *shape), _normal(41, features), positions)


def build_swiglu(size: Size) -> Built:
    """The gradient of gated units, as the backward pass of a transformer has it."""

    def backward(gate: jax.Array, value: jax.Array, grad: jax.Array) -> Any:
        out, pull = jax.vjp(lambda g, v: jax.nn.silu(g) * v, gate, value)
        return (out, *pull(grad))

    shape = size.lanes, size.steps
    return backward, (_normal(42, *shape), _normal(43, *shape), _normal(44, *shape))


def build_ppo(size: Size) -> Built:
    """PPO's loss over a batch of Gaussian actions, and its gradients by means and deviations."""

    def loss(mean: jax.Array, log_std: jax.Array, value: jax.Array, batch: Any) -> Any:
        action, old_log, advantage, target = batch
        z = (action - mean) * jnp.exp(-log_std)
        log = (-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        ratio = jnp.exp(log - old_log)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()
        entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1).mean()
        clipped = (jnp.abs(ratio - 1) > 0.2).mean()
        critic = 0.5 * jnp.square(value - target).mean()
        return policy + critic - 0.01 * entropy, (clipped, (old_log - log).mean())

    lanes, actions = size.lanes, size.steps
    batch = _normal(45, lanes, actions), _normal(46, lanes), _normal(47, lanes), _normal(48, lanes)
    arguments = _normal(49, lanes, actions), 0.1 * _normal(50, lanes, actions), _normal(51, lanes)
    gradients = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    return gradients, (*arguments, (batch[0], batch[1] - 4.0, *batch[2:]))


def build_unrolled(size: Size) -> Built:
    """Some of many steps of pendulums, with a torque for each step, unrolled by `lax.scan`."""

    def swing(state: jax.Array, torques: jax.Array, first: jax.Array) -> Any:
        def step(state: jax.Array, torque: jax.Array) -> Any:
            angle, speed = state
            push = 3.0 * torque - 15.0 * jnp.sin(angle + math.pi)
            speed = jnp.clip(speed + 0.05 * push, -8.0, 8.0)
            cost = angle**2 + 0.1 * speed**2 + 0.001 * torque**2
            return jnp.stack([angle + 0.05 * speed, speed]), cost

        now = jax.lax.dynamic_slice_in_dim(torques, first, size.steps)
        return jax.lax.scan(step, state, now, unroll=True)

    torques = _normal(53, 20 * size.steps, size.lanes)
    return swing, (_normal(52, 2, size.lanes), torques, jnp.int32(5))


_CLOSE: Final = Rule(relative=1e-4)


def _program(
    name: str, build: Any, full: tuple[int, int], quick: tuple[int, int], rule: Rule = _CLOSE
) -> Program:
    return Program(
        name=f"{CATEGORY}/{name}",
        category=CATEGORY,
        build=build,
        full=Size(lanes=full[0], steps=full[1]),
        quick=Size(lanes=quick[0], steps=quick[1]),
        rule=rule,
    )


PROGRAMS: Final = (
    _program("softmax", build_softmax, (4096, 512), (32, 16)),
    _program("layer-norm", build_layer_norm, (4096, 768), (32, 16)),
    _program("gelu-mlp", build_gelu_mlp, (2048, 128), (32, 16)),
    _program("attention", build_attention, (16, 256), (2, 16)),
    _program("adam", build_adam, (200, 128), (10, 8)),
    _program("augmentation", build_augmentation, (32, 128), (2, 8)),
    _program("black-scholes", build_black_scholes, (1_000_000, 1), (64, 1)),
    _program("k-means", build_k_means, (100_000, 16), (64, 4)),
    _program("batch-norm", build_batch_norm, (16, 56), (2, 4)),
    _program("loss", build_loss, (16_384, 100), (32, 8)),
    _program("orbits", build_orbits, (500_000, 1), (64, 1)),
    _program("mixture", build_mixture, (100_000, 8), (64, 4)),
    _program("rotary", build_rotary, (2048, 1), (8, 1)),
    _program("swiglu", build_swiglu, (2048, 512), (8, 16)),
    _program("ppo", build_ppo, (65_536, 8), (64, 2)),
    _program("unrolled", build_unrolled, (20_000, 3), (64, 2)),
)
