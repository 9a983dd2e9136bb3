"""Sickbay: one lesson for the whole fleet of LLM routers."""
