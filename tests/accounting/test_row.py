"""Ledger rows: what a step does to the counters, and what a row refuses."""

import dataclasses

import numpy as np
import pytest

from keras_adaclip.accounting import LedgerRow, Sampling

INT32_MAX = 2**31 - 1


def open_row(sampling=Sampling.POISSON, batch=256, examples=60_000, noise=1.0, **keywords):
    return LedgerRow.open(sampling, batch, examples, noise_multiplier=noise, **keywords)


def test_a_pass_is_one_release_and_a_segment_opens_another():
    row = open_row(Sampling.SHUFFLE, 4, 10)
    assert [row.advance(steps).releases for steps in (1, 3, 4, 6, 7)] == [1, 1, 2, 2, 3]
    assert row.advance(1).begin_segment().advance(1).releases == 2
    assert row.advance(1).free_steps == 2
    assert row.begin_segment().advance(0).releases == 0
    unlimited = open_row(Sampling.PASS, examples=0).advance(10**9).begin_segment().advance(10**9)
    assert (unlimited.steps, unlimited.releases) == (2 * 10**9, 2)


def test_advance_refuses_to_pass_int32():
    with pytest.raises(ValueError, match="Argument `steps` must lie between 0 and 2147483647"):
        open_row().advance(INT32_MAX).advance(1)


def test_noise_is_kept_as_the_float32_that_runs():
    assert open_row(noise=1.1).noise_multiplier == float(np.float32(1.1)) != 1.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": 0}, "0 is not a valid Sampling"),
        ({"expected_batch_size": 60_001}, "`expected_batch_size` must not exceed `num_examples`"),
        ({"num_examples": 0}, "Argument `num_examples` must be known for sampling='poisson'"),
        ({"steps_per_release": 2}, "Argument `steps_per_release` must be 1"),
        ({"steps": 3, "releases": 4}, "Argument `releases` must lie between 1 and `steps`"),
        ({"steps": 3, "releases": 0}, "Argument `releases` must lie between 1 and `steps`"),
        ({"steps_in_release": 2}, "`steps_in_release` must not exceed `steps_per_release`"),
        ({"noise_multiplier": 1e39}, "Argument `noise_multiplier` must fit float32"),
    ],
)
def test_impossible_rows_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(open_row(), **changes)


def test_only_a_pass_takes_its_length():
    with pytest.raises(ValueError, match="`steps_per_release` is for sampling='pass' only"):
        open_row(Sampling.SHUFFLE, steps_per_release=9)
