"""Modules of one loop each, as HLO text: what the tests of analysis and forming look at."""

from __future__ import annotations

from collections.abc import Sequence

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from tests.hlo.xla import module_of

SCALARS = """
add_f32 { l0 = f32[] parameter(0)  r0 = f32[] parameter(1)  ROOT o0 = f32[] add(l0, r0) }
max_f32 { l1 = f32[] parameter(0)  r1 = f32[] parameter(1)  ROOT o1 = f32[] maximum(l1, r1) }
or_pred { l2 = pred[] parameter(0)  r2 = pred[] parameter(1)  ROOT o2 = pred[] or(l2, r2) }
less_f32 {
  l3 = f32[] parameter(0)
  r3 = f32[] parameter(1)
  ROOT o3 = pred[] compare(l3, r3), direction=LT
}
"""


def counting_loop(
    body: str,
    results: Sequence[str],
    carried: Sequence[str],
    *,
    trip_count: int | str = 10,
    more: str = "",
    condition: str = "ROOT go = pred[] compare(i, n), direction=LT",
    returned: str = "all",
) -> HloModule:
    """Returns a module with a loop over `i = 0, 1, ...` whose initial values are entry parameters.

    Args:
        body: Instructions; `i` is the counter, `e0`, `e1`, ... are the other loop elements and
            `zero` and `one` are s32 constants.
        results: For each of these elements the instruction that gives its next value.
        carried: Their shapes.
        trip_count: Limit of the counter, or the text of an s32[] instruction.
        more: Further computations.
        condition: The last line of the condition; it may use `i`, `n` and the elements.
        returned: The module's results: "all" elements, all "but the counter", or the "first" of
            those.
    """
    shape = f"(s32[], {', '.join(carried)})"
    elements = "\n".join(
        f"  e{k} = {s} get-tuple-element(p), index={k + 1}" for k, s in enumerate(carried)
    )
    parameters = "\n".join(f"  in{k} = {s} parameter({k})" for k, s in enumerate(carried))
    inputs = ", ".join(f"in{k}" for k in range(len(carried)))
    last = "\n".join(
        f"  last{k} = {s} get-tuple-element(loop), index={k + 1}" for k, s in enumerate(carried)
    )
    lasts = ", ".join(f"last{k}" for k in range(len(carried)))
    rest = f"{last}\n  ROOT all = ({', '.join(carried)}) tuple({lasts})"
    if returned == "first":
        rest = f"  ROOT first = {carried[0]} get-tuple-element(loop), index=1"
    is_root, rest = ("ROOT ", "") if returned == "all" else ("", rest)
    text = f"""
HloModule test
{SCALARS}{more}
body {{
  p = {shape} parameter(0)
  i = s32[] get-tuple-element(p), index=0
{elements}
  zero = s32[] constant(0)
  one = s32[] constant(1)
  next = s32[] add(i, one)
{body}
  ROOT root = {shape} tuple(next, {", ".join(results)})
}}
condition {{
  p = {shape} parameter(0)
  i = s32[] get-tuple-element(p), index=0
{elements}
  n = s32[] constant({trip_count})
  {condition}
}}
ENTRY main {{
{parameters}
  start = s32[] constant(0)
  init = {shape} tuple(start, {inputs})
  {is_root}loop = {shape} while(init), condition=condition, body=body
{rest}
}}
"""
    return module_of(text)


def loop_of(module: HloModule) -> HloInstruction:
    """Returns the one `while` of a module's entry computation."""
    return next(i for i in module.entry.instructions if i.opcode == "while")
