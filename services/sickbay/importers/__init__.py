"""History of other systems as a log file: `sickbay import FORMAT FILE -o OUT` (docs/import.md).

May import the ground and `log`.
"""
