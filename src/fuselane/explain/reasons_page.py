"""docs/reasons.md: every reason for a boundary and every rule of advice, from the code's tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fuselane.boundary import BoundaryReason
from fuselane.explain.advice.rules import RULES

_INTRODUCTION: Final = """\
# Reasons and advice

What a report of `fuselane.explain` says about boundaries and what can be done, by the codes it
uses. A boundary is a value that one kernel leaves in memory for another. This page is made from
the code's tables; a test keeps it so.

## Why two kernels are two
"""
_PAPER: Final = """\
## The three boundaries of the paper, today

"Operator Fusion in XLA" (arXiv:2301.13062) found three boundaries in its CartPole. What the
report shows of them with jax 0.10.2, for `fuselane.cartpole`'s programs (2,048 poles, 1,000
steps):

- *Loop control* is there on every target: the counter has a kernel of its own (`wrapped_add`,
  `loop_add_fusion`), the state goes through memory in every iteration, and on top it is copied
  once (`copy.5`). XLA asks the loop's condition only where it does not know the trip count.
- *The random-number kernel* is there on the CPU, where each draw is a loop of its own: 160,000 of
  the 191,003 launches of `naive`. For GPUs JAX now writes its generator as ordinary operations,
  and XLA fuses the draws with what uses them; two kernels that split keys remain in each
  iteration.
- *The concatenate with several users* is gone from the `concat` program: GPUs run the step as one
  kernel around it (`input_concatenate_fusion`), and the CPU fuses it with what selects from it.
  There a division with two users makes a boundary instead (`expensive-duplication`). It is there
  in `naive` for `rtx2080ti`, for the stack of split keys, which four kernels read.

The three fixes are advice for GPUs: `random-numbers-in-loop`, `stacked-state`, `scan-unroll`. On
the CPU the first two show where they gain at least 1%; unrolling does not, since launches take
little time there and one kernel of ten steps computes many values several times.
"""

EXAMPLES: Final[Mapping[BoundaryReason, str]] = {
    BoundaryReason.ENTRY: "The first kernel that reads an argument of the jitted function.",
    BoundaryReason.EXIT: "What the jitted function returns.",
    BoundaryReason.LOOP_CONTROL: (
        "The state of a `lax.scan`, its counter, and whether it goes on: the next iteration finds"
        " them in memory."
    ),
    BoundaryReason.CONDITIONAL: "`y = lax.cond(p, f, g, x)`: `x` and `y` cross.",
    BoundaryReason.LIBRARY_CALL: "`jnp.tanh(w @ x)`: the product is Eigen's or cuBLAS's.",
    BoundaryReason.CUSTOM_CALL: "`jax.pure_callback`, `jax.ffi.ffi_call`.",
    BoundaryReason.RANDOM_NUMBERS: "`x + jax.random.normal(key, x.shape)` on a CPU, which makes the"
    " bits in a loop.",
    BoundaryReason.COLLECTIVE: "`lax.psum` over devices.",
    BoundaryReason.SIDE_EFFECT: "An infeed, or what has to run before or after something else.",
    BoundaryReason.SORT: "`jnp.sort(x) * 2`.",
    BoundaryReason.CONCATENATE_USERS: "`s = jnp.stack([a, b])`, read by two kernels.",
    BoundaryReason.EXPENSIVE_DUPLICATION: "`d = a / b`, used twice: `d * c + d * e`.",
    BoundaryReason.DUPLICATION: "`s = a + b`, used by a kernel and returned as well.",
    BoundaryReason.CODE_DUPLICATION: "A stack whose rows a kernel reads at seven places.",
    BoundaryReason.REDUCTION_INTO_REDUCTION: "`x.sum(0).max()` on a GPU.",
    BoundaryReason.REDUCTION_REUSE: "`x - x.mean(1, keepdims=True)`: each row's mean, many times.",
    BoundaryReason.OPERAND_REUSE: "`jnp.exp(a)[:, None] * b`: each exponential, many times.",
    BoundaryReason.LOOP_SHAPES: "Two results of different shapes on a GPU.",
    BoundaryReason.MULTI_OUTPUT: "`y = f(x)`, returned and used by another kernel, on a GPU.",
    BoundaryReason.LAYOUT: "A transpose that a library wants done in memory.",
    BoundaryReason.COPY: "Loop state whose old value is still read after the new one is made.",
    BoundaryReason.IN_PLACE: "`x.at[i].set(x[j])` in a loop.",
    BoundaryReason.BUDGET: "A sum of a hundred arrays, or a sixth reduction in one kernel.",
    BoundaryReason.NOT_FUSIBLE: "A scatter or a window's maximum on a CPU.",
    BoundaryReason.SLOWER: "A sine of a small array read by a large kernel many times, on a GPU.",
    BoundaryReason.TUPLE: "A result of several arrays that is handed on as a whole.",
    BoundaryReason.CONSTANT: "A table of numbers from `np.array`.",
    BoundaryReason.FUSELANE_KERNEL: "What a loop under Fuselane reads or leaves.",
    BoundaryReason.UNKNOWN: "None: tell us.",
}


def reasons_page() -> str:
    """Returns the page in Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    for reason in BoundaryReason:
        yield f"### {reason.code}\n\n{reason.sentence} Example: {_lower(EXAMPLES[reason])}\n"
    yield _PAPER
    yield "## What to do about it\n"
    yield (
        "Gains are factors on the time of one run, by the same model that gives kernels their time."
        " Advice that gains less than 1% is left out.\n"
    )
    for rule in RULES:
        yield f"### {rule.name}\n\n{rule.summary} Before and after:\n"
        yield f"```python\n{rule.before}\n```\n\n```python\n{rule.after}\n```\n"


def _lower(text: str) -> str:
    """Returns a sentence as it stands behind a colon."""
    return text[0].lower() + text[1:] if text[1:2].islower() else text
