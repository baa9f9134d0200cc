"""CartPole in Numba: blocks of environments in parallel, each stepping through its whole run."""

from __future__ import annotations

import math
from collections.abc import Callable

import numba
import numpy as np

from fuselane.cartpole import constants
from fuselane.cartpole.peers.protocol import Array, Data, serve

GRAVITY = np.float32(constants.GRAVITY)
POLE_MASS = np.float32(constants.POLE_MASS)
TOTAL_MASS = np.float32(constants.TOTAL_MASS)
HALF_LENGTH = np.float32(constants.HALF_LENGTH)
POLE_MOMENT = np.float32(constants.POLE_MOMENT)
FORCE = np.float32(constants.FORCE)
TIME_STEP = np.float32(constants.TIME_STEP)
MAX_POSITION = np.float32(constants.MAX_POSITION)
MAX_ANGLE = np.float32(constants.MAX_ANGLE)
FOUR_THIRDS = np.float32(4.0 / 3.0)


BLOCK = 64


@numba.njit(parallel=True, fastmath=True)
def rollout(state: Array, actions: Array, resets: Array, num_steps: int) -> Array:
    """Runs all environments; returns the final states, f32[4, envs]."""
    result = state.copy()
    rows, envs = actions.shape
    for block in numba.prange((envs + BLOCK - 1) // BLOCK):
        for t in range(num_steps):
            row = t % rows
            for i in range(block * BLOCK, min(envs, (block + 1) * BLOCK)):
                x, dx, a, da = result[0, i], result[1, i], result[2, i], result[3, i]
                force = FORCE if actions[row, i] == 1 else -FORCE
                sine, cosine = math.sin(a), math.cos(a)
                push = (force + POLE_MOMENT * da * da * sine) / TOTAL_MASS
                inertia = FOUR_THIRDS - POLE_MASS * cosine * cosine / TOTAL_MASS
                turn = (GRAVITY * sine - cosine * push) / (HALF_LENGTH * inertia)
                acceleration = push - POLE_MOMENT * turn * cosine / TOTAL_MASS
                x, dx = x + TIME_STEP * dx, dx + TIME_STEP * acceleration
                a, da = a + TIME_STEP * da, da + TIME_STEP * turn
                if abs(x) > MAX_POSITION or abs(a) > MAX_ANGLE:
                    x, dx = resets[row, 0, i], resets[row, 1, i]
                    a, da = resets[row, 2, i], resets[row, 3, i]
                result[0, i], result[1, i], result[2, i], result[3, i] = x, dx, a, da
    return result


def prepare(data: Data) -> Callable[[int], Array]:
    """Compiles the loop by running one step of it."""

    def run(num_steps: int) -> Array:
        result: Array = rollout(data.state, data.actions, data.resets, num_steps)
        return result

    run(1)
    return run


if __name__ == "__main__":
    serve(prepare)
