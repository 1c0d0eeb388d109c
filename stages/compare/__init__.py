"""The last stage: from the files of the others to a verdict, its reasons, and a report. No TensorFlow."""
