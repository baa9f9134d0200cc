"""Fusion strategies on the real XLA: what its CPU compiler gets instead of its own fusions.

dissolve      XLA's fusions become single instructions again
run           the passes of a pipeline fuse them anew
wrap          what XLA:CPU compiles in fusions only gets one of its own
verify        rules of HLO

Its GPU compiler shows the module when all else is done: fused, with copies placed, in the order it
runs. That order is forgotten, and XLA itself orders and completes what comes out: see `gpu_fusion`.
"""

from __future__ import annotations

from fuselane.fusion.buffers import insert_copies
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.dissolve import dissolve, forget_order, unfuse_on_gpu
from fuselane.fusion.legal import make_legal
from fuselane.fusion.legal_on_gpu import make_legal_on_gpu
from fuselane.fusion.partition import assign_threads
from fuselane.fusion.pipelines import Pipeline, for_cpu, for_gpu, refines, run_pipeline
from fuselane.fusion.remainder import wrap_lone_instructions
from fuselane.gpu import GpuDescription
from fuselane.hlo.module import HloModule
from fuselane.hlo.verifier import verify


def apply(module: HloModule, pipeline: Pipeline) -> FusionLog:
    """Fuses a module, as XLA's CPU hook shows it, by a pipeline instead of as XLA did.

    Args:
        module: It is changed.
        pipeline: The passes to run.
    Returns:
        Every decision of theirs.
    Raises:
        VerificationError: if a pass broke a rule of HLO; the module is of no use then.
    """
    if refines(pipeline):
        return run_pipeline(pipeline, module)
    dissolve(module)
    log = run_pipeline(for_cpu(pipeline), module)
    make_legal(module, log)
    wrap_lone_instructions(module)
    insert_copies(module)
    assign_threads(module)
    verify(module)
    return log


def apply_on_gpu(module: HloModule, pipeline: Pipeline, gpu: GpuDescription) -> FusionLog:
    """Fuses a module, as XLA:GPU's hook shows it after scheduling, by a pipeline instead of XLA's.

    Args:
        module: It is changed, and has no order of execution any more.
        pipeline: The passes to run.
        gpu: What kernels are priced for.
    Returns:
        Every decision of theirs.
    Raises:
        VerificationError: if a pass broke a rule of HLO; the module is of no use then.
    """
    has_xlas = refines(pipeline)
    (forget_order if has_xlas else unfuse_on_gpu)(module)
    log = run_pipeline(for_gpu(pipeline, gpu), module)
    make_legal_on_gpu(module, log, has_xlas=has_xlas)
    verify(module)
    return log
