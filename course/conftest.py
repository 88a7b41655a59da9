"""What all checks share."""

import os

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def seed():
    """Of a check's random inputs, fresh in every run: pytest prints it when the check fails.
    COURSE_SEED=7 in the environment, or `make grade SEED=7`, repeats one."""
    value = int(os.environ.get("COURSE_SEED") or int.from_bytes(os.urandom(3), "big"))
    print(f"seed {value}: COURSE_SEED={value} repeats these inputs")
    torch.manual_seed(value)
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Of a function that is not written yet one line: a traceback a check was 268 lines."""
    report = yield
    error = call.excinfo and call.excinfo.value
    if isinstance(error, NotImplementedError) and str(error).startswith("exercise "):
        function = call.excinfo.traceback[-1].frame.code.raw.co_qualname
        report.longrepr = f"NotImplementedError: {error}: {function} is not written yet"
        report.sections = []                # no seed either
    return report
