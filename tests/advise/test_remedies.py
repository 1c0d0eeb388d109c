"""A change becomes a new variant, and a line that DVC and `halfstep judge` read as it is meant."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from dvc.utils.hydra import apply_overrides

from halfstep.advise.remedies import Trial, suffix, trial_of, with_variant
from halfstep.errors import AdviceError
from halfstep.params import loading
from halfstep.params.schema import Params, Variant
from halfstep.results.comparison import Remedy
from halfstep.system import files, rerun
from halfstep.workspace import parameters, parser_of, split_at_dashes, values_of

# Names that JSON, YAML, Hydra and a shell read differently.
LAYERS = (
    *("encoder/norm", ".*softmax", r"block_\d+/conv(1|2)", "null", "true", "a, b", "{c: d}", "[e]", "it's", 'say "so"'),
    *(r"\"", "f=g", "# h", "${task}", "größe", " i "),
)
ENTRIES = {
    "nothing": {"policy": "float32"},
    "true and null": {"policy": "mixed_bfloat16", "xla": True, "tf32": False, "onednn": False},
    "numbers": {"policy": "float32", "batch_size": 128, "learning_rate": 1e-05, "input_threads": 4},
    "text": {"policy": "float32", "gpu_thread_mode": "gpu_private", "parent": "mixed_float16", "python": "../x/python"},
    "variables": {
        "policy": "float32",
        "env": {"A": "1", "FLAGS": "--a=b --c='d e'", "ENDS": "back\\"},
    },
    "layers": {"policy": "mixed_float16", "float32_layers": LAYERS},
}


@pytest.fixture
def folder(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with params.yaml, in which a line is made."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(root / "params.yaml", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ENTRIES)
def test_dvc_reads_every_form_of_a_value(name: str, folder: Path) -> None:
    entry = Variant.model_validate(ENTRIES[name])
    trial = Trial("tried", entry, with_variant(loading.load(), "tried", entry))
    command, overrides = split(trial.command)
    assert command == ["dvc", "exp", "run"]
    apply_overrides("params.yaml", overrides)
    assert loading.load() == trial.settings


@pytest.mark.parametrize("name", ENTRIES)
def test_judge_reads_every_form_of_a_value_beside_its_last_arguments(name: str, folder: Path) -> None:
    known, own = ["--images", "pictures", "--minutes", "2", "--set=train.seeds=[1]"], ["--text", "two words"]
    files.write_json(files.JUDGE_CALL, {"known": known, "own": own})
    Path("pictures").mkdir()
    entry = Variant.model_validate(ENTRIES[name])
    trial = Trial("tried", entry, with_variant(Params(), "tried", entry))
    words = shlex.split(trial.command)
    assert words[:2] == ["halfstep", "judge"]
    arguments, of_script = split_at_dashes(words[2:])
    assert (arguments[: len(known)], of_script) == (known, own)
    values = dict(values_of(parser_of("judge", "", "").parse_args(arguments), of_script, folder, folder))
    parsed = loading.parse(parameters(values))
    assert parsed.variants["tried"] == entry
    assert parsed.train.variants == trial.settings.train.variants
    assert (parsed.train.seeds, parsed.profile.max_seconds) == ((1,), 120)


def split(line: str) -> tuple[list[str], list[str]]:
    """A line of `dvc exp run`: the command, and the overrides."""
    words = shlex.split(line)
    assert set(words[3::2]) == {"-S"}
    return words[:3], words[4::2]


def test_simple_values_need_no_quotes_of_their_own(folder: Path) -> None:
    trial = trial_of(Remedy(key="variants.float32.xla", to=True), Params())
    assert trial.command == (
        "dvc exp run -S '++variants.float32_xla_on={policy: float32, xla: true, parent: float32}' "
        "-S '++train.variants=[float32, mixed_float16, mixed_bfloat16, float32_xla_on]'"
    )
    files.write_json(files.JUDGE_CALL, {"known": ["-m", "package.train"], "own": []})
    assert rerun.with_values({"profile.processes": 12, "profile.occasion": None}) == (
        "halfstep judge -m package.train --set profile.processes=12 --set profile.occasion=null"
    )


def test_layers_join_those_that_are_in_float32_already() -> None:
    before = Variant(policy="mixed_float16", float32_layers=("a",))
    settings = Params().model_copy(update={"variants": {**Params().variants, "mixed_float16": before}})
    trial = trial_of(Remedy(key="variants.mixed_float16.float32_layers", to=("b", "c"), layers="all Norm"), settings)
    assert trial.name == "mixed_float16_all_norm_in_float32"
    assert trial.entry == before.model_copy(update={"float32_layers": ("a", "b", "c"), "parent": "mixed_float16"})
    assert trial.settings.train.variants[-1] == trial.name


def test_bfloat16_takes_onednn_along_which_has_its_kernels() -> None:
    settings = Params().model_copy(update={"variants": {"float32": Variant(policy="float32", onednn=False)}})
    settings = settings.model_copy(update={"train": settings.train.model_copy(update={"variants": ("float32",)})})
    assert trial_of(Remedy(key="variants.float32.policy", to="mixed_bfloat16"), settings).entry.onednn


def test_change_that_another_variant_has_is_not_tried_again() -> None:
    settings = with_variant(Params(), "faster", Variant(policy="float32", cache_input=True))
    with pytest.raises(AdviceError, match="faster has this change already"):
        trial_of(Remedy(key="variants.float32.cache_input", to=True), settings)
    with pytest.raises(AdviceError, match="mixed_bfloat16 has this change already"):
        trial_of(Remedy(key="variants.mixed_float16.policy", to="mixed_bfloat16"), Params())


@pytest.mark.parametrize(
    ("settings", "key", "message"),
    [
        ({}, "variants.removed.xla", r"variants\.removed\.xla is not in params\.yaml"),
        (
            {"task": {"name": "mine:build"}, "compare": {"quality_margin": 0.01}},
            "variants.float32.input_threads",
            "whose input pipeline is its own",
        ),
    ],
)
def test_change_that_is_not_allowed_has_a_cause(settings: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(AdviceError, match=message):
        trial_of(Remedy(key=key, to=4), Params.model_validate(settings))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("batch_size", 128, "batch_128"),
        ("xla", True, "xla_on"),
        ("onednn", False, "onednn_off"),
        ("policy", "mixed_bfloat16", "mixed_bfloat16"),
        ("gpu_thread_mode", "gpu_private", "gpu_thread_mode_gpu_private"),
        ("input_threads", 4, "input_threads_4"),
    ],
)
def test_name_of_a_variant_says_what_was_changed(key: str, value: Any, expected: str) -> None:
    assert suffix(key, value) == expected
