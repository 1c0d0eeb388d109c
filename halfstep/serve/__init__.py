"""The stage `serve`: the trained weights in other formats, each timed beside Keras and tested."""
