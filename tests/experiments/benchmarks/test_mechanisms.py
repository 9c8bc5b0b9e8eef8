"""Measurements of the library without its mechanisms."""

import dataclasses
import json
import pathlib
import re

import pytest

from experiments.benchmarks import mechanisms

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[3]


def test_each_row_of_the_page_is_measured_or_tested():
  text = (ROOT / "docs" / "design.md").read_text("utf-8")
  rows = [line.strip("| ").split(" | ") for line in re.findall(r"^\|.*\|$", text, flags=re.MULTILINE)[2:]]
  tested = {name: last.strip("`") for name, *_, last in rows if last.startswith("`")}
  assert {name for name, *_ in rows} - tested.keys() == {item.name for item in mechanisms.MECHANISMS}
  assert tested and all((ROOT / path).exists() for path in tested.values())


@pytest.mark.parametrize("mechanism", mechanisms.MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_replacement_changes_the_program(mechanism):
  program = mechanism.program()._replace(quantity="both")
  lowered = [mechanisms.lower(program, replaced) for replaced in ({}, {}, mechanism.replaced)]
  with_it, again, without = (program.as_text() for program in lowered)
  assert with_it == again != without


def test_small_gains_are_errors(tmp_path, monkeypatch):
  *_, mechanism = mechanisms.MECHANISMS
  needs_more = dataclasses.replace(mechanism, least=1e9, versions=("",))
  for_another_version = dataclasses.replace(mechanism, least=1e9, versions=("0.0.",))
  monkeypatch.setattr(mechanisms, "MECHANISMS", [for_another_version, needs_more])
  with pytest.raises(mechanisms.MechanismWithoutGain, match=mechanism.name):
    mechanisms.run(tmp_path, 1)
  records = json.loads((tmp_path / "mechanisms.json").read_text("utf-8"))
  assert [record["at_least"] for record in records] == [0, 1e9]
  assert all(record["ratio"] == record["without"] / record["with"] > 0 for record in records)
