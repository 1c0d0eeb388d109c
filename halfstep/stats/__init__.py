"""Statistics of the comparison: speed-ups, quality, and how many samples an answer takes."""
