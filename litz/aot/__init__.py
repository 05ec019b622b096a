"""Ahead of time: a model compiled to a file, and called from there, with or without Python."""
