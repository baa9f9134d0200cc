"""HLO instructions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from fuselane import budget
from fuselane.errors import VerificationError
from fuselane.hlo.literal import literal_to_numpy, numpy_to_literal
from fuselane.hlo.proto import HloInstructionProto, Message
from fuselane.hlo.shape import PrimitiveType, Shape

if TYPE_CHECKING:
    from fuselane.hlo.computation import HloComputation

_detached_ids: Final = itertools.count(1)
_FEW: Final = 64
"""Operands that are gone through one by one; where in more of them each is, is remembered."""
_PLAIN: Final = HloInstructionProto()
"""What instructions have in common that only are what their attributes say; never changed."""

SIDE_EFFECT_OPCODES: Final = frozenset(
    {
        "all-gather",
        "all-gather-start",
        "all-gather-done",
        "all-reduce",
        "all-reduce-start",
        "all-reduce-done",
        "all-to-all",
        "async-start",
        "async-update",
        "async-done",
        "collective-broadcast",
        "collective-permute",
        "collective-permute-start",
        "collective-permute-done",
        "collective-reduce",
        "domain",
        "infeed",
        "outfeed",
        "ragged-all-to-all",
        "recv",
        "recv-done",
        "reduce-scatter",
        "rng",
        "rng-get-and-update-state",
        "send",
        "send-done",
    }
)
"""Opcodes that do more than compute their result, so must not be dropped, merged or repeated."""


@final
class HloInstruction:
    """One operation of a computation; equality is identity.

    The attributes below are the truth; the message fields they come from (`name`, `opcode`,
    `shape`, `id`, `parameter_number` and the ids of operands, control predecessors and called
    computations) are only written with the module. All other fields are read, changed and kept in
    `proto`.

    Attributes:
        id: Unique in the module; an instruction of no module has one that is unique among those.
        name: Unique in the module.
        opcode: XLA's name, such as "get-tuple-element".
        shape: Shape of the result.
        operands: In order; change through `replace_operand`.
        users: Instructions that have this one as an operand, each once; oldest first unless
            `replace_operands` took one away.
        control_predecessors: Instructions that must run before; change through
            `add_control_predecessor`.
        control_successors: The other direction.
        called_computations: A while has its body first, then its condition; change through `call`.
        parameter_number: Position of a parameter; 0 for all else.
        computation: Where it is, or None.
        proto: The HloInstructionProto; copies share one until it is asked for.
    """

    __slots__ = (
        "__weakref__",
        "_dimensions",
        "_is_shared",
        "_literal",
        "_places",
        "_proto",
        "_shape_in_proto",
        "called_computations",
        "computation",
        "control_predecessors",
        "control_successors",
        "id",
        "name",
        "opcode",
        "operands",
        "parameter_number",
        "shape",
        "users",
    )

    def __init__(self, proto: Message, id: int, name: str, opcode: str, shape: Shape) -> None:
        budget.check()
        self.id = id
        self.name = name
        self.opcode = opcode
        self.shape = shape
        self.operands: list[HloInstruction] = []
        self.users: list[HloInstruction] = []
        self.control_predecessors: tuple[HloInstruction, ...] = ()
        self.control_successors: tuple[HloInstruction, ...] = ()
        self.called_computations: tuple[HloComputation, ...] = ()
        self.parameter_number: int = proto.parameter_number
        self.computation: HloComputation | None = None
        self._proto: Message = proto
        self._is_shared = False
        self._shape_in_proto: Shape | None = None
        self._dimensions: tuple[int, ...] | None = None
        self._literal: np.ndarray[Any, Any] | None = None
        self._places: dict[HloInstruction, list[int]] | None = None

    @classmethod
    def create(
        cls,
        opcode: str,
        shape: Shape,
        operands: Sequence[HloInstruction] = (),
        *,
        name: str = "",
        called_computations: Sequence[HloComputation] = (),
        literal: np.ndarray[Any, Any] | np.generic | Message | None = None,
        **attributes: Any,
    ) -> HloInstruction:
        """Returns a new instruction that is in no computation yet.

        Args:
            name: Made unique when it is added to a module's computation; the opcode if empty.
            literal: Value of a constant, as an array of the shape's sizes and type or as a
                LiteralProto.
            attributes: Further fields of HloInstructionProto, such as `dimensions=[1]` or
                `tuple_index=2`.
        Raises:
            VerificationError: if `literal` does not fit `shape`.
            ValueError, TypeError: for attributes that are no such fields.
        """
        proto = HloInstructionProto(**attributes)
        instruction = cls(proto, next(_detached_ids), name or opcode, opcode, shape)
        if literal is not None:
            is_array = isinstance(literal, np.ndarray | np.generic)
            proto.literal.CopyFrom(numpy_to_literal(literal, shape) if is_array else literal)
        instruction.connect(list(operands))
        instruction.called_computations = tuple(called_computations)
        return instruction

    @classmethod
    def parameter(cls, number: int, shape: Shape, name: str = "") -> HloInstruction:
        """Returns a new parameter that is in no computation yet; "param_0" is the first's name."""
        parameter = cls.copy_with(_PARAMETER, [])
        parameter.id = next(_detached_ids)
        parameter.name = name or f"param_{number}"
        parameter.shape = shape
        parameter.parameter_number = number
        return parameter

    def clone(
        self,
        operands: Sequence[HloInstruction],
        *,
        shape: Shape | None = None,
        called_computations: Sequence[HloComputation] | None = None,
        name: str = "",
    ) -> HloInstruction:
        """Returns a copy in no computation, with other operands and without control edges.

        Called computations are shared with the original unless others are given.
        """
        budget.check()
        copy = self.copy_with(list(operands))
        copy.id = next(_detached_ids)
        if called_computations is not None:
            copy.called_computations = tuple(called_computations)
        if shape is not None:
            copy.shape = shape
        if name:
            copy.name = name
        return copy

    def copy_with(self, operands: list[HloInstruction]) -> HloInstruction:
        """As `clone`, of which this is the quick part: the copy has yet to get an id of its own."""
        copy = HloInstruction.__new__(HloInstruction)
        copy.id = self.id
        copy.name = self.name
        copy.opcode = self.opcode
        copy.shape = self.shape
        copy.operands = operands
        copy.users = []
        copy.control_predecessors = copy.control_successors = ()
        copy.called_computations = self.called_computations
        copy.parameter_number = self.parameter_number
        copy.computation = None
        copy._proto = self._proto
        copy._is_shared = self._is_shared = True
        copy._shape_in_proto = self._shape_in_proto
        copy._literal = self._literal
        copy._dimensions = self._dimensions
        copy._places = None
        for operand in operands:
            users = operand.users
            if not users or users[-1] is not copy:
                users.append(copy)
        return copy

    @property
    def proto(self) -> Message:
        """The HloInstructionProto, which may be changed."""
        if self._is_shared:
            self._proto = self.copy_proto()
            self._is_shared = False
            self._dimensions = None
        return self._proto

    def copy_proto(self) -> Message:
        """Returns a copy of `proto`."""
        copy = HloInstructionProto()
        copy.CopyFrom(self._proto)
        return copy

    def is_copy_of(self, other: HloInstruction) -> bool:
        """Whether one was cloned from the other, or both from a third; False if `proto` was asked
        for since."""
        return self._proto is other._proto and self._proto is not _PLAIN

    @property
    def origin(self) -> Message:
        """What copies of one instruction share until `proto` of either is asked for; to be told
        apart from others by identity, and not to be changed."""
        return self._proto

    def connect(self, operands: list[HloInstruction]) -> None:
        """Gives an instruction that is newer than all of `operands`' users, and no user yet of what
        it lists as operands, its operands."""
        self.operands = operands
        self._places = None
        for operand in operands:
            users = operand.users
            if not users or users[-1] is not self:
                users.append(self)

    def __repr__(self) -> str:
        operands = ", ".join(operand.name for operand in self.operands)
        return f"{self.name} = {self.shape} {self.opcode}({operands})"

    # Edges.

    def replace_operand(self, index: int, new: HloInstruction) -> None:
        """Makes `new` the operand at `index`; users of both are kept up to date."""
        old = self.operands[index]
        if old is new:
            return
        self.operands[index] = new
        self._places = None
        self._note_edit()
        if old not in self.operands:
            old.users.remove(self)
        if self not in new.users:
            new.users.append(self)

    def replace_operands(self, new: Sequence[HloInstruction]) -> None:
        """Makes `new` the operands, however many; users of all are kept up to date.

        As in XLA, whose passes visit users in this order, the newest user of a former operand takes
        the place of this one among its users.
        """
        gone = dict.fromkeys(self.operands)
        for operand in dict.fromkeys(new):
            if operand in gone:
                del gone[operand]
            else:
                operand.users.append(self)
        for old in gone:
            place, newest = old.users.index(self), old.users.pop()
            if newest is not self:
                old.users[place] = newest
        self.set_operands(new)
        self._note_edit()

    def set_operands(self, new: Iterable[HloInstruction]) -> None:
        """Makes `new` the operands, of which the caller keeps the users."""
        self.operands[:] = new
        self._places = None

    def exchange_operand(self, place_of: int | None, new: Sequence[HloInstruction]) -> None:
        """As `replace_operands` where an operand, given by its place, that is there once gives way
        to others at the end that are no operands yet, each given once."""
        if place_of is not None:
            old = self.operands.pop(place_of)
            place, newest = old.users.index(self), old.users.pop()
            if newest is not self:
                old.users[place] = newest
        for operand in new:
            operand.users.append(self)
        self.operands += new
        self._places = None
        self._note_edit()

    def replace_all_uses_with(self, new: HloInstruction) -> None:
        """Makes every user use `new` instead, and `new` the root where this is the root.

        `new` itself may use this instruction, and goes on doing so. Control edges stay.

        Raises:
            VerificationError: if the two have different shapes, layouts aside.
        """
        if self is new:
            return
        if self.shape is not new.shape and not self.shape.is_compatible(new.shape):
            raise VerificationError(f"{new!r} cannot take the place of {self!r}.")
        users, new_users = self.users, new.users
        keep = [new] if new in users else []
        has_users = bool(new_users)
        if not has_users:
            new_users += users if not keep else [user for user in users if user is not new]
        for user in users:
            if user is new:
                continue
            operands = user.operands
            is_short = len(operands) <= _FEW
            if has_users and new not in (operands if is_short else user._places_of_operands()):
                new_users.append(user)
            if is_short:
                for place, operand in enumerate(operands):
                    if operand is self:
                        operands[place] = new
            else:
                user._exchange_each(self, new)
        users[:] = keep
        self._note_edit()
        computation = self.computation
        if computation is not None and computation.has_root(self):
            computation.root = new

    def _places_of_operands(self) -> dict[HloInstruction, list[int]]:
        """Returns where each operand is, which is remembered until they change."""
        if self._places is None:
            self._places = {}
            for place, operand in enumerate(self.operands):
                self._places.setdefault(operand, []).append(place)
        return self._places

    def _exchange_each(self, old: HloInstruction, new: HloInstruction) -> None:
        """Makes `new` an operand wherever `old` is, in time that does not depend on how many others
        there are."""
        places = self._places_of_operands()
        changed = places.pop(old)
        for place in changed:
            self.operands[place] = new
        places.setdefault(new, []).extend(changed)

    def add_control_predecessor(self, predecessor: HloInstruction) -> None:
        """Requires `predecessor`, of the same computation, to run before this instruction."""
        if predecessor not in self.control_predecessors:
            self.control_predecessors += (predecessor,)
            self._note_edit()
            predecessor.control_successors += (self,)

    def move_control_edges_to(self, new: HloInstruction) -> None:
        """Takes all control edges off this instruction and puts them on `new`.

        Edges between the two vanish.
        """
        self.copy_control_edges_to(new)
        self.drop_control_edges()

    def copy_control_edges_to(self, new: HloInstruction) -> None:
        """Gives `new` all control edges of this instruction, but for those between the two."""
        for predecessor in self.control_predecessors:
            if predecessor is not new:
                new.add_control_predecessor(predecessor)
        for successor in self.control_successors:
            if successor is not new:
                successor.add_control_predecessor(new)

    def drop_control_edges(self) -> None:
        """Takes all control edges off this instruction."""
        if not (self.control_predecessors or self.control_successors):
            return
        for predecessor in self.control_predecessors:
            predecessor.control_successors = _without(predecessor.control_successors, self)
        for successor in self.control_successors:
            successor.control_predecessors = _without(successor.control_predecessors, self)
        self.control_predecessors = self.control_successors = ()
        self._note_edit()

    def call(self, *computations: HloComputation) -> None:
        """Makes these the called computations."""
        self.called_computations = computations
        self._note_edit()

    def become(self, other: HloInstruction) -> None:
        """Takes opcode, attributes, called computations and name of one of the same shape, and
        keeps its place: computation, id, operands, users and control edges."""
        self.name, self.opcode = other.name, other.opcode
        self.called_computations = other.called_computations
        self.parameter_number = other.parameter_number
        self._proto = other._proto
        self._is_shared = other._is_shared = True
        self._shape_in_proto = None
        self._literal, self._dimensions = other._literal, other._dimensions
        self._note_edit()

    def _note_edit(self) -> None:
        if self.computation is not None:
            self.computation.note_edit()

    def write_to(self, message: Message) -> None:
        """Writes the instruction into an empty HloInstructionProto."""
        message.MergeFrom(self._proto)
        message.id = self.id
        message.name = self.name
        message.opcode = self.opcode
        message.parameter_number = self.parameter_number
        if self.shape is not self._shape_in_proto:
            message.shape.CopyFrom(self.shape.to_proto())
        message.operand_ids[:] = [operand.id for operand in self.operands]
        if self.control_predecessors or message.control_predecessor_ids:
            message.control_predecessor_ids[:] = [other.id for other in self.control_predecessors]
        if self.called_computations or message.called_computation_ids:
            message.called_computation_ids[:] = [callee.id for callee in self.called_computations]

    # Attributes that only some opcodes have; from the others one reads 0, "" or ().

    @property
    def is_root(self) -> bool:
        """Whether it is its computation's result."""
        return self.computation is not None and self.computation.has_root(self)

    @property
    def tuple_index(self) -> int:
        """Element that a get-tuple-element takes."""
        result: int = self._proto.tuple_index
        return result

    @property
    def dimensions(self) -> tuple[int, ...]:
        """Dimension numbers of a broadcast, reduce, transpose, concatenate, reverse, iota or
        sort."""
        known = self._dimensions
        if known is None:
            known = tuple(self._proto.dimensions)
            if self._is_shared:  # else it may change
                self._dimensions = known
        return known

    @property
    def literal(self) -> np.ndarray[Any, Any]:
        """Value of an array constant, read-only, in logical order. Raises VerificationError if
        there is none."""
        if self._literal is None:
            if not self._proto.HasField("literal"):
                raise VerificationError(f"{self.name} is a {self.opcode} without a literal.")
            self._literal = literal_to_numpy(self._proto.literal)
        return self._literal

    @property
    def comparison_direction(self) -> str:
        """EQ, NE, GE, GT, LE or LT."""
        result: str = self._proto.comparison_direction
        return result

    @property
    def comparison_type(self) -> str:
        """FLOAT, TOTALORDER, SIGNED, UNSIGNED; empty where the element type decides.

        Since JAX 0.12 modules say apart from it whether the order is total.
        """
        is_total = self._proto.comparison_order == "TOTAL"
        result: str = "TOTALORDER" if is_total else self._proto.comparison_type
        return result

    @property
    def slice_starts(self) -> tuple[int, ...]:
        """First index a slice takes, per dimension."""
        return tuple(dimension.start for dimension in self._proto.slice_dimensions)

    @property
    def slice_limits(self) -> tuple[int, ...]:
        """Index behind the last a slice may take, per dimension."""
        return tuple(dimension.limit for dimension in self._proto.slice_dimensions)

    @property
    def slice_strides(self) -> tuple[int, ...]:
        """Step of a slice, per dimension."""
        return tuple(dimension.stride for dimension in self._proto.slice_dimensions)

    @property
    def slice_ranges(self) -> tuple[tuple[int, int, int], ...]:
        """Start, limit and stride of a slice, per dimension."""
        return tuple(zip(self.slice_starts, self.slice_limits, self.slice_strides, strict=True))

    @property
    def dynamic_slice_sizes(self) -> tuple[int, ...]:
        """Sizes a dynamic-slice takes, per dimension."""
        return tuple(self._proto.dynamic_slice_sizes)

    @property
    def padding(self) -> tuple[tuple[int, int, int], ...]:
        """(low, high, interior) of a pad, per dimension; low and high may be negative."""
        return tuple(
            (dimension.edge_padding_low, dimension.edge_padding_high, dimension.interior_padding)
            for dimension in self._proto.padding_config.dimensions
        )

    @property
    def fusion_kind(self) -> str:
        """kLoop, kInput, kOutput or kCustom."""
        result: str = self._proto.fusion_kind
        return result

    @property
    def custom_call_target(self) -> str:
        """Name of the function a custom-call calls."""
        result: str = self._proto.custom_call_target
        return result

    @property
    def backend_config(self) -> bytes:
        """JSON or any other text the backend attached."""
        result: bytes = self._proto.backend_config
        return result

    @property
    def metadata(self) -> Message:
        """The OpMetadata."""
        return self._proto.metadata

    @property
    def frontend_attributes(self) -> dict[str, str]:
        """A copy of the attributes the front end attached."""
        return {entry.key: entry.value for entry in self._proto.frontend_attributes.map}

    @property
    def exponent_bits(self) -> int:
        """Exponent bits a reduce-precision keeps."""
        result: int = self._proto.exponent_bits
        return result

    @property
    def mantissa_bits(self) -> int:
        """Mantissa bits a reduce-precision keeps."""
        result: int = self._proto.mantissa_bits
        return result

    @property
    def has_side_effect(self) -> bool:
        """Whether it, or anything it calls, does more than compute its result."""
        if self.opcode in SIDE_EFFECT_OPCODES:
            return True
        if self.opcode == "custom-call" and self._proto.custom_call_has_side_effect:
            return True
        return bool(self.called_computations) and any(
            inner.has_side_effect
            for callee in self.called_computations
            for inner in callee.instructions
        )

    @property
    def body(self) -> HloComputation:
        """Body of a while."""
        return self._callee(0)

    @property
    def condition(self) -> HloComputation:
        """Condition of a while."""
        return self._callee(1)

    @property
    def to_apply(self) -> HloComputation:
        """What a call, map, reduce, reduce-window, scatter or sort applies; a fusion's fused
        computation."""
        callees = self.called_computations
        return callees[0] if callees else self._callee(0)

    def _callee(self, index: int) -> HloComputation:
        if index >= len(self.called_computations):
            raise VerificationError(f"{self.name}, a {self.opcode}, lacks a called computation.")
        return self.called_computations[index]


def behind_reshapes(value: HloInstruction) -> HloInstruction:
    """Returns the array that a value is, whatever its dimensions are called on the way."""
    while value.opcode == "reshape":
        value = value.operands[0]
    return value


def _without(
    instructions: tuple[HloInstruction, ...], gone: HloInstruction
) -> tuple[HloInstruction, ...]:
    """Returns them but for one."""
    return tuple(instruction for instruction in instructions if instruction is not gone)


_PARAMETER: Final = HloInstruction(_PLAIN, 0, "", "parameter", Shape(PrimitiveType.TOKEN))
"""What new parameters are copies of."""
