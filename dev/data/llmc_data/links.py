"""Symbolic links of a folder from somebody else: which are followed where a file's content is copied."""

from pathlib import Path

from llmc_data.errors import DataError


def own_file(path: Path) -> Path:
    """The file, unless it is a link out of its folder: a folder of shards must not get a file of the user's that a
    model's folder chose. In a snapshot of Hugging Face's cache (models--ORG--NAME/snapshots/REVISION) links may lead to
    the blobs of the same repository."""
    folder, file = path.parent.resolve(), path.resolve()
    snapshots = [place for place in (folder, *folder.parents) if place.parent.name == "snapshots"]
    repositories = [place.parent.parent for place in snapshots if place.parent.parent.name.startswith("models--")]
    if not any(file.is_relative_to(place) for place in (folder, *(place / "blobs" for place in repositories))):
        raise DataError(
            f"{path} is a link to {file}, outside of its folder, and its content would be copied from there\n"
            "  if that is meant, put the file itself there instead of the link"
        )
    return path
