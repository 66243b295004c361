"""Where a decaying clipping norm should start.

Source: Lin et al. 2022, "Understanding adaptive gradient clipping in DP-SGD, empirically",
section 4.3.2: the greedy search of the first epoch, five times, and the mean.
"""

import contextlib
import os
import tempfile
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from keras_adaclip.accounting import check_integer
from keras_adaclip.tuners.greedy.greedy_clip_tuner import GreedyClipTuner


def initial_norm_from(
    hypermodel: Any,
    *fit_args: Any,
    runs: int = 5,
    directory: str | os.PathLike[str] | None = None,
    project_name: str = "initial_norm",
    search_options: Mapping[str, Any] | None = None,
    **fit_kwargs: Any,
) -> float:
    """The mean of the best thresholds of the first epoch, to begin a `PowerDecay` with.

    Like every greedy search this is **not private**: it is meant for public data, and what it
    finds there serves private data that resemble them.

    Args:
        hypermodel: as of `GreedyClipTuner`.
        *fit_args: arguments for `fit`: the training data.
        runs: int from 1, the number of searches, with other initial weights, noise and draws each.
        directory: folder for their files, in which interrupted runs resume; None for a temporary
            one.
        project_name: name of each search's folder, before its number.
        search_options: other arguments of `GreedyClipTuner`, such as `{"start": 0.1}`.
        **fit_kwargs: arguments for `fit`: validation data, `batch_size`, and `verbose`.

    Returns:
        The mean.

    Raises:
        ValueError: where an argument is out of range, or is one of the runs' own.
        RuntimeError: as of `GreedyClipTuner.search`.
    """
    runs = check_integer(runs, "runs", minimum=1)
    options = dict(search_options or {})
    for name in ("epochs", "directory", "project_name"):
        if name in options:
            raise ValueError(
                f"Argument `search_options` must not hold {name!r}: the first epoch of public data "
                "is searched, in folders of its own. "
                f"Received: search_options={options}"
            )
    norms = []
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory())
        for run in range(runs):
            tuner = GreedyClipTuner(
                hypermodel,
                epochs=1,
                directory=directory,
                project_name=f"{project_name}_{run}",
                **options,
            )
            tuner.search(*fit_args, **fit_kwargs)
            norms.append(tuner.best_schedule().values[0])
    return fmean(norms)
