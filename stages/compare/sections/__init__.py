"""The sections of the report as plain values: words, numbers, and positions in percent."""
