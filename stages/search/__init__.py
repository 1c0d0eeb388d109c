"""Finds the fewest layers in float32 with which a mixed policy trains, keeps the quality, and is fastest."""
