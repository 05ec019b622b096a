"""The loop IR: its types, its text, its rules and a slow, obvious interpreter of it."""
