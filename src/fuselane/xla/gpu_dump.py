"""What XLA's GPU compiler leaves beside its modules: PTX, thunks, and its words on fusions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from google.protobuf.message import DecodeError

from fuselane.hlo.proto import Message, make_classes
from fuselane.xla.captured import XlaRefusal

# Field numbers of xla/service/gpu/fusion_process_dump.proto and of the thunk metadata list, as of
# the CUDA plug-in 0.10.2.
_SCHEMA: Final = """
message Fused { string fusion_name = 1; string producer_name = 2; string consumer_name = 3; }
message Priced {
  string producer_name = 1;
  repeated string consumer_names = 2;
  float us_fused = 3;
  float us_unfused = 4;
}
message Ineligible { string producer_name = 1; string reason = 2; }
message FusionStep {
  Fused fusion = 4;
  Ineligible producer_ineligible = 5;
  Priced update_priority = 6;
}
message FusionProcessDump { repeated FusionStep fusion_steps = 1; }
message ThunkInfo { string profile_annotation = 1; int64 thunk_id = 3; }
message ThunkMetadata { ThunkInfo thunk_info = 1; string thunk_kind = 2; }
message ThunkMetadataList { repeated ThunkMetadata thunk_metadata = 1; }
"""
_CLASSES: Final = make_classes(_SCHEMA, "fuselane.gpu_dump")

_ENTRY: Final = re.compile(r"\.entry\s+([\w$.]+)")
_DIMENSIONS: Final = r"\[(\d+), (\d+), (\d+)\]"
_THUNK: Final = re.compile(
    r"^\s*(?P<id>\d+): (?P<kind>\w+)\s+\[[^]]*\]\s*(?P<kernel>\S+) "
    rf"grid: {_DIMENSIONS} threads: {_DIMENSIONS}\s+shared_memory: (?P<shared>\d+) bytes",
    re.MULTILINE,
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How an instruction's kernel is launched.

    Attributes:
        kernel: XLA's name of the kernel.
        num_blocks: Blocks of the grid.
        block_threads: Threads of a block.
        shared_bytes: Shared memory of a block that is asked for at the launch.
    """

    kernel: str
    num_blocks: int
    block_threads: int
    shared_bytes: int


def read_ptx(paths: Iterable[Path]) -> dict[str, str]:
    """Returns the PTX of every kernel by its name; kernels of one file share its text."""
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in paths)
    return {kernel: text for text in texts for kernel in _ENTRY.findall(text)}


def read_launches(thunks: str, metadata: bytes) -> dict[str, Launch]:
    """Returns the launches of kernels by the name of the instruction.

    Args:
        thunks: XLA's `thunk_sequence.txt`.
        metadata: XLA's `thunk_metadata.pb`, which knows the instruction of each thunk.
    """
    by_id = {int(match["id"]): _launch(match) for match in _THUNK.finditer(thunks)}
    return {
        thunk.thunk_info.profile_annotation: by_id[thunk.thunk_info.thunk_id]
        for thunk in _parse("ThunkMetadataList", metadata).thunk_metadata
        if thunk.thunk_info.thunk_id in by_id
    }


def count_launches(metadata: bytes) -> dict[str, int]:
    """Returns how many launches XLA makes of an instruction, by its name.

    Args:
        metadata: XLA's `thunk_metadata.pb`.
    """
    return Counter(
        thunk.thunk_info.profile_annotation
        for thunk in _parse("ThunkMetadataList", metadata).thunk_metadata
        if thunk.thunk_info.profile_annotation and thunk.thunk_kind not in _HOLDERS
    )


_HOLDERS: Final = frozenset(
    {"kCommandBuffer", "kConditional", "kDynamicSliceFusion", "kSequential", "kWhile"}
)
"""Thunks that run others."""


def _launch(match: re.Match[str]) -> Launch:
    sizes = [int(size) for size in match.groups()[3:9]]
    return Launch(
        kernel=match["kernel"],
        num_blocks=sizes[0] * sizes[1] * sizes[2],
        block_threads=sizes[3] * sizes[4] * sizes[5],
        shared_bytes=int(match["shared"]),
    )


def read_refusals(data: bytes) -> tuple[XlaRefusal, ...]:
    """Returns what XLA's priority fusion refused, and its last prices of each producer, in order.

    XLA prices a producer again with all its consumers whenever one of them changes: millions of
    prices for a value that hundreds of kernels read.

    Args:
        data: XLA's `priority_fusion_dump.pb`.
    """
    steps: list[tuple[XlaRefusal, ...]] = []
    priced = {""}  # what steps of other kinds have for a name
    for step in reversed(_parse("FusionProcessDump", data).fusion_steps):
        if step.HasField("producer_ineligible"):
            said = step.producer_ineligible
            steps.append((XlaRefusal(producer=said.producer_name, reason=said.reason),))
        elif step.update_priority.producer_name not in priced:
            priced.add(step.update_priority.producer_name)
            steps.append(tuple(_prices(step.update_priority)))
    return tuple(refusal for refusals in reversed(steps) for refusal in refusals)


def _prices(priced: Message) -> Iterable[XlaRefusal]:
    for consumer in priced.consumer_names:
        yield XlaRefusal(
            producer=priced.producer_name,
            consumer=consumer,
            us_fused=priced.us_fused,
            us_unfused=priced.us_unfused,
        )


def _parse(name: str, data: bytes) -> Message:
    """Returns a message; an empty one for bytes that are none, as of a version not yet known."""
    try:
        return _CLASSES[name].FromString(data)
    except DecodeError:
        return _CLASSES[name]()
