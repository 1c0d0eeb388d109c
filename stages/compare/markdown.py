"""The comparison as Markdown, from `comparison.json`: the description of its run, and a comment on a pull request.

python -m stages.compare.markdown > comment.md
"""

from __future__ import annotations

from typing import Any

from stages import files
from stages.errors import explained

LONGEST_DESCRIPTION = 7900  # characters; a tag of MLflow holds 8,000
_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#"})


def render_markdown(comparison: dict[str, Any]) -> str:
    """The verdicts, a table of the numbers, and under each candidate its reasons and what would settle it.

    Args:
        comparison: the content of `comparison.json`.
    """
    candidates = comparison["candidates"]
    device = comparison["environment"].get("device", "")
    lines = [f"Compared with {_plain(comparison['baseline'])}{f' on {_plain(device)}' if device else ''}.", ""]
    if "gate" in comparison:
        lines += [f"Gate: **{comparison['gate']}**", ""]
    lines += [
        f"- **{_plain(name)}: {item['verdict']}.** {_plain(item['sentence'])}" for name, item in candidates.items()
    ]
    measured = {name: item for name, item in candidates.items() if "speedup" in item}
    if measured:
        lines += ["", *_table(measured)]
    for name, item in candidates.items():
        lines += _details(name, item)
    return "\n".join(lines) + "\n"


def description(comparison: dict[str, Any]) -> str:
    """The same, cut at the end of a line where it is longer than MLflow takes."""
    text = render_markdown(comparison)
    if len(text) <= LONGEST_DESCRIPTION:
        return text
    return text[: text.rindex("\n", 0, LONGEST_DESCRIPTION)] + "\n\nThe rest is in report.html.\n"


def _table(measured: dict[str, dict[str, Any]]) -> list[str]:
    rows = ["| candidate | measure | speed-up | 95 % interval | verdict |", "| --- | --- | ---: | ---: | --- |"]
    for name, item in measured.items():
        for measure, ratio in item["speedup"].items():
            verdict = item["verdict" if measure == "train" else f"verdict_{measure}"]
            rows.append(
                f"| {_plain(name)} | {_plain(measure)} | {ratio['ratio']:.2f}× | {ratio['low']:.2f} to "
                f"{ratio['high']:.2f} | {verdict} |"
            )
        change = item["accuracy"]
        low, high = (f"{100 * change[end]:+.2f}" for end in ("low", "high"))
        rows.append(
            f"| {_plain(name)} | accuracy, points | {100 * change['delta']:+.2f} | {low} to {high} | "
            f"the same within {100 * change['margin']:g}: {change['outcome']} |"
        )
    return rows


def _details(name: str, item: dict[str, Any]) -> list[str]:
    lines = [
        f"- {_plain(reason['text'])} {_plain(reason['advice'])} (`{reason['code']}`)" for reason in item["reasons"]
    ]
    lines += [f"- To settle it: {_plain(sentence)}" for sentence in item.get("settle", ())]
    return ["", f"**Why, {_plain(name)}**", "", *lines] if lines else []


def _plain(text: str) -> str:
    """Text without a meaning in Markdown or HTML: names come from folders and from parameters."""
    return " ".join(text.split()).translate(_SPECIAL)


@explained
def main() -> None:
    """Prints the Markdown of the comparison that lies below `data/`."""
    print(render_markdown(files.read_json(files.COMPARE / "comparison.json")), end="")


if __name__ == "__main__":
    raise SystemExit(main())
