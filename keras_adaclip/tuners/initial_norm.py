"""A first clipping norm for private training, from greedy searches of one epoch."""

import os
import tempfile
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from keras_adaclip._checks import check_integer
from keras_adaclip.tuners.greedy_clip_tuner import GreedyClipTuner


def initial_norm_from(
    hypermodel: Any,
    *fit_args: Any,
    runs: int = 5,
    directory: str | os.PathLike[str] | None = None,
    project_name: str = "initial_norm",
    search_options: Mapping[str, Any] | None = None,
    **fit_kwargs: Any,
) -> float:
    """Return the mean of the best norms of the first epoch, to begin a `PowerDecay` with.

    Like every greedy search this is **not private**: search on public data, and use the norm for
    private data that resemble them (Lin et al. 2022, section 4.3.2).

    Args:
        hypermodel: As in `GreedyClipTuner`.
        *fit_args: Arguments for `fit`: the training data.
        runs: An int from 1, the number of searches, each with other initial weights and noise.
        directory: The folder for their files, in which interrupted searches continue; None for a
            temporary one.
        project_name: The name of each search's folder, before its number.
        search_options: Other arguments of `GreedyClipTuner`, such as `{"start": 0.1}`.
        **fit_kwargs: Arguments for `fit`: validation data, `batch_size`, and `verbose`.

    Raises:
        ValueError: If an argument is out of range.
        RuntimeError: As in `GreedyClipTuner.search`.
    """
    norms = []
    with tempfile.TemporaryDirectory() as temporary:
        for run in range(check_integer("runs", runs, minimum=1)):
            tuner = GreedyClipTuner(
                hypermodel,
                epochs=1,
                directory=directory or temporary,
                project_name=f"{project_name}_{run}",
                **(search_options or {}),
            )
            tuner.search(*fit_args, **fit_kwargs)
            norms.append(tuner.best_schedule().values[0])
    return fmean(norms)
