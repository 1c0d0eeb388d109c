"""Imported first in another interpreter: what it lacks of halfstep's packages is found after its own."""

import os
import sys

sys.path += os.environ["HALFSTEP_LENT"].split(os.pathsep)
