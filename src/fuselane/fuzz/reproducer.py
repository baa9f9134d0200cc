"""Files that show one failure on their own: StableHLO, inputs, and the comparison."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import xla_client  # type: ignore[attr-defined]
from jax._src.lib.mlir import ir  # type: ignore[attr-defined]
from jax.extend.backend import get_backend

import fuselane
from fuselane.fuzz.build import Judgement
from fuselane.fuzz.compare import find_difference
from fuselane.fuzz.inputs import NumpyArray
from fuselane.fuzz.kinds import Kind
from fuselane.fuzz.program import Program
from fuselane.fuzz.run import OPTIONS, Failure, Module

_CALLBACK: Final = "_python_cpu_callback"
"""How the targets of custom calls end by which JAX calls Python."""

_TEMPLATE: Final = '''"""{failure}

Found by `fuselane fuzz` with seed {seed}. Run it with Python: it compiles the module below with and
without Fuselane and compares. The program it was made of, as data:

{programs}
"""

import sys

from fuselane.fuzz.reproducer import replay

MODULE = r"""
{module}
"""

# Inputs in the order of the parameters: the values of an .npz file, as base64.
INPUTS = """
{inputs}
"""

# How each result is compared, and by how much it may differ.
JUDGEMENTS = {judgements}

if __name__ == "__main__":
    sys.exit(replay(MODULE, INPUTS, JUDGEMENTS, options={options}, x64={x64}))
'''


def write_reproducer(folder: Path, programs: Sequence[Program], failure: Failure) -> Path:
    """Writes a file that fails as the programs do when it is run, and returns its path."""
    first = programs[0]
    with jax.enable_x64(first.x64):
        module = Module.of(programs)
    text = _TEMPLATE.format(
        failure=f"{failure.form}: {failure.detail}".replace("\\", "/").replace('"', "'"),
        seed=first.seed,
        programs="\n".join(program.to_json() for program in programs).replace("\\", "/"),
        module=module.lowered.as_text().strip(),
        inputs=_pack(jax.tree.leaves(module.inputs)),
        judgements=[(j.kind.value, j.error) for group in module.judgements for j in group],
        options=dict(first.options),
        x64=first.x64,
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{failure.form}_{first.seed}.py"
    path.write_text(text, encoding="utf-8")
    return path


def replay(
    module: str,
    inputs: str,
    judgements: Sequence[tuple[str, float]],
    *,
    options: Mapping[str, Any],
    x64: bool,
) -> str | None:
    """Runs a module with and without Fuselane.

    Returns a sentence about the first difference, or None: what `sys.exit` makes an exit code of.
    """
    arrays = _unpack(inputs)
    with jax.enable_x64(x64):
        expected = _run(module, arrays)
        with fuselane.enabled(**{**options, **OPTIONS}):
            actual = _run(module, arrays)
    found = [Judgement(Kind(kind), error) for kind, error in judgements]
    return find_difference(expected, actual, found) or None


def _run(module: str, arrays: Sequence[NumpyArray]) -> list[NumpyArray]:
    device = jax.devices("cpu")[0]
    options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
    devices = xla_client.DeviceList((device,))
    with mlir.make_ir_context():
        parsed = ir.Module.parse(module)
        ignored = [_ignore] * module.count(_CALLBACK)
        executable = get_backend("cpu").compile_and_load(parsed, devices, options, ignored)
    results = executable.execute_sharded([jax.device_put(array, device) for array in arrays])
    return [np.asarray(parts[0]) for parts in results.disassemble_into_single_device_arrays()]


def _ignore(*_: Any) -> tuple[()]:
    """What the host does where a program calls back; see `Program.aside`."""
    return ()


def _pack(arrays: Sequence[NumpyArray]) -> str:
    """Returns arrays as text; types NumPy has no name for are kept by their bits."""
    file = io.BytesIO()
    named = {f"{i:03} {array.dtype}": _bits(array) for i, array in enumerate(arrays)}
    np.savez_compressed(file, allow_pickle=False, **named)
    text = base64.b64encode(file.getvalue()).decode()
    return "\n".join(text[i : i + 98] for i in range(0, len(text), 98))


def _bits(array: NumpyArray) -> NumpyArray:
    return array.view(np.uint16) if str(array.dtype) == "bfloat16" else array


def _unpack(text: str) -> list[NumpyArray]:
    with np.load(io.BytesIO(base64.b64decode(text))) as file:
        pairs = [(name.split()[1], file[name]) for name in sorted(file.files)]
    return [array.view(dtype) if dtype == "bfloat16" else array for dtype, array in pairs]
