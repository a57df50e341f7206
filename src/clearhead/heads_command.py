"""The steps of `clearhead heads`, and of `clearhead map --segments`: read, ask, write or print."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ._writing import replacing
from .map_command import check_files

if TYPE_CHECKING:
    from .models.heads import HeadTable
    from .models.run import AttentionRun


def heads(
    table: "HeadTable", files: Mapping[str, str], *, sort: str | None, top: int | None
) -> None:
    """Write the table to the files asked for; print it, unless one of them is standard output.

    files  json, csv: a path or -; png: a path, of a picture of the column `sort`
    """
    for option, path in files.items():
        if option == "png":
            with replacing(path, binary=True) as out:
                table.save_plot(out, sort or "previous")
        else:
            text = table.to_json(sort, top) if option == "json" else table.to_csv(sort, top)
            _write(path, text)
    if "-" not in files.values():
        print(table.to_text(sort, top))


def segments(run: "AttentionRun", marker: str, files: Mapping[str, str]) -> None:
    """Print how much the segments of a text read each other, or write it as JSON."""
    others = sorted(set(files) - {"json"})
    if others:
        raise ValueError(f"segments: are a table or --json; leave out --{others[0]}")
    reading = run.group_by(marker)
    if "json" in files:
        _write(files["json"], reading.to_json())
    if files.get("json") != "-":
        print(reading)


def check(files: Mapping[str, str], given: str, sort: str | None) -> None:
    """Refuse before the work files that cannot be written, and a column that there is not."""
    from .models.heads import check_column

    check_files(files, given)
    if sort is not None:
        check_column(sort)


def _write(path: str, text: str) -> None:
    text = text if text.endswith("\n") else text + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        with replacing(path) as out:
            out.write(text)
