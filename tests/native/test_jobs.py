"""Jobs: several pieces of compiled work that ask for the GIL once."""

import pytest

from torch_tfrecord.native import native_module

jobs = native_module("jobs")
pytestmark = pytest.mark.skipif(jobs is None, reason="needs the compiled core")


def test_no_jobs_are_done_at_once() -> None:
    assert jobs.run([]) == 0


def test_what_is_no_job_is_an_error() -> None:
    with pytest.raises(TypeError):
        jobs.run([print])


def test_a_job_that_was_not_prepared_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"expected a job that was prepared, got Job\(\)"):
        jobs.run([jobs.Job()])
