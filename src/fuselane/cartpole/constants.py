"""The numbers of the CartPole case study."""

from __future__ import annotations

import math
from typing import Final

GRAVITY: Final = 9.8
CART_MASS: Final = 1.0
POLE_MASS: Final = 0.1
TOTAL_MASS: Final = CART_MASS + POLE_MASS
HALF_LENGTH: Final = 0.5
POLE_MOMENT: Final = POLE_MASS * HALF_LENGTH
FORCE: Final = 10.0
TIME_STEP: Final = 0.02
MAX_POSITION: Final = 2.4
MAX_ANGLE: Final = 12 * 2 * math.pi / 360
RESET_RANGE: Final = 0.05

# Pushed the same way from the worst start, a pole stands for at least so many steps. Up to here no
# rounding error can decide whether an environment is reset.
STEPS_WITHOUT_RESET: Final = 7
