"""LLVM IR for CPUs: explicit vectors, one function a kernel, one host function a program."""
