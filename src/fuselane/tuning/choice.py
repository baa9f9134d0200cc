"""Which strategy fuses a module, as options say: what was found for it, or else one for all."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

from fuselane.config import Options
from fuselane.later import Later

if TYPE_CHECKING:
    from fuselane.fusion import strategies
    from fuselane.fusion.pipelines import Pipeline
    from fuselane.tuning import tuned as tuned_modules
    from fuselane.tuning.tuned import Tuned
else:
    strategies = Later("fuselane.fusion.strategies")
    tuned_modules = Later("fuselane.tuning.tuned")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What fuses modules.

    Attributes:
        strategy: The passes that the option `fusion` stands for; None leaves XLA's fusions.
        tuned: With the option `tuned`: what was found for single modules, on the CPU.
        loops: Whether loops become kernels.
    """

    strategy: Pipeline | None = None
    tuned: Tuned | None = None
    loops: bool = True

    @classmethod
    def by(cls, options: Options) -> Self:
        """Returns what options say.

        Raises:
            OptionError: if `fusion` is not allowed.
        """
        return cls(
            strategy=strategies.find_strategy(options.fusion) if options.fusion else None,
            tuned=tuned_modules.load_tuned() if options.tuned else None,
            loops=options.loops,
        )

    @property
    def key(self) -> str:
        """Equal for equal choices: a plan's path in the options says nothing of its contents."""
        parts = []
        if self.strategy is not None:
            parts.append(hashlib.sha256(repr(self.strategy).encode()).hexdigest()[:16])
        if self.tuned is not None:
            parts.append(self.tuned.key)
        return " ".join(parts)

    def strategy_of(self, data: bytes) -> Pipeline | None:
        """Returns how to fuse a module for the CPU, as XLA's hook shows it; None for XLA's own."""
        found = None if self.tuned is None else self.tuned.find(data, loops=self.loops)
        return self.strategy if found is None else found
