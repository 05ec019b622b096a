"""What all tests have in common."""

import os

# Tests compile anew: what an earlier run has kept must not answer for the code of this one.
os.environ.setdefault("LITZ_CACHE", "0")
