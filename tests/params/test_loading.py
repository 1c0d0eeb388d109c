from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from halfstep.errors import ParameterError
from halfstep.params.loading import examine, parse
from halfstep.params.schema import QUANTIZED_POLICIES, Augment, Policy, TaskParams

FULL_NAMES = (
    *("int8_from_float32", "int4_from_mixed_bfloat16", "float8_from_float32"),
    *("int4/128_from_float32", "gptq/4/128_from_float32", "awq/4/128_from_float32"),
)
QUANTIZED = ("float8", "int8", "int4", *FULL_NAMES)

ONE_ERROR = {
    "unknown section": (
        "trian: {}",
        "trian is unknown; allowed here: task, data, model, train",
        "did you mean 'train'?",
    ),
    "unknown key": ("train: {epoch: 3}", "train.epoch is unknown; allowed here: variants,", "did you mean 'epochs'?"),
    "misspelt choice": ("data: {source: digit}", "data.source is 'digit'; it must be one of", "mean 'digits'?"),
    "policy missing": ("variants: {float32: {}}", "variants.float32.policy is missing; it must be one of", "float32"),
    "batch of a variant out of range": (
        "variants: {float32: {policy: float32, batch_size: 0}, mixed_float16: {policy: mixed_float16}, "
        "mixed_bfloat16: {policy: mixed_bfloat16}}",
        "variants.float32.batch_size is 0; it must be an integer of at least 1 and at most 65,536",
    ),
    "learning rate of an own task": (
        "{task: {name: 'json:loads', arguments: {s: x}}, train: {variants: [float32]}, "
        "variants: {float32: {policy: float32, learning_rate: 0.1}}}",
        "variants.float32.learning_rate is 0.1 and task.name is 'json:loads', whose optimizer is its own: set it to",
    ),
    "unknown parent": (
        "{train: {variants: [float32]}, variants: {float32: {policy: float32, parent: flaot32}}}",
        "variants.float32.parent is 'flaot32'; it must be one of variants, or null: float32; did you mean 'float32'?",
    ),
    "variable with an owner": (
        "{train: {variants: [float32]}, variants: {float32: {policy: float32, env: {TF_ENABLE_ONEDNN_OPTS: '0'}}}}",
        "variants.float32.env sets TF_ENABLE_ONEDNN_OPTS, which is for onednn of the entry; remove it there",
    ),
    "baseline in fewer bits": (
        "{train: {variants: [float32]}, "
        "variants: {float32: {policy: float32, env: {ONEDNN_DEFAULT_FPMATH_MODE: BF16}}}}",
        "variants.float32.env sets ONEDNN_DEFAULT_FPMATH_MODE=BF16, by which TensorFlow computes in fewer bits",
        "this one is the baseline",
    ),
    "of several devices": ("train: {replicas: 1}", "train.replicas was removed in 0.4: one device trains a model"),
    "of batch normalization": ("train: {batch_norm: global}", "train.batch_norm was removed in 0.4: one device trains"),
    "of the registry": ("compare: {register: null}", "compare.register was removed in 0.4: MLflow's model page"),
    "of several hosts": ("fleet: {hosts_per_training: 1}", "fleet.hosts_per_training was removed in 0.4: one device"),
    "of served 16 bits": ("serve: {own_precision: true}", "serve.own_precision was removed in 0.4: weights are served"),
    "below the range": ("train: {epochs: -1}", "train.epochs is -1; it must be an integer", "at least 0"),
    "string for a number": ("train: {epochs: '3'}", "train.epochs is '3'", "an integer"),
    "true for a number": ("train: {epochs: true}", "train.epochs is True", "an integer"),
    "string for a flag": ("compare: {gate: 'yes'}", "compare.gate is 'yes'", "one of false, true, not_slower"),
    "not a number": ("train: {learning_rate: .nan}", "train.learning_rate is nan", "a number above 0"),
    "too large for a double": ("train: {learning_rate: 1e400}", "train.learning_rate is inf", "at most 100"),
    "null section": ("train:", "train is null; it must be a mapping with the keys variants, seeds", "epochs"),
    "number for a list": ("train: {seeds: 0}", "train.seeds is 0; it must be a non-empty list", "an integer"),
    "wrong entry of a list": ("train: {seeds: [0, a]}", "train.seeds[1] is 'a'", "an integer"),
    "no variants": ("variants: {}", "variants is {}; it must be a mapping with at least one entry", ""),
    "baseline is not trained": (
        "compare: {baseline: other}",
        "is 'other'; it must be one of train.variants",
        "float32",
    ),
    "baseline without a training": (
        "variants: {float32: {policy: float32, trained: false}, mixed_float16: {policy: mixed_float16}, "
        "mixed_bfloat16: {policy: mixed_bfloat16}}",
        "variants.float32.trained is false, and the others are compared with it",
        "train.epochs to 0",
    ),
    "served weights without a training": (
        "serve: {weights: mixed_float16}\nvariants: {float32: {policy: float32}, mixed_bfloat16: "
        "{policy: mixed_bfloat16}, mixed_float16: {policy: mixed_float16, trained: false}}",
        "serve.weights is 'mixed_float16'; it must be one of train.variants: float32, mixed_bfloat16, or null",
        "",
    ),
    "seed twice": ("train: {seeds: [1, 2, 1]}", "train.seeds lists 1 more than once", "list it once"),
    "empty training set": (
        "data: {test_fraction: 0.6, validation_fraction: 0.4}",
        "data.test_fraction + data.validation_fraction is 1",
        "below 1",
    ),
    "warm-up longer than the training": ("train: {warmup_epochs: 9}", "train.warmup_epochs is 9", "which is 8"),
    "gate without a training": (
        "train: {epochs: 0}\ncompare: {gate: true}",
        "compare.gate is true and train.epochs is 0",
        "no candidate can be adopted",
        "set compare.gate to false or not_slower, or train.epochs to at least 1",
    ),
    "renamed parameter": (
        "compare: {accuracy_margin: 0.02}",
        "compare.accuracy_margin was renamed to compare.quality_margin; rename it",
    ),
    **{
        f"quantized policy {policy}": (
            f"variants: {{x: {{policy: '{policy}'}}}}",
            f"variants.x.policy is '{policy}'; quantized policies are out of scope: halfstep compares",
            "; it must be one of float32, mixed_float16, mixed_bfloat16, float16, bfloat16",
        )
        for policy in QUANTIZED
    },
    "list for arguments": (
        "task: {arguments: [1]}",
        "task.arguments is a list, which only task.script takes;",
        "by name",
    ),
    "argument with a space": ("task: {arguments: {a b: 1}}", "task.arguments contains 'a b'; a name has up to 100", ""),
    "date in arguments": (
        "task: {arguments: {a: {b: [1, 2020-01-01]}}}",
        "task.arguments.a.b[1] is 2020-01-01 (date); it must be a text, a finite number,",
        "quote it to pass a text",
    ),
    "string for depends": ("task: {depends: data/raw}", "task.depends is 'data/raw'; it must be a list", "string"),
    "a control character in an argument": (r'task: {arguments: {"a\e[2Jb": 1}}', r"contains 'a\x1b[2Jb'; a name has"),
    "a control character in a section": (r'{"a\e[2J": 1}', r"a\x1b[2J is unknown"),
    "a command as a seed": ("train: {seeds: ['0;touch hacked']}", "train.seeds[0] is '0;touch hacked'"),
    "a URI with a password in place of a section": ("tracking: http://u:s3cret@host", "tracking is 'http://host'"),
    "few synthetic images": (
        "data: {source: synthetic, synthetic_images: 10, synthetic_classes: 5}",
        "data.synthetic_images is 10",
        "which is 20",
    ),
}


@pytest.mark.parametrize("name", ONE_ERROR)
def test_one_invalid_parameter_gives_one_line(name: str) -> None:
    text, *fragments = ONE_ERROR[name]
    _, lines = examine(text)
    assert len(lines) == 1
    assert lines[0].startswith("params.yaml: ")
    assert lines[0].isprintable()
    assert "s3cret" not in lines[0]
    assert [fragment for fragment in fragments if fragment not in lines[0]] == []


def test_warm_up_is_ignored_without_a_training() -> None:
    assert parse("train: {epochs: 0, warmup_epochs: 9}").train.epochs == 0


NOT_A_PARAMETER_FILE = {
    "empty": (
        "",
        "params.yaml must be a mapping with the sections task, data, model, train, variants, profile, serve, compare",
    ),
    "a list": ("[1]", "params.yaml must be a mapping with the sections"),
    "a word": ("hello", "params.yaml must be a mapping with the sections"),
    "not YAML": ("data:\n  path: [", "params.yaml is not valid YAML at or after line 2"),
    "a tab": ("data:\n\tpath: x", "is not valid YAML at or after line 2"),
    "a key twice": ("train:\n  epochs: 1\n  epochs: 2", "line 3: 'epochs' is given twice"),
    "a section twice": ("data: {}\ntrain: {}\ndata: {}", "'data' is given twice"),
    "a Python object": ("data: !!python/object:os.system x", "could not determine a constructor"),
}


@pytest.mark.parametrize("name", NOT_A_PARAMETER_FILE)
def test_file_that_is_not_a_parameter_file_gives_one_line(name: str) -> None:
    text, fragment = NOT_A_PARAMETER_FILE[name]
    with pytest.raises(ParameterError) as caught:
        parse(text)
    assert fragment in str(caught.value)
    assert str(caught.value).isprintable()


def test_all_errors_are_listed_at_once() -> None:
    text = """
    train: {batch_size: 100000, epochs: -1}
    data: {sauce: x}
    compare: {baseline: q}
    """
    _, lines = examine(text)
    assert [line.split()[1] for line in lines] == ["data.sauce", "train.epochs", "train.batch_size", "compare.baseline"]
    with pytest.raises(ParameterError) as caught:
        parse(text)
    assert str(caught.value).splitlines() == lines
    assert caught.value.exit_status == 2


BAD_NAMES = (
    *("A", "1st", "with-dash", "_first", "a b", "../outside", "a;touch hacked", "$(touch hacked)", "a`touch hacked`"),
    "a|touch hacked",
)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_invalid_name_of_a_variant(name: str) -> None:
    _, lines = examine(f"variants: {{float32: {{policy: float32}}, {json.dumps(name)}: {{policy: float32}}}}")
    assert f"params.yaml: variants.{name}: the name of a variant has lowercase letters, digits and _" in lines[0]


@pytest.mark.parametrize("name", ["prepare", "train", "profile", "compare", "control"])
def test_reserved_name_of_a_variant(name: str) -> None:
    _, lines = examine(f"variants: {{float32: {{policy: float32}}, {name}: {{policy: float32}}}}")
    assert f"variants.{name}: the name is reserved" in lines[0]


def test_listed_variant_without_an_entry() -> None:
    _, lines = examine("train: {variants: [float32, mixed_flot16]}")
    assert lines == [
        "params.yaml: train.variants contains 'mixed_flot16'; it must be one of variants: "
        "float32, mixed_float16, mixed_bfloat16; did you mean 'mixed_float16'?"
    ]


@pytest.mark.parametrize(("text", "rate"), [("1e-05", 1e-5), ("1", 1.0), ("2.5e-3", 0.0025)])
def test_numbers_are_read_as_dvc_writes_them(text: str, rate: float) -> None:
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
def test_augmentation_can_be_a_flag(text: str, augment: Augment) -> None:
    parsed = parse(f"train: {{augment: {text}}}").train.augment
    assert parsed == augment
    assert parsed.enabled == augment.flip


def test_arguments_of_a_task_keep_their_types() -> None:
    text = "{rate: 1e-05, text: '10', deep: [{x: 2.5e3}, null, true], quoted: '1e-05'}"
    arguments = parse(f"task: {{name: 'own:build', arguments: {text}}}").task.arguments
    assert arguments == {"rate": 1e-5, "text": "10", "deep": [{"x": 2500.0}, None, True], "quoted": "1e-05"}


def test_rules_for_images_are_not_applied_to_other_tasks() -> None:
    data = (
        "{source: synthetic, synthetic_images: 10, synthetic_classes: 5, test_fraction: 0.6, validation_fraction: 0.5}"
    )
    _, lines = examine(f"data: {data}")
    assert len(lines) == 2
    assert examine(f"data: {data}\ntask: {{name: 'own:build'}}")[1] == []


def test_folder_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/x")
    assert TaskParams().module_folder == tmp_path
    assert TaskParams(path="~/code").module_folder == Path("/home/x/code")
    monkeypatch.setenv("DVC_ROOT", "/checkout")
    assert TaskParams(path="../code").module_folder == Path("/checkout/../code")


def test_variant_can_merge_the_keys_of_another() -> None:
    params = parse(
        """
        variants:
          float32: &plain {policy: float32, tf32: false}
          compiled: {<<: *plain, xla: true}
        train: {variants: [float32, compiled]}
        """
    )
    assert params.variants["compiled"].model_dump() == params.variants["float32"].model_dump() | {"xla": True}


def test_keras_has_no_other_quantized_policies() -> None:
    import keras
    from keras.src.dtype_policies.dtype_policy import QUANTIZATION_MODES

    assert QUANTIZED_POLICIES == QUANTIZATION_MODES
    for policy in FULL_NAMES:
        assert policy in str(keras.dtype_policies.get(policy))
    for policy in get_args(Policy):
        assert keras.dtype_policies.get(policy).name == policy


def test_entries_cannot_change_the_batches_of_a_script() -> None:
    _, lines = examine(
        "{task: {script: train.py}, train: {variants: [float32]}, "
        "variants: {float32: {policy: float32, batch_size: 8}}}"
    )
    assert lines == [
        "params.yaml: variants.float32.batch_size is 8 and task.script is 'train.py', whose batches are its own: set "
        "it to null"
    ]


@pytest.mark.parametrize("task", ["name: images", "script: train.py"])
def test_only_the_module_of_a_task_can_be_taken_from_another_folder(task: str) -> None:
    entry = "{policy: float32, task_path: ../before}"
    _, lines = examine(f"{{task: {{{task}}}, train: {{variants: [float32]}}, variants: {{float32: {entry}}}}}")
    key, value = task.split(": ")
    assert lines == [
        f"params.yaml: variants.float32.task_path is ../before and task.{key} is '{value}', which has no module in a "
        "folder: set it to null"
    ]
