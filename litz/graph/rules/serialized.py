"""Patterns of the rules made from examples. Written by `python -m litz.graph.serialize`; do not edit."""

# ruff: noqa
from __future__ import annotations

import operator
from typing import Any

import torch

from litz.graph.pattern import ANY, INSIDE, Arg, Call, ListOf, Outputs, Wild, call

aten = torch.ops.aten

PATTERNS: dict[str, Any] = {}

PATTERNS['gelu_tanh_training'] = Outputs((call(aten.mul.Tensor, call(aten.mul.Tensor, Arg(name='x'), Wild(), ..., name='_mul', commutes=True), call(aten.add.Tensor, call(aten.tanh.default, call(aten.mul.Tensor, call(aten.add.Tensor, Arg(name='x'), call(aten.mul.Tensor, call(aten.pow.Tensor_Scalar, Arg(name='x'), Wild(), ...), Wild(), ..., commutes=True), commutes=True), Wild(), ..., commutes=True), name='_tanh'), Wild(), ..., name='_add_1', commutes=True), users='any', commutes=True), call(aten.add.Tensor, call(aten.add.Tensor, call(aten.mul.Tensor, call(aten.tanh_backward.default, call(aten.mul.Tensor, Arg(name='tangent_0'), call(aten.mul.Tensor, Arg(name='x'), Wild(), ..., name='_mul', commutes=True), commutes=True), call(aten.tanh.default, call(aten.mul.Tensor, call(aten.add.Tensor, Arg(name='x'), call(aten.mul.Tensor, call(aten.pow.Tensor_Scalar, Arg(name='x'), Wild(), ...), Wild(), ..., commutes=True), commutes=True), Wild(), ..., commutes=True), name='_tanh')), Wild(), ..., name='_mul_6', commutes=True), call(aten.mul.Tensor, call(aten.mul.Tensor, call(aten.mul.Tensor, call(aten.tanh_backward.default, call(aten.mul.Tensor, Arg(name='tangent_0'), call(aten.mul.Tensor, Arg(name='x'), Wild(), ..., name='_mul', commutes=True), commutes=True), call(aten.tanh.default, call(aten.mul.Tensor, call(aten.add.Tensor, Arg(name='x'), call(aten.mul.Tensor, call(aten.pow.Tensor_Scalar, Arg(name='x'), Wild(), ...), Wild(), ..., commutes=True), commutes=True), Wild(), ..., commutes=True), name='_tanh')), Wild(), ..., name='_mul_6', commutes=True), Wild(), ..., commutes=True), call(aten.mul.Scalar, call(aten.pow.Tensor_Scalar, Arg(name='x'), Wild(), ...), Wild(), ...), commutes=True), commutes=True), call(aten.mul.Tensor, call(aten.mul.Tensor, Arg(name='tangent_0'), call(aten.add.Tensor, call(aten.tanh.default, call(aten.mul.Tensor, call(aten.add.Tensor, Arg(name='x'), call(aten.mul.Tensor, call(aten.pow.Tensor_Scalar, Arg(name='x'), Wild(), ...), Wild(), ..., commutes=True), commutes=True), Wild(), ..., commutes=True), name='_tanh'), Wild(), ..., name='_add_1', commutes=True), commutes=True), Wild(), ..., commutes=True), users='any', commutes=True)))

PATTERNS['gelu_tanh'] = call(aten.mul.Tensor, call(aten.mul.Tensor, Arg(name='x'), Wild(), ..., commutes=True), call(aten.add.Tensor, call(aten.tanh.default, call(aten.mul.Tensor, call(aten.add.Tensor, Arg(name='x'), call(aten.mul.Tensor, call(aten.pow.Tensor_Scalar, Arg(name='x'), Wild(), ...), Wild(), ..., commutes=True), commutes=True), Wild(), ..., commutes=True)), Wild(), ..., commutes=True), users='any', commutes=True)

PATTERNS['gelu_erf_training'] = Outputs((call(aten.mul.Tensor, call(aten.mul.Tensor, Arg(name='x'), Wild(), ..., name='_mul', commutes=True), call(aten.add.Tensor, call(aten.erf.default, call(aten.div.Tensor, Arg(name='x'), Wild(), ..., name='_div')), Wild(), ..., name='_add', commutes=True), users='any', commutes=True), call(aten.add.Tensor, call(aten.div.Tensor, call(aten.mul.Tensor, call(aten.mul.Scalar, call(aten.exp.default, call(aten.neg.default, call(aten.pow.Tensor_Scalar, call(aten.div.Tensor, Arg(name='x'), Wild(), ..., name='_div'), Wild(), ...))), Wild(), ...), call(aten.mul.Tensor, Arg(name='tangent_0'), call(aten.mul.Tensor, Arg(name='x'), Wild(), ..., name='_mul', commutes=True), commutes=True), commutes=True), Wild(), ...), call(aten.mul.Tensor, call(aten.mul.Tensor, Arg(name='tangent_0'), call(aten.add.Tensor, call(aten.erf.default, call(aten.div.Tensor, Arg(name='x'), Wild(), ..., name='_div')), Wild(), ..., name='_add', commutes=True), commutes=True), Wild(), ..., commutes=True), users='any', commutes=True)))

PATTERNS['gelu_erf'] = call(aten.mul.Tensor, call(aten.mul.Tensor, Arg(name='x'), Wild(), ..., commutes=True), call(aten.add.Tensor, call(aten.erf.default, call(aten.div.Tensor, Arg(name='x'), Wild(), ...)), Wild(), ..., commutes=True), users='any', commutes=True)

PATTERNS['silu_training'] = Outputs((call(aten.mul.Tensor, Arg(name='x'), call(aten.sigmoid.default, Arg(name='x'), name='_sigmoid'), users='any', commutes=True), call(aten.add.Tensor, call(aten.mul.Tensor, Arg(name='tangent_0'), call(aten.sigmoid.default, Arg(name='x'), name='_sigmoid'), commutes=True), call(aten.sigmoid_backward.default, call(aten.mul.Tensor, Arg(name='tangent_0'), Arg(name='x'), commutes=True), call(aten.sigmoid.default, Arg(name='x'), name='_sigmoid')), users='any', commutes=True)))

PATTERNS['silu'] = call(aten.mul.Tensor, Arg(name='x'), call(aten.sigmoid.default, Arg(name='x')), users='any', commutes=True)
