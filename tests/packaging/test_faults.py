"""The table of faults fits the package as it is: see `tests/faults`."""

from pathlib import Path

import pytest

import keras_adaclip
from tests.faults.inject import broken
from tests.faults.table import FAULTS

ROOT = Path(keras_adaclip.__file__).parents[1]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.title)
def test_each_fault_can_be_injected(fault):
    text = broken(fault, ROOT)
    compile(text, fault.file, "exec")
    for name in fault.tests.split():
        path, _, function = name.partition("::")
        assert (ROOT / path).exists()
        assert not function or f"def {function}(" in (ROOT / path).read_text()
