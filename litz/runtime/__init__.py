"""Running: text to machine code, arenas, and the call from Python into the host program."""
