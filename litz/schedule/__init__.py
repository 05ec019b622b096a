"""Scheduling: which operators share a kernel, in what order steps run, and where buffers live."""
