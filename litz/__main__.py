"""`python -m litz`, as `litz` on the command line."""

from __future__ import annotations

import sys

from litz.cli import main

sys.exit(main())
