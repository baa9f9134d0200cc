"""Live values of fused computations."""

from __future__ import annotations

import pytest

from fuselane.fusion.registers import count_registers, most_registers, thread_registers
from tests.hlo.xla import module_of


def registers(*lines: str, root: str) -> int:
    """Returns what a computation of three parameters needs."""
    text = "\n".join(lines)
    module = module_of(f"""HloModule m
      ENTRY main {{ x = f32[8] parameter(0) y = f32[8] parameter(1) z = f32[8] parameter(2)
      {text} ROOT r = {root} }}""")
    return count_registers(module.entry)


def test_a_chain_needs_one() -> None:
    """However long it is."""
    lines = [f"a{i} = f32[8] sine({f'a{i - 1}' if i else 'x'})" for i in range(20)]
    assert registers(*lines, root="f32[8] negate(a19)") == 1


def test_values_that_are_needed_again() -> None:
    """The example of the module's head."""
    lines = ("a = f32[8] add(x, y)", "b = f32[8] multiply(x, y)")
    assert registers(*lines, root="f32[8] subtract(a, b)") == 3
    assert registers(root="f32[8] subtract(x, y)") == 2


@pytest.mark.parametrize("is_larger_first", [True, False])
def test_larger_operands_come_first(is_larger_first: bool) -> None:
    """Whichever place they have; else all six smaller ones would wait."""
    lines, value = [], "x"
    for i in range(6):
        pair = (value, f"e{i}") if is_larger_first else (f"e{i}", value)
        lines += [f"e{i} = f32[8] sine(y{i})", f"c{i} = f32[8] add({', '.join(pair)})"]
        value = f"c{i}"
    parameters = " ".join(f"y{i} = f32[8] parameter({i + 1})" for i in range(6))
    text = "\n".join(lines)
    module = module_of(f"""HloModule m
      ENTRY main {{ x = f32[8] parameter(0) {parameters} {text} ROOT r = f32[8] negate(c5) }}""")
    assert count_registers(module.entry) == 2


def test_constants_and_wide_values() -> None:
    """None for constants, two for what has 64 bits."""
    lines = (
        "k = f32[] constant(2)",
        "b = f32[8] broadcast(k), dimensions={}",
        "w = f64[8] convert(x)",
        "v = f64[8] sine(w)",
    )
    assert registers(*lines[:2], root="f32[8] multiply(x, b)") == 1
    assert registers(*lines[2:], root="f64[8] add(w, v)") == 4


def test_many_values_that_wait() -> None:
    """Each of n values is needed with each other, so that all wait."""
    n = 12
    lines = [f"a{i} = f32[8] power(x, {'y' if i == 0 else f'a{i - 1}'})" for i in range(n)]
    lines += [f"t{i} = f32[8] add({f't{i - 1}' if i else 'y'}, a{i})" for i in range(n)]
    lines += [
        f"m{i} = f32[8] multiply({f'm{i - 1}' if i else f't{n - 1}'}, a{i})" for i in range(n)
    ]
    assert registers(*lines, root=f"f32[8] negate(m{n - 1})") >= n


FUSIONS = """HloModule m
  small { x = f32[800000] parameter(0) ROOT a = f32[800000] sine(x) }
  large { x = f32[800000] parameter(0) y = f32[800000] parameter(1)
    ROOT a = f32[800000] add(x, y) }
  both { x = f32[800000] parameter(0) y = f32[800000] parameter(1) a = f32[800000] add(x, y)
    b = f32[800000] multiply(x, y) ROOT t = (f32[800000], f32[800000]) tuple(a, b) }
  ENTRY main { x = f32[800000] parameter(0) s = f32[800000] fusion(x), kind=kLoop, calls=small
    l = f32[800000] fusion(s, x), kind=kLoop, calls=large
    ROOT k = (f32[800000], f32[800000]) fusion(l, x), kind=kLoop, calls=both }"""


def test_the_largest_fusion() -> None:
    """By name; none without fusions."""
    module = module_of(FUSIONS)
    assert most_registers(module, lambda f: count_registers(f.to_apply)) == (3, "k")
    assert most_registers(module, lambda f: -len(f.operands)) == (-1, "s")
    single = """HloModule m ENTRY main { x = f32[8] parameter(0) ROOT a = f32[8] sine(x) }"""
    assert most_registers(module_of(single), lambda _: 1) == (0, "")


def test_threads_of_gpus() -> None:
    """Several elements count where results or branches keep them, and where there are enough."""
    fusions = {i.name: i for i in module_of(FUSIONS).entry.instructions if i.opcode == "fusion"}
    many, few = ({n: thread_registers(f, k) for n, f in fusions.items()} for k in (1000, 10**6))
    assert few == {"s": 17, "l": 18, "k": 19}
    assert many == {"s": 16 + 8, "l": 18, "k": 16 + 4 * 3}
