"""What is measured and in which order, what a failure leaves, and what `--add` makes ready; experiments stand still."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from halfstep import files
from halfstep.results.comparison import Comparison
from tests.gallery.conftest import Make, frozen
from tools.gallery import __main__, experiment, page, results, running, studies
from tools.gallery.results import GalleryError

Main = Callable[..., int]
DAY = "2026-01-31"


@pytest.fixture
def started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the experiments that were started; each takes no time and finds what a frozen study found."""
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "first"]):
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@localhost", *command], check=True)
    names: list[str] = []

    def run(name: str, overrides: Iterable[str]) -> None:
        (occasion,) = (text for text in overrides if text.startswith("++profile.occasion="))
        assert name.endswith(occasion.partition("=")[2].strip('"'))
        names.append(name)
        if "lstm" in name:
            raise GalleryError(f"the experiment {name} failed, as shown above; the workspace is as before")

    def comparison_of(name: str) -> Comparison:
        return frozen("default").model_copy(update={"environment": results.environment()})

    monkeypatch.setattr(experiment, "run", run)
    monkeypatch.setattr(experiment, "comparison_of", comparison_of)
    monkeypatch.setattr(running, "_STARTED", folder / "started.json")
    return names


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Main:
    def call(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["gallery", *arguments])
        return __main__.main()

    return call


def studies_of(started: list[str]) -> list[str]:
    return [name.removeprefix("gallery-").removesuffix(f"-{DAY}") for name in started]


def test_shortest_are_first_a_failure_is_one_line_and_the_rest_goes_on(
    started: list[str], main: Main, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("--occasion", DAY) == 2
    known = studies.read()
    minutes = [known[name].minutes for name in studies_of(started)]
    assert (len(minutes), minutes) == (len(known), sorted(minutes))
    printed = capsys.readouterr()
    first, last = printed.err.splitlines()
    assert first == (
        f"gallery: lstm failed: the experiment gallery-lstm-{DAY} failed, as shown above; the workspace is as before"
    )
    assert last.startswith(f"1 of {len(known)} studies failed, as shown above: lstm; the same command tries them again")
    assert len(list(studies.MEASURED.glob("*/*.json"))) == len(known) - 1
    assert "small CNN, 32 px" in (studies.MEASURED / "gallery.md").read_text()
    assert (studies.MEASURED / page.PICTURE).is_file()


def test_what_is_up_to_date_is_not_measured_again(started: list[str], main: Main, folder: Path) -> None:
    assert main("--study", "cnn", "regression", "--occasion", DAY) == 0
    assert main("--study", "cnn", "regression") == 0  # of any occasion
    assert studies_of(started) == ["regression", "cnn"]
    assert main("--study", "cnn", "--occasion", "busy") == 0
    assert started[2:] == ["gallery-cnn-busy"]
    text = (folder / studies.STUDIES).read_text()
    (folder / studies.STUDIES).write_text(text.replace("train.epochs: 40", "train.epochs: 50"))
    assert main("--study", "cnn", "regression", "--occasion", DAY) == 0
    assert studies_of(started[3:]) == ["regression"]


def test_what_others_have_published_is_measured_here_all_the_same(started: list[str], main: Main, make: Make) -> None:
    published = make("cnn", environment=results.environment())
    published.write(studies.PUBLISHED / published.place)
    assert main("--study", "cnn", "--occasion", DAY) == 0
    assert studies_of(started) == ["cnn"]
    assert "2 runs" in (studies.MEASURED / "gallery.md").read_text()


def test_folder_without_a_commit_is_one_line(
    folder: Path, main: Main, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(folder.parent))
    assert main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "need a git repository with a commit: run `git init`" in line


def test_other_release_measures_again(started: list[str], main: Main, folder: Path) -> None:
    main("--study", "cnn", "--occasion", DAY)
    text = (folder / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(text.replace(f'version = "{results.version()}"', 'version = "99.0"'))
    main("--study", "cnn", "--occasion", DAY)
    assert studies_of(started) == ["cnn", "cnn"]


def test_study_that_does_not_fit_is_not_started(
    started: list[str], main: Main, capsys: pytest.CaptureFixture[str]
) -> None:
    known = studies.read()
    assert main("--occasion", DAY, "--minutes", "2.5") == 0
    assert studies_of(started) == [name for name, study in known.items() if study.minutes <= 2.5]
    assert "resnet50-128 (about " in capsys.readouterr().out


def test_time_of_an_earlier_occasion_says_what_fits(started: list[str], main: Main, make: Make) -> None:
    machine = results.environment()
    slow = make("regression", occasion="before", seconds=3000.0, environment=machine)
    slow.write(studies.MEASURED / slow.place)
    assert main("--study", "regression", "cnn", "--occasion", DAY, "--minutes", "10") == 0
    assert studies_of(started) == ["cnn"]


def test_killed_run_goes_on_under_its_day(started: list[str], main: Main) -> None:
    files.write_json(running._STARTED, {"occasion": DAY})
    assert main("--study", "cnn") == 0
    assert started == [f"gallery-cnn-{DAY}"]
    assert not running._STARTED.exists()
    assert main("--study", "regression") == 0
    assert DAY not in started[1]


def test_add_makes_the_results_of_this_machine_ready(
    started: list[str], main: Main, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    main("--study", "cnn", "--occasion", DAY)
    other = make("lstm", environment={"device": "NVIDIA H100"})
    other.write(studies.MEASURED / other.place)
    Path("docs").mkdir()
    Path("README.md").write_text(f"before\n{page.START}\n{page.END}\nafter\n")
    assert main("--add") == 0
    (published,) = studies.PUBLISHED.glob("*/*.json")
    assert published.name == f"cnn-{DAY}.json"
    text = Path("docs/gallery.md").read_text()
    assert "small CNN, 32 px" in text
    assert "NVIDIA" not in text
    assert Path("docs/gallery.svg").is_file()
    assert "| small CNN, 32 px (" in Path("README.md").read_text()
    assert "open a pull request" in capsys.readouterr().out


def test_result_of_uncommitted_code_is_not_added(
    started: list[str], main: Main, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "params.yaml").write_text((folder / "params.yaml").read_text() + "# an edit\n")
    main("--study", "cnn", "--occasion", DAY)
    capsys.readouterr()
    assert main("--add") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "was measured with edits that are in no commit" in line
    assert not studies.PUBLISHED.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--study", "vgg"], "--study vgg: it must be one of regression, cnn, "),
        (["--occasion", "a/b"], "--occasion a/b: it must be at most 40 letters, digits, dots and hyphens"),
        (["--occasion", ""], "--occasion : it must be at most 40 letters"),
        (["--add"], "there is no result of this machine in data/gallery: run `python -m tools.gallery` first"),
        (["--minutes", "-1"], "--minutes -1.0: it must be a positive number"),
        (["--minutes", "nan"], "--minutes nan: it must be a positive number"),
        (["--load", "0.5"], "--load 0.5: it must be above 0 and at most 1, the share of a core"),
        (["--load", "2", "--occasion", "busy"], "--load 2.0: it must be above 0 and at most 1, the share of a core"),
    ],
)
def test_bad_input_is_one_line(
    started: list[str], main: Main, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert started == []


def test_file_of_another_version_is_named_and_the_rest_is_shown(
    started: list[str], main: Main, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    path = studies.PUBLISHED / make("lstm").place
    files.write_json(path, make("lstm").as_json() | {"schema_version": 9})
    assert main("--study", "cnn", "--occasion", DAY) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path} is left out: the file has schema version 9 and this release reads 1" in line
    assert "has schema version 9" in (studies.MEASURED / "gallery.md").read_text()


def test_load_of_another_program_is_noted(started: list[str], main: Main) -> None:
    assert main("--study", "cnn", "--occasion", "busy", "--load", "0.5") == 0
    (path,) = studies.MEASURED.glob("*/cnn-busy.json")
    assert files.read_json(path)["load_cores"] == 0.5
    assert "during the run named busy, another program took 50 %" in (studies.MEASURED / "gallery.md").read_text()
