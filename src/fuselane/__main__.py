"""`python -m fuselane ...`, the same as `fuselane ...`."""

from __future__ import annotations

import sys

from fuselane.cli import main

sys.exit(main())
