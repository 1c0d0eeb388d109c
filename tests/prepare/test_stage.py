"""The stage as a process of its own: metadata of photographs, permissions, and Ctrl-C."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml
from PIL import Image, PngImagePlugin
from PIL.TiffImagePlugin import IFDRational

from halfstep.machine.fingerprint import fingerprint
from halfstep.system import files
from tests import warm

MARKER = "S3CRETPLACE"  # in every kind of metadata
GPS_TAG, CAMERA_TAGS = 0x8825, (0x010F, 0x0110, 0x0131, 0x013B, 0x8298)
LIMIT_S = 60.0


@pytest.fixture
def project(tmp_path: Path, store_template: Path) -> Path:
    """A working folder with the parameters for the images in `pictures`."""
    shutil.copy(store_template, tmp_path / "mlflow.db")
    files.write_json(tmp_path / files.ENVIRONMENT_FILE, fingerprint())
    write_params(tmp_path)
    return tmp_path


def write_params(project: Path, **data: object) -> None:
    content = {"data": {"source": "folder", "path": "pictures", "image_size": 16, **data}}
    (project / "params.yaml").write_text(yaml.safe_dump(content))


def start(project: Path, root: Path, prefix: Sequence[str] = (), stage: str = "prepare") -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "DVC_"))}
    return subprocess.Popen(
        [*prefix, warm.python(), "-m", f"stages.{stage}"],
        cwd=project,
        env=kept | {"PYTHONPATH": str(root), "HOME": str(project)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(project: Path, root: Path, prefix: Sequence[str] = (), stage: str = "prepare") -> tuple[int, str, str]:
    process = start(project, root, prefix, stage)
    output, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, output, errors


def metadata() -> Image.Exif:
    """EXIF with a position, the owner and the serial number of the camera, and a comment."""
    exif = Image.Exif()
    for tag in CAMERA_TAGS:
        exif[tag] = MARKER
    exif[GPS_TAG] = {1: "N", 2: (IFDRational(52), IFDRational(31), IFDRational(1234567, 100_000)), 29: MARKER}
    exif.get_ifd(0x8769).update({0xA430: MARKER, 0xA431: MARKER, 0x9286: MARKER.encode()})
    return exif


def photograph(path: Path, seed: int) -> Path:
    """A picture with metadata of every kind that its format has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8))
    xmp = f"<x:xmpmeta xmlns:x='adobe:ns:meta/'>{MARKER}</x:xmpmeta>".encode()
    chunks = PngImagePlugin.PngInfo()
    chunks.add_text("Comment", MARKER, zip=True)
    chunks.add_itxt("XML:com.adobe.xmp", xmp.decode())
    others = {
        ".jpg": {"xmp": xmp, "comment": MARKER},
        ".webp": {"xmp": xmp, "lossless": True},
        ".png": {"pnginfo": chunks},
        ".tiff": {"tiffinfo": {270: MARKER, 700: xmp}},
    }
    image.save(path, icc_profile=MARKER.encode() * 20, exif=metadata(), **others[path.suffix])  # type: ignore[arg-type]
    return path


@pytest.fixture
def photographs(project: Path) -> Path:
    """Five photographs of each of two classes, in every format that has metadata, and two that are rejected."""
    for label, name in enumerate(("cat", "dog")):
        for number, suffix in enumerate((".jpg", ".webp", ".png", ".tiff", ".jpg")):
            photograph(project / "pictures" / name / f"{number}{suffix}", 10 * label + number)
    damaged = photograph(project / "pictures" / "cat" / "damaged.jpg", 90)
    damaged.write_bytes(damaged.read_bytes()[:-500])
    damaged = photograph(project / "pictures" / "dog" / "damaged.tiff", 91)
    damaged.write_bytes(damaged.read_bytes()[:-500])
    return project / "pictures"


def test_no_metadata_is_in_any_output(project: Path, photographs: Path, root: Path) -> None:
    for path in photographs.rglob("*.*"):
        assert MARKER.encode() in path.read_bytes(), path
    write_params(project, max_bad_fraction=0.5)
    status, output, errors = run(project, root)
    assert (status, errors) == (0, ""), errors
    assert "2 rejected" in output
    shutil.rmtree(photographs)
    written = [path for path in project.rglob("*") if path.is_file()]
    assert [path for path in written if path.suffix == ".npy"]
    for path in written:
        content = path.read_bytes()
        assert MARKER.encode() not in content, path
        assert b"Exif" not in content, path


def as_ordinary_user() -> list[str]:
    """A command that starts another one to which file permissions apply: root may read everything."""
    if os.getuid() != 0:
        return []
    command = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    if shutil.which("setpriv") is None or subprocess.run([*command, "true"], check=False).returncode:
        pytest.skip("root cannot give up its right to read everything")
    return command


def test_files_without_read_permission_are_listed_and_counted(project: Path, photographs: Path, root: Path) -> None:
    for path in photographs.rglob("damaged.*"):
        path.unlink()
    locked = [photographs / "cat" / "0.jpg", photographs / "dog" / "2.png"]
    for path in locked:
        path.chmod(0)
    status, _, errors = run(project, root, as_ordinary_user())
    expected = "data.path: 2 of 10 files cannot be used, more than data.max_bad_fraction = 0 allows: "
    assert status == 1
    assert errors.startswith(f"{expected}cat/0.jpg (no permission to read it), dog/2.png (no permission to read it); ")
    assert errors.count("\n") == 1

    write_params(project, max_bad_fraction=0.2)
    status, output, errors = run(project, root, as_ordinary_user())
    assert (status, errors) == (0, ""), errors
    assert "2 rejected" in output
    rows = (project / files.PREPARED / "rejected.csv").read_text().splitlines()
    assert rows == ["path,reason", "cat/0.jpg,no permission to read it", "dog/2.png,no permission to read it"]


@pytest.mark.parametrize("stage", ["environment", "prepare"])
def test_folder_without_read_permission_is_refused_with_one_line(
    stage: str, project: Path, photographs: Path, root: Path
) -> None:
    (photographs / "cat" / "small").mkdir(mode=0)
    status, _, errors = run(project, root, as_ordinary_user(), stage)
    assert status == 1
    assert errors.startswith("data.path: ")
    assert "small" in errors
    assert "cannot be read (Permission denied); change its permissions, or move it out of the folder" in errors
    assert errors.count("\n") == 1
    assert not (project / files.SOURCE_FILE).exists()


@pytest.fixture
def many(project: Path) -> Path:
    """Pictures whose decoding takes several seconds, in a few megabytes."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), dtype=np.uint8))
    for name in ("cat", "dog"):
        (project / "pictures" / name).mkdir(parents=True)
        picture.save(project / "pictures" / name / "0.png")
        for number in range(1, 150):
            os.link(project / "pictures" / name / "0.png", project / "pictures" / name / f"{number}.png")
    return project / "pictures"


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    try:
        return [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if "spawn_main" in " ".join(child.cmdline())
        ]
    except psutil.Error:
        return []


def busy_s(process: subprocess.Popen[str]) -> float:
    """Largest processor time of a decoding process."""
    try:
        return max((child.cpu_times().user for child in children(process)), default=0.0)
    except psutil.Error:
        return 0.0


def processes_start(process: subprocess.Popen[str]) -> bool:
    return busy_s(process) >= 0.05  # it imports modules


def wait_until(is_due: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_due():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def processes_decode(process: subprocess.Popen[str]) -> bool:
    return busy_s(process) > 1.5


Due = Callable[[subprocess.Popen[str]], bool]


@pytest.mark.slow
@pytest.mark.parametrize(("is_due", "signals"), [(processes_start, 2), (processes_decode, 1)])
def test_ctrl_c_ends_all_processes_with_one_line(
    is_due: Due, signals: int, project: Path, many: Path, root: Path
) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core: the stage starts no processes")
    process = start(project, root)
    wait_until(lambda: is_due(process), process)
    session = os.getsid(process.pid)
    for _ in range(signals):
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends Ctrl-C to the whole group
        time.sleep(0.05)
    sent_s = time.monotonic()
    _, errors = process.communicate(timeout=LIMIT_S)
    assert errors == "interrupted\n"
    # Python itself ends with the signal if the second one arrives after `main` has returned.
    assert process.returncode == 130 or (signals == 2 and process.returncode == -signal.SIGINT)
    assert time.monotonic() - sent_s < 5
    while left := [pid for pid in psutil.pids() if session_of(pid) == session]:
        assert time.monotonic() - sent_s < 5, left
        time.sleep(0.05)
    assert list((project / files.PREPARED).iterdir()) == []


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid) if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE else None
    except (OSError, psutil.Error):
        return None


def test_baseline_alone_has_nothing_to_show(project: Path, root: Path) -> None:
    (project / "params.yaml").write_text(yaml.safe_dump({"train": {"variants": ["float32"]}}))
    status, _, errors = run(project, root)
    assert (status, errors) == (0, "")
