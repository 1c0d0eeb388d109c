"""The text of `params.yaml`: what DVC and halfstep read differently, and texts that take long to read."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from stages.errors import ParameterError
from stages.params import examine, parse, read

MAX_S = 2.0

DIFFERENT = {
    "octal": ("train: {seeds: [010]}", "line 1: train.seeds[0] is 010, which DVC reads as 10 and halfstep as 8"),
    "negative octal": ("train:\n  seeds: [1, -010]", "line 2: train.seeds[1] is -010, which DVC reads as -10"),
    "octal of YAML 1.2": ("train: {epochs: 0o10}", "train.epochs is 0o10, which DVC reads as 8 and halfstep as '0o10'"),
    "zero first": (
        "train: {epochs: 08}",
        "train.epochs is 08, which DVC reads as 8 and halfstep as '08'; write 8 or '08'",
    ),
    "base 60": ("profile: {max_seconds: 1:30}", "max_seconds is 1:30, which DVC reads as '1:30' and halfstep as 90"),
    "base 60, float": ("profile: {max_seconds: 1:30.5}", "which DVC reads as '1:30.5' and halfstep as 90.5"),
    **{
        word: (
            f"compare:\n  gate: {word}",
            f"line 2: compare.gate is {word}, which DVC reads as '{word}' and halfstep as",
        )
        for word in ("yes", "no", "on", "off", "Yes", "OFF")
    },
    "a name": ("tracking: {experiment: on}", "write 'on' or true"),
    "a key": (
        "variants: {0o10: {policy: float32}}",
        "which DVC reads as 8 and halfstep as '0o10'; quote it",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_value_that_dvc_reads_differently_is_refused(name: str) -> None:
    text, fragment = DIFFERENT[name]
    with pytest.raises(ParameterError) as caught:
        examine(text)
    assert fragment in caught.value.args[0]
    assert caught.value.args[0].startswith("params.yaml line ")


@pytest.mark.parametrize(
    "text",
    [
        *("1_000", "0x1F", "0b11", "+1", "1_0.5", ".5", "1.", "1e-05", "1e3", "1.5e3", "1e+3", ".inf", "-.inf", ".nan"),
        *(
            "1e400",
            ".5e3",
            "true",
            "True",
            "null",
            "~",
            "''",
            "a b",
            "'010'",
            "2001-01-01",
            "2001-01-01T00:00:00Z",
            "y",
        ),
    ],
)
def test_other_values_are_left_to_the_rules_of_the_parameter(text: str) -> None:
    lines = examine(f"train: {{learning_rate: {text}}}")[1]
    assert [line for line in lines if "DVC" in line] == []


def test_number_that_dvc_writes_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    YAML().dump({"train": {"learning_rate": 0.00001}}, path)
    assert "1e-05" in path.read_text()
    assert parse(path.read_text()).train.learning_rate == 1e-05


def test_default_file_has_no_differences(root: Path) -> None:
    assert examine(read(root / "params.yaml"))[1] == []


def test_difference_in_a_merged_mapping() -> None:
    with pytest.raises(ParameterError) as caught:
        examine("variants:\n  a: &a {policy: float32, xla: no}\n  b: {<<: *a}")
    assert [line.split(",")[0] for line in caught.value.args] == [
        "params.yaml line 2: variants.a.xla is no",
        "params.yaml line 2: variants.b.xla is no",
    ]


def test_all_differences_are_listed() -> None:
    with pytest.raises(ParameterError) as caught:
        examine("train: {seeds: [010]}\ncompare: {gate: yes}")
    assert [line.split()[3] for line in caught.value.args] == ["train.seeds[0]", "compare.gate"]


_BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
)
_MERGE_BOMB = "\n".join(["a0: &a0 {x: 1}"] + [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 60)])

HOSTILE = {
    "an integer of 5,000 digits": ("train: {epochs: " + "1" * 5000 + "}", "is not a valid int"),
    "a hexadecimal integer of 5,000 digits": ("train: {epochs: 0x" + "f" * 5000 + "}", "is too large for an integer"),
    "an integer of 400 digits": ("train: {learning_rate: 1" + "0" * 400 + "}", "is too large for an integer"),
    "3,000 brackets": ("train: " + "[" * 3000 + "]" * 3000, "more than 20 levels of nesting"),
    "3,000 open brackets": ("train: " + "[" * 3000, "more than 20 levels of nesting"),
    "3,000 braces": ("train: " + "{a: " * 3000 + "}" * 3000, "more than 20 levels of nesting"),
    "3,000 sequences": ("train:\n  " + "- " * 3000 + "1", "more than 20 levels of nesting"),
    "30,000 keys": ("train:\n" + "".join(f"  k{n}: 1\n" for n in range(30_000)), "more than 32 KiB"),
    "nested aliases": (_BOMB, "more than 10,000 values"),
    "nested merges": (_MERGE_BOMB, "more than 10,000 values"),
    "a value that contains itself": ("train: &a [*a]", "a value contains itself"),
    "an impossible date": ("train: {epochs: 2001-13-45}", "2001-13-45 is not a valid timestamp"),
    "a word with the tag of a flag": ("compare: {gate: !!bool maybe}", "maybe is not a valid bool"),
    "a word with the tag of an integer": ("train: {epochs: !!int many}", "many is not a valid int"),
    "a word with the tag of a date": ("train: {epochs: !!timestamp today}", "today is not a valid timestamp"),
    "half of a character": (r'data: {path: "a\ud800"}', r"a\ud800 is not a valid str"),
    "half of a character in a key": (r'{"\ud800": 1}', r"\ud800 is not a valid str"),
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
@pytest.mark.parametrize("name", ["data.path", "model.name", "compare.register", "tracking.experiment", "tracking.uri"])
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
        "from stages.params import parse; parse('train: {}');"
        "import sys; assert not {'mlflow', 'pandas', 'numpy', 'sqlalchemy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], cwd=root, check=True)
