"""Carrying out what was admitted: functions, deadlines, exceptions made into codes."""
