"""Privacy accounting: the ledger of what ran, its epsilon, and the noise that a budget asks for.

    rows      integers and the float32 noise of a mechanism, and how often it ran
    ledger    the rows of a model; merging and joining them, upward in epsilon only
    events    what `dp_accounting` composes for a row, and the neighbouring relation it holds under
    epsilon   epsilon of a plan and of a ledger, by `dp_accounting`
    budget, calibration   the steps that a budget allows, the noise that it asks for
    planning  what is missing of a plan, by the others

Everything here runs on the host, in NumPy, and knows nothing of Keras.
"""

from keras_adaclip.accounting._validation import (
    check_accountant,
    check_delta,
    check_integer,
    check_real,
    check_target_epsilon,
    default_delta,
    warn_of_large_delta,
)
from keras_adaclip.accounting.budget import max_steps_within
from keras_adaclip.accounting.calibration import calibrate_noise_multiplier
from keras_adaclip.accounting.epsilon import PrivacySpent, compute_epsilon, ledger_epsilon
from keras_adaclip.accounting.ledger import Ledger, LedgerRow, Sampling
from keras_adaclip.accounting.planning import PrivacyPlan, plan

__all__ = [
    "calibrate_noise_multiplier",
    "check_accountant",
    "check_delta",
    "check_integer",
    "check_real",
    "check_target_epsilon",
    "compute_epsilon",
    "default_delta",
    "ledger_epsilon",
    "max_steps_within",
    "plan",
    "warn_of_large_delta",
    "Ledger",
    "LedgerRow",
    "PrivacyPlan",
    "PrivacySpent",
    "Sampling",
]
