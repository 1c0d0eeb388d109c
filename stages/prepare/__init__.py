"""Packs the images of a source into uint8 arrays, split into training, validation and test.

This file imports nothing, because each decoding process imports this package at its start.
"""
