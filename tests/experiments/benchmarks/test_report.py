"""Tables and figures of benchmarks."""

from experiments.benchmarks import report
from experiments.benchmarks.timing import PASSES


def made_up(baseline, which, milliseconds, length=512, suite="length"):
  return {
    **{"suite": suite, "case": f"dot {length}", "score": "dot_product", "length": length},
    **{"baseline": baseline, "pass": which, "milliseconds": milliseconds, "peak_share": 0.25},
    "quartiles": [milliseconds - 0.5, milliseconds + 0.5],
    "temporary_mib": None if baseline == "torch" else 3.0,
  }


def test_rows_have_speedups():
  records = [
    made_up(baseline, which, time)
    for which, ours, theirs in (("forward", 2.0, 4.0), ("forward + backward", 3.0, 1.0))
    for baseline, time in (("attention", ours), ("torch", theirs))
  ]
  for baseline, unavailable in (("keras", "not installed"), ("jax.nn", "would store 4 GiB")):
    records.append({"suite": "length", "case": "dot 512", "baseline": baseline, "unavailable": unavailable})
  assert report.rows(records).splitlines() == [
    "| dot 512 | attention | 2 (1.5 to 2.5) |  | 3 (2.5 to 3.5) |  | 3 / 3 |",
    "| dot 512 | torch | 4 (3.5 to 4.5) | 2.0× | 1 (0.5 to 1.5) | 0.3× | not reported |",
    "| dot 512 | not measured: keras not installed; jax.nn would store 4 GiB |  |  |  |  |  |",
  ]


def test_suites_have_a_summary_each():
  records = [
    made_up("attention", "forward", 2345.6),
    made_up("torch", "forward", 46912.0),
    made_up("attention", "forward + backward", 3.0),
    made_up("torch", "forward + backward", 1.0),
    made_up("attention", "forward", 2.0, length=1024),
    made_up("attention", "forward", 4.0, suite="dot_product"),
  ]
  assert report.summary(records).splitlines() == [
    "| case | attention, ms (forward / both) | share of peak | vs. torch |",
    "| --- | --- | --- | --- |",
    "| dot 512 | 2,346 / 3 | 25% / 25% | 20× / 0.3× |",
    "| dot 1024 | 2 | 25% | - |",
    "",
    "| case | attention, ms (forward / both) | share of peak |",
    "| --- | --- | --- |",
    "| dot 512 | 4 | 25% |",
  ]


def test_lengths_are_plotted(tmp_path):
  records = [
    made_up(baseline, which, length / 100, length)
    for which in PASSES
    for baseline in ("attention", "torch")
    for length in (512, 1024)
  ]
  paths = report.draw(tmp_path, records)
  assert [path.name for path in paths] == ["time.png", "memory.png", "peak_share.png"]
  assert all(path.stat().st_size > 10_000 for path in paths)
  assert report.draw(tmp_path, records[:1]) == []
  assert report.draw(tmp_path, [record | {"suite": "window"} for record in records]) == []
