"""Differentially private training for Keras 3, in which the clipping norm looks after itself.

*Sample* units, compute what each one *contributes*, *clip* it, sum, add *noise*, *apply*, and
*account* for it.
"""

from importlib.metadata import PackageNotFoundError, version

from keras_adaclip import (
    _keras_backend,  # noqa: F401  First of all: it says what to do where Keras finds no backend.
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
except PackageNotFoundError:  # a checkout that was not installed
    __version__ = "0.1.0"

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
    "tuners",
]
