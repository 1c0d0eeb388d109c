"""The DVC remote, which carries results between machines: which of its settings travel, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfstep.errors import FleetError, one_line, without_password
from halfstep.system.commands import dvc_error, run_dvc

_TRAVEL = ("url", "endpointurl", "region", "use_ssl", "account_name", "projectname")  # none of them is a secret
_SECRETS = (
    *("access_key_id", "secret_access_key", "session_token", "password", "token", "account_key", "sas_token"),
    *("connection_string", "client_secret", "gdrive_client_secret", "oss_key_secret"),
)


@dataclass(frozen=True)
class Remote:
    """The default remote of the checkout, and those of its settings that travel."""

    name: str
    settings: dict[str, str]

    def as_config(self) -> str:
        """The text of a DVC configuration with this remote, for a tree without git."""
        lines = [f'    {name} = "{value}"\n' for name, value in self.settings.items()]
        return f"[core]\n    remote = {self.name}\n    no_scm = true\n['remote \"{self.name}\"']\n{''.join(lines)}"


def configured() -> Remote:
    """The default remote, as DVC resolves it for the working folder.

    Raises:
        FleetError: there is none, DVC keeps no run cache on it, or a secret would travel with git.
    """
    from dvc.config import Config
    from dvc.exceptions import DvcException

    try:
        config: Any = Config(dvc_dir=str(Path(".dvc").resolve()))
        tracked: Any = config.load_one("repo")
    except DvcException as error:
        raise FleetError(f"DVC's configuration cannot be read: {one_line(str(error), 300)}") from error
    name = config.get("core", {}).get("remote")
    if not name or name not in config["remote"]:
        raise FleetError(
            "no DVC remote is configured, through which results come home; add one that all machines reach: "
            "`dvc remote add --default NAME URL` (s3://bucket/path, ssh://host/path, or a folder that they share)"
        )
    remote = config["remote"][name]
    _require_no_secret(name, remote, tracked.get("remote", {}).get(name, {}))
    settings = {key: str(remote[key]) for key in _TRAVEL if key in remote}
    return Remote(name, settings)


def _require_no_secret(name: str, remote: Any, tracked: Any) -> None:
    url = str(remote["url"])
    if without_password(url) != url:
        raise FleetError(
            f"remote.{name}.url contains a password, which would travel to the nodes; remove it from the URL, and give "
            "each node its own credentials (see docs/fleet.md)"
        )
    if url.startswith(("http://", "https://")):
        raise FleetError(
            f"remote.{name}.url is {one_line(url, 200)}; DVC keeps no run cache over HTTP, so results could not come "
            "home: use s3://, ssh://, or a folder that all machines share"
        )
    if secrets := [key for key in _SECRETS if key in tracked]:
        raise FleetError(
            f"remote.{name}.{secrets[0]} is in .dvc/config, which git tracks and which would travel to the nodes; "
            f"remove it there and set it with `dvc remote modify --local {name} {secrets[0]} VALUE`"
        )


def push(targets: Sequence[str]) -> None:
    """`dvc push` with the run cache.

    Raises:
        FleetError: the remote refuses, with DVC's message.
    """
    done = run_dvc("push", "--run-cache", *targets)
    if done.returncode:
        advice = f"check the remote '{configured().name}' and the credentials of this machine"
        raise FleetError(f"dvc push: {dvc_error(done.stderr)}; {advice}")
