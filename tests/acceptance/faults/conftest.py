from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamserve.chaos.app import Form, own_app
from streamserve.chaos.cluster import Cluster
from streamserve.chaos.faults import fault_named
from streamserve.chaos.report import in_words
from streamserve.chaos.run import run_fault, started
from streamserve.chaos.scene import Options, Result
from tests.acceptance.running import PATIENCE

#: The faults themselves are whole; what is short is the load around them, the session, and how often they are repeated.
SHORT = Options(before_s=1.5, after_s=3.0, session_ms=3_000, rounds=1, outage_s=8.0, patience=PATIENCE)

Check = Callable[[str, Form], Result]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node, which faults may kill as long as they start it again."""
    with started(tmp_path_factory.mktemp("chaos")) as one:
        yield one


@pytest.fixture
def check(cluster: Cluster, tmp_path: Path) -> Check:
    """Do a fault to an app of streamserve's own in this form; every promise must be kept."""

    def run(name: str, form: Form) -> Result:
        return done(name, form, cluster, tmp_path)

    return run


def done(name: str, form: Form, cluster: Cluster, folder: Path) -> Result:
    result = run_fault(fault_named(name), own_app(folder, form), cluster, folder, SHORT)
    print(in_words(result))
    assert not result.broken, in_words(result)
    return result
