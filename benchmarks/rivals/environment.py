"""Create the virtual environments of the public tools that we compare with.

    python -m benchmarks.rivals.environment [trl] [vllm]

`.venv-trl` and `.venv-vllm` in the repository's root, from the pinned requirements beside this file.
An environment whose requirements have not changed is left alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

__all__ = ["create", "main"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Their ordinary wheels do not load beside the CPU build of torch, and then neither does vllm, which
# needs none of them for text.
UNWANTED = {"vllm": ["torchvision", "torchaudio", "torchcodec"], "trl": []}


def create(name: str) -> Path:
    """The environment of a tool, installed if need be."""
    folder = ROOT / f".venv-{name}"
    wanted = (HERE / f"requirements-{name}.txt").read_text(encoding="utf-8")
    stamp = folder / ".installed"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return folder
    made = subprocess.run([sys.executable, "-m", "venv", str(folder)], check=False)
    if made.returncode != 0:
        subprocess.run([sys.executable, "-m", "virtualenv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip"]
    subprocess.run(
        [*pip, "install", "--quiet", "-r", str(HERE / f"requirements-{name}.txt")], check=True
    )
    if UNWANTED[name]:
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", *UNWANTED[name]], check=True)
    stamp.write_text(wanted, encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(UNWANTED)}")
    for name in parser.parse_args().names or UNWANTED:
        print(f"{create(name)} is ready")


if __name__ == "__main__":
    main()
