"""Sickbay inside the libraries that make the calls: each module here is imported only by who uses its library, and
imports that library only when it is used.

May import `router`; no library at its top.
"""
