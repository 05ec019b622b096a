"""A model that runs out of memory under a hard limit trains under a `memory_budget` of as many bytes."""

from __future__ import annotations

import shutil
import sys

import pytest

from tests.partition.hard_limit import trained, trained_under

LIMIT = 75 << 20  # eager takes 106 MiB, and so does inductor; Litz 90 without a bound

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS, and what the process has mapped")


def test_what_eager_cannot_train_is_trained_with_the_same_losses() -> None:
    assert "can't allocate memory" in trained_under(LIMIT, "eager").get("failed", "")
    found = trained_under(LIMIT, "bounded")
    assert found.get("losses") == pytest.approx(trained("eager")["losses"], rel=1e-5), found


@pytest.mark.long
@pytest.mark.parametrize("way", ["litz", "inductor"])
def test_without_a_bound_memory_runs_out_compiled_too(way: str) -> None:
    if way == "inductor" and shutil.which("c++") is None:
        pytest.skip("inductor needs a C++ compiler, and this machine has none")
    assert "can't allocate memory" in trained_under(LIMIT, way).get("failed", "")
