"""What `prepare` rejects: unusable folders, files that are not images, full disks."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from halfstep import files
from tests.faults.cases import Arrange, Case
from tests.prepare.images.test_folder import LOOKALIKES, UNUSABLE

_FOLDER = {"data": {"source": "folder", "path": "pictures", "image_size": 8}}
_SYNTHETIC = {"source": "synthetic", "synthetic_images": 40, "synthetic_classes": 2, "image_size": 8}
_FEW = {"data": _SYNTHETIC}
_NOT_AN_IMAGE = "not an image of a known format (JPEG, PNG, BMP, GIF, WEBP, TIFF)"

Create = Callable[[Path], None]


def draw(root: Path) -> Path:
    """Draws a folder with eight pictures of cats and eight of dogs."""
    for label, name in enumerate(("cat", "dog")):
        (root / name).mkdir(parents=True)
        for number in range(8):
            pixels = np.random.default_rng((label, number)).integers(0, 256, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number:02d}.png")
    return root


def encoded(kind: str) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def bomb() -> bytes:
    """A PNG of 60,000 x 60,000 pixels in a few hundred bytes, of which only the header is read."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4) + kind + content + zlib.crc32(kind + content).to_bytes(4)

    header = (60_000).to_bytes(4) * 2 + bytes([1, 0, 0, 0, 0])
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes(255 - byte for byte in content[middle : middle + 8]) + content[middle + 8 :]


def tiff(value: float, dtype: str = "float32") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((12, 12), value, dtype=dtype)).save(stream, "TIFF")
    return stream.getvalue()


def bad_picture(
    name: str, reason: str, content: bytes = b"", file: str = "x.png", create: Create | None = None
) -> Case:
    """A picture that cannot be used, with `data.max_bad_fraction` 0."""

    def arrange(root: Path, _: pytest.MonkeyPatch) -> None:
        path = draw(root / "pictures") / "cat" / file
        if create:
            create(path)
        else:
            path.write_bytes(content)

    return Case(f"a picture: {name}", "prepare", (f"({reason}",), _FOLDER, arrange)


def bad_folder(build: Callable[[Path], Path], fragment: str) -> Case:
    def arrange(root: Path, _: pytest.MonkeyPatch) -> None:
        built = build(draw(root / "pictures"))
        if built != root / "pictures":
            (root / "params.yaml").write_text(f"data: {{source: folder, path: '{built}'}}")

    return Case(
        f"a folder: {build.__name__.replace('_', ' ')}",
        "prepare",
        (fragment.partition(" in .*")[0],),
        _FOLDER,
        arrange,
    )


def rejected(name: str, fragment: str, arrange: Arrange | None, params: dict[str, Any] = _FEW, **others: Any) -> Case:
    return Case(name, "prepare", (fragment,), params, arrange, **others)


def _same_pictures(root: Path, _: pytest.MonkeyPatch) -> None:
    for path in sorted((draw(root / "pictures") / "dog").iterdir())[1:]:
        path.write_bytes((path.parent / "00.png").read_bytes())


def _no_network(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


def _prepared_file(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / files.PREPARED).write_text("")


def _labels_folder(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / files.PREPARED / "train_labels.npy").mkdir(parents=True)


def _no_environment(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / files.ENVIRONMENT_FILE).unlink()


def _damaged_environment(root: Path, _: pytest.MonkeyPatch) -> None:
    text = (root / files.ENVIRONMENT_FILE).read_text()
    (root / files.ENVIRONMENT_FILE).write_text(text.replace('"device": "', '"device": "n', 1))


def _truncated_environment(root: Path, _: pytest.MonkeyPatch) -> None:
    content = (root / files.ENVIRONMENT_FILE).read_bytes()
    (root / files.ENVIRONMENT_FILE).write_bytes(content[: len(content) // 2])


def _store_text(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "mlflow.db").write_text("not a database" * 100)


def _deleted_experiment(root: Path, _: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{root}/mlflow.db")
    client.delete_experiment(client.create_experiment("mixed-precision"))


def _link_out(path: Path) -> None:
    outside = path.parents[2] / "secret.png"
    outside.write_bytes(encoded("PNG"))
    path.symlink_to(outside)


def _link_to_folder_out(path: Path) -> None:
    path.symlink_to(path.parents[2])


CASES = [
    *(bad_folder(build, fragment) for build, fragment in [*UNUSABLE, *LOOKALIKES]),
    bad_picture("empty", "empty file"),
    bad_picture("text", _NOT_AN_IMAGE, b"not a picture"),
    bad_picture("a page with a script", _NOT_AN_IMAGE, b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>"),
    bad_picture("an icon, whose parser is not used", _NOT_AN_IMAGE, encoded("ICO")),
    bad_picture(
        "PostScript, which could start a program", _NOT_AN_IMAGE, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
    ),
    bad_picture("only a header", _NOT_AN_IMAGE, encoded("PNG")[:40]),
    bad_picture("a PNG truncated to its first half", "cannot be decoded", encoded("PNG")[:1500]),
    bad_picture("a JPEG truncated to its first half", "cannot be decoded", encoded("JPEG")[:700], "x.jpg"),
    bad_picture("a WebP truncated to its first half", "cannot be decoded", encoded("WEBP")[:300], "x.webp"),
    bad_picture("a GIF truncated to its first half", "cannot be decoded", encoded("GIF")[:1000], "x.gif"),
    bad_picture("a BMP truncated to its first half", "cannot be decoded", encoded("BMP")[:900], "x.bmp"),
    bad_picture("a PNG with flipped bits", "cannot be decoded", flipped(encoded("PNG"))),
    bad_picture("values that are not numbers", "it contains values that are not finite", tiff(np.nan), "x.tif"),
    bad_picture("floats above 1", "values from 300 to 300, but floats must be from 0", tiff(300.0), "x.tif"),
    bad_picture("negative floats", "values from -1 to -1, but floats must be from 0", tiff(-1.0), "x.tif"),
    bad_picture("32-bit integers", "signed integers, for which no value is white", tiff(9, "int32"), "x.tif"),
    bad_picture("a TIFF truncated to its head", "a TIFF file that Pillow cannot read", tiff(0.5)[:9], "x.tif"),
    bad_picture("a decompression bomb", "more pixels than data.max_pixels", bomb()),
    bad_picture("a pipe", "not a regular file", create=os.mkfifo),
    bad_picture("a link to a file outside", "a link that leads out of the folder", create=_link_out),
    bad_picture("a link to a folder outside", "a link that leads out of the folder", create=_link_to_folder_out),
    bad_picture("a link to nothing", "a link to nothing", create=lambda path: path.symlink_to("gone.png")),
    bad_picture("a link to itself", "a link to nothing", create=lambda path: path.symlink_to(path.name)),
    bad_picture("a name with a line break", "empty file", file="two\nlines.png"),
    bad_picture("a name that is not UTF-8", "empty file", file=os.fsdecode(b"\xff.png")),
    bad_picture("a name with terminal control characters", "empty file", file="\x1b[2J.png"),
    Case("all pictures of a class are the same", "prepare", ("class 'dog': 1 distinct",), _FOLDER, _same_pictures),
    rejected(
        "more images than fit on the disk",
        "GiB are free; free some disk space, or lower data.image_size",
        None,
        {"data": {"source": "synthetic", "synthetic_images": 10**9, "image_size": 1024}},
    ),
    rejected("CIFAR-10 cannot be downloaded", "URL fetch failure on", _no_network, {"data": {"source": "cifar10"}}),
    rejected("data/prepared is a file", "data/prepared: cannot be written (File exists)", _prepared_file),
    rejected("an output is a folder", "train_labels.npy: cannot be written (Is a directory)", _labels_folder),
    rejected("environment has not run", "data/environment.json is missing: run `dvc repro`", _no_environment),
    rejected("environment.json was changed", "data/environment.json is damaged", _damaged_environment),
    rejected("environment.json was truncated", "data/environment.json is not JSON", _truncated_environment),
    rejected("the tracking store was overwritten", "mlflow.db cannot be used", _store_text),
    rejected("the experiment was deleted", "'mixed-precision', which has been deleted", _deleted_experiment),
    rejected(
        "params.yaml is wrong without `environment`", "train.epochs is -1", None, {"train": {"epochs": -1}}, status=2
    ),
]
