"""Callbacks: epsilon in the logs and a stop before the budget; the threshold; an audit."""

from keras_adaclip.callbacks.audit_callback import AuditCallback
from keras_adaclip.callbacks.clipping_monitor import ClippingMonitor
from keras_adaclip.callbacks.privacy_callback import PrivacyCallback

__all__ = ["AuditCallback", "ClippingMonitor", "PrivacyCallback"]
