"""`python -m bench.recipes`."""

import sys

from bench.recipes.run import main

sys.exit(main())
