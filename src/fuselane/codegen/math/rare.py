"""Internal functions of a module, and rare cases: code that runs only when some lane needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from fuselane.codegen.math.emitter import FloatEmitter

Body = Callable[..., ir.Value]


def emit_rare(
    emitter: FloatEmitter,
    name: str,
    needed: ir.Value,
    operands: Sequence[ir.Value],
    body: Body,
) -> ir.Value:
    """Returns `operands[-1]`, or the result of `body` when any lane needs it.

    The body becomes one internal function per module, name and type, called from a cold block: the
    usual path pays a test and a branch not taken.

    Args:
        emitter: For the type of the operands and of the result; left at a new block.
        name: Unique to the body within the package.
        needed: Lanes that the usual path gets wrong, as `i1`.
        operands: What the body works on; the last is the result of the usual path.
        body: Called with an emitter and the function's arguments; returns all lanes' results.
    """
    function = _rare_function(emitter, f"fuselane.{name}.rare.{emitter.suffix}", operands, body)
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
    signature = ir.FunctionType(emitter.type, [operand.type for operand in operands])
    return internal_function(
        emitter.builder.module,
        name,
        signature,
        lambda builder, *arguments: body(FloatEmitter(builder, emitter.type), *arguments),
    )


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
        function = ir.Function(module, signature, name)
        function.linkage = "internal"
        for attribute in ("alwaysinline" if is_inlined else "noinline", "nounwind", "readnone"):
            function.attributes.add(attribute)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        builder.ret(body(builder, *function.args))
    return function
