"""Optimizers that noise clipped sums before they apply them."""

from keras_adaclip.optimizers.accounted_optimizer import (
    AccountedOptimizer,
    RunSettings,
    with_objects,
)
from keras_adaclip.optimizers.dp_optimizer import DPOptimizer
from keras_adaclip.optimizers.ledger_variables import MAX_ROWS, Run
from keras_adaclip.optimizers.saving import (
    NO_LEGACY_FILE,
    refuse_legacy_file,
    save_arrays,
    saved_arrays,
)
from keras_adaclip.optimizers.validation import (
    checked_inner_optimizer,
    checked_microbatch_size,
    checked_noise_multiplier,
)

__all__ = [
    "DPOptimizer",
    "AccountedOptimizer",
    "MAX_ROWS",
    "NO_LEGACY_FILE",
    "Run",
    "RunSettings",
    "checked_inner_optimizer",
    "checked_microbatch_size",
    "checked_noise_multiplier",
    "refuse_legacy_file",
    "save_arrays",
    "saved_arrays",
    "with_objects",
]
