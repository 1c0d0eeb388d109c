"""Packs the images of a source into uint8 arrays, split into training, validation and test.

This file and those of the packages above it import nothing slow, because each decoding process imports them.
"""
