"""Names that are code in some language that a result is written in."""

from __future__ import annotations

FORMULAS = ('=HYPERLINK("http:x","y")', "@SUM(A1)", "+A1", "-A1+cmd|' '!A0", "＝A1", "'=A1")  # noqa: RUF001
NUMBERS = ("+1", "-1", "-0.5e3")
HIDDEN = ("\u202eabc", "\xa0", "a\u200bb", "\x1b[31mred", "tab\there")
NAMES = (
    "$^$",
    r"$\frac{}$",
    *FORMULAS,
    *NUMBERS,
    "[red]x[/red]",
    "<script>alert(1)</script>",
    "<!--<script>",
    "&lt;b&gt;",
    "a|b",
    "`x`",
    "**a** _b_ ~~c~~ [d](e) ![f](g)",
    "# x",
    "---",
    "- x",
    "1. x",
    "2) x",
    "a.b[0]",
    "${x} {{ x }} {% x %} {scripts}",
    "<DVC_METRIC_DATA>",
    "<DVC_METRIC_X>",
    "😀👩🏽‍🚀",
    "قط",
    "x" * 300,
    "'single' \"double\"",
    "a\\",
    "nan",
    "=",
    *HIDDEN,
)
