"""CartPole in plain PyTorch: one operator call after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from fuselane.cartpole.peers.protocol import serve
from fuselane.cartpole.peers.torch_step import make_runner, step


def rollout(state: Tensor, actions: Tensor, resets: Tensor, num_steps: int) -> Tensor:
    """Runs all environments; returns the final states, f32[4, envs]."""
    position, velocity, angle, angular_velocity = state.unbind()
    rows = actions.shape[0]
    for t in range(num_steps):
        position, velocity, angle, angular_velocity = step(
            position, velocity, angle, angular_velocity, actions[t % rows], resets[t % rows]
        )
    return torch.stack((position, velocity, angle, angular_velocity))


if __name__ == "__main__":
    serve(lambda data: make_runner(data, rollout))
