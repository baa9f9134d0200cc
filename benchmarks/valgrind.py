"""Runs the kernels of differential tests under valgrind, each on memory of exactly the size it has.

The tests run as they are, and every kernel made on the way is kept. Each then runs in a small C
program under memcheck, without JAX: every input and output is a block of its own from `malloc`, as
large as the array and full of random bytes (indices far out of range, NaNs), so that valgrind sees
any access beyond it. Kernels with loops that random data keep going are stopped after a while.

    python benchmarks/valgrind.py tests/differential/test_gathers.py --json docs/data/valgrind.json

Needs valgrind and a C compiler. Kernels are made without AVX-512 and GFNI, which it does not know.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from llvmlite import binding

from fuselane import device
from fuselane.backends import cpu
from fuselane.codegen.kernel import KernelCode, build_planned
from fuselane.config import Options
from fuselane.hlo.shape import Shape
from fuselane.lanes.program import LaneProgram
from fuselane.machine import describe_machine
from fuselane.runtime.kernel import Kernel

_DRIVER: Final = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

typedef void kernel(void **, void **, long, long);

static void **blocks(FILE *plan) {
  int count;
  if (fscanf(plan, "%d", &count) != 1) exit(3);
  void **result = malloc(8 * count);
  for (int i = 0; i < count; i++) {
    size_t size;
    if (fscanf(plan, "%zu", &size) != 1) exit(3);
    unsigned char *block = result[i] = malloc(size);
    for (size_t k = 0; k < size; k++) block[k] = rand() >> 7;
  }
  return result;
}

int main(int count, char **arguments) {
  // Read whole: children that end would move the place in a file that they share.
  static char text[1 << 22];
  FILE *file = fopen(arguments[1], "r");
  size_t size = fread(text, 1, sizeof text, file);
  fclose(file);
  FILE *plan = fmemopen(text, size, "r");
  char path[4096], symbol[256];
  long tiles;
  while (fscanf(plan, "%4095s %255s %ld", path, symbol, &tiles) == 3) {
    void **inputs = blocks(plan), **outputs = blocks(plan);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
      alarm(atoi(arguments[2]));
      void *library = dlopen(path, RTLD_NOW);
      if (!library) { fprintf(stderr, "%s\n", dlerror()); _exit(3); }
      ((kernel *)dlsym(library, symbol))(inputs, outputs, 0, tiles);
      exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    printf("%s %d %d\n", path, WIFSIGNALED(status) ? WTERMSIG(status) : 0, WEXITSTATUS(status));
  }
}
"""
_NEW: Final = ("avx10", "avx512", "avxvnni", "gfni", "vaes", "vpclmulqdq")
_ERROR_EXIT: Final = 99
_ALARM: Final = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A kernel and the bytes of its arrays."""

    kernel: Kernel
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(slots=True)
class Recorder:
    """Keeps every kernel that the pipeline makes, each once."""

    kernels: dict[str, Recorded] = field(default_factory=dict)
    _programs: dict[str, LaneProgram] = field(default_factory=dict)

    def install(self) -> None:
        """Looks over the shoulder of two stages."""

        def built(program: LaneProgram, *arguments: Any, **keywords: Any) -> KernelCode:
            code = build_planned(program, *arguments, **keywords)
            self._programs[code.ir] = program
            return code

        make_kernel = cpu.make_kernel

        def compiled(code: KernelCode, key: str, options: Options, **keywords: Any) -> Kernel:
            kernel = make_kernel(code, key, options, **keywords)
            if kernel.bitcode is not None:  # else only asked about
                self.kernels[kernel.key] = record(kernel.finished(), code, self._programs[code.ir])
            return kernel

        vars(cpu).update(build_planned=built, make_kernel=compiled)


def record(kernel: Kernel, code: KernelCode, program: LaneProgram) -> Recorded:
    """Returns a kernel with the sizes of what it is called with."""
    outputs = []
    for output in program.outputs:
        is_combined = program.loop.elements[output.tuple_index].combiner
        rows = (code.num_tiles, *output.shape.dimensions[1:])
        shape = Shape.array(output.shape.element_type, rows) if is_combined else output.shape
        outputs.append(shape.byte_size)
    if code.scratch_bytes:
        outputs.append(code.scratch_bytes)
    inputs = tuple(parameter.shape.byte_size for parameter in program.inputs)
    return Recorded(kernel=kernel, inputs=inputs, outputs=tuple(outputs))


def leave_out_new_instructions() -> None:
    """Has kernels made without the instructions that valgrind does not know."""
    features = binding.get_host_cpu_features()
    for name in features:
        features[name] = features[name] and not name.startswith(_NEW)
    parse_cpu_info = device.parse_cpu_info

    def parsed(text: str) -> tuple[str, frozenset[str]]:
        name, flags = parse_cpu_info(text)
        return name, frozenset(flag for flag in flags if not flag.startswith(_NEW))

    vars(binding).update(get_host_cpu_features=lambda: features)
    vars(device).update(parse_cpu_info=parsed)


def run_under_valgrind(kernels: list[Recorded], seconds: int) -> dict[str, int]:
    """Returns how many kernels ran clean, were stopped for time, had errors, or failed to run."""
    counts = {"clean": 0, "stopped": 0, "errors": 0, "failed": 0}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "driver.c").write_text(_DRIVER)
        driver = folder / "driver"
        subprocess.run(["cc", "-O1", "-o", driver, folder / "driver.c", "-ldl"], check=True)
        lines = []
        for number, recorded in enumerate(kernels):
            library = folder / f"kernel{number}.so"
            library.with_suffix(".o").write_bytes(recorded.kernel.object_code)
            subprocess.run(
                ["cc", "-shared", "-o", library, library.with_suffix(".o"), "-lm"], check=True
            )
            sizes = (len(s_) for s_ in (recorded.inputs, recorded.outputs))
            inputs, outputs = (
                f"{count} {' '.join(map(str, s_))}"
                for count, s_ in zip(sizes, (recorded.inputs, recorded.outputs), strict=True)
            )
            kernel = recorded.kernel
            lines.append(f"{library} {kernel.symbol} {kernel.num_tiles} {inputs} {outputs}")
        (folder / "plan").write_text("\n".join(lines))
        command = ["valgrind", "--quiet", f"--error-exitcode={_ERROR_EXIT}"]
        command += ["--undef-value-errors=no", "--max-stackframe=4000000", "--leak-check=no"]
        output = subprocess.run(
            [*command, driver, folder / "plan", str(seconds)],
            capture_output=True,
            text=True,
            check=False,
        )
        for line in output.stdout.splitlines():
            path, signal, status = line.split()
            if int(status) == _ERROR_EXIT:
                counts["errors"] += 1
            elif int(signal) == _ALARM:
                counts["stopped"] += 1
            elif int(signal) or int(status):
                counts["failed"] += 1
                print(f"{path}: signal {signal}, status {status}", file=sys.stderr)
            else:
                counts["clean"] += 1
        if counts["errors"] or counts["failed"]:
            print(output.stderr[:20_000], file=sys.stderr)
    counts["failed"] += len(kernels) - sum(counts.values())
    return counts


def main() -> int:
    """Runs tests, then their kernels; returns 1 if valgrind found anything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="+", help="what pytest is to run")
    parser.add_argument("--max-kernels", type=int, default=200, help="a random sample of them")
    parser.add_argument("--seconds", type=int, default=20, help="a kernel may take at most")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    recorder = Recorder()
    leave_out_new_instructions()
    recorder.install()
    pytest.main(["-q", "-p", "no:cacheprovider", *options.tests])
    kernels = list(recorder.kernels.values())
    sample = random.Random(0).sample(kernels, min(len(kernels), options.max_kernels))
    result: dict[str, Any] = {"kernels": len(sample), **run_under_valgrind(sample, options.seconds)}
    print(", ".join(f"{name} {count}" for name, count in result.items()))
    if options.json is not None:
        result |= {"date": time.strftime("%Y-%m-%d"), "machine": describe_machine()}
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if result["errors"] or result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
