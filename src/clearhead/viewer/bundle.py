"""The app's modules as one script, for a page that has no server to load them from.

Each module becomes a function that is called once and gives its exports, in the order in which they
need each other, so that no name of one reaches another. Comments and indents stay behind.
"""

import re
from importlib.resources import files

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const|let)\*? )(\w+)", re.MULTILINE)
_DOC = re.compile(r"/\*\*.*?\*/ ?", re.DOTALL)
_NOTE = re.compile(r"^\s*//.*\n", re.MULTILINE)
_INDENT = re.compile(r"^[ \t]+|^\n", re.MULTILINE)


def bundle(name: str) -> str:
    """The module `name` of the app and all that it needs, as one script without imports.

    Raises  ValueError: modules need each other in a ring, or import or export in another way.
    """
    parts: dict[str, str] = {}
    _add(name.removesuffix(".js"), parts, ())
    return "".join(parts.values())


def _add(name: str, parts: dict[str, str], above: tuple[str, ...]) -> None:
    """Put a module behind those that it needs."""
    if name in parts:
        return
    if name in above:
        raise ValueError(f"modules: {' needs '.join([*above, name])}, must not be a ring")
    code = files(__package__).joinpath("static", f"{name}.js").read_text("utf-8")
    code = _NOTE.sub("", _DOC.sub("", code))
    for _, needed in _IMPORT.findall(code):
        _add(needed, parts, (*above, name))
    given = [found[1] for found in _EXPORT.findall(code)]
    code = _EXPORT.sub(r"\1\2", _IMPORT.sub(_taken, code))
    code = code.replace("export {};\n", "")
    if re.search(r"^(import|export)\b", code, re.MULTILINE):
        raise ValueError(f'modules: {name}.js must import {{names}} from "./other.js" only')
    code = _INDENT.sub("", code)
    # what gives nothing is the page's own script, and may wait
    begins = "(() => {" if given else "await (async () => {"
    parts[name] = f"const ${name} = {begins}\n{code}return {{ {', '.join(given)} }};\n}})();\n"


def _taken(found: re.Match[str]) -> str:
    names = re.sub(r"(\w+) as (\w+)", r"\1: \2", found[1])
    return f"const {{{names}}} = ${found[2]};\n"
