"""One value for each epoch, and the file that holds it.

The file is JSON: `{"format": "keras_adaclip.PiecewiseConstant", "version": 1, "values": [1.0, 0.5],
"steps_per_epoch": null}`, with one positive number for each epoch and an integer or null.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np

from keras_adaclip.schedules.schedule import EpochSchedule, Number, as_float, check_value

_FORMAT, _VERSION = "keras_adaclip.PiecewiseConstant", 1


@keras.saving.register_keras_serializable(package="keras_adaclip")
class PiecewiseConstant(EpochSchedule):
    """One given value for each epoch; the last value stays.

    `save` and `load` transfer a schedule that was found on public data, or by a search whose
    privacy cost is accounted for, to other runs.

    Args:
        values: sequence of positive floats, the value of each epoch.
        steps_per_epoch: int, at least 1, number of steps in an epoch; with None, `fit` sets it.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If there is no value, or a number is out of range.

    Example:

    >>> schedule = PiecewiseConstant([1.0, 0.5, 0.25], steps_per_epoch=10)
    >>> [schedule.value_at(step) for step in (0, 9, 10, 1000)]
    [1.0, 1.0, 0.5, 0.25]
    """

    def __init__(self, values: Iterable[float], steps_per_epoch: int | None = None) -> None:
        super().__init__(steps_per_epoch)
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError(
                f"Argument `values` must be a sequence of numbers. Received: values={values!r}"
            )
        self.values = [check_value("values", value) for value in values]
        if not self.values:
            raise ValueError("Argument `values` must hold at least one value. Received: values=[]")

    def save(self, path: str | Path) -> None:
        """Write the schedule to a JSON file.

        Args:
            path: the file, replaced if it exists.
        """
        document = {"format": _FORMAT, "version": _VERSION, **self.get_config()}
        Path(path).write_text(json.dumps(document) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the schedule in a file that `save` has written.

        Args:
            path: the file.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If it holds something else, or comes from a later version.
        """
        try:
            document = dict(json.loads(Path(path).read_text(encoding="utf-8")))
            found = document.pop("format", None), document.pop("version", None)
            if found != (_FORMAT, _VERSION):
                raise ValueError(f"its format and version are {found}")
            return cls(**document)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{path} does not hold a valid schedule in format {_FORMAT!r}, version {_VERSION}: "
                f"{error}"
            ) from error

    def scaled(self, factor: float) -> Self:
        """Return a schedule with every value multiplied by `factor`, a positive float."""
        factor = check_value("factor", factor)
        return type(self)([value * factor for value in self.values], self.steps_per_epoch)

    def _formula(self, time: Number, array_namespace: Any) -> Number:
        """Return the value of an epoch."""
        epoch = array_namespace.minimum(time, len(self.values) - 1)
        return array_namespace.take(as_float(np.asarray(self.values), array_namespace), epoch)
