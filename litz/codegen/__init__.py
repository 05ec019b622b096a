"""Code generation: kernels in, text of a machine's language out."""
