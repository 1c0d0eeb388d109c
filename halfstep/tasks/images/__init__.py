"""The task `images`: classifiers of the images and networks that `data` and `model` describe."""
