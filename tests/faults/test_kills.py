"""A killed training resumes: its weights, history and predictions are those of one that was not killed, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.kills import Project, are_equal, random_times

STEPS = 7  # per epoch
EPOCHS = 40  # so many that a busy machine sees the checkpoint of the second epoch long before the last one


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project.create(tmp_path_factory.mktemp("kills") / "project", EPOCHS)


def reached(project: Project, step: int) -> Callable[[], bool]:
    """Whether a complete checkpoint of this step or of a later one exists."""
    return lambda: any(int(path.name.split("-")[0]) >= step for path in project.checkpoints())


@pytest.mark.slow
def test_training_killed_three_times_gives_the_same_result(project: Project) -> None:
    project.train()
    expected = project.result()
    assert not project.checkpoints()  # removed after the results are written
    project.remove_results()

    started = lambda: project.run_statuses() == ["FINISHED", "RUNNING"]  # noqa: E731
    for is_due in (started, reached(project, 2 * STEPS), next(random_times(8.0, seed=1))):
        was_killed, _ = project.train_and_kill(is_due)
        assert was_killed
        project.remove_results()
    assert "resumed from step" in project.train()
    assert are_equal(project.result(), expected)
    first, *killed, last = project.run_statuses()
    assert (first, {*killed}, last) == ("FINISHED", {"KILLED"}, "FINISHED")
    assert not project.checkpoints()
    assert project.processes() == []
