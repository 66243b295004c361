"""Fixtures and settings of the tests; what doctests need too stands in the conftest.py above."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# A compiled training step takes seconds the first time: no deadlines, few examples, and the same
# ones in every run. HYPOTHESIS_PROFILE=search looks further.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("search", settings.get_profile("ci"), derandomize=False, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# What is said of noise and rounding holds for steps as users compile them.
_COMPILED_AS_BY_USERS = (
    *(f"tests.soundness.test_{name}" for name in ("rules_noise", "rules_rounding", "whole_step")),
    "tests.backend",
)
_ACCOUNTED_AS_BY_USERS = ("tests.accounting", "tests.docs", "keras_adaclip")


@pytest.fixture(autouse=True, scope="module")
def _compile_quickly(request):
    """Leaves out what compilers do for speed: compiling is most of what tests take."""
    keras = sys.modules.get("keras")
    if keras is None or request.module.__name__.startswith(_COMPILED_AS_BY_USERS):
        yield
        return
    _optimize(keras.backend.backend(), False)
    yield
    _optimize(keras.backend.backend(), True)


@pytest.fixture(autouse=True, scope="module")
def _account_coarsely(request):
    """Computes epsilon on a grid that is 16 times as coarse, which still is an upper bound."""
    accountants = sys.modules.get("keras_adaclip.accounting.accountants")
    if accountants is None or request.module.__name__.startswith(_ACCOUNTED_AS_BY_USERS):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accountants, "_INTERVAL", 16 * accountants._INTERVAL)
        accountants.composed_epsilon.cache_clear()
        yield
    accountants.composed_epsilon.cache_clear()


def _optimize(backend, is_on):
    if backend == "jax":
        sys.modules["jax"].config.update("jax_disable_most_optimizations", not is_on)
    elif backend == "tensorflow":
        options = {"disable_meta_optimizer": not is_on}
        sys.modules["tensorflow"].config.optimizer.set_experimental_options(options)


@pytest.fixture
def record_golden():
    """A function that records named arrays, for `tests/golden` to compare over the three backends.

    Call it once a test, as `record_golden("name", {"weights/0": array, ...}, rtol=..., atol=...)`.
    It writes `$KERAS_ADACLIP_GOLDEN/<backend>/<name>.npz`, and nothing where that is not set.
    """
    import keras

    def record(name, arrays, rtol=1e-4, atol=1e-6):
        if not re.fullmatch(r"[\w-]+", name):
            raise ValueError(f"A record's name must fit a file. Received: name={name!r}")
        folder = os.environ.get("KERAS_ADACLIP_GOLDEN")
        if not folder:
            return
        path = Path(folder) / keras.backend.backend() / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = {f"value:{key}": np.asarray(array) for key, array in arrays.items()}
        np.savez(path, rtol=rtol, atol=atol, **values)

    return record
