"""Differentially private training for Keras 3 with adaptive clipping.

*Sample* units, compute the *contribution* of each one, *clip* it, sum, add *noise*, *apply*, and
*account*.
"""

from importlib.metadata import PackageNotFoundError, version

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
    __version__ = "0.2.0"

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
