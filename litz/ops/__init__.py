"""Lowering: a functional ATen graph in, a loop `Program` out. One decorated function an operator."""
