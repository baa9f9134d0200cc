"""CartPole in PyTorch: one step and the rollout, shared by the three PyTorch peers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fuselane.cartpole.peers.protocol import Array, Data

Columns = tuple[Tensor, Tensor, Tensor, Tensor]
Rollout = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def step(
    position: Tensor,
    velocity: Tensor,
    angle: Tensor,
    angular_velocity: Tensor,
    action: Tensor,
    reset: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Advances all environments once; arrays are f32[envs], action s32[envs], reset f32[4, envs].

    The constants are literals because TorchScript cannot read them from a module.
    """
    force = torch.where(action == 1, 10.0, -10.0)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    push = (force + 0.05 * angular_velocity**2 * sine) / 1.1
    turn = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
    acceleration = push - 0.05 * turn * cosine / 1.1
    position, velocity = position + 0.02 * velocity, velocity + 0.02 * acceleration
    angle, angular_velocity = angle + 0.02 * angular_velocity, angular_velocity + 0.02 * turn
    done = (torch.abs(position) > 2.4) | (torch.abs(angle) > 0.20943951023931953)
    return (
        torch.where(done, reset[0], position),
        torch.where(done, reset[1], velocity),
        torch.where(done, reset[2], angle),
        torch.where(done, reset[3], angular_velocity),
    )


def make_runner(data: Data, rollout: Rollout) -> Callable[[int], Array]:
    """Returns what the protocol wants from a rollout over tensors."""
    state = torch.from_numpy(data.state)
    actions, resets = torch.from_numpy(data.actions), torch.from_numpy(data.resets)

    def run(num_steps: int) -> Array:
        with torch.no_grad():
            result: Array = rollout(state, actions, resets, num_steps).numpy()
        return result

    return run
