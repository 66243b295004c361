"""Empirical audits: lower bounds on epsilon by attacks, to compare with the accountant's."""

from keras_adaclip.audit.canaries import CANARY_KINDS, Canaries
from keras_adaclip.audit.gradient_audit import GradientAudit, family_lower_bound
from keras_adaclip.audit.gradient_canaries import GradientCanaries
from keras_adaclip.audit.membership import MembershipInference, OperatingPoint, membership_inference
from keras_adaclip.audit.one_run import OneRunAudit, audit_p_value, epsilon_lower_bound, one_run

__all__ = [
    "CANARY_KINDS",
    "Canaries",
    "GradientAudit",
    "MembershipInference",
    "OneRunAudit",
    "OperatingPoint",
    "audit_p_value",
    "epsilon_lower_bound",
    "family_lower_bound",
    "membership_inference",
    "one_run",
]
