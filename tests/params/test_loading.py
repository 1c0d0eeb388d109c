from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from stages.errors import ParameterError
from stages.params import Augment, Params, examine, load, parse

ONE_WRONG = {
    "unknown section": ("trian: {}", "trian is unknown; allowed here: data, model, train", "did you mean 'train'?"),
    "unknown key": ("train: {epoch: 3}", "train.epoch is unknown; allowed here: variants,", "did you mean 'epochs'?"),
    "unknown key far below": ("train: {augment: {flop: true}}", "train.augment.flop is unknown", "mean 'flip'?"),
    "unknown key of a variant": ("variants: {float32: {policy: float32, jit: true}}", "variants.float32.jit", "xla"),
    "misspelt choice": ("data: {source: digit}", "data.source is 'digit'; it must be one of", "mean 'digits'?"),
    "unknown policy": ("variants: {float32: {policy: mixed_flot16}}", "policy is 'mixed_flot16'", "'mixed_float16'?"),
    "policy missing": ("variants: {float32: {}}", "variants.float32.policy is missing; it must be one of", "float32"),
    "below the range": ("train: {epochs: 0}", "train.epochs is 0; it must be a whole number", "at least 1"),
    "above the range": ("train: {batch_size: 65537}", "train.batch_size is 65537", "at most 65,536"),
    "on an open end": ("compare: {accuracy_margin: 0}", "compare.accuracy_margin is 0", "above 0 and below 1"),
    "text for a number": ("train: {epochs: '3'}", "train.epochs is '3'", "a whole number"),
    "fraction for a whole number": ("train: {epochs: 3.0}", "train.epochs is 3.0", "a whole number"),
    "true for a number": ("train: {epochs: true}", "train.epochs is True", "a whole number"),
    "text for a flag": ("compare: {gate: 'yes'}", "compare.gate is 'yes'", "true or false"),
    "auto for a flag": ("variants: {float32: {policy: float32, xla: auto}}", "float32.xla is 'auto'", "true or false"),
    "not a number": ("train: {learning_rate: .nan}", "train.learning_rate is nan", "a number above 0"),
    "infinite": ("train: {learning_rate: .inf}", "train.learning_rate is inf", "at most 100"),
    "too large for a double": ("train: {learning_rate: 1e400}", "train.learning_rate is inf", "at most 100"),
    "text that ends like a number": ("train: {learning_rate: 1e-05s}", "is '1e-05s'", "a number"),
    "null section": ("train:", "train is null; it must be a mapping with the keys variants, seeds", "epochs"),
    "null value": ("data: {path: null}", "data.path is null; it must be", "text"),
    "list for a section": ("train: [1]", "train is [1]; it must be a mapping with the keys", "epochs"),
    "text for a section": ("model: cnn", "model is 'cnn'; it must be a mapping with the keys name", ""),
    "number for a list": ("train: {seeds: 0}", "train.seeds is 0; it must be a non-empty list", "whole number"),
    "empty list": ("train: {seeds: []}", "train.seeds is []; it must be a non-empty list", "whole number"),
    "wrong entry of a list": ("train: {seeds: [0, a]}", "train.seeds[1] is 'a'", "whole number"),
    "entry out of range": ("profile: {inference_batch_sizes: [0]}", "profile.inference_batch_sizes[0] is 0", "least 1"),
    "no variants": ("variants: {}", "variants is {}; it must be a mapping with at least one entry", ""),
    "list for variants": ("variants: [a]", "variants is ['a']; it must be a mapping", ""),
    "one process": ("profile: {processes: 1}", "profile.processes is 1", "at least 2"),
    "empty text": ("model: {name: ''}", "model.name is ''; it must be a non-empty text", ""),
    "baseline is not run": ("compare: {baseline: other}", "compare.baseline is 'other'; allowed are", "float32"),
    "seed twice": ("train: {seeds: [1, 2, 1]}", "train.seeds lists 1 more than once", "list it once"),
    "batch size twice": (
        "profile: {inference_batch_sizes: [8, 8]}",
        "inference_batch_sizes lists 8 more than once",
        "",
    ),
    "variant twice": ("train: {variants: [float32, float32]}", "train.variants lists 'float32' more than once", ""),
    "nothing left to train on": (
        "data: {test_fraction: 0.6, validation_fraction: 0.4}",
        "data.test_fraction + data.validation_fraction is 1",
        "below 1",
    ),
    "warm-up longer than the training": ("train: {warmup_epochs: 9}", "train.warmup_epochs is 9", "which is 8"),
    "few synthetic images": (
        "data: {source: synthetic, synthetic_images: 10, synthetic_classes: 5}",
        "data.synthetic_images is 10",
        "which is 20",
    ),
}


@pytest.mark.parametrize("name", ONE_WRONG)
def test_one_wrong_parameter_is_one_line(name: str) -> None:
    text, *fragments = ONE_WRONG[name]
    _, lines = examine(text)
    assert len(lines) == 1
    assert lines[0].startswith("params.yaml: ")
    assert "\n" not in lines[0]
    assert [fragment for fragment in fragments if fragment not in lines[0]] == []


NOT_A_PARAMETER_FILE = {
    "empty": ("", "params.yaml must hold the sections data, model, train, variants, profile, compare, tracking"),
    "a list": ("[1]", "params.yaml must hold the sections"),
    "a word": ("hello", "params.yaml must hold the sections"),
    "not YAML": ("data:\n  path: [", "params.yaml is not valid YAML in or below line 2"),
    "a tab": ("data:\n\tpath: x", "is not valid YAML in or below line 2"),
    "a key twice": ("train:\n  epochs: 1\n  epochs: 2", "line 2: 'epochs' stands twice"),
    "a section twice": ("data: {}\ntrain: {}\ndata: {}", "'data' stands twice"),
    "a number as key": ("variants:\n  1: {policy: float32}", "line 2: a key is not a text; quote it"),
    "a list as key": ("? [1, 2]\n: 3", "a key is not a text"),
    "an object of Python's": ("data: !!python/object:os.system x", "could not determine a constructor"),
}


@pytest.mark.parametrize("name", NOT_A_PARAMETER_FILE)
def test_what_is_no_parameter_file_says_so_in_one_line(name: str) -> None:
    text, fragment = NOT_A_PARAMETER_FILE[name]
    with pytest.raises(ParameterError) as caught:
        parse(text)
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


def test_everything_wrong_is_listed_at_once() -> None:
    text = """
    train: {batch_size: 100000, epochs: 0}
    data: {sauce: x}
    compare: {baseline: q}
    """
    _, lines = examine(text)
    assert [line.split()[1] for line in lines] == [
        "data.sauce",
        "train.epochs",
        "train.batch_size",
        "compare.baseline",
    ]
    with pytest.raises(ParameterError) as caught:
        parse(text)
    assert str(caught.value).splitlines() == lines
    assert caught.value.exit_status == 2


def test_wrong_values_are_replaced_so_that_the_rest_can_be_checked() -> None:
    params, lines = examine("train: {epochs: -1, batch_size: 7}\nmodel: {name: no_such}")
    assert len(lines) == 1
    assert params is not None
    assert (params.train.epochs, params.train.batch_size, params.model.name) == (8, 7, "no_such")


def test_wrong_variants_leave_nothing_to_check() -> None:
    params, lines = examine("variants: {float32: {policy: nonsense}}")
    assert params is None
    assert len(lines) == 1


@pytest.mark.parametrize("name", ["Big", "1st", "with-dash", "_first"])
def test_a_bad_name_of_a_variant(name: str) -> None:
    _, lines = examine(f"variants: {{float32: {{policy: float32}}, {name}: {{policy: float32}}}}")
    assert f"params.yaml: variants.{name}: a variant's name is small letters, digits and _" in lines[0]


@pytest.mark.parametrize("name", ["prepare", "train", "profile", "compare", "control"])
def test_a_reserved_name_of_a_variant(name: str) -> None:
    _, lines = examine(f"variants: {{float32: {{policy: float32}}, {name}: {{policy: float32}}}}")
    assert f"variants.{name}: the name is taken" in lines[0]


def test_a_listed_variant_without_an_entry() -> None:
    _, lines = examine("train: {variants: [float32, mixed_flot16]}")
    assert lines == [
        "params.yaml: train.variants names 'mixed_flot16'; allowed are the entries of variants: "
        "float32, mixed_float16, mixed_bfloat16; did you mean 'mixed_float16'?"
    ]


@pytest.mark.parametrize(("text", "rate"), [("1e-05", 1e-5), ("'0.1'", 0.1), ("1", 1.0), ("2.5e-3", 0.0025)])
def test_numbers_as_dvc_writes_them(text: str, rate: float) -> None:
    assert parse(f"train: {{learning_rate: {text}}}").train.learning_rate == rate


@pytest.mark.parametrize(
    ("text", "augment"),
    [
        ("false", Augment()),
        ("null", Augment()),
        ("true", Augment(flip=True, rotate_degrees=10.0, shift_fraction=0.1)),
        ("{flip: true}", Augment(flip=True)),
    ],
)
def test_augmentation_as_a_flag(text: str, augment: Augment) -> None:
    found = parse(f"train: {{augment: {text}}}").train.augment
    assert found == augment
    assert found.enabled == augment.flip


def test_a_variant_may_take_over_the_keys_of_another() -> None:
    params = parse(
        """
        variants:
          float32: &plain {policy: float32, tf32: false}
          compiled: {<<: *plain, xla: true}
        train: {variants: [float32, compiled]}
        """
    )
    assert params.variants["compiled"].model_dump() == params.variants["float32"].model_dump() | {"xla": True}


def test_parameters_are_frozen() -> None:
    params = Params()
    with pytest.raises(ValidationError):
        params.train = params.train  # type: ignore[misc]
    with pytest.raises(ValidationError):
        params.train.epochs = 3  # type: ignore[misc]


def test_a_missing_file_and_one_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    with pytest.raises(ParameterError, match=r"params\.yaml is missing: run from the root"):
        load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ParameterError, match="must be a UTF-8 text file"):
        load(path)
