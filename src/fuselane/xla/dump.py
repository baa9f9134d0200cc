"""Reading what XLA's flag `--xla_dump_to` left in a folder.

XLA names its files `module_NNNN.NAME.` and then

- `before_optimizations.hlo.pb` for the module as it came,
- `0007.PIPELINE.after_PASS.before_NEXT.hlo.pb` after each pass that changed it, and at both ends of
  each pipeline,
- `PLATFORM_after_optimizations.hlo.pb` for the final, scheduled one,
- `thunk_sequence.txt`, `ptx` and the like.

It leaves `NAME.` out where the file's name would get too long for a file system, or, where it just
thinks it would fit, writes no file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from jaxlib import _hlo  # type: ignore[attr-defined]

from fuselane.errors import InputError
from fuselane.gpu import GPUS
from fuselane.hlo.container import module_in
from fuselane.hlo.proto import HloModuleProto
from fuselane.xla.captured import CapturedModule, CapturedStage, KernelUsage
from fuselane.xla.gpu_dump import count_launches, read_launches, read_ptx, read_refusals
from fuselane.xla.ptxas import assemble
from fuselane.xla.targets import CPU, Target, find_target

_FILE: Final = re.compile(r"(?:.+\.)?module_(?P<number>\d+)\.(?P<rest>.+)", re.DOTALL)
_FIRST: Final = re.compile(r"(?:(?P<name>.+)\.)?before_optimizations\.hlo\.pb", re.DOTALL)
_STAGE: Final = re.compile(
    r"(?P<number>\d{4,})\.(?P<pipeline>.+?)\.after_(?P<ran>.+?)(?:\.before_.+)?\.hlo\.pb", re.DOTALL
)
_LAST: Final = re.compile(r"(?P<platform>.+)_after_optimizations\.hlo\.pb", re.DOTALL)

_TEXT: Final = ".txt"
_PROTO: Final = ".hlo.pb"
_GPU_CONFIG: Final = "gpu_target_config.pbtxt"

_Files = Mapping[str, Path]
"""The files about one module, by their names from after the module's."""


def read_dump(
    folder: Path, target: Target, *, ptxas: Path | None = None, compile_s: float = 0
) -> tuple[CapturedModule, ...]:
    """Returns the modules whose way through XLA a folder shows, in the order XLA met them.

    Args:
        folder: What `--xla_dump_to` named, written with `--xla_dump_hlo_as_proto`.
        target: What they were compiled for.
        ptxas: NVIDIA's assembler, or None to do without.
        compile_s: Seconds that took, or 0 if unknown.
    Raises:
        InputError: if the folder cannot be read or shows no module.
    """
    try:
        groups = _group(sorted(folder.rglob("*")))
        modules = [_read_module(files, target, ptxas, compile_s) for files in groups]
    except OSError as error:
        raise InputError(f"{str(folder)!r} cannot be read: {error.strerror}.") from None
    found = tuple(module for module in modules if module is not None)
    if not found:
        raise InputError(f"{str(folder)!r} holds no HLO module that XLA dumped after its passes.")
    return found


def find_dump_target(folder: Path, wanted: Target | None) -> Target:
    """Returns what the modules of a folder were compiled for.

    Args:
        folder: As for `read_dump`.
        wanted: What they should have been compiled for, or None for whatever it was.
    Raises:
        InputError: if they were compiled for something else, or for a GPU that is not described.
    """
    paths = sorted(folder.rglob("*")) if folder.is_dir() else []
    platforms = {match["platform"] for files in _group(paths) for match in _lasts(files)}
    if not any(platform.endswith("gpu") for platform in platforms):
        if wanted is not None and wanted.gpu is not None and platforms:
            raise InputError(f"{str(folder)!r} was compiled for a CPU, not for {wanted.name}.")
        return find_target(CPU)
    described = next((path for path in paths if path.name.endswith(_GPU_CONFIG)), None)
    if wanted is not None:
        if wanted.gpu is None:
            raise InputError(f"{str(folder)!r} was compiled for a GPU, not for {wanted.name}.")
        return wanted
    if described is None:
        raise InputError(f"{str(folder)!r} does not say for which GPU; name it with --target.")
    target = find_target(str(described))
    known = next((name for name, gpu in GPUS.items() if gpu.name == target.name), None)
    return target if known is None else find_target(known)


def _lasts(files: _Files) -> list[re.Match[str]]:
    return [match for rest in files if (match := _LAST.fullmatch(rest))]


def _read_proto(path: Path) -> bytes:
    """Returns the serialized HloModuleProto in a file, which XLA itself reads if it is text."""
    data = path.read_bytes()
    try:
        if path.suffix == _TEXT:
            parsed = _hlo.hlo_module_from_text(data.decode())
            module: bytes = parsed.as_serialized_hlo_module_proto()
        else:
            module = module_in(data)
        if not module:
            raise ValueError("it ends too early")
    except (ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{str(path)!r} holds no HLO module: {reason}.") from None
    return module


def _group(paths: Iterable[Path]) -> list[_Files]:
    """Returns the files about each module that has a first one."""
    numbered: dict[Path, dict[str, Path]] = defaultdict(dict)
    for path in paths:
        if match := _FILE.fullmatch(path.name):
            files, rest = numbered[path.parent / match["number"]], match["rest"]
            files[rest] = path
            if rest.endswith(_TEXT):  # a module, if it is one that was not dumped as a proto
                files.setdefault(rest.removesuffix(_TEXT) + _PROTO, path)
    groups: list[_Files] = []
    for files in numbered.values():
        if first := next(filter(None, map(_FIRST.fullmatch, files)), None):
            prefix = f"{first['name']}." if first["name"] else ""
            groups.append({rest.removeprefix(prefix): path for rest, path in files.items()})
    return groups


def _read_module(
    files: _Files, target: Target, ptxas: Path | None, compile_s: float
) -> CapturedModule | None:
    """Returns one module, or None if XLA did not get to its end."""
    lasts = _lasts(files)
    if not lasts:
        return None
    last = files[lasts[0].string]
    stages, num_missing = _read_stages(files)
    notes = [_MISSING.format(num_missing)] if num_missing else []
    ptx = read_ptx(path for rest, path in files.items() if rest.endswith(".ptx"))
    usage = _usage(files, ptx, ptxas)
    if ptx and not usage:
        notes.append(_NO_USAGE)
    return CapturedModule(
        name=HloModuleProto.FromString(stages[0].data).name,
        target=target.name,
        stages=stages,
        final=_read_proto(last),
        thunks=_thunks(files),
        ptx=ptx,
        usage=usage,
        parts=count_launches(_bytes(files, "thunk_metadata.pb")),
        refusals=read_refusals(_bytes(files, "priority_fusion_dump.pb")),
        gpu=target.gpu,
        compile_s=compile_s,
        notes=tuple(notes),
    )


_NO_USAGE: Final = "Registers and shared memory are not shown, as there is no ptxas to ask."


def _usage(files: _Files, ptx: Mapping[str, str], ptxas: Path | None) -> dict[str, KernelUsage]:
    """Returns what each kernel takes, by the name of the instruction that launches it."""
    if ptxas is None:
        return {}
    kernels = assemble(ptxas, ptx.values())
    launches = read_launches(_thunks(files), _bytes(files, "thunk_metadata.pb"))
    return {
        instruction: replace(
            kernels[launch.kernel],
            shared_bytes=kernels[launch.kernel].shared_bytes + launch.shared_bytes,
            block_threads=launch.block_threads,
            num_blocks=launch.num_blocks,
        )
        for instruction, launch in launches.items()
        if launch.kernel in kernels
    }


def _thunks(files: _Files) -> str:
    """Returns XLA's list of thunks, the one after its passes over them if they changed any."""
    data = _bytes(files, "thunk_sequence_after_thunk_passes.txt", "thunk_sequence.txt")
    return data.decode(errors="replace")


def _bytes(files: _Files, *names: str) -> bytes:
    """Returns what the first of some files holds that is there, or nothing."""
    path = next((files[name] for name in names if name in files), None)
    return b"" if path is None else path.read_bytes()


_MISSING: Final = "At least {} of XLA's passes are not shown, as it wrote no files after them."


def _read_stages(files: _Files) -> tuple[tuple[CapturedStage, ...], int]:
    """Returns the module as it came and after each pass that changed it, and how many are missing.

    XLA counts the files it means to write; those after the last one written are not counted here.
    """
    first = next(path for rest, path in files.items() if _FIRST.fullmatch(rest))
    stages = [CapturedStage(pipeline="", name="", data=_read_proto(first))]
    matches = [(match, path) for rest, path in files.items() if (match := _STAGE.fullmatch(rest))]
    matches.sort(key=lambda entry: int(entry[0]["number"]))
    before = first.read_bytes()
    for match, path in matches:
        after = path.read_bytes()
        if after != before:  # of text, rather than of what it is read as, where new ids are given
            data = _read_proto(path)
            stages.append(CapturedStage(pipeline=match["pipeline"], name=match["ran"], data=data))
        before = after
    num_written = int(matches[-1][0]["number"]) + 1 if matches else 0
    return tuple(stages), num_written - len(matches)
