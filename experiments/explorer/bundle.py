"""The page as one HTML file with program, style and data."""

import json
import pathlib
import re
from typing import Any

_FOLDER = pathlib.Path(__file__).parent / "page"


def page(data: dict[str, Any]) -> str:
  """Returns the HTML of the page.

  Args:
    data: JSON value with `runs`. Each run is from `live` or `recorded`, with a name and a summary.
  """
  text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
  text = text.replace("<", r"\u003c")  # a sentence must not close the script element
  parts = {
    "style": (_FOLDER / "page.css").read_text("utf-8"),
    # UTF-8 cannot encode half of a surrogate pair; its escape is valid JSON.
    "data": text.encode("utf-8", "backslashreplace").decode("utf-8"),
    "program": (_FOLDER / "built" / "page.js").read_text("utf-8"),
  }
  html = (_FOLDER / "index.html").read_text("utf-8")
  return re.sub(r"/\* (style|data|program) \*/", lambda match: parts[match.group(1)], html)
