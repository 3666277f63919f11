"""What kstatus, Argo CD and kubectl wait say of a job, in every state of the API's table and on a real cluster."""

import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from devcluster.testing import Cluster
from tests.integration import trainer_double
from tests.integration.jobs import PROFILE, condition, condition_of, job_path
from tests.judges.run import Verdict, judge
from tests.unit.lifecycle.states import FAILED, STATES, SUCCEEDED, Row, reach

# The program that judges is built once, and may be built from nothing.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def verdicts() -> Mapping[str, Verdict]:
    return dict(zip(STATES, judge([reach(state) for state in STATES]), strict=True))


@pytest.mark.parametrize("state", STATES)
def test_kstatus_and_argo_cd_say_what_the_table_says(state: str, verdicts: Mapping[str, Verdict]) -> None:
    row, said = STATES[state][1], verdicts[state]
    assert (said.kstatus, said.argo) == (row.kstatus, row.argo)
    assert said.message
