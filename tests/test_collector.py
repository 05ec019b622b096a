"""Python's collector rests while Litz compiles, and is found as it was."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from litz.capture.collector import COLLECTOR


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_rests_until_the_last_is_done() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def other() -> None:
        with COLLECTOR.rests():
            begun.set()
            go_on.wait(10)

    thread = threading.Thread(target=other)
    with COLLECTOR.rests():
        thread.start()
        assert begun.wait(10)
    assert not gc.isenabled()
    go_on.set()
    thread.join()
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    gc.disable()
    with COLLECTOR.rests(), COLLECTOR.rests():
        pass
    assert not gc.isenabled()


def test_an_error_ends_the_rest() -> None:
    with pytest.raises(ValueError), COLLECTOR.rests():
        raise ValueError
    assert gc.isenabled()


def test_no_collection_while_a_model_is_compiled_forward_and_backward() -> None:
    seen: list[bool] = []
    note: dict[str, Any] = {"lower": lambda _: seen.append(gc.isenabled())}
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x * 2).sin().sum(), backend="litz", options={"after": note})
    x = torch.ones(8, requires_grad=True)
    result = compiled(x)
    assert seen == [False] and gc.isenabled()
    result.backward()
    assert seen == [False, False] and gc.isenabled()
