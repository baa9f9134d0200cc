"""Models made by hand: a small rollout whose numbers can be counted, and a large train step."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from fuselane.boundary import BoundaryDecision, BoundaryReason
from fuselane.decisions import LoopDecision, Reason
from fuselane.explain.model import (
    AdviceModel,
    ArrayModel,
    BoundaryModel,
    InstructionModel,
    KernelModel,
    LoopModel,
    ModuleModel,
    StageModel,
)
from fuselane.hlo.source_lines import SourceLine

ROLLOUT: Final = '''\
"""A pole on a cart."""

import jax
import jax.numpy as jnp


def step(carry, _):
    state, key = carry
    key, draw = jax.random.split(key)
    noise = jax.random.uniform(draw, state.shape)
    x, v = state
    x, v = x + 0.02 * v, v - 0.02 * jnp.sin(x)
    return (jnp.stack([x, v]) + noise, key), None


def rollout(state, key):
    return jax.lax.scan(step, (state, key), length=1000)[0][0]
'''

STATE: Final = "f32[2,2048]{1,0}"
STATE_BYTES: Final = 2 * 2048 * 4
KEY: Final = "u32[2]{0}"


def rollout_module(file: str = "/home/me/rollout.py", *, target: str = "rtx2080ti") -> ModuleModel:
    """Returns a loop of 1,000 iterations with three kernels each, and one kernel behind it."""

    def at(line: int, function: str = "step") -> SourceLine:
        return SourceLine(file, line, function)

    def op(
        name: str, opcode: str, shape: str, computation: str, *operands: str, **rest: Any
    ) -> InstructionModel:
        return InstructionModel(
            name=name,
            opcode=opcode,
            shape=shape,
            computation=computation,
            operands=operands,
            **rest,
        )

    state_tuple = f"({STATE}, {KEY}, s32[])"
    instructions = (
        op("state", "parameter", STATE, "main"),
        op("key", "parameter", KEY, "main"),
        op("init", "tuple", state_tuple, "main", "state", "key"),
        op(
            "while.1",
            "while",
            state_tuple,
            "main",
            "init",
            calls=("body", "condition"),
            source=at(17, "rollout"),
        ),
        op("final", "get-tuple-element", STATE, "main", "while.1"),
        op("copy.9", "copy", STATE, "main", "final", kernel="copy.9", source=at(17, "rollout")),
        op("carry", "parameter", state_tuple, "body"),
        op("carry.0", "get-tuple-element", STATE, "body", "carry"),
        op("carry.1", "get-tuple-element", KEY, "body", "carry"),
        op(
            "fusion.3",
            "fusion",
            "u32[2,2048]{1,0}",
            "body",
            "carry.1",
            calls=("fused_random",),
            kernel="fusion.3",
            source=at(10),
        ),
        op("random.0", "parameter", KEY, "fused_random", kernel="fusion.3"),
        op("iota.1", "iota", "u32[2,2048]{1,0}", "fused_random", kernel="fusion.3", source=at(10)),
        op(
            "xor.1",
            "xor",
            "u32[2,2048]{1,0}",
            "fused_random",
            "iota.1",
            "random.0",
            kernel="fusion.3",
            source=at(10),
            op_name="jit(rollout)/while/body/threefry2x32",
        ),
        op(
            "fusion.4",
            "fusion",
            STATE,
            "body",
            "carry.0",
            calls=("fused_step",),
            kernel="fusion.4",
            source=at(13),
        ),
        op("step.0", "parameter", STATE, "fused_step", kernel="fusion.4"),
        op("sine.1", "sine", STATE, "fused_step", "step.0", kernel="fusion.4", source=at(12)),
        op(
            "concatenate.1",
            "concatenate",
            STATE,
            "fused_step",
            "step.0",
            "sine.1",
            kernel="fusion.4",
            source=at(13),
        ),
        op(
            "add.5",
            "add",
            STATE,
            "body",
            "fusion.4",
            "fusion.3",
            kernel="add.5",
            source=at(13),
        ),
        op("carried", "tuple", state_tuple, "body", "add.5", "carry.1"),
        op("carry.2", "parameter", state_tuple, "condition"),
        op("lt.1", "compare", "pred[]", "condition", "carry.2", source=at(17, "rollout")),
    )
    array = ArrayModel(name="carry.0", shape=STATE, num_bytes=STATE_BYTES)
    drawn = ArrayModel(name="fusion.3", shape="u32[2,2048]{1,0}", num_bytes=STATE_BYTES)
    kernels = (
        KernelModel(
            name="fusion.3",
            kind="kLoop",
            emitter="loop",
            opcodes={"xor": 20, "iota": 1, "add": 20},
            operands=(ArrayModel(name="carry.1", shape=KEY, num_bytes=8),),
            outputs=(drawn,),
            loop="while.1",
            launches=1000,
            flops=0,
            bytes_read=8,
            bytes_written=STATE_BYTES,
            modelled_us=6.0,
            source=at(10),
            sources=(at(10), at(9)),
            registers=24,
            spill_bytes=0,
            shared_bytes=0,
            block_threads=256,
            occupancy=1.0,
        ),
        KernelModel(
            name="fusion.4",
            kind="kLoop",
            emitter="concatenate",
            opcodes={"concatenate": 1, "sine": 1, "multiply": 2, "add": 2},
            operands=(array,),
            outputs=(array,),
            loop="while.1",
            launches=1000,
            flops=24_576,
            bytes_read=STATE_BYTES,
            bytes_written=STATE_BYTES,
            modelled_us=3.0,
            source=at(13),
            sources=(at(13), at(12)),
        ),
        KernelModel(
            name="add.5",
            kind="single",
            emitter="loop",
            opcodes={"add": 1},
            operands=(array, drawn),
            outputs=(array,),
            loop="while.1",
            launches=1000,
            flops=4096,
            bytes_read=2 * STATE_BYTES,
            bytes_written=STATE_BYTES,
            modelled_us=2.5,
            source=at(13),
            sources=(at(13),),
        ),
        KernelModel(
            name="copy.9",
            kind="copy",
            emitter="copy",
            opcodes={"copy": 1},
            operands=(array,),
            outputs=(array,),
            bytes_read=STATE_BYTES,
            bytes_written=STATE_BYTES,
            modelled_us=2.0,
            source=at(17, "rollout"),
            sources=(at(17, "rollout"),),
        ),
    )
    loops = (
        LoopModel(
            name="while.1",
            source=at(17, "rollout"),
            trip_count=1000,
            kernels_per_iteration=3,
            launches=3000,
            fuselane_launches=1,
            carried_bytes=STATE_BYTES + 12,
            decision=LoopDecision(
                module="jit_rollout",
                name="while.1",
                source=f"{file.rpartition('/')[2]}:17 (rollout)",
                trip_count=1000,
                lanes=2048,
                decision=Reason.FUSED.decide(instruction="while.1", extent="over 2,048 lanes"),
                kernel="5f3a",
            ),
        ),
    )
    boundaries = (
        BoundaryModel(
            producer="fusion.4",
            consumer="add.5",
            shape=STATE,
            num_bytes=STATE_BYTES,
            bytes_per_run=1000 * STATE_BYTES,
            decision=BoundaryDecision(
                reason=BoundaryReason.CONCATENATE_USERS,
                detail="concatenate.1 has 2 users and would be computed twice.",
                xla="not fusing concatenate with several users",
                numbers={"users": 2},
            ),
            loop="while.1",
            source=at(13),
            consumer_source=at(13),
        ),
        BoundaryModel(
            producer="fusion.3",
            consumer="add.5",
            shape="u32[2,2048]{1,0}",
            num_bytes=STATE_BYTES,
            bytes_per_run=1000 * STATE_BYTES,
            decision=BoundaryDecision(
                reason=BoundaryReason.RANDOM_NUMBERS, detail="fusion.3 makes 4,096 random numbers."
            ),
            loop="while.1",
            source=at(10),
            consumer_source=at(13),
        ),
        BoundaryModel(
            producer="add.5",
            consumer="carried",
            shape=STATE,
            num_bytes=STATE_BYTES,
            bytes_per_run=1000 * STATE_BYTES,
            decision=BoundaryDecision(reason=BoundaryReason.LOOP_CONTROL, detail=""),
            loop="while.1",
            source=at(13),
            consumer_source=at(17, "rollout"),
        ),
        BoundaryModel(
            producer="while.1",
            consumer="copy.9",
            shape=STATE,
            num_bytes=STATE_BYTES,
            bytes_per_run=STATE_BYTES,
            decision=BoundaryDecision(reason=BoundaryReason.COPY, detail=""),
            source=at(17, "rollout"),
            consumer_source=at(17, "rollout"),
        ),
        BoundaryModel(
            producer="state",
            consumer="while.1",
            shape=STATE,
            num_bytes=STATE_BYTES,
            bytes_per_run=STATE_BYTES,
            decision=BoundaryDecision(reason=BoundaryReason.ENTRY, detail=""),
            consumer_source=at(17, "rollout"),
        ),
    )
    advice = (
        AdviceModel(
            rule="random-in-loop",
            sentence="Random numbers are drawn in each of 1,000 iterations: draw them before.",
            gain=2.09,
            source=at(10),
            kernels=("fusion.3",),
            loop="while.1",
        ),
        AdviceModel(
            rule="stack-carry",
            sentence="The carry is stacked from 2 arrays in each iteration: carry them apart.",
            gain=1.35,
            source=at(13),
            kernels=("fusion.4", "add.5"),
            loop="while.1",
        ),
    )
    return ModuleModel(
        name="jit_rollout",
        target=target,
        kernels=kernels,
        loops=loops,
        boundaries=boundaries,
        stages=rollout_stages(),
        advice=advice,
        instructions=instructions,
        compile_s=0.42,
    )


def rollout_stages() -> tuple[StageModel, ...]:
    """Returns four stages: as it came, simplified, fused, copies inserted."""

    def stage(
        pipeline: str, name: str, opcodes: Mapping[str, int], **rest: Mapping[str, str]
    ) -> StageModel:
        return StageModel(
            pipeline=pipeline,
            name=name,
            num_instructions=sum(opcodes.values()),
            num_fusions=opcodes.get("fusion", 0),
            opcodes=opcodes,
            bytes_moved=sum(opcodes.values()) * 1000,
            added=rest.get("added", {}),
            removed=rest.get("removed", {}),
        )

    return (
        stage("", "", {"add": 24, "dot": 1, "reshape": 3, "while": 1}),
        stage(
            "simplification",
            "algsimp",
            {"add": 24, "multiply": 1, "while": 1},
            added={"multiply.7": "multiply"},
            removed={"dot.3": "dot", "reshape.1": "reshape", "reshape.2": "reshape"},
        ),
        stage(
            "fusion",
            "priority-fusion",
            {"add": 24, "multiply": 1, "while": 1, "fusion": 2},
            added={"fusion.3": "fusion", "fusion.4": "fusion"},
        ),
        stage(
            "copy-insertion",
            "copy-insertion",
            {"add": 24, "multiply": 1, "while": 1, "fusion": 2, "copy": 1},
            added={"copy.9": "copy"},
        ),
    )


_LAYER_OPCODES: Final = ("multiply", "add", "tanh", "subtract", "divide", "select", "exponential")


def large_module(file: str = "/home/me/train.py", *, num_instructions: int = 5000) -> ModuleModel:
    """Returns layers of library calls and fusions, with a loop over micro-batches around them."""
    return _LargeModule(file, num_instructions).module()


class _LargeModule:
    """Grows a module layer by layer; the same one in every run."""

    def __init__(self, file: str, num_instructions: int) -> None:
        self.file = file
        self.random = random.Random(num_instructions)
        self.instructions: list[InstructionModel] = []
        self.kernels: list[KernelModel] = []
        self.boundaries: list[BoundaryModel] = []
        self.num_instructions = num_instructions

    def at(self, line: int) -> SourceLine:
        return SourceLine(self.file, line, "loss")

    def add(
        self,
        name: str,
        opcode: str,
        computation: str,
        operands: tuple[str, ...] = (),
        *,
        line: int = 1,
        kernel: str = "",
        calls: tuple[str, ...] = (),
    ) -> str:
        self.instructions.append(
            InstructionModel(
                name=name,
                opcode=opcode,
                shape="f32[512,512]{1,0}",
                computation=computation,
                operands=operands,
                calls=calls,
                kernel=kernel,
                source=self.at(line),
            )
        )
        return name

    def launch(self, name: str, kind: str, opcodes: Mapping[str, int], line: int) -> None:
        array = ArrayModel(name=name, shape="f32[512,512]{1,0}", num_bytes=1 << 20)
        self.kernels.append(
            KernelModel(
                name=name,
                kind=kind,
                emitter="cublas" if kind == "library" else "loop",
                opcodes=opcodes,
                operands=(array,) * self.random.randint(1, 4),
                outputs=(array,),
                loop="while.1",
                launches=64,
                flops=(1 << 28) if kind == "library" else (1 << 19),
                bytes_read=2 << 20,
                bytes_written=1 << 20,
                modelled_us=round(self.random.uniform(2, 90 if kind == "library" else 9), 2),
                source=self.at(line),
                sources=(self.at(line), self.at(line + 1)),
            )
        )

    def layer(self, index: int, operand: str) -> str:
        line = 10 + index % 40
        weight = self.add(f"weight.{index}", "get-tuple-element", "body", ("carry",))
        dot = f"dot.{index}"
        self.add(dot, "dot", "body", (operand, weight), line=line, kernel=dot)
        self.launch(dot, "library", {"dot": 1}, line)
        made = [dot]
        for part in range(self.random.randint(2, 4)):
            made.append(self.fusion(f"fusion.{index}.{part}", made, operand, line + part))
        return made[-1]

    def fusion(self, name: str, made: list[str], operand: str, line: int) -> str:
        producers = tuple(dict.fromkeys((made[-1], self.random.choice(made), operand)))
        inside = f"fused_{name}"
        inner = [
            self.add(f"{name}.p{i}", "parameter", inside, kernel=name)
            for i in range(len(producers))
        ]
        opcodes: dict[str, int] = {}
        for step in range(self.random.randint(4, 24)):
            opcode = self.random.choice(_LAYER_OPCODES)
            opcodes[opcode] = opcodes.get(opcode, 0) + 1
            operands = (inner[-1], self.random.choice(inner))
            inner.append(
                self.add(
                    f"{name}.{opcode}.{step}", opcode, inside, operands, line=line, kernel=name
                )
            )
        self.add(name, "fusion", "body", producers, line=line, kernel=name, calls=(inside,))
        self.launch(name, "kLoop", opcodes, line)
        reasons = [reason for reason in BoundaryReason if reason is not BoundaryReason.UNKNOWN]
        for producer in producers:
            self.boundaries.append(
                BoundaryModel(
                    producer=producer,
                    consumer=name,
                    shape="f32[512,512]{1,0}",
                    num_bytes=1 << 20,
                    bytes_per_run=64 << 20,
                    decision=BoundaryDecision(reason=self.random.choice(reasons), detail=""),
                    loop="while.1",
                    source=self.at(line - 1),
                    consumer_source=self.at(line),
                )
            )
        return name

    def module(self) -> ModuleModel:
        self.add("batch", "parameter", "main")
        self.add("while.1", "while", "main", ("batch",), line=60, calls=("body", "condition"))
        self.add("carry", "parameter", "body")
        operand = self.add("carry.0", "get-tuple-element", "body", ("carry",))
        index = 0
        while len(self.instructions) < self.num_instructions - 2:
            operand = self.layer(index, operand)
            index += 1
        self.add("carried", "tuple", "body", (operand,))
        self.add("results", "tuple", "main", ("while.1",))
        return ModuleModel(
            name="jit_train_step",
            target="h100",
            kernels=tuple(self.kernels),
            loops=(
                LoopModel(
                    name="while.1",
                    source=self.at(60),
                    trip_count=64,
                    kernels_per_iteration=len(self.kernels),
                    launches=64 * len(self.kernels),
                ),
            ),
            boundaries=tuple(self.boundaries),
            stages=self.stages(),
            instructions=tuple(self.instructions),
            compile_s=7.4,
        )

    def stages(self) -> tuple[StageModel, ...]:
        stages = []
        counts = {"dot": 400, "multiply": 2000, "add": 2500, "fusion": 0, "broadcast": 900}
        for index in range(80):
            opcode = self.random.choice(tuple(counts))
            change = self.random.randint(-60, 40)
            counts = {**counts, opcode: max(0, counts[opcode] + change)}
            names = {f"{opcode}.s{index}.{i}": opcode for i in range(abs(change))}
            stages.append(
                StageModel(
                    pipeline=("simplification", "layout", "fusion")[index // 30],
                    name=f"pass-{index}" if index else "",
                    num_instructions=sum(counts.values()),
                    num_fusions=counts["fusion"],
                    opcodes=counts,
                    bytes_moved=sum(counts.values()) << 16,
                    added=names if change > 0 else {},
                    removed={} if change > 0 else names,
                )
            )
        return tuple(stages)
