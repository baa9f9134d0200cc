"""CartPole in TorchScript: the whole loop as one scripted function."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fuselane.cartpole.peers.protocol import Array, Data, serve
from fuselane.cartpole.peers.torch_eager import rollout
from fuselane.cartpole.peers.torch_step import make_runner

WARM_UP_STEPS = 20


def prepare(data: Data) -> Callable[[int], Array]:
    """Scripts the loop and runs it until the profiling executor has settled."""
    run = make_runner(data, torch.jit.script(rollout))
    for _ in range(3):
        run(WARM_UP_STEPS)
    return run


if __name__ == "__main__":
    serve(prepare)
