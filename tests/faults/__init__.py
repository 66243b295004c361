"""Faults that are put into the package on purpose, to see which test catches each."""
