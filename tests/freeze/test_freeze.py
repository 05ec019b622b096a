"""freeze=True: parameters and buffers become constants, what stays is reported, and changes are noticed."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import litz
from litz.capture.direct import compile_directly
from litz.errors import CallError, OptionError
from litz.report import HISTORY
from tests.freeze.freezing import fired, frozen, judge, lively, report

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def mlp() -> nn.Sequential:
    return lively(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5)))


def test_a_frozen_model_gives_what_it_gave() -> None:
    model = mlp()
    run = frozen(model)
    with torch.no_grad():
        judge(model, run(X), X)
        judge(model, run(X * 2), X * 2)
    freezing = report().freezing
    assert freezing is not None and freezing.frozen == 4 and len(freezing.kept) == 1 and not freezing.stays
    assert "4 arguments are constants" in str(report())


def test_the_arguments_that_stay_are_reported_by_index() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8))
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("table", torch.randn(8))

        def forward(self, x: torch.Tensor) -> Any:
            self.calls.add_(1)
            return x * self.weight, self.table[2:]

    model = Counts()
    run = frozen(model)
    with torch.no_grad():
        for count in (1, 2, 3):
            product, table = run(X)
            torch.testing.assert_close(product, X * model.weight)
            assert table.data_ptr() == model.table[2:].data_ptr() and model.calls == count
    freezing = report().freezing
    assert freezing is not None and freezing.frozen == 1
    stays = {one.name: one for one in freezing.stays}
    assert stays.keys() == {"calls", "table"} and {one.place for one in freezing.stays} <= set(freezing.kept)
    assert "written to" in stays["calls"].why and "result" in stays["table"].why
    assert "calls, stays: it is written to" in str(report())


def test_what_is_computed_of_parameters_is_computed_once() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.scale = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.rand(8, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x + (self.weight * self.scale).exp().sum(0))

    model = Scaled()
    run = frozen(model)
    with torch.no_grad():
        judge(model, run(X), X)
    freezing = report().freezing
    assert freezing is not None and (freezing.constants, freezing.computed) == (1, 1) and fired()["hoist"] == 1


def test_a_result_that_is_constant_is_new_at_each_call() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> Any:
            return self.weight * 2, x + 1

    run = frozen(Twice())
    with torch.no_grad():
        run(X)[0].zero_()
        assert run(X)[0].tolist() == [2, 2, 2]


def test_tied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(x).relu())

    model, ids = Tied().eval(), torch.tensor([[1, 4, 10], [0, 2, 2]])
    run = frozen(model)
    with torch.no_grad():
        judge(model, run(ids), ids)
        with pytest.warns(UserWarning, match="was written to"):
            model.head.weight.mul_(3)
            judge(model, run(ids), ids)


# -- changes -----------------------------------------------------------------------------------------
def written(model: nn.Sequential) -> None:
    model[0].weight.mul_(2)


def loaded(model: nn.Sequential) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def replaced(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(torch.randn(16, 8))


def other_data(model: nn.Sequential) -> None:
    model[0].weight.data = torch.randn(16, 8)


@pytest.mark.parametrize("change", [written, loaded, replaced, other_data])
def test_a_change_is_noticed_and_told(change: Any) -> None:
    model = mlp()
    run = frozen(model)
    with torch.no_grad():
        run(X)
        change(model)
        with pytest.warns(UserWarning, match=r"0\.weight.* since the program was frozen"):
            judge(model, run(X), X)
        assert any("since the program was frozen" in note for note in report().notes)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            judge(model, run(X), X)


def test_a_change_of_what_was_folded_away_is_noticed() -> None:
    model = lively(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    run, image = frozen(model), torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        run(image)
        assert fired()["conv_bn"] == 1
        with pytest.warns(UserWarning, match="running_mean"):
            model[1].running_mean.add_(1)
            judge(model, run(image), image)


# -- mistakes ----------------------------------------------------------------------------------------
def test_under_gradients_it_is_refused() -> None:
    with pytest.raises(Exception, match="gradients are recorded") as caught:
        frozen(mlp())(X)
    assert "torch.no_grad()" in str(caught.value)


def test_a_live_batch_norm_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).train()
    with torch.no_grad(), pytest.raises(Exception, match="batch norm is in training mode") as caught:
        frozen(model)(torch.randn(2, 3, 9, 9))
    assert "model.eval()" in str(caught.value)


def test_batch_norm_without_statistics_is_no_mistake() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True)).train()
    image = torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        judge(model, frozen(model)(image), image)


@pytest.mark.parametrize("value", [1, "Discard", None, "yes"])
def test_other_values_of_the_option_are_refused(value: Any) -> None:
    with pytest.raises(OptionError, match="'discard'"):
        litz.compile(mlp(), freeze=value)


# -- with everything else ----------------------------------------------------------------------------
def test_sizes_that_vary() -> None:
    model = mlp()
    run = frozen(model, dynamic=True)
    with torch.no_grad():
        for rows in (3, 7, 20):
            x = torch.randn(rows, 8)
            judge(model, run(x), x)
    freezing = report().freezing
    assert freezing is not None and freezing.frozen == 4 and len(litz.reports()) >= 1


def test_graph_breaks() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x).relu()
            torch._dynamo.graph_break()
            return self.second(x).relu() + self.first(x)

    model = lively(Broken())
    run = frozen(model)
    HISTORY.clear()
    with torch.no_grad():
        judge(model, run(X), X)
        assert [r.freezing.frozen for r in litz.reports() if r.freezing is not None] == [2, 4]
        with pytest.warns(UserWarning, match="first.bias"):
            model.first.bias.add_(1)
            judge(model, run(X), X)


def test_a_plain_argument_is_none_of_the_model() -> None:
    weight = nn.Parameter(torch.randn(8))
    model = mlp()
    run = frozen(lambda x, w: model(x * w))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for w in (weight, nn.Parameter(weight * 2)):
            torch.testing.assert_close(run(X, w), model(X * w))
    freezing = report().freezing
    assert freezing is not None and freezing.frozen == 4 and len(freezing.kept) == 2


def test_autocast() -> None:
    model = mlp()
    run = frozen(model)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        given, expected = run(X), model(X)
    torch.testing.assert_close(given, expected, rtol=2e-2, atol=2e-2)
    freezing = report().freezing
    assert freezing is not None and freezing.computed >= 2  # weights are cast once


def test_without_dynamo() -> None:
    model = mlp()
    run = compile_directly(model, freeze=True)
    with torch.no_grad():
        judge(model, run(X), X)
        model[2].bias.add_(1)
        with pytest.warns(UserWarning, match=r"2\.bias"):
            judge(model, run(X), X)


def test_a_call_that_fails_raises_what_eager_raises() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 8)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table(ids).relu()

    run = frozen(Looks())
    with torch.no_grad():
        run(torch.tensor([1, 2]))
        with pytest.raises(IndexError):
            run(torch.tensor([1, 7]))


# -- what lasts --------------------------------------------------------------------------------------
def test_the_cache_holds_no_weights(folder: Path) -> None:
    """Code is found again for other weights of the same form, and its constants are made of those."""
    image = torch.randn(2, 3, 9, 9)

    def model(seed: int) -> nn.Module:
        return lively(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)), seed)

    with torch.no_grad():
        for seed in (0, 1):
            judge(model(seed), frozen(model(seed))(image), image)
            assert (seed == 1) == ("from the cache" in report().cache)
            freezing = report().freezing
            assert freezing is not None and freezing.frozen == 8 and fired()["conv_bn"] == 1


def test_the_key_tells_frozen_from_not(folder: Path) -> None:
    with torch.no_grad():
        frozen(mlp())(X)
        frozen(mlp(), False)(X)
    assert not any(line == "from the cache" for line in report().cache)


NO_LINKER = shutil.which("cc") is None and shutil.which("gcc") is None


@pytest.mark.parametrize(
    "suffix", [pytest.param(".so", marks=pytest.mark.skipif(NO_LINKER, reason="it takes a linker")), ".litz"]
)
def test_a_file_has_the_constants_in_it(tmp_path: Path, suffix: str) -> None:
    model = lively(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(392, 5)))
    image = torch.randn(2, 3, 9, 9)
    path = litz.aot_compile(model, (image,), path=tmp_path / f"model{suffix}", options={"freeze": True})
    loaded = litz.load(path)
    with torch.no_grad():
        judge(model, loaded(image), image)
    assert not loaded.package.constants and loaded.package.levels[0].recipe is None


def test_a_file_for_several_processors(tmp_path: Path) -> None:
    model = mlp()
    options = {"freeze": True, "cpu_levels": ["sse2", "avx2"]}
    path = litz.aot_compile(model, (X,), path=tmp_path / "model.litz", options=options)
    with torch.no_grad():
        judge(model, litz.load(path)(X), X)


def test_a_file_releases_nothing(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="freeze=True"):
        litz.aot_compile(mlp(), (X,), path=tmp_path / "model.litz", options={"freeze": "discard"})


# -- discard -----------------------------------------------------------------------------------------
def test_discard_releases_the_originals() -> None:
    model = mlp()
    with torch.no_grad():
        expected = model(X)
        run = frozen(model, "discard")
        for _ in range(3):
            torch.testing.assert_close(run(X), expected)
    weight = model[0].weight
    assert weight.shape == (16, 8) and weight.dtype is torch.float32 and weight.requires_grad
    assert "released" in repr(weight)
    touches = [
        lambda: weight + 1, lambda: weight.sum(), lambda: weight.detach(), lambda: weight.data, lambda: model(X),
        lambda: model.state_dict(), lambda: weight.tolist(), lambda: weight.data_ptr(), lambda: weight.numpy(),
        lambda: weight.untyped_storage(), lambda: torch.cat([weight, weight]), lambda: weight.copy_(X),
        lambda: weight[0], lambda: model.double(),
    ]  # fmt: skip
    for touch in touches:
        with pytest.raises(CallError, match=r"0\.\w+: its memory was released .* freeze='discard'"):
            touch()


def test_discard_keeps_no_second_copy_of_the_weights() -> None:
    model = lively(nn.Sequential(nn.Conv2d(8, 64, 3), nn.BatchNorm2d(64), nn.Conv2d(64, 64, 3)))
    image, memory = torch.randn(1, 8, 9, 9), model[2].weight.untyped_storage().data_ptr()
    with torch.no_grad():
        expected = model(image)
        run = frozen(model, "discard")
        torch.testing.assert_close(run(image), expected, rtol=1e-4, atol=1e-4)
    for parameter in model.parameters():
        with torch._C.DisableTorchFunctionSubclass():
            assert parameter.untyped_storage().nbytes() == 0
    assert memory  # the second weight is read where it was


def test_after_discard_a_replaced_parameter_is_an_error() -> None:
    model = mlp()
    run = frozen(model, "discard")
    with torch.no_grad():
        run(X)
        model[0].weight = nn.Parameter(torch.randn(16, 8))
        with pytest.raises(Exception, match=r"discard"):
            run(X)


def test_after_discard_another_compile_says_what_is_gone() -> None:
    model = mlp()
    run = frozen(model, "discard", dynamic=False)
    with torch.no_grad():
        run(X)
        with pytest.raises(Exception, match="freeze='discard'"):
            run(torch.randn(7, 8))
