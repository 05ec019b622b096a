"""Operators that are called one by one, in eager mode, run by code that Litz has generated.

    litz.eager.enable("aten::gelu", "aten::_softmax")

From then on calls of these operators on CPU tensors go to generated code, made for the shapes that occur (`compile_op`)
and kept on disk: a process that finds it there compiles nothing. What cannot be compiled runs as before.
"""

from litz.eager.compile import compile_op
from litz.eager.enable import disable, enable, enabled

__all__ = ["compile_op", "disable", "enable", "enabled"]
