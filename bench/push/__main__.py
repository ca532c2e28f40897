"""`python -m bench.push`."""

import sys

from bench.push.run import main

sys.exit(main())
