"""What the cliff experiment refuses before it starts an engine, and how it reads its tables."""

from __future__ import annotations

import pandas as pd
import pytest

from workbench.bound import BoundError, KVBound
from workbench.experiments import ExperimentError
from workbench.experiments.cliff import latency_age_ratio, run
from workbench.profiles import ProfileError, load_profile


@pytest.mark.parametrize(
    ("params", "error", "says"),
    [
        ({"sessions": 0}, ProfileError, "sessions must be positive"),
        ({"sessions": 1}, ExperimentError, "at least 2 sessions"),
        ({"sessions": 40}, ExperimentError, "too soon to predict"),
        ({"window": 16}, BoundError, "smaller than one block"),
        ({"window": 5000}, BoundError, "more than max_model_len"),
        ({"window": -1}, ProfileError, "window must be positive"),
        ({"sinks": -1}, ProfileError, "sinks must be positive"),
        ({"window": 600}, ExperimentError, "cannot hold its plateau"),
        ({"frames": 0}, ExperimentError, "frames must be 1 or more"),
    ],
)
def test_bad_parameters_are_refused_in_one_line(params, error, says):
    with pytest.raises(error, match=says) as refused:
        run(load_profile("tiny"), **params)
    assert "\n" not in str(refused.value)


def test_sessions_that_would_end_before_the_pool_is_full_are_refused():
    with pytest.raises(ExperimentError, match="would reach max_model_len"):
        run(load_profile("tiny", pool_blocks=100))


def test_a_front_end_without_a_fixed_count_is_refused():
    with pytest.raises(ProfileError, match="no fixed count"):
        run(load_profile("tiny", front_end="text"))


def served(latencies, growth=50):
    n = len(latencies)
    return pd.DataFrame(
        {
            "due_at_s": [2.0 * (k + 1) for k in range(n)],
            "latency_s": latencies,
            "age_tokens": [growth * (k + 1) for k in range(n)],
        }
    )


def test_latency_age_ratio_is_the_last_third_over_the_third_from_age_two_windows():
    # 60 frames; age 2 W = 512 is reached at frame 11, so its third is frames 11 to 30, and the last third 41 to 60.
    latencies = [9.0] * 10 + [1.0] * 20 + [5.0] * 10 + [3.0] * 20
    assert latency_age_ratio(served(latencies), KVBound(256, 4)) == 3.0


def test_latency_age_ratio_of_a_run_too_short_is_unknown():
    assert latency_age_ratio(served([1.0] * 8), KVBound(256, 4)) is None
