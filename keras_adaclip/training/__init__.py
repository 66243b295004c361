"""Code shared by models of examples and models of clients: data, runs, saved state.

`models` also imports the modules `processes` and `training_data`, `federated` the last.
"""

from keras_adaclip.training.base import TrainingBase
from keras_adaclip.training.model_forms import (
    SequentialForm,
    SubclassedForm,
    converted,
    own_methods,
    refuse_own_methods,
    without_batch_normalization,
)
from keras_adaclip.training.plan_of_run import flattened, planned_run
from keras_adaclip.training.processes import on_all_devices, refuse_other_settings
from keras_adaclip.training.step_parts import (
    CONVOLUTIONS,
    assign_state,
    keeping_metrics_only,
    merge_over_chunks,
    observe_norms,
    refuse_lost_metrics,
    sum_of_replicas,
    sum_over_chunks,
    update_metrics,
)
from keras_adaclip.training.training_data import ClassWeights, TrainingData, for_keras
