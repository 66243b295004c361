"""Differentially private training for Keras 3 with adaptive clipping.

*Sample* units, compute the *contribution* of each one, *clip* it, sum, add *noise*, *apply*, and
*account*.

Begin with `privatize` and `optimizers.AutoDPOptimizer`, which plans a run for a privacy budget:

    model = privatize(keras_model)
    optimizer = optimizers.AutoDPOptimizer(target_epsilon=3.0)
    model.compile(optimizer, loss="sparse_categorical_crossentropy")
    model.fit(x, y, epochs=20)
    print(model.privacy_report())

With `optimizers.DPOptimizer` you choose noise, clipping, batch size and learning rate yourself, and
`callbacks.PrivacyCallback` ends training at the budget.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def _is_command() -> bool:
    """Return whether this process is the command line, which answers without Keras."""
    program, *words = getattr(sys, "argv", None) or [""]
    if program == "-m":  # While Python looks for the module to run.
        return sys.orig_argv[-1 - len(words)].removeprefix("-m") == "keras_adaclip"
    return Path(program).name in ("keras-adaclip", "keras-adaclip.exe")


def __dir__() -> list[str]:
    return list(__all__)


if not _is_command():
    from keras_adaclip import (
        _keras_backend,  # First: it explains a missing backend of Keras.
        accounting,
        activations,
        audit,
        callbacks,
        clipping,
        federated,
        gradients,
        integrations,
        models,
        optimizers,
        plots,
        sampling,
        schedules,
        testing,
        tuners,
    )
    from keras_adaclip.federated import FederatedModel, federate
    from keras_adaclip.models import (
        PrivacyCheck,
        PrivacyIssue,
        PrivateModel,
        PrivateSequential,
        check,
        privatize,
    )

try:
    __version__ = version("keras-adaclip")
except PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0.3.0"

__all__ = [
    "FederatedModel",
    "PrivacyCheck",
    "PrivacyIssue",
    "PrivateModel",
    "PrivateSequential",
    "__version__",
    "accounting",
    "activations",
    "audit",
    "callbacks",
    "check",
    "clipping",
    "federate",
    "federated",
    "gradients",
    "integrations",
    "models",
    "optimizers",
    "plots",
    "privatize",
    "sampling",
    "schedules",
    "testing",
    "tuners",
]
