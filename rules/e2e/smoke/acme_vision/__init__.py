"""Acme."""
