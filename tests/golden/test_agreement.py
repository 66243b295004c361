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


def _write(folder: Path, backend: str, value: float, name: str = "run") -> None:
    path = folder / backend / f"{name}.npz"
    path.parent.mkdir(exist_ok=True)
    np.savez(path, rtol=1e-4, atol=0.0, **{"value:w": np.array([1.0, value])})


def test_equal_records_agree(tmp_path):
    for backend in BACKENDS:
        _write(tmp_path, backend, 2.0)
    assert disagreements(tmp_path) == []


def test_a_differing_value_is_found(tmp_path):
    for backend in BACKENDS:
        _write(tmp_path, backend, 2.001 if backend == "jax" else 2.0)
    problems = disagreements(tmp_path)
    assert [problem.split(": value")[0] for problem in problems] == [
        "run: tensorflow and jax",
        "run: jax and torch",
    ]


def test_not_a_number_on_one_backend_is_found(tmp_path):
    for backend in BACKENDS:
        _write(tmp_path, backend, np.nan if backend == "torch" else 2.0)
    assert len(disagreements(tmp_path)) == 2


def test_a_missing_backend_is_found(tmp_path):
    _write(tmp_path, "tensorflow", 2.0)
    _write(tmp_path, "torch", 2.0)
    assert disagreements(tmp_path) == ["run: not recorded on jax"]


def test_an_empty_folder_is_a_failure(tmp_path):
    assert disagreements(tmp_path) == [f"no backend recorded anything under {tmp_path}"]
