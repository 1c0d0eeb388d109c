"""What a package index shows: the README, whose links into the repository are made absolute, and the project's links.

All of them follow from `repository` in pyproject.toml.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


class ReadmeAndLinks(MetadataHookInterface):
    """Fills the fields that pyproject.toml calls dynamic."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds the README and the links, those of this version."""
        url, version = self.config["repository"], f"v{metadata['version']}"

        def absolute(link: re.Match[str]) -> str:
            is_image, text, path = link.groups()
            return f"{is_image}{text}({url}/{'raw' if is_image else 'blob'}/{version}/{path})"

        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": _LINK.sub(absolute, readme)}
        metadata["urls"] = {
            "Source": url,
            "Documentation": f"{url}/tree/{version}/docs",
            "Changelog": f"{url}/blob/{version}/CHANGELOG.md",
            "Issues": f"{url}/issues",
        }
