from __future__ import annotations

import json
import re
import shutil
from typing import Any

import pytest

from stages import files
from stages.errors import CorruptFileError, HalfstepError
from stages.fleet.machines import (
    COMPARISON,
    ENVIRONMENT,
    NAMES,
    PROVENANCE,
    read_machines,
    result_params,
    write_machine,
)
from stages.machine import fingerprint
from stages.params import CompareParams, Params, TrackingParams, TrainParams
from tests.fleet.report.machine_results import measure
from tests.small_study import SmallStudy


def refused() -> list[str]:
    with pytest.raises(HalfstepError) as caught:
        read_machines()
    return [str(line) for line in caught.value.args]


def test_what_a_machine_sends_is_read_back(project: SmallStudy) -> None:
    folders = [measure(project, device) for device in ("TPU 2", "CPU 1")]
    first, second = read_machines()
    assert (first.device, second.device) == ("CPU 1", "TPU 2")
    assert second.digest == folders[0].name == fingerprint.digest(fingerprint.read(folders[0] / ENVIRONMENT))
    assert second.comparison.candidates["mixed_bfloat16"].verdict == "adopt"
    assert sorted(path.name for path in files.FLEET.iterdir()) == sorted(folder.name for folder in folders)


def test_same_machine_replaces_its_result(project: SmallStudy) -> None:
    measure(project, "CPU 1", commit="a" * 40)
    measure(project, "CPU 1", commit="b" * 40)
    (machine,) = read_machines()
    assert machine.provenance.commit == "b" * 40


def test_files_of_different_machines_are_refused(project: SmallStudy) -> None:
    one, other = (measure(project, device) for device in ("CPU 1", "TPU 2"))
    contents = {name: (one / name).read_bytes() for name in NAMES}
    with pytest.raises(CorruptFileError, match="its files are of different machines"):
        write_machine(contents | {ENVIRONMENT: (other / ENVIRONMENT).read_bytes()})
    assert len(read_machines()) == 2


def test_without_a_machine_the_line_says_what_to_run(project: SmallStudy) -> None:
    line = "data/fleet has no machine: run `python -m stages.fleet profile`"
    assert refused() == [line]
    files.FLEET.mkdir()
    (files.FLEET / "report.json").write_text("{}")
    assert refused() == [line]


@pytest.mark.parametrize(
    ("origin", "label"),
    [
        ({"commit": "d" * 40}, "the commit differs between the machines (dddddddddddd on X; cccccccccccc on Y)"),
        (
            {"changes": "d" * 64},
            "the digest of changes to tracked files differs between the machines (dddddddddddd on X; none on Y)",
        ),
        ({"prepared": "d" * 64}, "the digest of data/prepared differs between the machines (dddddddddddd on X; "),
        ({"params": {"train.batch_size": 64}}, "train.batch_size differs between the machines (64 on X; 32 on Y)"),
    ],
)
def test_machines_that_were_not_measured_alike_are_refused(
    origin: dict[str, Any], label: str, project: SmallStudy
) -> None:
    if "params" in origin:
        origin = {"params": result_params(Params()) | origin["params"]}
    first = measure(project, "CPU 1", **origin).name
    second = measure(project, "TPU 2").name
    (line,) = refused()
    assert line.startswith("data/fleet: " + label.replace("X", first).replace("Y", second))
    assert line.endswith("measure them alike with `python -m stages.fleet profile`, or remove the folders of some")


def test_damaged_files_are_refused_one_line_each(project: SmallStudy) -> None:
    folders = sorted(measure(project, device) for device in ("CPU 1", "TPU 2", "GPU 3"))
    path = folders[0] / COMPARISON
    path.write_text(path.read_text().replace("mixed_bfloat16", "mixed_bfloat17"))
    (folders[1] / PROVENANCE).unlink()
    (folders[2] / ENVIRONMENT).write_text("{}")
    lines = refused()
    assert [line.split(" ")[0] for line in lines] == [
        str(folders[0] / COMPARISON),
        str(folders[1] / PROVENANCE),
        str(folders[2] / ENVIRONMENT),
    ]
    assert all(re.search("run `python -m stages.fleet profile`$", line) for line in lines)


@pytest.mark.parametrize("name", [COMPARISON, PROVENANCE])
def test_older_schema_is_refused(name: str, project: SmallStudy) -> None:
    folder = measure(project, "CPU 1")
    path = folder / name
    content = json.loads(path.read_text()) | {"schema_version": 0}
    files.write_json(path, content)
    if name == COMPARISON:
        provenance = json.loads((folder / PROVENANCE).read_text())
        files.write_json(folder / PROVENANCE, provenance | {"comparison": files.sha256_file(path)})
    (line,) = refused()
    assert line.startswith(f"{path} has schema version 0 and this release of halfstep reads ")
    assert line.endswith("run `python -m stages.fleet profile`")


def test_renamed_folder_is_refused(project: SmallStudy) -> None:
    folder = measure(project, "CPU 1")
    shutil.move(folder, folder.with_name("0" * 12))
    assert "its files are of different machines" in refused()[0]


def test_parameters_without_effect_may_differ() -> None:
    other = Params(
        tracking=TrackingParams(experiment="other"),
        train=TrainParams(checkpoint_every=3, require_gpu=True),
        compare=CompareParams(gate=True),
    )
    assert result_params(other) == result_params(Params())
    found = result_params(Params(train=TrainParams(seeds=(1, 2))))
    assert found["train.seeds"] == [1, 2]
    assert found["variants.mixed_float16.policy"] == "mixed_float16"
