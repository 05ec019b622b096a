"""Heavy operators on a GPU, and the race with eager: `make test-gpu`. What they are made of is tested without one in
`tests/graph/test_gpu_rules.py`, `tests/codegen/test_gpu_programs.py` and `tests/test_race.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import litz
from litz.graph import trials
from litz.runtime.executable import Executable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine")
HALF = torch.bfloat16


def steps(function: Callable[..., Any], *args: Any) -> list[list[torch.Tensor]]:
    """Results and gradients: compiled, in eager, and in eager in float64."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="litz", options={"never_slower": False})
    found = []
    for run, wide in ((compiled, False), (function, False), (function, True)):
        given = [_leaf(a, wide) for a in args]
        torch.manual_seed(0)
        out = run(*given)
        outs = out if isinstance(out, tuple) else (out,)
        sum(o.double().square().mean() for o in outs if o.requires_grad).backward()
        found.append([*outs, *(a.grad for a in given if torch.is_tensor(a) and a.requires_grad)])
    assert litz.last_report().left_to_eager is None
    return found


def _leaf(value: Any, wide: bool) -> Any:
    if not torch.is_tensor(value) or not value.is_floating_point():
        return value
    return value.detach().to(torch.float64 if wide else value.dtype).requires_grad_(value.requires_grad)


def agrees(function: Callable[..., Any], *args: Any) -> litz.Report:
    """Litz's error, against float64, is at most twice eager's."""
    for got, eager, right in zip(*steps(function, *args), strict=True):
        assert (got.shape, got.dtype, got.stride()) == (eager.shape, eager.dtype, eager.stride())
        errors = [float((x.double() - right.double()).abs().max()) for x in (got, eager)]
        unit = {HALF: 2.0**-8, torch.float16: 2.0**-11}.get(got.dtype, 1e-6)
        assert errors[0] <= 2 * errors[1] + unit * float(right.double().abs().max())
    return next(r for r in reversed(litz.reports()) if r.built)


def fired(report: litz.Report) -> set[str]:
    return {firing.rule for firing in report.firings}


def given(*shape: int, dtype: torch.dtype = HALF, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, device="cuda") * scale).to(dtype).requires_grad_()


# -- products -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("always", [False, True], ids=["as tried", "always"])
def test_products_of_odd_sizes(always: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if always:
        monkeypatch.setattr("litz.graph.rules.padding._pays", lambda *given: True)
    torch.manual_seed(0)
    x, w, b = given(4096, 512), given(5003, 512, scale=0.05), given(5003)
    labels = torch.randint(0, 5003, (4096,), device="cuda")
    report = agrees(lambda x, w: F.cross_entropy(F.linear(x.tanh(), w).float(), labels), x, w)
    assert not always or "pad_mm" in fired(report)
    agrees(lambda x, w, b: F.linear(x, w, b), x, w, b)
    agrees(lambda x, w, b: F.cross_entropy(F.linear(x, w, b), labels), x, w, b)
    agrees(lambda x, w, b: (lambda h: (h, F.cross_entropy(h.float(), labels)))(F.linear(x, w, b)), x, w, b)
    agrees(lambda a, b: torch.bmm(a, b).relu(), given(8, 257, 129), given(8, 129, 131))


def test_a_large_result_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("litz.graph.rules.padding._pays", lambda *given: True)
    monkeypatch.setattr("litz.graph.rules.padding._IN_PIECES", 1 << 22)
    torch._dynamo.reset()
    x, w, b = given(3000, 256), given(1003, 256), given(1003)
    with torch.no_grad():
        found = torch.compile(F.linear, backend="litz")(x, w, b)
        report = litz.last_report()
        assert report.left_to_eager is None and dict(report.calls)["aten::addmm"] == 2
        torch.testing.assert_close(found, F.linear(x, w, b), rtol=2e-2, atol=2e-1)
        assert found.stride() == (1003, 1)


def test_times_of_products_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_KNOWN", {})
    odd = trials.Matrix(1, 4096, 512, False, 512), trials.Matrix(1, 512, 5003, True, 512)
    product = trials.Product(*odd, False, HALF, torch.device("cuda", torch.cuda.current_device()))
    times = [trials.milliseconds(p, None) for p in (product, product.padded(0, 0, 5))]
    rate = trials.milliseconds_a_byte(product.device, None)
    assert all(t is not None and 0 < t < 100 for t in times) and rate is not None
    print(f"\n4096x512x5003: {times[0]:.4f} ms, padded {times[1]:.4f}; copies at {1e-9 / rate:.2f} GB a ms")


def test_activations_in_products() -> None:
    torch.manual_seed(0)
    x, w, b, v = (given(2048, 512), given(2048, 512, scale=0.05), given(2048), given(512, 2048, scale=0.05))
    report = agrees(lambda x, w, b, v: F.linear(F.relu(F.linear(x, w, b)), v), x, w, b, v)
    assert "activation_in_product" in fired(report)
    with torch.no_grad():
        torch._dynamo.reset()
        function = lambda x: F.linear(F.gelu(F.linear(x, w, b), approximate="tanh"), v)  # noqa: E731
        found = torch.compile(function, backend="litz")(x)
        assert "activation_in_product" in fired(litz.last_report())
        right = F.linear(F.gelu(F.linear(x.double(), w.double(), b.double()), approximate="tanh"), v.double())
        errors = [float((y.double() - right).abs().max()) for y in (found, function(x))]
        assert errors[0] <= 2 * errors[1]


# -- attention ----------------------------------------------------------------------------------------
KINDS = {
    "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_attention_and_its_backward(kind: str, dropout: float) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q * 1, k * 1, v * 1, dropout_p=dropout, is_causal=True) * 2

    torch.manual_seed(0)
    q, k, v = (given(4, 8, 256, 64) for _ in range(3))
    with sdpa_kernel(KINDS[kind]):
        try:
            function(q, k, v)
        except RuntimeError as error:
            pytest.skip(f"eager does not take it: {str(error)[:80]}")
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="litz", options={"never_slower": False})
        results = []
        for run in (compiled, function):
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            torch.manual_seed(1)  # the same numbers are drawn
            out = run(*leaves)
            out.float().square().sum().backward()
            results.append([out, *(x.grad for x in leaves)])
    calls = dict(litz.last_report().calls)
    assert any(kind in name for name in calls), calls
    assert litz.last_report().fallbacks == ()
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2 * float(wanted.abs().max()))


@pytest.mark.parametrize("dynamic", [False, True])
def test_masks_that_hide_nothing_or_the_future(dynamic: bool) -> None:
    def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        n = torch.arange(q.shape[2], device=q.device)
        mask = (n[None, :] <= n[:, None])[None, None].expand(q.shape[0], 1, -1, -1)
        return F.scaled_dot_product_attention(q, k, v, mask)

    def whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = (torch.arange(q.shape[2], device=q.device) >= 0)[None, None, None].expand(q.shape[0], 1, q.shape[2], -1)
        return F.scaled_dot_product_attention(q, k, v, mask)

    for function in (causal, whole):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="litz", dynamic=dynamic, options={"never_slower": False})
        for length in (96, 128) if dynamic else (128,):
            q, k, v = (given(3, 4, length, 64).detach() for _ in range(3))
            torch.testing.assert_close(compiled(q, k, v), function(q, k, v), rtol=2e-2, atol=2e-2)
        assert "attention_with_known_mask" in fired(litz.last_report())
        assert not any("efficient" in name for name, _ in litz.last_report().calls)


def test_attention_written_out_over_any_length() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="litz", options={"never_slower": False})
    for length in (64, 96, 128):
        q, k, v = (given(2, 4, length, 64) for _ in range(3))
        for x in (q, k, v):
            torch._dynamo.mark_dynamic(x, 2)
        got = compiled(q, k, v)
        torch.testing.assert_close(got, function(q, k, v), rtol=2e-2, atol=2e-2)
        got.sum().backward()
    assert any("flash" in name for name, _ in litz.last_report().calls)


# -- the race with eager ------------------------------------------------------------------------------
@pytest.mark.parametrize("training", [False, True])
def test_what_is_slow_on_purpose_is_left_to_eager(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(self: Executable, *args: Any) -> Any:
        torch.cuda._sleep(20_000_000)
        return call(self, *args)

    call = Executable._call
    monkeypatch.setattr(Executable, "_call", slow)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: (x * w).tanh().sum(), backend="litz")
    x, w = given(64, 64).detach(), given(64, 64, dtype=torch.float32)
    w.requires_grad_(training)
    for _ in range(40):
        out = compiled(x, w)
        if training:
            out.backward()
        torch.cuda.synchronize()  # marks are read when they have passed, so that a race takes a few calls more without
    reasons = [r.left_to_eager for r in litz.reports() if r.left_to_eager]
    assert "timed against eager on its first calls" in reasons[-1]
    print(f"\n{reasons[-1]}")


@pytest.mark.parametrize("training", [False, True])
def test_what_is_fast_is_kept(training: bool) -> None:
    torch._dynamo.reset()
    function = lambda x, w: F.gelu(F.layer_norm(x * w + x, (4096,)) * 2 + 1).sum(-1)  # noqa: E731
    compiled = torch.compile(function, backend="litz")
    x, w = given(4096, 4096).detach(), given(4096)
    w.requires_grad_(training)
    for _ in range(40):
        out = compiled(x, w)
        if training:
            out.sum().backward()
    torch.cuda.synchronize()
    compiled(x, w)
    report = litz.last_report()
    assert report.left_to_eager is None
    assert any("timed against eager" in note for note in report.notes)
    print(f"\n{[note for note in report.notes if 'timed' in note]}")


def test_nothing_is_timed_inside_a_graph_of_the_users() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x * 2 + 1, backend="litz")
    x = given(1024, dtype=torch.float32).detach()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            compiled(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        outs = [compiled(x) for _ in range(12)]
    graph.replay()
    torch.cuda.synchronize()
    for out in outs:
        torch.testing.assert_close(out, x * 2 + 1)
