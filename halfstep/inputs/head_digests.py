"""In a copy of the checkout that the fleet made on a node: the digests of data, model and task that the head computed.

The node may lack what they describe, as the images of `data.path`: it receives `data/prepared` instead.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from halfstep.errors import CorruptFileError
from halfstep.system import files

HEAD_DIGESTS = files.WORK_DIR / "fleet.json"  # in a copy that the fleet made, and nowhere else


class HeadDigests(BaseModel):
    """What `environment` writes to `source`, `model` and `task` in `data/keys`.

    Attributes:
        checkout: identifier of the head's checkout.
        git: its tags of `halfstep.tracking.provenance.git_tags`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: dict[str, Any]
    model: dict[str, Any]
    task: dict[str, Any]
    checkout: str
    git: dict[str, str]


def read_head_digests() -> HeadDigests | None:
    """The head's digests if the checkout is a copy that the fleet made; None in any other.

    Raises:
        CorruptFileError: the file is not what the fleet writes.
    """
    path = files.original_root() / HEAD_DIGESTS
    if not path.exists():
        return None
    try:
        return HeadDigests.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        reason = f"{where}: {first['msg']}" if where else first["msg"]
        raise CorruptFileError(
            f"{path} cannot be used ({reason}); only the fleet writes it, in its copies: remove it"
        ) from error
