"""Files of scripts; test_workdir.py has writes that fail."""

import os

from experiments.cli.io import read_lines, write_text


def test_files_are_replaced(tmp_path):
  path = tmp_path / "scores.json"
  path.write_text("before")
  write_text(path, "after")
  assert path.read_text() == "after" and list(tmp_path.iterdir()) == [path]


def test_links_and_devices_are_kept(tmp_path):
  file, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
  link.symlink_to(file)
  write_text(link, "text")
  assert link.is_symlink() and file.read_text() == "text"
  os.mkfifo(pipe)
  reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
  write_text(pipe, "text")
  assert pipe.is_fifo() and os.read(reader, 99) == b"text"
  os.close(reader)


def test_only_line_ends_split_lines(tmp_path):
  path = tmp_path / "lines"
  path.write_bytes("\ufeffa b\r\n\nc\u2028d\x85e\rf\n".encode())
  assert read_lines(path) == ["a b", "", "c\u2028d\x85e\rf"]
  path.write_bytes(b"")
  assert read_lines(path) == []
