"""Privacy accounting: the ledger of what ran, its epsilon, and the noise that a budget allows.

    kinds        units, sampling schemes, and the cost of selected runs
    row          a mechanism; whose it was and how often it ran, in integers
    ledger       the rows of a model, which only grow
    saved_ledger the ledger and what else of it a file holds
    events       the events of rows and plans for `dp_accounting`, and their neighbouring relation
    accountants  epsilon of composed events, by `dp_accounting`
    tradeoff     what an attacker can find out: the trade-off curve of composed events
    epsilon      epsilon of a plan and of a ledger
    calibrate    the least noise, the most steps and the smallest batches within a budget
    planning     the missing quantity of a planned run, and its noise beside its signal
    groups       epsilon for several units of one person; epsilon as the shift of one Gaussian
    selection    the best of a random number of runs, and the most that each may spend
    report       what was spent and how, for those who have to trust it
    report_words its facts and what they mean, as text, Markdown and a document of HTML

Everything here runs on the host, in NumPy, and does not import Keras.
"""

from keras_adaclip.accounting.calibrate import (
    calibrate_noise_multiplier,
    least_noise_multiplier,
    max_steps_within,
    smallest_max_batch_size,
)
from keras_adaclip.accounting.epsilon import (
    PrivacySpent,
    check_accountant,
    compute_epsilon,
    default_delta,
    ledger_epsilon,
    quick_epsilon,
    quick_tradeoff,
    rounded_up,
    unit_in_words,
    warn_of_large_delta,
)
from keras_adaclip.accounting.events import require_truncation, rows_per_unit, unit_label
from keras_adaclip.accounting.groups import gaussian_mu, group_epsilon
from keras_adaclip.accounting.kinds import Sampling, Unit
from keras_adaclip.accounting.ledger import Ledger
from keras_adaclip.accounting.planning import PrivacyPlan, plan
from keras_adaclip.accounting.report import PrivacyReport, check_report_path, software_versions
from keras_adaclip.accounting.report_words import NO_TUNING, STATED_PUBLIC
from keras_adaclip.accounting.row import LedgerRow, Mechanism, rows_of_epochs
from keras_adaclip.accounting.saved_ledger import (
    CHANGED,
    DIGEST_SIZE,
    DIGESTS_KEY,
    FACTS_KEY,
    LEDGER_KEY,
    UNKNOWN,
    UNWATCHED,
    facts_from_array,
    facts_to_array,
    read_ledger,
    weights_in_words,
)
from keras_adaclip.accounting.selection import RandomSelection, RunBounds, selection_epsilon
from keras_adaclip.accounting.tradeoff import TradeoffCurve

__all__ = [
    "calibrate_noise_multiplier",
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
    "Ledger",
    "LedgerRow",
    "PrivacyPlan",
    "PrivacyReport",
    "PrivacySpent",
    "RandomSelection",
    "RunBounds",
    "Sampling",
    "TradeoffCurve",
    "Unit",
]
