"""Sphinx configuration, for `make docs`."""

import os
import pathlib
import re
import sys

from docutils import nodes
from latex2mathml.converter import convert

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = str(ROOT)  # for the notebook

project = "attention"
author = "the attention-jax authors"
extensions = [
  "myst_nb",
  "sphinx.ext.autodoc",
  "sphinx.ext.napoleon",
  "sphinx.ext.viewcode",
]
html_theme = "sphinx_book_theme"
html_title = "attention"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_theme_options = {"home_page_in_toc": True, "show_navbar_depth": 1}
html_show_copyright = False
exclude_patterns = ["_build"]

# MathML instead of MathJax, which browsers would load from a network.
html_math_renderer = "mathml"

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]

nb_execution_mode = "cache"
nb_merge_streams = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the text gives shapes
maximum_signature_line_length = 60  # longer ones have one argument per line
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_attr_annotations = False
default_role = "py:obj"  # `name` becomes a link if it is documented


def setup(app):
  app.add_html_math_renderer("mathml", (_visit_math, None), (_visit_math_block, None))
  # Before Napoleon, which parses the sections.
  app.connect("autodoc-process-docstring", _as_restructured_text, priority=400)
  app.connect("autodoc-process-signature", _with_plain_defaults)


def _visit_math(translator, node):
  translator.body.append(convert(node.astext()))
  raise nodes.SkipNode


def _visit_math_block(translator, node):
  translator.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>\n')
  raise nodes.SkipNode


def _with_plain_defaults(app, what, name, obj, options, signature, return_annotation):
  """Replaces defaults such as `<function relu at 0x...>` by names, and removes Flax's own arguments."""
  plain = re.sub(r"parent=<[^>]*>, name=None(, )?", "", signature or "").replace(", )", ")")
  plain = re.sub(r"<(?:class '|function )(?:[\w.<>]*\.)?(\w+)[^>]*>", r"\1", plain)
  return plain.replace("<factory>", "..."), return_annotation


def _as_restructured_text(app, what, name, obj, options, lines):
  """Converts plain-text docstrings for Sphinx: formulas become literal blocks, stars and bars are escaped."""
  converted, in_formula = [], False
  for i, line in enumerate(lines):
    is_indented = len(line) - len(line.lstrip()) >= 4
    begins = is_indented and i > 0 and not lines[i - 1].strip() and not in_formula
    if begins:
      converted += ["  ::" if line.startswith("      ") else "::", ""]
    in_formula = begins or (in_formula and (is_indented or not line.strip()))
    converted.append(line if in_formula or line.lstrip().startswith(">>>") else _escaped(line))
  lines[:] = converted


def _escaped(line):
  """Escapes stars and bars in a line, except for a bullet and text in backticks."""
  bullet, text = re.fullmatch(r"(\s*(?:\* )?)(.*)", line).groups()
  parts = re.split(r"(`[^`]*`)", text)
  text = "".join(part if part.startswith("`") else re.sub(r"([*|])", r"\\\1", part) for part in parts)
  return bullet + re.sub(r"(`[^`]+`)(?=\w)", r"\1\\ ", text)  # plurals, such as `Layer`s
