"""Privacy accounting: the ledger of what ran, its epsilon, and the noise that a budget asks for.

    kinds     whose privacy a row is about, and how the units were drawn
    rows      integers and the float32 noise of a mechanism, and how often it ran
    ledger    the rows of a model; merging and joining them, upward in epsilon only
    events    what `dp_accounting` composes for a row, and the neighbouring relation it holds under
    epsilon   epsilon of a plan and of a ledger, by `dp_accounting`
    budget, calibration   the steps that a budget allows, the noise that it asks for
    planning, solving   what is missing of a plan, by the others
    selection, random_counts   the best of a random number of runs: epsilon, and the number drawn
    selection_cost   what a ledger holds of a selection
    run_bounds   what each run of a search may spend at most
    group_privacy, gaussian_dp   epsilon for several units of one person; epsilon as one shift
    saved_ledger   the ledger in a model's file
    report    what was spent and how, for those who have to trust it

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
from keras_adaclip.accounting.calibration import (
    calibrate_noise_multiplier,
    least_noise_multiplier,
)
from keras_adaclip.accounting.epsilon import PrivacySpent, compute_epsilon, ledger_epsilon
from keras_adaclip.accounting.gaussian_dp import gaussian_mu
from keras_adaclip.accounting.group_privacy import group_epsilon
from keras_adaclip.accounting.kinds import Unit
from keras_adaclip.accounting.ledger import Ledger, LedgerRow, Sampling
from keras_adaclip.accounting.planning import PrivacyPlan, plan
from keras_adaclip.accounting.report import PrivacyReport, check_report_path
from keras_adaclip.accounting.run_bounds import RunBounds
from keras_adaclip.accounting.saved_ledger import LEDGER_KEYS, read_ledger
from keras_adaclip.accounting.selection import RandomSelection, selection_epsilon

__all__ = [
    "calibrate_noise_multiplier",
    "check_accountant",
    "check_delta",
    "check_integer",
    "check_real",
    "check_report_path",
    "check_target_epsilon",
    "compute_epsilon",
    "default_delta",
    "gaussian_mu",
    "group_epsilon",
    "least_noise_multiplier",
    "ledger_epsilon",
    "max_steps_within",
    "plan",
    "read_ledger",
    "selection_epsilon",
    "warn_of_large_delta",
    "LEDGER_KEYS",
    "Ledger",
    "LedgerRow",
    "PrivacyPlan",
    "PrivacyReport",
    "PrivacySpent",
    "RandomSelection",
    "RunBounds",
    "Sampling",
    "Unit",
]
