"""Runs somebody's script and keeps what JAX would compile of it on a GPU; a program of its own.

`python -m fuselane.xla.recorder FOLDER COMMAND...`, where COMMAND is what follows `python` (`FILE
ARGUMENTS...` or `-m MODULE ARGUMENTS...`), runs the script on this machine's CPU. Each program that
JAX lowers for it is lowered once more, for CUDA, and written to FOLDER as MLIR bytecode: `0.mlir`,
`1.mlir`, ... Equal ones are written once; for those that cannot be lowered, `refused` has a line.
"""

from __future__ import annotations

import hashlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from jax._src.interpreters import mlir

from fuselane.xla.capture import CUDA, any_backend, bytecode
from fuselane.xla.targets import CPU


def main(folder: Path, command: list[str]) -> None:
    """Runs the script; what it raises is passed on."""
    recorder = _Recorder(folder, mlir.lower_jaxpr_to_module)
    mlir.lower_jaxpr_to_module = recorder.lower
    if command[0] == "-m":
        sys.argv = command[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        sys.path.insert(0, str(Path(command[0]).resolve().parent))
        runpy.run_path(command[0], run_name="__main__")


@final
class _Recorder:
    """JAX's lowering of a program, which also keeps the same program lowered for CUDA."""

    def __init__(self, folder: Path, inner: Callable[..., Any]) -> None:
        self._folder = folder
        self._inner = inner
        self._digests: set[bytes] = set()

    def lower(self, *arguments: Any, **keywords: Any) -> Any:
        """Lowers as JAX does."""
        result = self._inner(*arguments, **keywords)
        if tuple(keywords.get("platforms", ())) == (CPU,):
            try:
                other = keywords | {"platforms": (CUDA,)}
                with any_backend():
                    self._keep(bytecode(self._inner(*arguments, **other).module))
            except Exception as error:
                self._refuse(error)
        return result

    def _keep(self, data: bytes) -> None:
        digest = hashlib.sha256(data).digest()
        if digest not in self._digests:
            self._digests.add(digest)
            (self._folder / f"{len(self._digests) - 1}.mlir").write_bytes(data)

    def _refuse(self, error: Exception) -> None:
        with (self._folder / "refused").open("a", encoding="utf-8") as refused:
            refused.write(" ".join(str(error).split()) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
