"""What is measured and in which order, what a failure leaves, and what `--add` makes ready; experiments stand still."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--study", "vgg"], "--study vgg: it must be one of regression, cnn, "),
        (["--occasion", "a/b"], "--occasion a/b: it must be at most 40 letters, digits, dots and hyphens"),
        (["--add"], "there is no result of this machine in data/gallery: run `python -m tools.gallery` first"),
        (["--minutes", "-1"], "--minutes -1.0: it must be a positive number"),
        (["--load", "0.5"], "--load 0.5: it must be above 0 and at most 1, the share of a core"),
    ],
)
def test_bad_input_is_one_line(
    started: list[str], main: Main, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert started == []
