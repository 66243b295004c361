"""Optimizers that add noise to clipped sums before they apply them."""

from keras_adaclip.optimizers.accounted_optimizer import AccountedOptimizer, RunSettings
from keras_adaclip.optimizers.auto_dp_optimizer import AutoDPOptimizer
from keras_adaclip.optimizers.dp_optimizer import DPOptimizer, check_microbatch_size
from keras_adaclip.optimizers.planned_momentum import PlannedMomentum
from keras_adaclip.optimizers.state import Account
from keras_adaclip.optimizers.wrapping_optimizer import (
    FORBIDDEN_OPTIONS,
    NO_LEGACY_FILE,
    check_plain_optimizer,
    refuse_legacy_file,
)

__all__ = ["AutoDPOptimizer", "DPOptimizer", "PlannedMomentum"]
