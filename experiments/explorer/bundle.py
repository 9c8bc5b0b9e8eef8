"""The page as one HTML file with program, style and data."""

import graphlib
import json
import pathlib
import re
import zlib
from typing import Any

_FOLDER = pathlib.Path(__file__).parent / "page"
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([^"]*)";', re.MULTILINE)
_EXPORT = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)


def page(data: dict[str, Any]) -> str:
  """Returns the HTML of the page.

  Args:
    data: JSON value with `runs`. Each run is from `live` or `recorded`, with a name and a summary.
  """
  text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
  text = text.replace("<", r"\u003c")  # a sentence must not close the script element
  # UTF-8 cannot encode half of a surrogate pair; its escape is valid JSON.
  text = text.encode("utf-8", "backslashreplace").decode("utf-8")
  parts = {
    "style": "".join(path.read_text("utf-8") for path in sorted(_FOLDER.glob("*.css"))),
    "data": text,
    "sum": str(zlib.adler32(text.encode("utf-8"))),  # checksum, to detect damaged files
    "program": program(),
  }
  html = (_FOLDER / "index.html").read_text("utf-8")
  return re.sub(r"/\* (style|data|sum|program) \*/", lambda match: parts[match.group(1)], html)


def program() -> str:
  """Returns the modules of the page as one script, in topological order.

  A page opened from disk cannot load modules, so each module becomes a function that returns its exports. The
  same script runs in the page and in its worker.
  """
  texts = {path.name: path.read_text("utf-8") for path in sorted(_FOLDER.glob("*.mjs"))}
  imports = {name: [module for _, module in _IMPORT.findall(text)] for name, text in texts.items()}
  order = graphlib.TopologicalSorter(imports).static_order()
  modules = "\n".join(_as_function(name, texts[name]) for name in order)
  main = 'modules[typeof document === "undefined" ? "worker.mjs" : "explore.mjs"].main();'
  return f'"use strict";\nconst modules = {{}};\n{modules}\n{main}\n'


def _as_function(name: str, text: str) -> str:
  exports = ", ".join(_EXPORT.findall(text))
  text = _IMPORT.sub(r'const \1 = modules["\2"];', text)
  text = re.sub(r"^export ", "", text, flags=re.MULTILINE)
  return f'modules["{name}"] = (() => {{\n{text}\nreturn {{ {exports} }};\n}})();'
