"""The exceptions Fuselane raises; each message is one sentence a user can act on."""

from __future__ import annotations

from typing import final

from fuselane.decisions import Decision


class FuselaneError(Exception):
    """Base of every exception raised on purpose by Fuselane."""


@final
class VerificationError(FuselaneError):
    """An HLO module or computation breaks a rule that every valid one keeps."""


@final
class UnsupportedError(FuselaneError):
    """A loop cannot be turned into a kernel; `decision` says why and names the source line."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.sentence)
        self.decision = decision


@final
class OutOfTimeError(FuselaneError):
    """The time to compile a module was over before the work was done; see `fuselane.budget`."""


@final
class OptionError(FuselaneError):
    """An option has an unknown name or a value outside what it allows."""


@final
class InputError(FuselaneError):
    """What was handed in is not what was asked for, such as a file that holds no HLO module."""


@final
class CaptureError(FuselaneError):
    """XLA could not be made to compile a program, or to show how it did."""


@final
class CacheError(FuselaneError):
    """The kernel cache cannot be read or written as it has to be."""


@final
class CodegenError(FuselaneError):
    """Code generation or LLVM failed on a lane program that should have compiled."""


@final
class RuntimeFailure(FuselaneError):
    """The native handler could not be registered with XLA, or a kernel could not be loaded."""
