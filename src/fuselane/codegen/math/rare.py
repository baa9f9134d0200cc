"""Internal functions of a module, and rare cases: code that runs only when some lane needs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from llvmlite import ir

from fuselane.codegen.function import KernelFunction
from fuselane.codegen.math.emitter import FloatEmitter
from fuselane.codegen.types import is_vector, join, shuffle, vector_of

Body = Callable[..., ir.Value]

MIN_CALLED_SIZE: Final = 100
_MIN_CALLS: Final = 4
"""A function of as many instructions with as many calls is called, not inlined."""

_MAX_COPIED: Final = 2000
"""Instructions of all copies of a shorter function from which on it is called, too."""

_PIECE_BITS: Final = 512
"""The widest vectors that rare code works on: one register of AVX-512's, two of AVX2's."""


def emit_rare(
    emitter: FloatEmitter,
    name: str,
    needed: ir.Value,
    operands: Sequence[ir.Value],
    body: Body,
) -> ir.Value:
    """Returns `operands[-1]`, or the result of `body` when any lane needs it.

    The body becomes one internal function per module, name and type, called from a cold block: the
    usual path pays a test and a branch not taken. It works on pieces of wide vectors, one after the
    other: several registers at once are worth their code only where the time goes.

    Args:
        emitter: For the type of the operands and of the result; left at a new block.
        name: Unique to the body within the package.
        needed: Lanes that the usual path gets wrong, as `i1`.
        operands: What the body works on; the last is the result of the usual path.
        body: Called with an emitter and the function's arguments; returns all lanes' results.
    """
    function = _rare_function(emitter, name, operands, body)
    builder = emitter.builder
    condition = emitter.any(needed)
    usual_block = builder.block
    with builder.if_then(condition, likely=False):
        rare = builder.call(function, operands)
        rare_block = builder.block
    result = builder.phi(emitter.type)
    result.add_incoming(operands[-1], usual_block)
    result.add_incoming(rare, rare_block)
    return result


def _rare_function(
    emitter: FloatEmitter, name: str, operands: Sequence[ir.Value], body: Body
) -> ir.Function:
    width = max(1, _PIECE_BITS // emitter.format.bits)

    def emit(builder: ir.IRBuilder, *arguments: ir.Value) -> ir.Value:
        whole = FloatEmitter(builder, emitter.type)
        if whole.width > width and whole.width.bit_count() == 1:
            return _piece_by_piece(whole, width, name, arguments, body)
        return body(whole, *arguments)

    signature = ir.FunctionType(emitter.type, [operand.type for operand in operands])
    full_name = f"fuselane.{name}.rare.{emitter.suffix}"
    return internal_function(emitter.builder.module, full_name, signature, emit)


def _piece_by_piece(
    emitter: FloatEmitter, width: int, name: str, operands: Sequence[ir.Value], body: Body
) -> ir.Value:
    """Returns the result of calls of the rare function for vectors of `width` lanes."""
    builder, piece = emitter.builder, emitter.at(vector_of(emitter.type.element, width))
    results = []
    for start in range(0, emitter.width, width):
        lanes = range(start, start + width)
        parts = [shuffle(builder, o, o, lanes) if is_vector(o) else o for o in operands]
        results.append(builder.call(_rare_function(piece, name, parts, body), parts))
    return join(builder, results)


def call_long_functions(module: ir.Module) -> None:
    """Leaves calls of a module's own functions that are long, or called at very many places.

    A call costs a few instructions, and what registers hold across it; copies of hundreds of
    instructions cost LLVM its time and the processor its instruction cache.
    """
    calls = Counter(
        instruction.callee.name
        for function in module.functions
        for block in function.blocks
        for instruction in block.instructions
        if isinstance(instruction, ir.CallInstr)
    )
    for function in module.functions:
        size, count = (
            sum(len(block.instructions) for block in function.blocks),
            calls[function.name],
        )
        is_long = size >= MIN_CALLED_SIZE and count >= _MIN_CALLS
        is_called = is_long or size * count >= _MAX_COPIED
        if is_called and "alwaysinline" in function.attributes:
            function.attributes.remove("alwaysinline")
            function.attributes.add("noinline")


def internal_function(
    module: ir.Module,
    name: str,
    signature: ir.FunctionType,
    body: Body,
    *,
    is_inlined: bool = False,
) -> ir.Function:
    """Returns the module's own pure function `name`, made on first use.

    Args:
        module: The module that calls it.
        name: Unique to the body and the types.
        signature: Result and argument types.
        body: Called with a builder in the function and its arguments; returns the result.
        is_inlined: Whether LLVM has to inline every call, or none.
    """
    function = module.globals.get(name)
    if function is None:
        function = KernelFunction(module, signature, name)
        function.linkage = "internal"
        for attribute in ("alwaysinline" if is_inlined else "noinline", "nounwind", "readnone"):
            function.attributes.add(attribute)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        builder.ret(body(builder, *function.args))
    return function
