"""A training that is killed outright goes on: the short form of `python -m tests.faults.kills`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.kills import Project, Tally, are_equal, random_instants

STEPS = 7  # in an epoch of the harness's training


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project.made(tmp_path_factory.mktemp("kills") / "project")


def reached(project: Project, step: int) -> Callable[[], bool]:
    """Whether a checkpoint of this step, or of a later one, lies there whole."""
    return lambda: any(int(path.name.split("-")[0]) >= step for path in project.checkpoints())


def test_a_training_killed_three_times_ends_as_one_that_was_not(project: Project) -> None:
    project.train()
    expected = project.result()
    assert not project.checkpoints()  # they go once the results are written
    project.forget()

    begun = lambda: project.run_statuses() == ["FINISHED", "RUNNING"]  # noqa: E731
    for is_due in (begun, reached(project, 2 * STEPS), next(random_instants(8.0, seed=1))):
        was_killed, _ = project.train_and_kill(is_due)
        assert was_killed
        project.forget()
    assert "goes on after step" in project.train()
    assert are_equal(project.result(), expected)
    # The one without a checkpoint was closed, the one with a checkpoint was gone on with.
    assert project.run_statuses() == ["FINISHED", "KILLED", "FINISHED"]
    assert not project.checkpoints()
    assert project.processes() == []


def test_the_table_tells_what_is_not_clean() -> None:
    assert Tally(kills=2, trainings=1, equal=1).is_clean
    assert not Tally(kills=2, trainings=2, equal=1).is_clean
    assert not Tally(left_running=1).is_clean
    assert not Tally(processes_left=1).is_clean
