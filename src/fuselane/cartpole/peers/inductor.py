"""CartPole under torch.compile: a compiled block of ten steps, called in a loop."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fuselane.cartpole.peers.protocol import Array, Data, serve
from fuselane.cartpole.peers.torch_step import Columns, make_runner, step

STEPS_PER_BLOCK = 10


def block(columns: Columns, actions: Tensor, resets: Tensor) -> Columns:
    """Advances all environments by as many steps as actions, s32[steps, envs], has rows."""
    for t in range(actions.shape[0]):
        columns = step(*columns, actions[t], resets[t])
    return columns


def prepare(data: Data) -> Callable[[int], Array]:
    """Compiles a block of ten steps and one of a single step for what remains."""
    compiled = torch.compile(block, fullgraph=True, dynamic=False)

    def rollout(state: Tensor, actions: Tensor, resets: Tensor, num_steps: int) -> Tensor:
        columns = state.unbind()
        rows = actions.shape[0]
        t = 0
        while t < num_steps:
            row = t % rows
            fits = num_steps - t >= STEPS_PER_BLOCK and rows - row >= STEPS_PER_BLOCK
            end = row + (STEPS_PER_BLOCK if fits else 1)
            columns = compiled(columns, actions[row:end], resets[row:end])
            t += end - row
        return torch.stack(columns)

    run = make_runner(data, rollout)
    for _ in range(2):
        run(2 * (STEPS_PER_BLOCK + 1))  # outputs of one call are inputs of the next: both compile
    return run


if __name__ == "__main__":
    serve(prepare)
