"""What is trained: the contract of a task, the user's own tasks, and the images below `images/`.

This file imports no TensorFlow: processes that decode images import it, too.
"""

from halfstep.tasks.task import Task as Task

__all__ = ["Task"]
