"""Examines a model before it trains: does its step keep examples or clients apart?"""

from keras_adaclip.examination.comparisons import NUM_ROWS, Examination, Findings, examine
from keras_adaclip.examination.issues import ASSIGNED_OUTSIDE, Finding, PrivacyIssue, refuse
from keras_adaclip.examination.losses import (
    LossFinding,
    examine_loss,
    handled_missing,
    refuse_labels,
    remark_on_unreached,
)
from keras_adaclip.examination.refusals import (
    batch_normalization_issues,
    compile_issues,
    issues_of_parts,
    layer_issues,
    masked_metric_issues,
    metric_issues,
    notes,
    refuse_other_weights,
    refuse_unsupported,
    refusing_batch_statistics,
)
from keras_adaclip.examination.rows import SampleRows
