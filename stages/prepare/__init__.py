"""Images of any of the sources become packed uint8 arrays, split for training, validation and test.

Kept free of imports: the decoding processes load this package, and should be up in a moment.
"""
