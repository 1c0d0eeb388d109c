"""Comparisons of several places: machines, studies and occasions, on one page, for the gallery and the fleet."""
