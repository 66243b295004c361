"""The three backends recorded the same numbers (see the fixture `record_golden`)."""

import os
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

BACKENDS = ("tensorflow", "jax", "torch")


def disagreements(folder: Path) -> list[str]:
    """One line for each record that is missing on a backend or differs between two."""
    found = {
        backend: {path.stem: path for path in (folder / backend).glob("*.npz")}
        for backend in BACKENDS
    }
    names = sorted(set().union(*found.values()))
    if not names:
        return [f"no backend recorded anything under {folder}"]
    problems = []
    for name in names:
        missing = [backend for backend in BACKENDS if name not in found[backend]]
        if missing:
            problems.append(f"{name}: not recorded on {', '.join(missing)}")
            continue
        for one, other in combinations(BACKENDS, 2):
            difference = _difference(found[one][name], found[other][name])
            if difference:
                problems.append(f"{name}: {one} and {other}: {difference}")
    return problems


def _difference(one: Path, other: Path) -> str | None:
    with np.load(one) as first, np.load(other) as second:
        if set(first.files) != set(second.files):
            return f"different arrays, {sorted(set(first.files) ^ set(second.files))}"
        for key in first.files:
            try:
                np.testing.assert_allclose(
                    first[key], second[key], rtol=float(first["rtol"]), atol=float(first["atol"])
                )
            except AssertionError as error:
                return f"{key}: {error}"
    return None


def test_backends_agree():
    folder = os.environ.get("KERAS_ADACLIP_GOLDEN")
    if not folder:
        pytest.skip("KERAS_ADACLIP_GOLDEN is not set: `make test-golden` sets it")
    problems = disagreements(Path(folder))
    assert not problems, "\n".join(problems)


def _write(folder: Path, backend: str, value: float) -> None:
    path = folder / backend / "run.npz"
    path.parent.mkdir()
    np.savez(path, rtol=1e-4, atol=0.0, **{"value:w": np.array([1.0, value])})


ALL_BUT_JAX = ("tensorflow", "torch")
ON_JAX = ["run: tensorflow and jax", "run: jax and torch"]
ON_TORCH = ["run: tensorflow and torch", "run: jax and torch"]


@pytest.mark.parametrize(
    ("backends", "of_jax", "of_torch", "expected"),
    [
        (BACKENDS, 2.0, 2.0, []),
        (BACKENDS, 2.001, 2.0, ON_JAX),
        (BACKENDS, 2.0, np.nan, ON_TORCH),
        (ALL_BUT_JAX, None, 2.0, ["run: not recorded on jax"]),
        ((), None, None, ["no backend recorded anything under FOLDER"]),
    ],
)
def test_records_that_differ_or_are_missing_are_found(
    backends, of_jax, of_torch, expected, tmp_path
):
    values = {"tensorflow": 2.0, "jax": of_jax, "torch": of_torch}
    for backend in backends:
        _write(tmp_path, backend, values[backend])
    found = [each.split(": value")[0] for each in disagreements(tmp_path)]
    assert found == [each.replace("FOLDER", str(tmp_path)) for each in expected]
