"""The page: its program, its style and its data in one file of HTML, which needs nothing else."""

import json
import pathlib
import re
import zlib
from typing import Any

_FOLDER = pathlib.Path(__file__).parent / "page"
# Each file after those that it imports.
PROGRAM = (
  *(
    "numbers.mjs",
    "arrays.mjs",
    "words.mjs",
    "model.mjs",
    "search.mjs",
    "address.mjs",
    "entries.mjs",
    "alignment.mjs",
  ),
  *(
    "strengths.mjs",
    "translated.mjs",
    "explained.mjs",
    "dom.mjs",
    "map.mjs",
    "arcs.mjs",
    "tree.mjs",
    "stage.mjs",
  ),
  *("lights.mjs", "live.mjs", "recorded.mjs", "controls.mjs", "explore.mjs"),
)


def page(data: dict[str, Any]) -> str:
  """Returns the page.

  Args:
    data: a value for JSON, with `runs`, each of `live` or `recorded`, with a name and a summary.
  """
  text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
  text = text.replace("<", r"\u003c")  # or a sentence could end the script that holds it
  parts = {
    "style": _read("style.css"),
    "data": text,
    "sum": str(zlib.adler32(text.encode("utf-8"))),  # by which the page sees that it is damaged
    "program": program(),
  }
  return re.sub(r"/\* (style|data|sum|program) \*/", lambda found: parts[found.group(1)], _read("index.html"))


def program() -> str:
  """Returns the modules of the page as one script.

  A page that is opened from a disk may load no modules. So each becomes a function that returns what it
  exports, and finds what it imports among those before it.
  """
  modules = "\n".join(map(_as_function, PROGRAM))
  return f'"use strict";\nconst modules = {{}};\n{modules}\nmodules["explore.mjs"].explore();\n'


def _as_function(name: str) -> str:
  text = _read(name)
  exported = re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", text, flags=re.MULTILINE)
  text = re.sub(
    r'^import (\{[^}]*\}) from "\./([^"]*)";', r'const \1 = modules["\2"];', text, flags=re.MULTILINE
  )
  text = re.sub(r"^export ", "", text, flags=re.MULTILINE)
  return f'modules["{name}"] = (() => {{\n{text}\nreturn {{ {", ".join(exported)} }};\n}})();'


def _read(name: str) -> str:
  return (_FOLDER / name).read_text("utf-8")
