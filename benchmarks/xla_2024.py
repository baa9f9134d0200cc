"""XLA of June 2024 on a machine with an NVIDIA GPU, with the fusion passes that came before
priority fusion: what `agreement_2024.py` compares ours with.

jaxlib 0.4.30's CUDA plug-in is the last but one that has both. Neither JAX nor jaxlib of that year
is needed where the GPU is: the plug-in is called by PJRT's C interface, and given HLO.

    python benchmarks/agreement_2024.py --modules FOLDER
    python3 benchmarks/xla_2024.py compile xla_cuda_plugin.so FOLDER DUMPS
    python benchmarks/agreement_2024.py --dumps DUMPS

The second, on the machine with the GPU, compiles what the first wrote, and leaves what
`--xla_dump_to` makes of it in folders under DUMPS. `xla_cuda_plugin.so` is in the wheel
`jax-cuda12-pjrt==0.4.30`; beside the driver it asks for `libcudart.so.12`
(`nvidia-cuda-runtime-cu12`) and `libcudnn.so.9`, of which a library that only says its version and
that all went well is enough, since nothing is run.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

FLAGS: Final = (
    "--xla_dump_hlo_as_proto",
    "--xla_dump_hlo_pass_re=fusion",
    "--xla_gpu_enable_priority_fusion=false",
    "--xla_gpu_enable_triton_gemm=false",
    "--xla_gpu_enable_triton_softmax_fusion=false",
    "--xla_gpu_autotune_level=0",
    "--xla_gpu_force_compilation_parallelism=1",
)
_ERROR_MESSAGE, _INITIALIZE, _CREATE_CLIENT, _COMPILE = 1, 3, 10, 20
"""Places of functions in the table that `GetPjrtApi` returns (xla/pjrt/c/pjrt_c_api.h)."""
_TABLE_START: Final = 40
"""Bytes of its size, extensions and version before them."""
_WORD: Final = ctypes.sizeof(ctypes.c_size_t)


def main() -> int:
    """Does one of the two; `worker` is the second's own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("compile")
    command.add_argument("plugin", type=Path)
    command.add_argument("modules", type=Path)
    command.add_argument("dumps", type=Path)
    command.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    command.add_argument("--seconds", type=float, default=600)
    worker = commands.add_parser("worker")
    worker.add_argument("plugin", type=Path)
    worker.add_argument("modules", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "worker":
        return compile_modules(options.plugin, options.modules)
    files = sorted(options.modules.glob("*.pb"), key=lambda f: f.stat().st_size, reverse=True)
    deadline = time.monotonic() + options.seconds
    return compile_all(options.plugin, files, options.dumps, options.workers, deadline)


def compile_all(
    plugin: Path, files: Sequence[Path], dumps: Path, workers: int, deadline: float
) -> int:
    """Compiles modules in several processes; behind one that ends in the middle another goes on."""
    dumps.mkdir(parents=True, exist_ok=True)
    running = [_Worker(plugin, files[n::workers], dumps, n) for n in range(workers)]
    while running and time.monotonic() < deadline:
        time.sleep(0.2)
        running = [worker for worker in running if worker.goes_on()]
    for worker in running:
        worker.process.kill()
    return int(bool(running))


class _Worker:
    """A process that compiles, and those that follow it."""

    def __init__(self, plugin: Path, files: Sequence[Path], dumps: Path, number: int) -> None:
        self.plugin, self.files, self.dumps, self.number = plugin, list(files), dumps, number
        self.log = dumps / f"worker{number}.log"
        self.turn = 0
        self.process = self._start()

    def goes_on(self) -> bool:
        """Whether there is more to do; starts the next process if one has died of a module."""
        if self.process.poll() is None:
            return True
        begun = re.findall(r"^begin (.+)$", self.log.read_text(errors="replace"), re.MULTILINE)
        rest = [file for file in self.files if str(file) not in begun]
        if not self.process.returncode or not rest or len(rest) == len(self.files):
            return False
        self.files, self.turn = rest, self.turn + 1
        self.process = self._start()
        return True

    def _start(self) -> subprocess.Popen[bytes]:
        folder = self.dumps / f"worker{self.number}_{self.turn}"
        folder.mkdir(exist_ok=True)
        flags = (os.environ.get("XLA_FLAGS", ""), f"--xla_dump_to={folder}", *FLAGS)
        environment = os.environ | {"XLA_FLAGS": " ".join(flags), "TF_CPP_MIN_LOG_LEVEL": "2"}
        command = [sys.executable, __file__, "worker", str(self.plugin), *map(str, self.files)]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def compile_modules(plugin: Path, files: Sequence[Path]) -> int:
    """Compiles modules one after the other, and says what came of each."""
    pjrt = _Pjrt(plugin)
    for file in files:
        print("begin", file, flush=True)
        start = time.monotonic()
        try:
            pjrt.compile(file.read_bytes())
        except RuntimeError as error:
            print("failed", file, str(error).splitlines()[0][:200], flush=True)
        else:
            print(f"done {file} {time.monotonic() - start:.1f} s", flush=True)
    return 0


class _Pjrt:
    """A client of a PJRT plug-in, to compile with."""

    def __init__(self, plugin: Path) -> None:
        library = ctypes.CDLL(str(plugin))
        library.GetPjrtApi.restype = ctypes.c_size_t
        self.table = library.GetPjrtApi() + _TABLE_START
        self._call(_INITIALIZE, _structure())
        # A client takes three quarters of the GPU's memory otherwise, and there are several.
        option = _structure(*_text(b"allocator"), 0, *_text(b"platform"))
        created = _structure(ctypes.addressof(option), 1, 0, 0, 0, 0, 0)
        self._call(_CREATE_CLIENT, created)
        self.client = created[-1]

    def compile(self, module: bytes) -> None:
        """Compiles a serialized HloModuleProto.

        Raises:
            RuntimeError: with what XLA says.
        """
        program = _structure(*_text(module), *_text(b"hlo"))
        options = _text(_OPTIONS)
        self._call(_COMPILE, _structure(self.client, ctypes.addressof(program), *options, 0))

    def _call(self, place: int, arguments: ctypes.Array[Any]) -> None:
        error = self._function(place)(ctypes.addressof(arguments))
        if error:
            message = _structure(error, 0, 0)
            self._function(_ERROR_MESSAGE)(ctypes.addressof(message))
            text = ctypes.string_at(message[-2], message[-1])
            raise RuntimeError(text.decode(errors="replace"))

    def _function(self, place: int) -> Any:
        address = ctypes.c_size_t.from_address(self.table + place * _WORD).value
        return ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_size_t)(address)


def _structure(*words: int) -> ctypes.Array[Any]:
    """Returns a structure of the interface: its size, no extension, and these fields."""
    size = len(words) + 2
    return (ctypes.c_size_t * size)(size * _WORD, 0, *words)


def _text(text: bytes) -> tuple[int, int]:
    """Returns two fields, where some bytes are and how many; they stay there for good."""
    buffer = ctypes.create_string_buffer(text, len(text))
    _KEPT.append(buffer)
    return ctypes.addressof(buffer), len(text)


_KEPT: Final[list[Any]] = []
_OPTIONS: Final = b"\x1a\x0f\x08" + b"\xff" * 9 + b"\x01\x20\x01\x28\x01"
"""A CompileOptionsProto whose build options are no device, one replica and one partition."""


if __name__ == "__main__":
    raise SystemExit(main())
