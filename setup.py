"""Build the guide into the package that serves it. pyproject.toml has everything else."""

import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithGuide(build_py):
    """Every installation, wheel and image has the guide."""

    def run(self) -> None:
        subprocess.run([sys.executable, "-m", "deploy.guide"], check=True)
        super().run()


setup(cmdclass={"build_py": BuildWithGuide})
