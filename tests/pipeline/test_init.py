"""`halfstep init`: the pipeline becomes files of somebody else's repository, and nothing there is overwritten."""

from __future__ import annotations

import pytest
import yaml

from halfstep.results.comparison import COMPARISON, Comparison
from tests.pipeline.conftest import PROJECT, Folder
from tests.scripts.conftest import source

# The amounts of a repeat are as the network needs, as by default.
SHORT = ("--set=profile.processes=2", "--set=serve.formats=[]", "--set=profile.max_seconds=2")


def stages(text: str) -> dict[str, object]:
    pipeline = yaml.safe_load(text.replace("halfstep.stages.", "stages."))
    return {name: pipeline["stages"][name] for name in pipeline["stages"]}


def test_pipeline_is_that_of_the_project_and_dvc_reads_it(folder: Folder) -> None:
    (folder.path / "train.py").write_text("")
    (folder.path / ".gitignore").write_text("*.log\n/mlruns/")
    done = folder.halfstep("init", "train.py", "--set", "train.seeds=[0]", "--", "--width", "8")
    assert done.returncode == 0, done.stderr
    assert stages((folder.path / "dvc.yaml").read_text()) == stages((PROJECT / "dvc.yaml").read_text())
    text = (folder.path / "params.yaml").read_text()
    params = yaml.safe_load(text)
    task = params["task"]
    assert (task["script"], task["folder"], task["arguments"]) == ("train.py", ".", ["--width", "8"])
    assert params["train"]["epochs"] is None
    assert text.count("#") == (PROJECT / "params.yaml").read_text().count("#")
    ignored = (folder.path / ".gitignore").read_text().splitlines()
    assert ignored[:2] == ["*.log", "/mlruns/"]
    assert ignored.count("/mlruns/") == 1
    assert "/.halfstep/" in ignored
    listed = folder.run("-m", "dvc", "stage", "list", "--name-only")
    assert "train@mixed_bfloat16-0" in listed.stdout.split(), listed.stderr


@pytest.mark.parametrize("name", ["dvc.yaml", "params.yaml", "data/train"])
def test_file_that_exists_is_named_and_kept(folder: Folder, name: str) -> None:
    path = folder.path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("theirs")
    done = folder.halfstep("init")
    assert done.returncode == 2
    assert f"{name} exists in" in done.stderr
    assert "`halfstep init --into precision`" in done.stderr
    assert path.read_text() == "theirs"
    assert not (folder.path / ".dvc").exists()


def test_pipeline_of_its_own_stands_beside_theirs(folder: Folder) -> None:
    folder.run("-m", "dvc", "init", "--quiet")
    folder.run("-m", "dvc", "stage", "add", "--name", "theirs", "--outs", "made", "touch made")
    (folder.path / "pictures").mkdir()
    (folder.path / "mlflow.db").write_text("")
    done = folder.halfstep("init", "--into", "precision", "--images", "pictures")
    assert done.returncode == 0, done.stderr
    params = yaml.safe_load((folder.path / "precision/params.yaml").read_text())
    assert params["data"]["path"] == "../pictures"
    assert params["tracking"]["uri"] is None  # another folder than that of their mlflow.db
    assert (folder.path / ".dvc/plots/lines_by_variant.json").is_file()
    assert folder.run("-m", "dvc", "stage", "list", "--name-only").stdout.split() == ["theirs"]


def test_store_of_theirs_is_not_used(folder: Folder) -> None:
    (folder.path / "mlflow.db").write_text("")
    folder.halfstep("init")
    params = yaml.safe_load((folder.path / "params.yaml").read_text())
    assert params["tracking"]["uri"] == "sqlite:///.halfstep/mlflow.db"


@pytest.mark.slow
def test_pipeline_and_an_experiment_run_there(folder: Folder) -> None:
    (folder.path / "train.py").write_text(source())
    made = folder.halfstep("init", "train.py", "--speed-only", "--variants=float32,mixed_bfloat16", *SHORT)
    assert made.returncode == 0, made.stderr
    folder.git("add", "--all")
    folder.git("commit", "--quiet", "--message", "The pipeline")
    done = folder.run("-m", "dvc", "repro")
    assert done.returncode == 0, done.stdout + done.stderr
    first = Comparison.read(folder.path / COMPARISON)
    assert list(first.candidates) == ["mixed_bfloat16"]
    tried = folder.run("-m", "dvc", "exp", "run", "-S", "compare.max_slowdown=0.1")
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert "Running stage 'compare'" in tried.stdout + tried.stderr
