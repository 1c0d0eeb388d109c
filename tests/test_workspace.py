"""The parameter file of a workspace: the command line decides, what was edited there stays, comments stay."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from halfstep.errors import ParameterError
from halfstep.params import loading
from halfstep.workspace import add_lines, edits_of, parameters, parser_of, values_of


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "written.yaml"
    path.write_text(parameters({"train.epochs": 3, "train.seeds": [0]}))
    return path


def test_what_was_not_edited_is_no_edit(written: Path, tmp_path: Path) -> None:
    assert edits_of(written, written) == {}
    assert edits_of(tmp_path / "missing.yaml", written) == {}


def test_edit_stays_when_the_command_line_changes(written: Path, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    edited = yaml.safe_load(written.read_text())
    edited["train"]["seeds"] = [0, 1]
    edited["variants"]["wide"] = {"policy": "mixed_bfloat16", "xla": True}
    path.write_text(yaml.safe_dump(edited))
    edits = edits_of(path, written)
    assert edits == {"train.seeds": [0, 1], "variants.wide.policy": "mixed_bfloat16", "variants.wide.xla": True}
    parsed = loading.parse(parameters({"train.epochs": 5} | edits))
    assert parsed.train.epochs == 5
    assert parsed.train.seeds == (0, 1)
    assert parsed.variants["wide"].xla is True


def test_damaged_file_is_named(written: Path, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("train: [")
    with pytest.raises(ParameterError, match=r"params\.yaml is not YAML of parameters: mend it, or remove it"):
        edits_of(path, written)


def test_edit_that_is_not_allowed_is_named(written: Path) -> None:
    with pytest.raises(ParameterError, match="epochs is -1"):
        parameters({"train.epochs": -1})


def test_lines_are_added_once_and_after_a_line_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / ".gitignore"
    path.write_text("*.log")
    assert add_lines(path, ["/mlruns/", "*.log"]) == 1
    assert path.read_text() == "*.log\n/mlruns/\n"
    assert add_lines(path, ["/mlruns/", "*.log"]) == 0


def values(here: Path, *given: str) -> dict[str, object]:
    own = ["--width", "8"]
    return dict(values_of(parser_of("judge", "", "").parse_args(given), own, here, here / ".halfstep/judge"))


def test_script_and_module_run_where_their_user_stands(tmp_path: Path) -> None:
    for name in ("jobs/train.py", "src/package/train.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    script_values = values(tmp_path, "jobs/train.py")
    assert (script_values["task.script"], script_values["task.folder"]) == ("../../jobs/train.py", "../..")
    assert script_values["task.arguments"] == ["--width", "8"]
    module_values = values(tmp_path, "-m", "package.train")
    assert (module_values["task.script"], module_values["task.folder"]) == ("-m package.train", "../..")
    with pytest.raises(ParameterError, match=r"module package\.trains does not exist"):
        values(tmp_path, "-m", "package.trains")
