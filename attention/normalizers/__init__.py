"""Normalizers: functions that map scores to weights."""
