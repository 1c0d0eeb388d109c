"""A checkout of the project with small parameters in a temporary folder, and the commands that a user runs there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from tests import warm
from tests.params_file import set_parameters
from tests.programs import STAGES, module_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PROJECT = Path(__file__).parents[2]
LIMIT_S = 300

# The smallest values with which every stage still does all its work.
SMALL = {
    "data.image_size": 16,
    "train.variants": ["float32", "mixed_bfloat16"],
    "train.epochs": 2,
    "train.batch_size": 128,
    "profile.processes": 2,
    "profile.rounds": 2,
    "profile.steps_per_round": 2,
    "profile.warmup_steps": 2,
    "profile.trace_steps": 2,
    "profile.inference_batch_sizes": [1],
    "serve.formats": [],
    "profile.inference_calls_per_round": 2,
}
# For `halfstep judge`: as small as a script of its own allows.
SMALL_BY_SET = (
    *(f"--set={name}={value}" for name, value in SMALL.items() if name.startswith("profile.")),
    "--set=serve.formats=[]",
)


@dataclass(frozen=True)
class Checkout:
    """A folder with a copy of the project."""

    root: Path

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command at the root, with the virtual environment of this Python active."""
        return subprocess.run(
            command,
            cwd=self.root,
            env=child_environment(self.root) | environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def check_output(self, *command: str, **environment: str) -> str:
        """Runs a command that must succeed, and returns its output and errors."""
        done = self.run(*command, **environment)
        output = done.stdout + done.stderr
        assert done.returncode == 0, output
        return output

    def stage(self, name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a stage without DVC, or another program."""
        program = [module_of(name)] if name in STAGES else ["halfstep", name]
        return self.run("python", "-m", *program, *arguments, **environment)

    def repro(self, *arguments: str) -> set[str]:
        """Runs `dvc repro`, and returns the stages that ran."""
        return started_stages(self.check_output("dvc", "repro", *arguments))

    def out_of_date(self) -> set[str]:
        """The stages that `dvc repro` would run after `environment`; later ones may follow if their inputs change."""
        from dvc.repo import Repo  # in this process: a command would take a second more

        self.check_output("python", "-m", "stages.environment")
        with contextlib.chdir(self.root), Repo() as repo:
            return {stage.addressing for stage in repo.reproduce(dry=True)} - {"environment"}

    def configure(self, values: Mapping[str, Any]) -> None:
        """Sets parameters by their dotted names; the others do not change."""
        set_parameters(self.root, values)

    @contextmanager
    def restored(self, *names: str) -> Iterator[None]:
        """Restores the files `names` at the end of the block."""
        before = {self.root / name: (self.root / name).read_bytes() for name in names}
        try:
            yield
        finally:
            for path, content in before.items():
                path.write_bytes(content)

    def commit(self, message: str) -> None:
        """Commits everything that git does not ignore."""
        self.check_output("git", "add", "--all")
        self.check_output("git", "commit", "--quiet", "--message", message)

    def copy(self, root: Path) -> Checkout:
        """A copy in another folder, with DVC's cache but without the tracking store, which contains absolute paths."""
        shutil.copytree(self.root, root, symlinks=True, ignore=shutil.ignore_patterns("mlflow.db", "mlruns"))
        return Checkout(root)

    def json(self, name: str) -> Any:
        """Reads a JSON file below the root."""
        return json.loads((self.root / name).read_text(encoding="utf-8"))

    def files(self, folder: str) -> set[str]:
        """Paths of all files below a folder, relative to it."""
        base = self.root / folder
        return {path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file()}

    def snapshot(self, folder: str = "data") -> dict[str, tuple[int, int]]:
        """Size and modification time of every file below a folder."""
        stats = {name: (self.root / folder / name).stat() for name in self.files(folder)}
        return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}

    def client(self) -> MlflowClient:
        """MLflow's client for the store at the root."""
        from mlflow import MlflowClient

        return MlflowClient(f"sqlite:///{self.root / 'mlflow.db'}")

    def runs(self, experiment: str = "mixed-precision") -> list[Run]:
        """The runs of an experiment, oldest first."""
        client = self.client()
        stored_experiment = client.get_experiment_by_name(experiment)
        assert stored_experiment is not None
        return list(client.search_runs([stored_experiment.experiment_id], order_by=["attributes.start_time ASC"]))


def started_stages(output: str) -> set[str]:
    """The stages that DVC runs, by its output."""
    return set(re.findall(r"^Running stage '([^']+)'", output, flags=re.MULTILINE))


def child_environment(root: Path) -> dict[str, str]:
    """Environment variables of a command in a checkout, without those of the user that change a result."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "DVC_", "GIT_"))}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    author = {f"GIT_{role}_{key}": "tests@localhost" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    folders = [Path(warm.python()).parent, Path(sys.executable).parent]
    return {
        **variables,
        **author,
        "PATH": os.pathsep.join(map(str, [*folders, variables.get("PATH", "")])),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "DVC_NO_ANALYTICS": "1",
        "DVC_SITE_CACHE_DIR": str(root.parent / f".{root.name}-dvc"),
        "CUDA_VISIBLE_DEVICES": "-1",  # the tests expect the results of a CPU
        "COLUMNS": "200",
    }


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a run of the whole pipeline is slow."""
    for item in items:
        if "finished" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The project's working tree in a new git repository, before any stage has run."""
    checkout = Checkout(tmp_path_factory.mktemp("pristine") / "halfstep")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split("\0"):
        if name and name != "dvc.lock" and (PROJECT / name).is_file():
            (checkout.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, checkout.root / name)
    checkout.configure(SMALL)
    checkout.check_output("git", "init", "--quiet")
    checkout.commit("The project, with small parameters")
    return checkout


@pytest.fixture(scope="session")
def finished(pristine: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The project after `dvc repro`, as users start it, and a commit. Tests that change it use `copied`."""
    checkout = pristine.copy(tmp_path_factory.mktemp("finished") / "halfstep")
    environment = child_environment(checkout.root)
    real = {"PATH": environment["PATH"].split(os.pathsep, 1)[1], warm.PYTHON: sys.executable}
    checkout.check_output("dvc", "repro", **real)
    checkout.commit("First results")
    return checkout


@pytest.fixture
def copied(finished: Checkout, tmp_path: Path) -> Checkout:
    """A copy of the finished project without a tracking store."""
    return finished.copy(tmp_path / "halfstep")


@pytest.fixture(scope="session")
def draw_images() -> Callable[..., Path]:
    """Writes a folder of small images for each class; the keywords are the numbers of images."""

    def draw(root: Path, **counts: int) -> Path:
        for label, (name, count) in enumerate(counts.items()):
            (root / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.random.default_rng((label, number)).integers(0, 256, (12, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / name / f"{number:02d}.png")
        return root

    return draw


class Folder:
    """A git repository of somebody else."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self._root = path, root
        self.environment = child_environment(path) | {"PYTHONPATH": str(root)}
        path.mkdir()
        self.git("init", "--quiet")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.path, env=self.environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    def halfstep(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("-P", "-m", "halfstep", *arguments)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs Python."""
        return warm.run(arguments, cwd=self.path, env=self.environment, check=False)


@pytest.fixture
def folder(tmp_path: Path, root: Path) -> Folder:
    return Folder(tmp_path / "theirs", root)
