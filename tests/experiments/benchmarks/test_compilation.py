"""Tests of the benchmark of compilation."""

import json

import jax.numpy as jnp

from experiments.benchmarks import compilation


def test_stages_and_lines_are_reported(tmp_path, monkeypatch, capsys):
  program = compilation.Program("square", lambda x: x**2, (jnp.ones((2, 3)),))
  monkeypatch.setattr(compilation, "programs", lambda: [program])
  compilation.run(tmp_path, repeats=2)
  records = json.loads((tmp_path / "compile.json").read_text("utf-8"))
  assert [record["pass"] for record in records] == ["forward", "gradient"]
  for record in records:
    stages = record["tracing"] + record["lowering"] + record["compiling"]
    assert record["total"] > 0 and abs(stages - record["total"]) < 1e-3 + 0.5 * record["total"]
    assert 0 < record["program_lines"] < record["lines"]
  assert (tmp_path / "compile.md").read_text("utf-8") == capsys.readouterr().out


def test_programs_are_those_of_jax_and_flax_and_ours():
  names = [program.name.split(" (")[0] for program in compilation.programs()]
  four = ["jax.nn", "scaled_dot_product_attention", "additive, three lines", "additive_attention"]
  assert names == [*four, *four, "six layers of Flax", "six layers of EncoderLayer"]
