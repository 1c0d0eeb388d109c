"""The text of `params.yaml`: values are what DVC reads, and texts that take long to read are refused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from halfstep.errors import ParameterError
from halfstep.params.loading import examine, parse
from halfstep.params.reading import parse_tree, read

MAX_S = 2.0

VALUES = (
    *("010", "-010", "0o10", "08", "1:30", "1:30.5", "yes", "no", "on", "Off", "1_000", "0x1F", "0b11", "+1", "1_0.5"),
    *(".5", "1.", "1e-05", "1e3", "1.5e3", "1e+3", ".inf", "-.inf", "1e400", ".5e3", "true", "True", "null", "~", "''"),
    *("a b", "'010'", "2001-01-01", "2001-01-01T00:00:00Z", "y", "[1, 010]", "{a: &a 1, b: *a}"),
)


@pytest.mark.parametrize("version", ["", "%YAML 1.1\n---\n"], ids=["1.2", "1.1"])
@pytest.mark.parametrize("value", VALUES)
def test_values_are_what_dvc_reads(value: str, version: str) -> None:
    text = f"{version}train: {{learning_rate: {value}}}"
    tree, of_dvc = parse_tree(text, "params.yaml"), YAML(typ="safe").load(text)
    assert tree == of_dvc
    assert repr(tree) == repr(of_dvc)  # 1, 1.0 and True are equal


@pytest.mark.parametrize("key", ["0o10", "1", "true", "2001-01-01", "~", "[a]"])
def test_key_that_is_not_a_string_is_refused(key: str) -> None:
    with pytest.raises(ParameterError, match="line 1: a key is not a string; quote it"):
        examine(f"variants: {{{key}: {{policy: float32}}}}")


def test_number_that_dvc_writes_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    YAML().dump({"train": {"learning_rate": 0.00001}}, path)
    assert "1e-05" in path.read_text()
    assert parse(path.read_text()).train.learning_rate == 1e-05


def test_file_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read_texts: list[str] = []
    load = YAML.load

    def recorded(self: YAML, text: str) -> object:
        read_texts.append(text)
        return load(self, text)

    monkeypatch.setattr(YAML, "load", recorded)
    parse("train: {epochs: 3}")
    assert read_texts == ["train: {epochs: 3}"]


HOSTILE = {
    "an integer of 5,000 digits": ("train: {epochs: " + "1" * 5000 + "}", "is not a valid int"),
    "an integer of 400 digits": ("train: {learning_rate: 1" + "0" * 400 + "}", "is too large for an integer"),
    "3,000 brackets": ("train: " + "[" * 3000 + "]" * 3000, "more than 20 levels of nesting"),
    "30,000 keys": ("train:\n" + "".join(f"  k{n}: 1\n" for n in range(30_000)), "more than 32 KiB"),
    "an impossible date": ("train: {epochs: 2001-13-45}", "2001-13-45 is not a valid timestamp"),
    "a word with the tag of a flag": ("compare: {gate: !!bool maybe}", "maybe is not a valid bool"),
    "an unknown alias": ("train: *a", "found undefined alias"),
    "two documents": ("train: {}\n---\ntrain: {}", "expected a single document"),
    "a null byte": ("train: \0", "unacceptable character #x0000"),
    "an escape sequence": ("train: \x1b[2J", "unacceptable character #x001b"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_gives_one_line_at_once(name: str) -> None:
    text, fragment = HOSTILE[name]
    start = time.process_time()
    with pytest.raises(ParameterError) as caught:
        examine(text)
    assert time.process_time() - start < MAX_S
    assert fragment in str(caught.value)
    (line,) = caught.value.args
    assert len(line) < 200
    assert line.isprintable()


@pytest.mark.parametrize("section", ["train", "variants"])
def test_thousands_of_errors_are_found_at_once_and_not_all_listed(section: str) -> None:
    text = f"{section}:\n" + "".join(f"  epoc{n}: 1\n" for n in range(2000))
    start = time.process_time()
    _, lines = examine(text)
    assert time.process_time() - start < MAX_S
    assert len(lines) == 51
    assert lines[-1] == "there are more than 50 errors; correct these first"


def test_thousands_of_duplicates_are_found_at_once() -> None:
    start = time.process_time()
    _, lines = examine("train: {seeds: [" + ", ".join(str(n % 2000) for n in range(4000)) + "]}")
    assert time.process_time() - start < MAX_S
    assert lines[0].endswith("train.seeds lists 0 more than once; list it once")
    assert len(lines) == 51


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (b"train: {}\n" * 5_000_000, "has more than 32 KiB"),
        ("train: {}\n".encode("utf-16"), "must be a UTF-8 text file"),
        ("train: {}\n".encode("latin-1") + b"# \xe4", "must be a UTF-8 text file"),
    ],
    ids=["50 MB", "UTF-16", "Latin-1"],
)
def test_file_that_cannot_be_read_gives_one_line(content: bytes, fragment: str, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(content)
    with pytest.raises(ParameterError) as caught:
        read(path)
    assert fragment in str(caught.value)


def test_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(b"\xef\xbb\xbftrain:\r\n  epochs: 3\r\n")
    assert parse(read(path)).train.epochs == 3


def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "params.yaml")
    with pytest.raises(ParameterError, match="not a regular file"):
        read(tmp_path / "params.yaml")


@pytest.mark.parametrize("character", ["\\0", "\\n", "\\e[2J", "\\L", "\\u202e", "\\x85"])
@pytest.mark.parametrize("name", ["data.path", "model.name", "compare.baseline", "tracking.experiment", "tracking.uri"])
def test_string_with_a_control_character_is_refused(name: str, character: str) -> None:
    section, key = name.split(".")
    params, lines = examine(f'{section}: {{{key}: "a{character}b"}}')
    assert params is not None
    (line,) = lines
    assert line.startswith(f"params.yaml: {name} is 'a")
    assert line.endswith("on one line and without control characters")
    assert line.isprintable()


def test_reading_imports_little(root: Path) -> None:
    check = (
        "from halfstep.params.loading import parse; parse('train: {}');"
        "import sys; assert not {'mlflow', 'pandas', 'numpy', 'sqlalchemy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], cwd=root, check=True)
