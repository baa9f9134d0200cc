"""Times the CartPole variants under plain XLA, Fuselane and peers, and compares their results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import jax
import jax.numpy as jnp

import fuselane
from fuselane.cartpole.check import Agreement, compare
from fuselane.cartpole.contender import Contender, JaxContender, engine_context, run_in_turns
from fuselane.cartpole.peer import PEERS, PeerContender, PeerUnavailable
from fuselane.cartpole.problem import Problem, make_problem
from fuselane.cartpole.results import Recorder, Results, Say, Settings
from fuselane.cartpole.variants import PEER_VARIANT, VARIANTS

JAX_ENGINES: Final = ("xla", "fuselane")


def run_benchmark(settings: Settings, say: Say) -> Results:
    """Measures the variants one after the other; the contenders of one variant take turns.

    Fuselane is off afterwards.

    Args:
        settings: What to measure.
        say: Called with a line about what happens now, and with one for each contender left out.
    """
    fuselane.disable()
    problem = make_problem(settings.num_envs, settings.num_steps)
    _warm_up_compilers()
    recorder = Recorder(settings, say)
    for variant in settings.variants:
        with ExitStack() as stack:
            say(f"{variant}: compiling")
            contenders = list(_make_jax_contenders(variant, problem))
            if settings.with_peers and variant == PEER_VARIANT:
                contenders += _start_peers(variant, problem, recorder)
            for contender in contenders:
                stack.callback(contender.close)
            say(f"{variant}: running")
            _measure(variant, contenders, settings.num_repeats, recorder)
    return recorder.results()


def _make_jax_contenders(variant: str, problem: Problem) -> Iterator[Contender]:
    for engine in JAX_ENGINES:
        yield JaxContender(engine, VARIANTS[variant], problem)


def _start_peers(variant: str, problem: Problem, recorder: Recorder) -> Iterator[Contender]:
    for peer in PEERS:
        try:
            yield PeerContender(peer, problem)
        except PeerUnavailable as error:
            recorder.skip(variant, peer.engine, str(error))


def _measure(
    variant: str, contenders: Sequence[Contender], num_repeats: int, recorder: Recorder
) -> None:
    """Runs each contender once and compares it with the first, then times all of them in turns."""
    agreements: dict[Contender, Agreement] = {}
    for contender in contenders:
        try:
            contender.run()
            agreements[contender] = compare(contender, contenders[0])
        except PeerUnavailable as error:
            recorder.skip(variant, contender.engine, str(error))
    times_ms = run_in_turns(list(agreements), num_repeats)
    for contender, agreement in agreements.items():
        recorder.measure(variant, contender, times_ms[contender], agreement)


def _warm_up_compilers() -> None:
    """Compiles a small loop with each engine, so that no contender pays for what is set up once."""
    for engine in JAX_ENGINES:
        with engine_context(engine):
            jax.jit(lambda x: jax.lax.fori_loop(0, 9, lambda _, y: jnp.sin(y), x))(jnp.ones(64))
